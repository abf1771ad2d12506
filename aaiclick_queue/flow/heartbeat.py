"""Heartbeat: keeps a worker's leases, one statement a beat, off the thread that runs user code.

The answer tells which runs are gone (cancelled, reaped) and which leases of this worker it does not know of: a claim
whose answer was lost would otherwise stay leased for ever to a living worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..meters import METERS
from ..schema import Transaction

REGISTER_WORKER = """
INSERT INTO aaiclick_queue.workers (id, lease_expires_at, pid, slots, hostname, version, status, queues, fleet,
                                    entrypoints, secrets)
VALUES ($1, now() + make_interval(secs => $2::float8), $3, $4, $5, $6, 'ACTIVE', $7, $8, $9, $10)
RETURNING extract(epoch FROM clock_timestamp())::float8 AS now
"""
# A worker that was marked LOST stays it: the row is not found, and the worker comes back as a new incarnation.
# Each run looked up by itself: joined as NOT EXISTS, a plan made while leases were few read all of them for a hash, a
# second under a snapshot that keeps 400,000 dead ones.
BEAT = """
WITH beat AS (
    UPDATE aaiclick_queue.workers
    SET last_heartbeat = now(), lease_expires_at = now() + make_interval(secs => $2::float8), running = $6,
        tasks_completed = tasks_completed + $7, tasks_failed = tasks_failed + $8, tasks_lost = tasks_lost + $9,
        rss_bytes = coalesce($10, rss_bytes), lag_seconds = coalesce($11, lag_seconds),
        skew_seconds = coalesce($12, skew_seconds)
    WHERE id = $1 AND status IN ('ACTIVE', 'STOPPING') RETURNING status, asked
)
SELECT extract(epoch FROM now())::float8 AS now, (SELECT status FROM beat) AS status, (SELECT asked FROM beat) AS asked,
       extract(epoch FROM pg_postmaster_start_time())::text AS server,
       ARRAY(SELECT run.n FROM unnest($3::bigint[], $4::int[]) WITH ORDINALITY AS run(task_id, run_epoch, n)
             LEFT JOIN LATERAL (SELECT true AS is_there FROM aaiclick_queue.leases l WHERE l.task_id = run.task_id
                                AND l.run_epoch = run.run_epoch AND l.worker_id + 0 = $1 LIMIT 1) AS mine ON true
             WHERE mine.is_there IS NULL) AS gone,
       CASE WHEN $5 THEN ARRAY(SELECT l.task_id FROM aaiclick_queue.leases l WHERE l.worker_id = $1
                               AND l.claimed_at < now() - interval '5 s' AND l.task_id <> ALL($3)) END AS strangers,
       CASE WHEN $5 THEN ARRAY(SELECT l.run_epoch FROM aaiclick_queue.leases l WHERE l.worker_id = $1
                               AND l.claimed_at < now() - interval '5 s' AND l.task_id <> ALL($3)) END AS epochs
"""
SET_STATUS = """
UPDATE aaiclick_queue.workers
SET status = $2, stopped_at = CASE WHEN $2 = 'STOPPED' THEN now() END,
    tasks_completed = tasks_completed + $3, tasks_failed = tasks_failed + $4, tasks_lost = tasks_lost + $5
WHERE id = $1 AND status IN ('ACTIVE', 'STOPPING')
"""


class Counters(msgspec.Struct, frozen=True):
    """What a worker did since its last beat."""

    completed: int = 0
    failed: int = 0
    lost: int = 0


class Signs(msgspec.Struct, frozen=True):
    """How a worker's process is; None: not known."""

    rss_bytes: int | None = None
    lag_seconds: float | None = None
    skew_seconds: float | None = None


class Beat(msgspec.Struct, frozen=True):
    """The answer to a heartbeat; status None: this worker was given up as LOST."""

    worker_id: int
    status: str | None
    gone: tuple[tuple[int, int], ...]  # task id, run_epoch
    strangers: tuple[tuple[int, int], ...]
    asked: str | None = None  # what somebody wants to know of this worker
    now: float = 0.0  # the database's clock, seconds since 1970
    server: str = ""  # changes when Postgres was restarted, or a standby has taken over


class Identity(msgspec.Struct, frozen=True):
    """A worker incarnation as it is registered."""

    id: int
    pid: int
    slots: int
    hostname: str
    version: str
    queues: tuple[str, ...]
    fleet: str | None = None
    entrypoints: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()  # arguments that are, as `shop.mail.send code`


async def register(tx: Transaction, worker: Identity, *, lease_seconds: float) -> float:
    """Write the row of a new incarnation; returns the database's clock."""
    [row] = await tx.fetch(
        REGISTER_WORKER,
        worker.id,
        lease_seconds,
        worker.pid,
        worker.slots,
        worker.hostname,
        worker.version,
        list(worker.queues),
        worker.fleet,
        list(worker.entrypoints),
        list(worker.secrets),
    )
    now: float = row["now"]
    return now


async def beat(  # noqa: PLR0913 - one value a fact
    tx: Transaction,
    worker_id: int,
    runs: Sequence[tuple[int, int]],
    *,
    lease_seconds: float,
    look_for_strangers: bool,
    counters: Counters,
    signs: Signs | None = None,
) -> Beat:
    """Renew the worker's lease and compare the runs it holds with the leases it has."""
    with METERS.renewing():
        [row] = await tx.fetch(
            BEAT,
            worker_id,
            lease_seconds,
            [task_id for task_id, _ in runs],
            [run_epoch for _, run_epoch in runs],
            look_for_strangers,
            len(runs),
            counters.completed,
            counters.failed,
            counters.lost,
            *msgspec.structs.astuple(signs or Signs()),
        )
    METERS.add("lease_renewals_total", ("lost" if row["status"] is None else "ok",))
    strangers = tuple(zip(row["strangers"] or (), row["epochs"] or (), strict=True))
    gone = tuple(runs[n - 1] for n in row["gone"])
    return Beat(worker_id, row["status"], gone, strangers, row["asked"], row["now"], row["server"])


async def set_status(tx: Transaction, worker_id: int, status: str, counters: Counters) -> None:
    """Say that the worker is STOPPING or STOPPED."""
    await tx.fetch(SET_STATUS, worker_id, status, counters.completed, counters.failed, counters.lost)
