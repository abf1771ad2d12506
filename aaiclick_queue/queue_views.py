"""Reads for people: queues and workers. Each is bounded, whatever the backlog has grown to.

Rows are frozen structs that encode to JSON as they are; ids are texts, because they exceed 2⁵³.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from .flow.lines import COUNT_LIMIT, QUEUES_LIMIT, exact_ready, look_at_queues
from .postgres import Database

EPOCH = datetime.fromtimestamp(0, UTC)
LATEST = 10**17 - 1  # microseconds
PLACE = r"^[01]\.[0-9]{1,17}\.[0-9]{1,19}$"  # of a worker in the list

_WORKERS = """
SELECT w.id::text AS id, w.status, w.hostname, w.pid, w.queues, w.slots, w.fleet,
       (SELECT count(*) FROM aaiclick_queue.leases l WHERE l.worker_id = w.id) AS running,
       extract(epoch FROM now() - w.last_heartbeat)::float8 AS heartbeat_seconds, w.tasks_completed AS completed,
       w.tasks_failed AS failed, w.tasks_lost AS lost, w.version, w.started_at, w.stopped_at, w.entrypoints,
       w.rss_bytes, w.lag_seconds, w.skew_seconds
FROM aaiclick_queue.workers w
"""
_ENDED = "(w.status IN ('LOST', 'STOPPED'))"
WORKERS = f"""{_WORKERS}
WHERE ($2::boolean IS NULL OR {_ENDED} > $2 OR {_ENDED} = $2 AND (
    w.started_at < $3::timestamptz OR w.started_at = $3::timestamptz AND w.id > $4::bigint))
  AND ($5::text IS NULL OR w.status = 'ACTIVE' AND w.queues && ARRAY[$5::text, '*'])
ORDER BY {_ENDED}, w.started_at DESC, w.id LIMIT $1
"""
WORKER = f"{_WORKERS} WHERE w.id = $1"
WORKER_TOTALS = """
SELECT count(*) FILTER (WHERE w.status IN ('ACTIVE', 'STOPPING')) AS live,
       count(*) FILTER (WHERE w.status = 'ACTIVE') AS active,
       count(*) FILTER (WHERE w.status = 'LOST' AND w.last_heartbeat > now() - interval '1 h') AS lost,
       coalesce(sum(w.slots) FILTER (WHERE w.status IN ('ACTIVE', 'STOPPING')), 0)::bigint AS slots,
       coalesce(sum(l.n) FILTER (WHERE w.status IN ('ACTIVE', 'STOPPING')), 0)::bigint AS running
FROM aaiclick_queue.workers w
LEFT JOIN (SELECT worker_id, count(*) AS n FROM aaiclick_queue.leases GROUP BY worker_id) AS l ON l.worker_id = w.id
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
    ready_at_seconds: float | None = None  # how long ago `ready` was counted, where it was too long to be counted now
    objective_seconds: float | None = None  # the age that its oldest task should not reach

    @classmethod
    def empty(cls, name: str) -> QueueView:
        """A queue that nothing names any more."""
        return cls(name, 0, None, 0, False, 0, 0, None, 0, None, None, None)


def counted_ago(views: Sequence[QueueView]) -> float | None:
    """How long ago the oldest of these lines was counted that were too long to be counted now; None: all were."""
    return max((one.ready_at_seconds for one in views if one.ready_at_seconds is not None), default=None)


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
    entrypoints: list[str] | None = None  # it has the code of; None: an older release
    rss_bytes: int | None = None
    lag_seconds: float | None = None  # by which its event loop was late, at worst since the beat before
    skew_seconds: float | None = None  # its host's clock minus the database's

    @property
    def place(self) -> str:
        """Where it stands in the list, for the page behind it: by what it was, so that it need not be there then."""
        began = (self.started_at.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
        return f"{int(self.status in ('LOST', 'STOPPED'))}.{max(0, min(began, LATEST))}.{self.id}"


class WorkerTotals(msgspec.Struct, frozen=True):
    """All workers together; slots and runs are those of the ones that live."""

    live: int
    active: int  # of those that live: not stopping
    lost: int  # in the last hour
    slots: int
    running: int


async def list_queues(
    db: Database, *, limit: int = 100, name: str | None = None, after: str | None = None, counted: int | None = None
) -> list[QueueView]:
    """Every queue that has work, a pause or a worker, by name; those behind `after`.

    With `counted`, so many tasks over all lines are counted, and of a longer one it is told what the last minute had.
    """
    views = []
    most = counted or COUNT_LIMIT * QUEUES_LIMIT
    for row in await look_at_queues(db, limit=limit, name=name, after=after, counted=most):
        values = dict(row) | {name: bool(row[name]) for name in ("delayed_is_more", "waiting_is_more")}
        for column in ("share", "ready_count", "counted_seconds", "sampled", "sampled_seconds", "depth"):
            del values[column]
        for place in ("ready", "held"):
            values |= {place: min(row[place], row["share"]), f"{place}_is_more": row[place] > row["share"]}
        views.append(QueueView(**values | _counted_before(row)))
    return views


def _counted_before(row: Any) -> dict[str, Any]:
    """What the background last counted in a line that is longer than this look went."""
    if row["ready"] <= row["share"]:
        return {}
    if (exact := exact_ready(row)) is not None:
        return {"ready": exact, "ready_is_more": False, "ready_at_seconds": row["counted_seconds"]}
    if row["sampled"] is None or row["sampled"] < row["share"]:
        return {}
    if row["sampled"] > COUNT_LIMIT:
        return {"ready": COUNT_LIMIT}
    return {"ready": row["sampled"], "ready_is_more": False, "ready_at_seconds": row["sampled_seconds"]}


async def list_workers(
    db: Database, *, limit: int = 100, after: str | None = None, queue: str | None = None
) -> list[WorkerView]:
    """Workers, those that live first, then the newest; those behind the place of one, or that take from a queue."""
    place: tuple[Any, ...] = (None, None, None)
    if after is not None:
        ended, began, number = (int(part) for part in after.split("."))
        place = bool(ended), EPOCH + timedelta(microseconds=began), min(number, 2**63 - 1)
    return [WorkerView(**dict(row)) for row in await db.fetch(WORKERS, limit, *place, queue)]


async def read_worker_totals(db: Database) -> WorkerTotals:
    """How many workers there are and what they have, however many."""
    [row] = await db.fetch(WORKER_TOTALS)
    return WorkerTotals(**dict(row))


async def get_worker(db: Database, worker_id: int) -> WorkerView | None:
    """One worker; None where there is none, or no longer."""
    rows = await db.fetch(WORKER, worker_id)
    return WorkerView(**dict(rows[0])) if rows else None
