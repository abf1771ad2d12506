"""Reads for people: queues, tasks, workers. Each is bounded, whatever the backlog and the history have grown to.

Rows are frozen structs that encode to JSON as they are; ids are texts, because they exceed 2⁵³.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from .codec import decode_json
from .flow.place import in_line
from .outcome import Error
from .postgres import Database
from .status import Status

COUNT_LIMIT = 10_000  # exact up to here: 2 ms a queue; an uncapped count takes 0.5 s at five million
SAMPLE_LIMIT = 100_000  # rows of a place that has no index by queue
SCAN_LIMIT = 100_000  # tasks that one listing looks at, from the newest down
HISTORY_LIMIT = 1_000
NEWEST = 2**63 - 1
UNKNOWN = "UNKNOWN"  # the outcome of a run in a worker that has no code for the task

# Names by a loose index scan, one step a queue. The oldest of a rank need not be its first, since a task that comes
# back keeps its place in line, so the first hundred are looked at.
QUEUES = """
WITH RECURSIVE line AS (
    (SELECT queue FROM aaiclick_queue.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
    FROM line WHERE line.queue IS NOT NULL
), later AS (
    SELECT queue, count(*) AS n FROM (SELECT queue FROM aaiclick_queue.delayed LIMIT $3 + 1) AS d GROUP BY queue
), leased AS (
    SELECT queue, count(*) AS n FROM (SELECT queue FROM aaiclick_queue.leases LIMIT $3 + 1) AS l GROUP BY queue
), over_limit AS (
    (SELECT queue FROM aaiclick_queue.held ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT h.queue FROM aaiclick_queue.held h WHERE h.queue > o.queue ORDER BY h.queue LIMIT 1)
    FROM over_limit o WHERE o.queue IS NOT NULL
), alive AS (
    SELECT queues FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()
), known AS (
    SELECT queue AS name FROM line WHERE queue IS NOT NULL
    UNION SELECT queue FROM later UNION SELECT queue FROM leased
    UNION SELECT queue FROM over_limit WHERE queue IS NOT NULL
    UNION SELECT name FROM aaiclick_queue.queues WHERE paused_at IS NOT NULL OR max_depth IS NOT NULL
    UNION SELECT name FROM aaiclick_queue.limits WHERE scope = 'queue'
    UNION SELECT unnest(queues) FROM alive
), named AS (
    SELECT name FROM known WHERE name <> '*' AND ($4::text IS NULL OR name = $4) ORDER BY name LIMIT $1
)
SELECT named.name,
       (SELECT count(*)
        FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = named.name LIMIT $2 + 1) AS capped) AS ready,
       (WITH RECURSIVE ranks AS (
            (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name ORDER BY r.rank LIMIT 1)
            UNION ALL
            SELECT (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank > ranks.rank
                    ORDER BY r.rank LIMIT 1)
            FROM ranks WHERE ranks.rank IS NOT NULL)
        SELECT extract(epoch FROM now() - min(first.ready_at))::float8
        FROM (SELECT rank FROM ranks WHERE rank IS NOT NULL LIMIT 100) AS k
        CROSS JOIN LATERAL (
            SELECT r.ready_at FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank = k.rank
            ORDER BY r.order_key, r.task_id LIMIT 100) AS first) AS oldest_seconds,
       coalesce(later.n, 0) AS delayed,
       (SELECT sum(n) > $3 FROM later) AS delayed_is_more,
       coalesce(leased.n, 0) AS running,
       (SELECT count(*)
        FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = named.name LIMIT $2 + 1) AS capped) AS held,
       q.max_depth,
       (SELECT count(*) FROM alive WHERE named.name = ANY(alive.queues) OR '*' = ANY(alive.queues)) AS workers,
       q.paused_at, CASE WHEN q.paused_at IS NOT NULL THEN q.paused_by END AS paused_by,
       CASE WHEN q.paused_at IS NOT NULL THEN q.reason END AS reason
FROM named
LEFT JOIN later ON later.queue = named.name
LEFT JOIN leased ON leased.queue = named.name
LEFT JOIN aaiclick_queue.queues q ON q.name = named.name
ORDER BY named.name
"""

_PLACES = f"""
LEFT JOIN aaiclick_queue.leases l ON t.status IS NULL AND l.task_id = t.id
LEFT JOIN aaiclick_queue.delayed d ON t.status IS NULL AND d.task_id = t.id
LEFT JOIN aaiclick_queue.held h ON t.status IS NULL AND h.task_id = t.id
LEFT JOIN aaiclick_queue.ready r ON t.status IS NULL AND {in_line("r", "t")}
"""
_STATUS = """coalesce(t.status, CASE WHEN l.task_id IS NOT NULL THEN 'RUNNING'
                                WHEN d.task_id IS NOT NULL THEN 'SCHEDULED'
                                WHEN h.task_id IS NOT NULL THEN 'PENDING'
                                WHEN r.task_id IS NOT NULL THEN 'QUEUED' END)"""
_WHY_HELD = """CASE WHEN h.task_id IS NULL THEN NULL WHEN h.chain <> '' THEN format('order_by %s', h.chain)
            ELSE coalesce((SELECT 'paused' || coalesce(': ' || m.reason, '') FROM aaiclick_queue.limits m
                           WHERE m.scope = 'task' AND m.name = h.entrypoint AND m.kind = 'pause'), 'limit') END"""
_TASKS = f"""
SELECT t.id::text AS id, {_STATUS} AS status, t.name, t.entrypoint, t.queue, t.priority,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt, t.max_attempts, t.created_at,
       coalesce(t.started_at, l.claimed_at) AS started_at, t.finished_at,
       coalesce(t.worker_id, l.worker_id)::text AS worker_id, d.not_before, coalesce(d.reason, {_WHY_HELD}) AS reason,
       t.error->>'type' AS error_type, left(t.error->>'message', 300) AS error_message
