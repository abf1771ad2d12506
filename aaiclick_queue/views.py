"""Reads for people: tasks. Each is bounded, whatever the backlog and the history have grown to.

Rows are frozen structs that encode to JSON as they are; ids are texts, because they exceed 2⁵³.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from .codec import decode_json
from .flow.place import in_line
from .job_nodes import NodeView, of_job, read_node
from .lasting import Lasting
from .outcome import Error
from .postgres import Database
from .status import Status

SCAN_LIMIT = 100_000  # tasks that one listing looks at, from the newest down
HISTORY_LIMIT = 1_000
NEWEST = 2**63 - 1
UNKNOWN = "UNKNOWN"  # the outcome of a run in a worker that has no code for the task

_PLACES = f"""
LEFT JOIN aaiclick_queue.leases l ON t.status IS NULL AND l.task_id = t.id
LEFT JOIN aaiclick_queue.delayed d ON t.status IS NULL AND d.task_id = t.id
LEFT JOIN aaiclick_queue.held h ON t.status IS NULL AND h.task_id = t.id
LEFT JOIN aaiclick_queue.waiting w ON t.status IS NULL AND w.gate_id = t.wait_gate AND w.task_id = t.id
LEFT JOIN aaiclick_queue.ready r ON t.status IS NULL AND {in_line("r", "t")}
"""
_STATUS = """coalesce(t.status, CASE WHEN l.task_id IS NOT NULL THEN 'RUNNING'
                                WHEN d.task_id IS NOT NULL THEN 'SCHEDULED'
                                WHEN h.task_id IS NOT NULL OR w.task_id IS NOT NULL THEN 'PENDING'
                                WHEN r.task_id IS NOT NULL THEN 'QUEUED' END)"""
_WHY_HELD = """CASE WHEN h.task_id IS NULL THEN NULL WHEN h.chain <> '' THEN format('order_by %s', h.chain)
            ELSE coalesce((SELECT CASE m.scope WHEN 'job' THEN 'job ' ELSE '' END || 'paused'
                                  || coalesce(': ' || m.reason, '') FROM aaiclick_queue.limits m
                           WHERE m.kind = 'pause' AND (m.scope = 'task' AND m.name = h.entrypoint
                                 OR m.scope = 'job' AND m.name = split_part(h.crowd, '/', 1))
                           ORDER BY m.scope LIMIT 1),
                          CASE WHEN h.crowd LIKE '%/%' THEN 'max_parallel' ELSE 'limit' END) END"""
_REASON = f"coalesce(d.reason, {_WHY_HELD}, CASE WHEN w.task_id IS NOT NULL THEN 'other tasks of its job' END)"
_TASKS = f"""
SELECT t.id::text AS id, {_STATUS} AS status, t.name, t.entrypoint, t.queue, t.priority,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt, t.max_attempts, t.created_at,
       coalesce(t.started_at, l.claimed_at) AS started_at, t.finished_at,
       coalesce(t.worker_id, l.worker_id)::text AS worker_id, d.not_before, {_REASON} AS reason,
       t.error->>'type' AS error_type, left(t.error->>'message', 300) AS error_message, t.job_id::text AS job_id,
       coalesce(t.ready_at, l.ready_at, r.ready_at) AS ready_at, now() AS read_at
FROM {{source}}
{_PLACES}
WHERE ($3::text IS NULL OR {_STATUS} = $3) AND ($4::text IS NULL OR t.queue = $4)
  AND ($5::text IS NULL OR t.entrypoint = $5 OR right(t.entrypoint, length($5) + 1) = '.' || $5)
