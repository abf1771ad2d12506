"""Archive: what is pruned goes into a history first, where there is one. Part of prune.

Only what the history has taken is deleted. While it takes nothing, nothing is, until its patience is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ..schema import Transaction

log = logging.getLogger(__name__)

# Read whole as JSON: a column that is added is kept without a word here.
READ_TASKS = """
SELECT to_jsonb(t)::text AS task, coalesce((
    SELECT jsonb_agg(to_jsonb(a) ORDER BY a.run_epoch) FROM aaiclick_queue.attempts a WHERE a.task_id = t.id),
    '[]')::text AS attempts
FROM aaiclick_queue.tasks t WHERE t.id = ANY($1::bigint[]) ORDER BY t.id
"""
READ_TASKS_OF_JOB = """
SELECT id FROM aaiclick_queue.tasks WHERE job_id = $1 AND id > coalesce(($3::text::jsonb->>0)::bigint, 0)
ORDER BY job_id, id LIMIT $2
"""
READ_JOB = "SELECT to_jsonb(j)::text AS job FROM aaiclick_queue.jobs j WHERE j.id = $1"
IS_PATIENCE_OVER = """
SELECT pruned_at < now() - make_interval(secs => $2::float8) AS is_over FROM aaiclick_queue.jobs WHERE id = $1
"""
ALARM_SECONDS = 600.0


class ArchiveAway(Exception):
    """The history takes nothing at the moment."""


class Archive(Protocol):
    """A history that takes what is pruned."""

    patience_seconds: float

    async def keep_tasks(self, tasks: Sequence[tuple[dict[str, Any], list[Any]]]) -> None:
        """Keep tasks, each with its attempts; raises ArchiveAway."""

    async def keep_jobs(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Keep jobs; raises ArchiveAway."""


class Keeper:
    """Gives rows to the archive, and says when it takes none."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._told_at: float | None = None
        self.patience_seconds = archive.patience_seconds
        self.is_away = False

    async def keep_tasks(self, tx: Transaction, ids: Sequence[int]) -> bool:
        """Whether the history has these tasks now."""
        if not ids:
            return True
        found = await tx.fetch(READ_TASKS, ids)
        tasks = [(msgspec.json.decode(row["task"]), msgspec.json.decode(row["attempts"])) for row in found]
        return await self._tried(self._archive.keep_tasks(tasks))

    async def keep_tasks_of_job(self, tx: Transaction, job_id: int, rows: int, after: str | None) -> bool:
        """Whether the history has the next page of a marked job's tasks now, or has been waited for long enough."""
        ids = [row["id"] for row in await tx.fetch(READ_TASKS_OF_JOB, job_id, rows, after)]
        return await self.keep_tasks(tx, ids) or await self._is_over(tx, job_id)

    async def keep_job(self, tx: Transaction, job_id: int) -> bool:
        """The same of its own row."""
        found = await tx.fetch(READ_JOB, job_id)
        jobs = [msgspec.json.decode(row["job"]) for row in found]
        return await self._tried(self._archive.keep_jobs(jobs)) or await self._is_over(tx, job_id)

    async def _is_over(self, tx: Transaction, job_id: int) -> bool:
        found = await tx.fetch(IS_PATIENCE_OVER, job_id, self.patience_seconds)
        return bool(found and found[0]["is_over"])

    async def _tried(self, keeping: Any) -> bool:
        try:
            await keeping
        except ArchiveAway as error:
            self._alarm(error)
            return False
        if self.is_away:
            log.info("the history takes what is pruned again")
        self.is_away, self._told_at = False, None
        return True

    def _alarm(self, error: ArchiveAway) -> None:
        self.is_away = True
        if self._told_at is None or time.monotonic() - self._told_at > ALARM_SECONDS:
            self._told_at = time.monotonic()
            log.error(
                "nothing is pruned, because the history takes nothing: %s; after %g days beyond retention it goes "
                "without being kept",
                error,
                self.patience_seconds / 86400,
            )