FROM {{source}}
{_PLACES}
WHERE ($3::text IS NULL OR {_STATUS} = $3) AND ($4::text IS NULL OR t.queue = $4)
  AND ($5::text IS NULL OR t.entrypoint = $5 OR right(t.entrypoint, length($5) + 1) = '.' || $5)
ORDER BY t.id DESC LIMIT $6
"""
_FROM_PLACE = """(SELECT task_id FROM aaiclick_queue.{place} WHERE task_id < $1 ORDER BY task_id DESC LIMIT $2) AS p
JOIN aaiclick_queue.tasks t ON t.id = p.task_id"""
_NEWEST = """(SELECT id, status, name, entrypoint, queue, priority, attempt, max_attempts, created_at, started_at,
               finished_at, worker_id, error
       FROM aaiclick_queue.tasks WHERE id < $1 ORDER BY id DESC LIMIT $2) AS t"""
NEWEST_TASKS = _TASKS.format(source=_NEWEST)
RUNNING_TASKS = _TASKS.format(source=_FROM_PLACE.format(place="leases"))
SCHEDULED_TASKS = _TASKS.format(source=_FROM_PLACE.format(place="delayed"))
PENDING_TASKS = _TASKS.format(source=_FROM_PLACE.format(place="held"))
BEYOND_SCAN = "SELECT id FROM aaiclick_queue.tasks WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1"

TASK = f"""
SELECT t.id::text AS id, {_STATUS} AS status, t.name, t.entrypoint, t.queue, t.priority, t.kwargs, t.result, t.error,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt, t.max_attempts,
       coalesce(t.run_epoch, l.run_epoch, d.run_epoch, h.run_epoch, r.run_epoch) AS run_epoch,
       coalesce(l.lost_count, d.lost_count, h.lost_count, r.lost_count) AS lost_count,
       coalesce(l.snoozes, d.snoozes, h.snoozes, r.snoozes) AS snoozes, t.concurrency_key, t.order_by, t.keep, t.hooks,
       t.timeout_seconds::float8 AS timeout_seconds, t.retry, t.correlation_id, t.metadata,
       t.parent_id::text AS parent_id,
       t.created_at, t.eta, t.expires_at, t.started_at, t.finished_at,
       coalesce(t.worker_id, l.worker_id)::text AS worker_id,
       coalesce(r.ready_at, l.ready_at) AS ready_at, l.claimed_at, l.deadline_at, d.not_before, h.held_at,
       coalesce(d.reason, {_WHY_HELD}) AS reason,
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
SELECT run_epoch, attempt, outcome, worker_id::text AS worker_id, started_at, finished_at, error
FROM aaiclick_queue.attempts WHERE task_id = $1 ORDER BY run_epoch DESC LIMIT $2
"""
EVENTS = """
SELECT created_at, type, run_epoch, data FROM aaiclick_queue.events WHERE task_id = $1 ORDER BY created_at DESC LIMIT $2
"""
TASKS_ENDING_IN = """
SELECT id FROM (SELECT id FROM aaiclick_queue.tasks ORDER BY id DESC LIMIT $3) AS t WHERE id % $2 = $1 LIMIT 2
"""
TASK_EXISTS = "SELECT id FROM aaiclick_queue.tasks WHERE id = $1"
WORKERS = """
SELECT w.id::text AS id, w.status, w.hostname, w.pid, w.queues, w.slots, w.fleet,
       (SELECT count(*) FROM aaiclick_queue.leases l WHERE l.worker_id = w.id) AS running,
       extract(epoch FROM now() - w.last_heartbeat)::float8 AS heartbeat_seconds, w.tasks_completed AS completed,
       w.tasks_failed AS failed, w.tasks_lost AS lost, w.version, w.started_at, w.stopped_at