ORDER BY {{order}} LIMIT $6
"""
_FROM_PLACE = """(SELECT task_id FROM aaiclick_queue.{place} WHERE task_id < $1 ORDER BY task_id DESC LIMIT $2) AS p
JOIN aaiclick_queue.tasks t ON t.id = p.task_id"""
# What waits at gates has no index by task, so it is looked for among the newest.
_FROM_HELD_OR_GATES = """(
    (SELECT task_id FROM aaiclick_queue.held WHERE task_id < $1 ORDER BY task_id DESC LIMIT $2)
    UNION ALL
    SELECT id FROM (SELECT id, status, wait_gate FROM aaiclick_queue.tasks WHERE id < $1 ORDER BY id DESC LIMIT $2) AS n
    WHERE n.status IS NULL AND EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = n.wait_gate
                                       AND w.task_id = n.id)) AS p
JOIN aaiclick_queue.tasks t ON t.id = p.task_id"""
_OF_TASKS = """(SELECT id, status, name, entrypoint, queue, priority, attempt, max_attempts, created_at, ready_at,
               started_at, finished_at, worker_id, error, job_id, wait_gate
       FROM aaiclick_queue.tasks WHERE {page} LIMIT $2) AS t"""
NEWEST_TASKS = _TASKS.format(source=_OF_TASKS.format(page="id < $1 ORDER BY id DESC"), order="t.id DESC")
RUNNING_TASKS = _TASKS.format(source=_FROM_PLACE.format(place="leases"), order="t.id DESC")
SCHEDULED_TASKS = _TASKS.format(source=_FROM_PLACE.format(place="delayed"), order="t.id DESC")
PENDING_TASKS = _TASKS.format(source=_FROM_HELD_OR_GATES, order="t.id DESC")
NEWEST_OF_JOB = _TASKS.format(
    source=_OF_TASKS.format(page=f"{of_job('$7::bigint')} AND id < $1 ORDER BY job_id DESC, id DESC"),
    order="t.job_id DESC, t.id DESC",
)
FIRST_OF_JOB = _TASKS.format(
    source=_OF_TASKS.format(page=f"{of_job('$7::bigint')} AND id > $1 ORDER BY job_id, id"), order="t.job_id, t.id"
)
_BY_STATUS = {Status.RUNNING: RUNNING_TASKS, Status.SCHEDULED: SCHEDULED_TASKS, Status.PENDING: PENDING_TASKS}
_BEYOND = "SELECT id FROM aaiclick_queue.tasks WHERE {page} OFFSET $2 LIMIT 1"
BEYOND_SCAN = _BEYOND.format(page="id < $1 ORDER BY id DESC")
BEYOND_IN_JOB = _BEYOND.format(page=f"{of_job('$3::bigint')} AND id < $1 ORDER BY job_id DESC, id DESC")

TASK = f"""
SELECT t.id::text AS id, {_STATUS} AS status, t.name, t.entrypoint, t.queue, t.priority, t.kwargs, t.result, t.error,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt, t.max_attempts,
       coalesce(t.run_epoch, l.run_epoch, d.run_epoch, h.run_epoch, r.run_epoch) AS run_epoch,
       coalesce(l.lost_count, d.lost_count, h.lost_count, r.lost_count) AS lost_count,
       coalesce(l.snoozes, d.snoozes, h.snoozes, r.snoozes) AS snoozes, t.concurrency_key, t.order_by, t.keep, t.hooks,
       t.timeout_seconds::float8 AS timeout_seconds, t.retry, t.correlation_id, t.metadata,
       t.parent_id::text AS parent_id,
       t.created_at, t.eta, t.expires_at, coalesce(t.started_at, l.claimed_at) AS started_at, t.finished_at,
       coalesce(t.worker_id, l.worker_id)::text AS worker_id,
       coalesce(t.ready_at, r.ready_at, l.ready_at) AS ready_at, l.claimed_at, l.deadline_at, d.not_before, h.held_at,
       {_REASON} AS reason, now() AS read_at,
       EXISTS (SELECT FROM aaiclick_queue.slots s WHERE s.task_id = t.id AND s.stopping > 0) AS stopping,
       (SELECT k.key FROM aaiclick_queue.dedupe k WHERE k.task_id = t.id LIMIT 1) AS dedupe_key,
       (SELECT p.data FROM aaiclick_queue.progress p WHERE p.task_id = t.id) AS progress,
       (SELECT c.data FROM aaiclick_queue.checkpoints c WHERE c.task_id = t.id) AS checkpoint,
       ARRAY(SELECT c.id::text FROM aaiclick_queue.tasks c WHERE c.parent_id = t.id ORDER BY c.id LIMIT 100) AS children
