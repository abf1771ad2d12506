"""Reads for people: what of a job runs now and how far that is, and the newest task of one name. After: job_figures."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .job_figures import COUNT_LIMIT, NodeStats, read_node_stats
from .postgres import Database
from .redaction import hidden_in, secrets_in, shown_json
from .views import get_task

CURRENT_LIMIT = 20

# All leases are as many as there are slots; those of fair queues have another order_key, so their tasks are asked.
CURRENT_TASKS = """
SELECT t.id::text AS task_id, coalesce(t.name, t.entrypoint) AS name, l.attempt, t.max_attempts,
       l.claimed_at AS started_at, t.kwargs, p.data AS progress
FROM (SELECT task_id, run_epoch, attempt, claimed_at FROM (
          SELECT task_id, order_key, flags, run_epoch, attempt, claimed_at FROM aaiclick_queue.leases LIMIT $2) AS held
      WHERE held.order_key = $1 OR (held.flags & 2 = 2 AND EXISTS (
          SELECT FROM aaiclick_queue.tasks f WHERE f.id = held.task_id AND f.job_id = $1))
      ORDER BY claimed_at, task_id LIMIT $3) AS l
CROSS JOIN LATERAL (
    SELECT id, name, entrypoint, max_attempts, kwargs FROM aaiclick_queue.tasks WHERE id = l.task_id OFFSET 0) AS t
LEFT JOIN aaiclick_queue.progress p ON p.task_id = l.task_id AND p.run_epoch = l.run_epoch
ORDER BY l.claimed_at, l.task_id
"""


class CurrentTask(msgspec.Struct, frozen=True):
    """A task that runs; `percent` and `message` where it has told them, `progress` as it has told it."""

    task_id: str
    name: str
    attempt: int
    max_attempts: int | None
    started_at: datetime
    percent: float | None
    message: str | None
    progress: Any


class NodeProgress(NodeStats, frozen=True, kw_only=True):
    """The tasks of one name; and of the newest of them where it is, what it has told, and what it has kept."""

    status: str | None
    attempt: int
    max_attempts: int | None
    progress: Any
    checkpoint: Any


async def read_current_tasks(db: Database, job_id: int) -> list[CurrentTask]:
    """What of the job runs, the longest first; twenty at most."""
    names, found = db.settings.redact_names, []
    for row in await db.fetch(CURRENT_TASKS, job_id, COUNT_LIMIT, CURRENT_LIMIT):
        values = dict(row)
        secrets = secrets_in(values.pop("kwargs"), names)
        told = hidden_in(shown_json(values.pop("progress"), names), secrets)
        found.append(CurrentTask(**values, percent=percent_of(told), message=message_of(told), progress=told))
    return found


async def read_node_progress(db: Database, job_id: int, name: str) -> NodeProgress | None:
    """The tasks of that name in the job, and the newest of them; None where none is called so."""
    stats = await read_node_stats(db, job_id, name)
    task = None if stats is None else await get_task(db, int(stats.newest_id))
    if stats is None or task is None:
        return None
    return NodeProgress(
        **msgspec.structs.asdict(stats),
        status=task.status,
        attempt=task.attempt,
        max_attempts=task.max_attempts,
        progress=task.progress,
        checkpoint=task.checkpoint,
    )


def percent_of(told: Any) -> float | None:
    """How far a task says it is, as `progress(0.5)` or `progress(30, 100)` say it; None where it has not."""
    given = told if isinstance(told, dict) else {"current": told}
    try:
        current, total = (_number(given.get(word, default)) for word, default in (("current", None), ("total", 1)))
    except OverflowError:
        return None
    return None if current is None or not total else min(100.0, max(0.0, 100.0 * current / total))


def message_of(told: Any) -> str | None:
    """What a task says it is at."""
    message = told.get("message") if isinstance(told, dict) else None
    return message if isinstance(message, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
