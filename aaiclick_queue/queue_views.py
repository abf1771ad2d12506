"""Reads for people: queues and workers. Each is bounded, whatever the backlog has grown to.

Rows are frozen structs that encode to JSON as they are; ids are texts, because they exceed 2⁵³.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from .postgres import Database

COUNT_LIMIT = 10_000  # exact up to here: 2 ms a queue; an uncapped count takes 0.5 s at five million
SAMPLE_LIMIT = 100_000  # rows of a place that has no index by queue

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
), at_gates AS (
    SELECT t.queue, count(*) AS n FROM (SELECT task_id FROM aaiclick_queue.waiting LIMIT $2 + 1) AS w
    CROSS JOIN LATERAL (SELECT queue FROM aaiclick_queue.tasks WHERE id = w.task_id OFFSET 0) AS t GROUP BY t.queue
), alive AS (
    SELECT queues FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()
), known AS (
    SELECT queue AS name FROM line WHERE queue IS NOT NULL
    UNION SELECT queue FROM later UNION SELECT queue FROM leased UNION SELECT queue FROM at_gates
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
       coalesce(at_gates.n, 0) AS waiting, (SELECT sum(n) > $2 FROM at_gates) AS waiting_is_more,
       q.max_depth,
       (SELECT count(*) FROM alive WHERE named.name = ANY(alive.queues) OR '*' = ANY(alive.queues)) AS workers,
       q.paused_at, CASE WHEN q.paused_at IS NOT NULL THEN q.paused_by END AS paused_by,
       CASE WHEN q.paused_at IS NOT NULL THEN q.reason END AS reason
FROM named
LEFT JOIN later ON later.queue = named.name
LEFT JOIN leased ON leased.queue = named.name
LEFT JOIN at_gates ON at_gates.queue = named.name
LEFT JOIN aaiclick_queue.queues q ON q.name = named.name
ORDER BY named.name
"""

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
    waiting: int = 0  # for other tasks of their jobs
    waiting_is_more: bool = False


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


async def list_queues(db: Database, *, limit: int = 100, name: str | None = None) -> list[QueueView]:
    """Every queue that has work, a pause or a worker, by name."""
    views = []
    for row in await db.fetch(QUEUES, limit, COUNT_LIMIT, SAMPLE_LIMIT, name):
        values = dict(row) | {name: bool(row[name]) for name in ("delayed_is_more", "waiting_is_more")}
        for place in ("ready", "held"):
            values |= {place: min(row[place], COUNT_LIMIT), f"{place}_is_more": row[place] > COUNT_LIMIT}
        views.append(QueueView(**values))
    return views


async def list_workers(db: Database, *, limit: int = 100) -> list[WorkerView]:
    """Workers, those that live first."""
    return [WorkerView(**dict(row)) for row in await db.fetch(WORKERS, limit)]