FROM aaiclick_queue.tasks t
{_PLACES}
WHERE t.id = $1
"""
ATTEMPTS = """
SELECT run_epoch, attempt, outcome, worker_id::text AS worker_id, started_at, finished_at, error, ready_at
FROM aaiclick_queue.attempts WHERE task_id = $1 ORDER BY run_epoch DESC LIMIT $2
"""
EVENTS = """
SELECT created_at, type, run_epoch, data FROM aaiclick_queue.events WHERE task_id = $1 ORDER BY created_at DESC LIMIT $2
"""
TASKS_ENDING_IN = """
SELECT id FROM (SELECT id FROM aaiclick_queue.tasks ORDER BY id DESC LIMIT $3) AS t WHERE id % $2 = $1 LIMIT 2
"""
TASK_EXISTS = "SELECT id FROM aaiclick_queue.tasks WHERE id = $1"


class TaskRow(Lasting, frozen=True):
    """One task in a list."""

    id: str
    status: str | None
    name: str | None
    entrypoint: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    not_before: datetime | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    job_id: str | None = None
    ready_at: datetime | None = None
    read_at: datetime | None = None


class TaskPage(msgspec.Struct, frozen=True):
    """A page of tasks, newest first; `before` is where the next one starts, None when there is none."""

    tasks: list[TaskRow]
    before: str | None


class AttemptView(msgspec.Struct, frozen=True):
    """One run of a task."""

    run_epoch: int
    attempt: int
    outcome: str
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None
    ready_at: datetime | None = None


class EventView(msgspec.Struct, frozen=True):
    """Something that happened to a task and left no other row."""

    created_at: datetime
    type: str
    run_epoch: int | None
    data: Any


class TaskView(Lasting, frozen=True):
    """Everything about one task."""

    id: str
    status: str | None
    name: str | None
    entrypoint: str
    queue: str
    priority: int
    kwargs: Any
    result: Any
    error: Error | None
    attempt: int
    max_attempts: int | None
    run_epoch: int | None
    lost_count: int | None
    snoozes: int | None
    timeout_seconds: float | None
    retry: Any
    correlation_id: str | None
    metadata: Any
    parent_id: str | None
    created_at: datetime
    eta: datetime | None
    expires_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    ready_at: datetime | None
    claimed_at: datetime | None
    deadline_at: datetime | None
    not_before: datetime | None
    reason: str | None
    dedupe_key: str | None
    concurrency_key: str | None
    order_by: str | None
    keep: str | None
    hooks: Any
    held_at: datetime | None
    stopping: bool
    progress: Any
    checkpoint: Any
    children: list[str]
    read_at: datetime
    attempts: list[AttemptView] = msgspec.field(default_factory=list)
    events: list[EventView] = msgspec.field(default_factory=list)
    job: NodeView | None = None


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks are wanted; an entrypoint may be given without its module."""

    status: Status | None = None
    queue: str | None = None
    entrypoint: str | None = None
    job_id: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether any task is left out."""
        return any((self.status, self.queue, self.entrypoint))


async def list_tasks(
    db: Database, wanted: TaskFilter | None = None, *, limit: int = 50, before: int = NEWEST
) -> TaskPage:
    """Tasks older than `before`, newest first; looks at 100,000 of them at most."""
    wanted = wanted or TaskFilter()
    asked = [before, SCAN_LIMIT, wanted.status, wanted.queue, wanted.entrypoint, limit]
    if wanted.job_id is not None:
        rows = await db.fetch(NEWEST_OF_JOB, *asked, wanted.job_id)
    else:
        rows = await db.fetch(_BY_STATUS.get(wanted.status or Status.QUEUED, NEWEST_TASKS), *asked)
    tasks = [TaskRow(**dict(row)) for row in rows]
    if len(tasks) >= limit:
        return TaskPage(tasks, tasks[-1].id)
    beyond = None
    if wanted.job_id is not None:
        beyond = await db.fetchval(BEYOND_IN_JOB, before, SCAN_LIMIT, wanted.job_id)
    elif wanted.is_set and wanted.status not in (Status.RUNNING, Status.SCHEDULED):
        beyond = await db.fetchval(BEYOND_SCAN, before, SCAN_LIMIT)
    return TaskPage(tasks, None if beyond is None else str(beyond + 1))


async def tasks_of_job(
    db: Database, job_id: int, *, status: Status | None = None, limit: int = 1000, after: int = 0
) -> list[TaskRow]:
    """Tasks of a job in the order of their ids, those behind `after`; looks at 100,000 of them at most."""
    rows = await db.fetch(FIRST_OF_JOB, after, SCAN_LIMIT, status, None, None, limit, job_id)
    return [TaskRow(**dict(row)) for row in rows]


async def get_task(db: Database, task_id: int) -> TaskView | None:
    """One task with its attempts, the last one included, and its events; None when there is none."""
    rows = await db.fetch(TASK, task_id)
    if not rows:
        return None
    values = dict(rows[0])
    for column in ("kwargs", "result", "retry", "hooks", "metadata", "progress", "checkpoint"):
        values[column] = decode_json(values[column])
    values["error"] = _error(values["error"])
    view = TaskView(**values)
    attempts = [
        AttemptView(**dict(row) | {"error": _error(row["error"])})
        for row in await db.fetch(ATTEMPTS, task_id, HISTORY_LIMIT)
    ]
    attempts = [*reversed(attempts), *_last_attempt(view)]
    events = [
        EventView(**dict(row) | {"data": decode_json(row["data"])})
        for row in await db.fetch(EVENTS, task_id, HISTORY_LIMIT)
    ]
    node = await read_node(db, task_id, status=view.status)
    return msgspec.structs.replace(view, attempts=attempts, events=list(reversed(events)), job=node)


async def find_task_ids(db: Database, text: str) -> list[int]:
    """The task of that id, or the newer ones (two at most) whose ids end in these six digits or more."""
    number = int(text)
    if number > NEWEST:
        return []
    exact = await db.fetch(TASK_EXISTS, number)
    if exact or len(text) < 6 or len(text) > 18:
        return [row["id"] for row in exact]
    return [row["id"] for row in await db.fetch(TASKS_ENDING_IN, number, 10 ** len(text), SCAN_LIMIT)]


def tried(tries: Sequence[AttemptView]) -> str:
    """How often a worker without its code had the task."""
    return "tried once" if len(tries) == 1 else f"tried {len(tries):,} times"


def handed_back(task: TaskView) -> int:
    """Runs that a worker gave back unfinished: they are claims that left no row. 0 where rows may be gone by age."""
    recent = datetime.now(task.created_at.tzinfo) - task.created_at < timedelta(days=1)
    if not recent or len(task.attempts) >= HISTORY_LIMIT:
        return 0
    return max(0, (task.run_epoch or 0) - len({attempt.run_epoch for attempt in task.attempts}))


def _last_attempt(task: TaskView) -> Sequence[AttemptView]:
    """The run that `attempts` does not have: the one that ended the task, or the one that is going on."""
    epoch = task.run_epoch or 0
    if task.claimed_at:
        return [AttemptView(epoch, task.attempt, "RUNNING", task.worker_id, task.claimed_at, None, None)]
    if task.finished_at and task.started_at and task.status:
        return [
            AttemptView(epoch, task.attempt, task.status, task.worker_id, task.started_at, task.finished_at, task.error)
        ]
    return []


def _error(text: str | None) -> Error | None:
    return None if text is None else msgspec.json.decode(text, type=Error)