FROM aaiclick_queue.workers w
ORDER BY w.status IN ('LOST', 'STOPPED'), w.started_at DESC LIMIT $1
"""


class QueueView(msgspec.Struct, frozen=True):
    """One queue: what waits, what runs, who serves it."""

    name: str
    ready: int
    oldest_seconds: float | None
    delayed: int
    delayed_is_more: bool
    running: int
    held: int
    max_depth: int | None
    workers: int
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    ready_is_more: bool = False
    held_is_more: bool = False


class TaskRow(msgspec.Struct, frozen=True):
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


class EventView(msgspec.Struct, frozen=True):
    """Something that happened to a task and left no other row."""

    created_at: datetime
    type: str
    run_epoch: int | None
    data: Any


class TaskView(msgspec.Struct, frozen=True):
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
    attempts: list[AttemptView] = []
    events: list[EventView] = []


class WorkerView(msgspec.Struct, frozen=True):
    """One worker incarnation."""

    id: str
    status: str
    hostname: str
    pid: int
    queues: list[str]
    slots: int
    running: int
    heartbeat_seconds: float
    completed: int
    failed: int
    lost: int
    version: str
    fleet: str | None
    started_at: datetime
    stopped_at: datetime | None


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks are wanted; an entrypoint may be given without its module."""

    status: Status | None = None
    queue: str | None = None
    entrypoint: str | None = None

    @property
    def is_set(self) -> bool:
        """Whether any task is left out."""
        return any((self.status, self.queue, self.entrypoint))


async def list_queues(db: Database, *, limit: int = 100, name: str | None = None) -> list[QueueView]:
    """Every queue that has work, a pause or a worker, by name."""
    views = []
    for row in await db.fetch(QUEUES, limit, COUNT_LIMIT, SAMPLE_LIMIT, name):
        values = dict(row) | {"delayed_is_more": bool(row["delayed_is_more"])}
        for place in ("ready", "held"):
            values |= {place: min(row[place], COUNT_LIMIT), f"{place}_is_more": row[place] > COUNT_LIMIT}
        views.append(QueueView(**values))
    return views


async def list_tasks(
    db: Database, wanted: TaskFilter | None = None, *, limit: int = 50, before: int = NEWEST
) -> TaskPage:
    """Tasks older than `before`, newest first; looks at 100,000 of them at most."""
    wanted = wanted or TaskFilter()
    statement = {Status.RUNNING: RUNNING_TASKS, Status.SCHEDULED: SCHEDULED_TASKS, Status.PENDING: PENDING_TASKS}.get(
        wanted.status or Status.QUEUED, NEWEST_TASKS
    )
    rows = await db.fetch(statement, before, SCAN_LIMIT, wanted.status, wanted.queue, wanted.entrypoint, limit)
    tasks = [TaskRow(**dict(row)) for row in rows]
    if len(tasks) >= limit:
        return TaskPage(tasks, tasks[-1].id)
    beyond = None
    if wanted.is_set and statement is NEWEST_TASKS:
        beyond = await db.fetchval(BEYOND_SCAN, before, SCAN_LIMIT)
    return TaskPage(tasks, None if beyond is None else str(beyond + 1))


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
    return msgspec.structs.replace(view, attempts=attempts, events=list(reversed(events)))


async def find_task_ids(db: Database, text: str) -> list[int]:
    """The task of that id, or the newer ones (two at most) whose ids end in these six digits or more."""
    number = int(text)
    if number > NEWEST:
        return []
    exact = await db.fetch(TASK_EXISTS, number)
    if exact or len(text) < 6 or len(text) > 18:
        return [row["id"] for row in exact]
    return [row["id"] for row in await db.fetch(TASKS_ENDING_IN, number, 10 ** len(text), SCAN_LIMIT)]


async def list_workers(db: Database, *, limit: int = 100) -> list[WorkerView]:
    """Workers, those that live first."""
    return [WorkerView(**dict(row)) for row in await db.fetch(WORKERS, limit)]


def timeline(task: TaskView) -> list[tuple[datetime, str]]:
    """What happened to a task and when, oldest first."""
    moments: list[tuple[datetime, str]] = [(task.created_at, "enqueued")]
    told = {attempt.run_epoch for attempt in task.attempts}
    tries = [attempt for attempt in task.attempts if attempt.outcome == UNKNOWN]
    if tries:
        moments.append((tries[-1].finished_at or task.created_at, f"{tried(tries)}, unknown entrypoint"))
    for attempt in task.attempts:
        if attempt.outcome == UNKNOWN:
            continue
        on = f" on worker {attempt.worker_id}" if attempt.worker_id else ""
        if attempt.started_at:
            moments.append((attempt.started_at, f"attempt {attempt.attempt} started{on}"))
        if attempt.finished_at:
            moments.append(
                (attempt.finished_at, f"attempt {attempt.attempt} {attempt.outcome}{_because(attempt.error)}")
            )
    moments += [
        (event.created_at, event.type.removeprefix("TASK_").lower().replace("_", " "))
        for event in task.events
        if event.run_epoch not in told or event.type == "TASK_CANCELLED"
    ]
    if task.not_before:
        moments.append((task.not_before, f"due ({task.reason})"))
    if task.deadline_at:
        moments.append((task.deadline_at, "deadline of this run"))
    return sorted(moments, key=lambda moment: moment[0])


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


def _because(error: Error | None) -> str:
    return f": {error.type}: {error.message}" if error else ""


def _error(text: str | None) -> Error | None:
    return None if text is None else msgspec.json.decode(text, type=Error)
