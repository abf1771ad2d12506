"""Reaper: takes back what expired and moves what is due. Any number of reapers may work side by side.

Before: a worker that died, a delay that ended. After: the line, by way of `delayed` for lost runs. It needs no user
code: retry policies are columns, and each step is one bounded statement that shares rows by SKIP LOCKED.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..meters import METERS
from ..outcome import Error
from ..postgres import DATA_ERRORS, Database
from ..schema import Transaction
from .cancel import take_waiting
from .ending import has_ended
from .kick import tell_ended
from .loop import Rest
from .mark import Mark
from .noting import note
from .outbox import append_from
from .place import enter_line, in_line
from .promotion import IS_SETTLED, meet_timeline
from .quarantine import SET_ASIDE_DELAYED, SET_ASIDE_LEASED, singly
from .settle import SETTLE
from .sweep_gates import GateSweep
from .tally import FAILED, LOST, RETRIED, Tallied, Tally

log = logging.getLogger(__name__)

# Only on the server that was looked at before: a standby that was promoted has been up for long, and it may lack the
# last beats of before.
MARK_LOST_WORKERS = f"""
WITH marked AS (
    UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now() WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.workers
        WHERE lease_expires_at < now() AND status IN ('ACTIVE', 'STOPPING')
          AND pg_postmaster_start_time() < now() - make_interval(secs => $2::float8)
          AND extract(epoch FROM pg_postmaster_start_time())::text = $3
          AND {IS_SETTLED}
        ORDER BY id LIMIT $1
        FOR UPDATE SKIP LOCKED))
    RETURNING id, hostname, pid
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'WORKER_LOST', jsonb_build_object('worker_id', id::text, 'hostname', hostname, 'pid', pid) FROM marked
)
SELECT id, hostname, pid FROM marked
"""
# Level-triggered: every lease of a worker that is over, whoever marked it and whenever the lease was made.
# A worker row that is missing counts as over: a pruned row must not hide its leases.
_TAKE_LEASES = f"""
WITH candidates AS MATERIALIZED (
    {{candidates}}
), taken AS (
    DELETE FROM aaiclick_queue.leases l WHERE l.ctid = ANY(ARRAY(SELECT ctid FROM candidates))
    RETURNING l.task_id, l.run_epoch, l.worker_id, l.attempt, l.lost_count, l.snoozes, l.flags, l.queue, l.rank,
              l.order_key, l.ready_at, l.claimed_at AS started_at, {{kind}} AS kind, {{error}} AS error,
              NULL::float8 AS seconds, NULL::text AS retry, {{stops}} AS stops
), {SETTLE}
SELECT task_id, worker_id, kind, queue, extract(epoch FROM started_at - ready_at)::float8 AS waited,
       extract(epoch FROM now() - started_at)::float8 AS ran,
       (SELECT t.entrypoint FROM aaiclick_queue.tasks t WHERE t.id = taken.task_id) AS entrypoint
FROM taken
"""
# A run alone in its process (from the second loss on) is convicted by its own death, which its worker reports. Lost
# together with its worker it may be innocent, so it gets the budget twice; without end it must not go on either.
_LOST_KIND = """CASE WHEN l.lost_count + 1 >= $2::int * CASE WHEN l.lost_count >= 2 THEN 2 ELSE 1 END
        THEN 'FAILED' ELSE 'LOST' END"""
_LOST = """l.worker_id = ANY(ARRAY(
        SELECT id FROM aaiclick_queue.workers WHERE status IN ('LOST', 'STOPPED')))"""
_ORPHANED = "NOT EXISTS (SELECT FROM aaiclick_queue.workers w WHERE w.id = l.worker_id)"
_OVERDUE = "l.deadline_at < now()"
_MANY = """SELECT l.ctid FROM aaiclick_queue.leases l WHERE {which}
    LIMIT $1 FOR UPDATE SKIP LOCKED"""
_ONE = """SELECT l.ctid FROM aaiclick_queue.leases l WHERE l.task_id = $1::bigint AND {which}
    FOR UPDATE SKIP LOCKED"""
_IDS = "SELECT l.task_id FROM aaiclick_queue.leases l WHERE {which} LIMIT $1 FOR UPDATE SKIP LOCKED"
_AS_LOST = {
    "kind": _LOST_KIND,
    "error": """jsonb_build_object('type', 'WorkerLost', 'message', format(
        'worker %s did not renew its lease; lost run %s', l.worker_id, l.lost_count + 1))::text""",
    "stops": "false",
}
_AS_ORPHANED = _AS_LOST | {
    "error": """jsonb_build_object('type', 'WorkerLost', 'message',
        format('worker %s is not registered', l.worker_id))::text""",
}
_AS_OVERDUE = {
    "kind": """CASE WHEN l.attempt < coalesce(
        (SELECT t.max_attempts FROM aaiclick_queue.tasks t WHERE t.id = l.task_id), $2::int)
        THEN 'RETRYING' ELSE 'FAILED' END""",
    "error": """jsonb_build_object('type', 'TimedOut', 'message', format(
        'still running %s after its claim, past timeout and grace: its worker did not stop it',
        date_trunc('second', now() - l.claimed_at)))::text""",
    "stops": "true",
}
TAKE_LOST_RUNS = _TAKE_LEASES.format(candidates=_MANY.format(which=_LOST), **_AS_LOST)
TAKE_ORPHANED_RUNS = _TAKE_LEASES.format(candidates=_MANY.format(which=_ORPHANED), **_AS_ORPHANED)
TAKE_OVERDUE_RUNS = _TAKE_LEASES.format(candidates=_MANY.format(which=_OVERDUE), **_AS_OVERDUE)
# The same for one of them, after a row that Postgres cannot work on has stopped all.
TAKE_LOST_RUN = _TAKE_LEASES.format(candidates=_ONE.format(which=_LOST), **_AS_LOST)
TAKE_ORPHANED_RUN = _TAKE_LEASES.format(candidates=_ONE.format(which=_ORPHANED), **_AS_ORPHANED)
TAKE_OVERDUE_RUN = _TAKE_LEASES.format(candidates=_ONE.format(which=_OVERDUE), **_AS_OVERDUE)
LOST_IDS = _IDS.format(which=_LOST)
ORPHANED_IDS = _IDS.format(which=_ORPHANED)
OVERDUE_IDS = _IDS.format(which=_OVERDUE)
_MOVE_DUE = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.delayed WHERE ctid = ANY(ARRAY(
        {{which}} FOR UPDATE SKIP LOCKED))
    RETURNING task_id, not_before, order_key, rank, run_epoch, attempt, lost_count, snoozes, flags, queue
), due AS (
    SELECT d.task_id, d.order_key, d.rank, d.run_epoch, d.attempt, d.lost_count, d.snoozes, d.flags, d.queue,
           t.entrypoint, t.concurrency_key, t.order_by, t.job_id, t.crowd
    FROM taken d JOIN aaiclick_queue.tasks t ON t.id = d.task_id
), {enter_line("due")}, told AS (
    {append_from("entered")}
)
SELECT coalesce((SELECT array_agg(greatest(not_before, '1900-01-01')) FROM taken), '{{{{}}}}') AS moved,
       extract(epoch FROM (SELECT least(not_before, now() + interval '1 day') FROM aaiclick_queue.delayed
                           WHERE not_before > now() ORDER BY not_before LIMIT 1) - now())::float8 AS next_due
"""
MOVE_DUE = _MOVE_DUE.format(
    which="""SELECT ctid FROM aaiclick_queue.delayed WHERE not_before >= $2 AND not_before <= now()
        ORDER BY not_before, task_id LIMIT $1"""
)
MOVE_ONE_DUE = _MOVE_DUE.format(
    which="SELECT ctid FROM aaiclick_queue.delayed WHERE task_id = $1::bigint AND not_before <= now()"
)
DUE_IDS = """
SELECT task_id FROM aaiclick_queue.delayed WHERE not_before <= now() ORDER BY not_before, task_id LIMIT $1
"""
# One look instead of three empty-handed statements: a fleet is idle most of its life.
LOOK_AROUND = """
SELECT EXISTS (SELECT FROM aaiclick_queue.workers
               WHERE lease_expires_at < now() AND status IN ('ACTIVE', 'STOPPING')) AS silent,
       EXISTS (SELECT FROM aaiclick_queue.leases WHERE worker_id = ANY(ARRAY(
               SELECT id FROM aaiclick_queue.workers WHERE status IN ('LOST', 'STOPPED')))) AS lost,
       EXISTS (SELECT FROM aaiclick_queue.timers WHERE due_at <= now()) AS expired,
       EXISTS (SELECT FROM aaiclick_queue.limits) OR EXISTS (SELECT FROM aaiclick_queue.held) AS limits,
       EXISTS (SELECT FROM aaiclick_queue.operations WHERE status = 'OPEN') AS operations,
       EXISTS (SELECT FROM aaiclick_queue.queues WHERE max_depth > 10000) AS deep,
       EXISTS (SELECT FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') AND deadline_at <= now()
               AND failing_at IS NULL) AS late_jobs,
       EXISTS (SELECT FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING'))
           OR EXISTS (SELECT FROM aaiclick_queue.arrivals) AS jobs,
       EXISTS (SELECT FROM aaiclick_queue.registered_jobs WHERE next_run_at IS NOT NULL) AS schedules,
       extract(epoch FROM pg_postmaster_start_time())::text AS server,
       extract(epoch FROM (SELECT greatest(now() - interval '1 day', least(now() + interval '1 day', first.at))
                           FROM (SELECT least(
           (SELECT min(lease_expires_at) FROM aaiclick_queue.workers WHERE status IN ('ACTIVE', 'STOPPING')),
           (SELECT due_at FROM aaiclick_queue.timers WHERE due_at > now() ORDER BY due_at LIMIT 1),
           (SELECT deadline_at FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') AND deadline_at > now()
            ORDER BY deadline_at LIMIT 1)
       ) AS at) AS first WHERE first.at IS NOT NULL) - now())::float8 AS next_end
"""
# The job ends FAILED by its gate, when all that was open is cancelled. One that somebody holds is met by the next look.
FAIL_LATE_JOBS = """
WITH late AS (
    UPDATE aaiclick_queue.jobs SET failing_at = now(), error = jsonb_build_object('type', 'TimedOut', 'message',
               format('not done at its deadline, %s after it was made', date_trunc('second', deadline_at - created_at)))
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') AND deadline_at <= now()
          AND failing_at IS NULL ORDER BY deadline_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING id, error
), noted AS (
    INSERT INTO aaiclick_queue.events (job_id, type, data) SELECT id, 'JOB_OVERDUE', error FROM late
)
INSERT INTO aaiclick_queue.operations (kind, filter, arguments, up_to, made_by)
SELECT 'cancel_job', jsonb_build_object('job', id::text),
       jsonb_build_object('error', jsonb_build_object('type', 'TimedOut', 'message', 'its job was not done in time')),
       9223372036854775807, 'deadline' FROM late
RETURNING id
"""
REFRESH_DEPTHS = """
UPDATE aaiclick_queue.queues q SET depth_at = now(), depth = (
    SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = q.name LIMIT q.max_depth) AS line) + (
    SELECT count(*) FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = q.name LIMIT q.max_depth) AS line)
WHERE q.ctid = ANY(ARRAY(SELECT ctid FROM aaiclick_queue.queues WHERE max_depth > 10000 FOR UPDATE SKIP LOCKED))
"""
# The net behind everything that gives slots back. A strict order is held until its task is final, and beyond that where
# its failure is to stop those behind it.
SWEEP_SLOTS = f"""
DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(
    SELECT s.ctid FROM aaiclick_queue.slots s LEFT JOIN aaiclick_queue.tasks t ON t.id = s.task_id
    WHERE CASE
        WHEN s.stopping > 0 THEN NOT EXISTS (SELECT FROM aaiclick_queue.workers w WHERE w.id = s.worker_id
                                             AND w.status IN ('ACTIVE', 'STOPPING'))
        WHEN s.ends_at IS NOT NULL THEN s.ends_at <= now()
        WHEN s.limit_id = 0 THEN t.id IS NULL OR (t.status IS NOT NULL
                                                  AND NOT (t.status = 'FAILED' AND coalesce(t.order_stops, false)))
        ELSE NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = s.task_id)
             AND NOT EXISTS (SELECT FROM aaiclick_queue.ready r WHERE {in_line("r", "t")}) END
    LIMIT $1 FOR UPDATE OF s SKIP LOCKED))
"""
# Pauses that are over, or of jobs that were pruned.
FORGET_LAPSED = """
DELETE FROM aaiclick_queue.limits m WHERE m.kind = 'pause' AND (m.until <= now() OR (m.scope = 'job' AND NOT EXISTS (
    SELECT FROM aaiclick_queue.jobs j
    WHERE j.id = CASE WHEN m.scope = 'job' AND m.name ~ '^[0-9]{1,19}$' THEN
        CASE WHEN m.name::numeric < 9223372036854775808 THEN m.name::bigint END END)))
"""
EXPIRED_TIMERS = """
SELECT task_id FROM aaiclick_queue.timers WHERE due_at <= now() ORDER BY due_at, task_id LIMIT $1
FOR UPDATE SKIP LOCKED
"""
# A task that was on the move just now keeps its timer; one that runs or has ended needs none.
FORGET_TIMERS = """
DELETE FROM aaiclick_queue.timers WHERE task_id = ANY($1::bigint[]) AND (
    task_id = ANY($2::bigint[]) OR EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = timers.task_id)
    OR NOT EXISTS (SELECT FROM aaiclick_queue.tasks t WHERE t.id = timers.task_id AND t.status IS NULL))
"""
# A page of keys from where the last sweep stopped: whole tables at once took 0.7 s with half a million keys held.
SWEEP_KEYS = f"""
WITH page AS (
    SELECT d.ctid, d.scope, d.key, d.task_id, d.until FROM aaiclick_queue.dedupe d
    WHERE (d.scope, d.key) > ($2::text, $3::text) ORDER BY d.scope, d.key LIMIT $1
), over AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d JOIN page ON d.ctid = page.ctid
        WHERE coalesce(d.until < now(), {has_ended("d.task_id")})
        FOR UPDATE OF d SKIP LOCKED))
)
SELECT scope, key FROM page ORDER BY scope DESC, key DESC LIMIT 1
"""
FORGET_WORKERS = """
DELETE FROM aaiclick_queue.workers w WHERE w.ctid = ANY(ARRAY(
    SELECT o.ctid FROM aaiclick_queue.workers o
    WHERE o.status IN ('LOST', 'STOPPED') AND o.stopped_at < now() - interval '1 hour'
      AND NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.worker_id = o.id)
    LIMIT $1 FOR UPDATE SKIP LOCKED))
"""
ENSURE_PARTITIONS = "SELECT aaiclick_queue.ensure_partitions(14)"
EXPIRED = Error("Expired", "its expiry passed before it started")
BATCH = 500
SINGLY = 100  # a statement each
OVERDUE_REST_SECONDS = 60.0  # by which a run past its deadline may be taken later
DEPTHS_REST_SECONDS = 10.0  # by which a queue may be found full later
ZOMBIES_TOLD = 20  # runs past their deadline that one pass tells of, one by one


class Reaped(msgspec.Struct, frozen=True):
    """What one pass of the reaper did."""

    workers: int = 0
    lost: int = 0
    overdue: int = 0
    expired: int = 0
    limits: bool = False  # there are limits, or tasks that are held
    operations: bool = False
    jobs: bool = False  # there are open ones, or arrivals
    schedules: bool = False
    next_end: float | None = None  # seconds until a lease or a timer that is known now ends

    @property
    def anything(self) -> bool:
        """Whether there may be more to do at once."""
        return bool(self.workers or self.lost or self.overdue or self.expired)


class Reaper:
    """The reaper of one process."""

    def __init__(self, db: Database, figures: Tally | None = None) -> None:
        """`figures` count the runs that are taken."""
        self._db = db
        self._figures = figures or Tally()
        self._settings = db.settings
        self._due = Mark(datetime.min.replace(tzinfo=UTC))
        self._seen = time.monotonic()
        self._server: str | None = None
        self._blind_until = 0.0
        self._overdue_at = 0.0
        self._overdue_rest = Rest(OVERDUE_REST_SECONDS)
        self._depths_at = 0.0
        self._depths_rest = Rest(DEPTHS_REST_SECONDS)
        self._swept = ("", "")
        self._gates = GateSweep()
        self.looks_at_all: Callable[[], bool] = lambda: True

    async def reap_once(self, limit: int = BATCH) -> Reaped:
        """Mark workers that are silent, take their runs, overdue runs and expired tasks: one bounded pass."""
        [look] = await self._db.fetch(LOOK_AROUND)
        await self._meet(look["server"])
        marked = await self._mark_lost(limit) if look["silent"] else 0
        lost = await self._take_lost(limit) if look["lost"] or marked else 0
        overdue = await self._take_overdue(limit)
        expired = await self._expire(limit) if look["expired"] else 0
        late_jobs = len(await self._db.fetch(FAIL_LATE_JOBS, limit)) if look["late_jobs"] else 0
        self._seen = time.monotonic()
        if look["deep"] and self.looks_at_all():
            await self._refresh_depths()
        return Reaped(
            marked,
            lost,
            overdue,
            expired,
            limits=look["limits"],
            operations=look["operations"] or late_jobs > 0,
            jobs=look["jobs"],
            schedules=look["schedules"],
            next_end=look["next_end"],
        )

    async def _refresh_depths(self) -> None:
        # Counted by whoever looks at everything, and the less often the longer it takes.
        began = time.monotonic()
        if began >= self._depths_at:
            await self._db.fetch(REFRESH_DEPTHS)
            now = time.monotonic()
            self._depths_at = now + max(1.0, self._depths_rest.after(now - began))

    async def _take_lost(self, limit: int) -> int:
        rows = await self._take((TAKE_LOST_RUNS, TAKE_LOST_RUN, LOST_IDS), limit, self._settings.lost_limit)
        if rows:
            log.warning("took back %d runs of lost workers", len(rows))
        self._taken(rows, "worker_lost")
        return len(rows)

    async def _take(self, statements: tuple[str, str, str], limit: int, budget: int) -> Sequence[Any]:
        """By the first statement; where a row there stops it, one by one by the second those that the third names."""
        many, one, ids = statements
        try:
            return await self._db.fetch(many, limit, budget)
        except DATA_ERRORS:
            named = [row["task_id"] for row in await self._db.fetch(ids, limit)]
            return await singly(self._db, one, named, budget, aside=(SET_ASIDE_LEASED, None))

    def _taken(self, rows: Sequence[Any], why: str) -> None:
        METERS.lapsed(((row["queue"], row["entrypoint"] or "", row["kind"] == "FAILED") for row in rows), why)
        tell_ended([row["task_id"] for row in rows if row["kind"] == "FAILED"])
        self._figures.count([_tallied(row) for row in rows])

    async def _expire(self, limit: int) -> int:
        async with self._db.transaction() as tx:
            due = [row["task_id"] for row in await tx.fetch(EXPIRED_TIMERS, limit)]
            taken = await take_waiting(tx, due, error=EXPIRED) if due else set()
            await tx.fetch(FORGET_TIMERS, due, list(taken))
        tell_ended(list(taken))
        return len(taken)

    async def _take_overdue(self, limit: int) -> int:
        # The one step that looks at every lease; the deadlines it guards have seconds of grace in them.
        if time.monotonic() < self._overdue_at or not self.looks_at_all():
            return 0
        statements, began = (TAKE_OVERDUE_RUNS, TAKE_OVERDUE_RUN, OVERDUE_IDS), time.monotonic()
        rows = await self._take(statements, limit, self._settings.max_attempts)
        rest = max(self._settings.lease_seconds / 6, self._overdue_rest.after(time.monotonic() - began))
        self._taken(rows, "overrun")
        for row in rows[:ZOMBIES_TOLD]:
            data = {"what": str(row["task_id"]), "kind": "zombie", "entrypoint": row["entrypoint"]}
            data |= {"queue": row["queue"], "worker_id": str(row["worker_id"]), "seconds": round(row["ran"])}
            await note(self._db, "ORCHESTRATOR_ZOMBIE", by="reaper", data=data)
        self._overdue_at = time.monotonic() + (0 if len(rows) >= limit else rest)
        return len(rows)

    async def due_once(self, limit: int = 1000) -> tuple[int, float | None]:
        """Move tasks whose time has come into the line; returns how many, and the seconds until the next is due."""
        try:
            [row] = await self._db.fetch(MOVE_DUE, limit, self._due.begin())
        except DATA_ERRORS:
            self._due.want()
            ids = [row["task_id"] for row in await self._db.fetch(DUE_IDS, min(limit, SINGLY))]
            one_by_one = await singly(self._db, MOVE_ONE_DUE, ids, aside=(SET_ASIDE_DELAYED,))
            return sum(len(row["moved"]) for row in one_by_one), 0.0
        moved = row["moved"]
        self._due.end(moved, full=len(moved) >= limit)
        return len(moved), 0.0 if len(moved) >= limit else row["next_due"]

    async def sweep_once(self, limit: int = BATCH) -> None:
        """The slow net: leases of unknown workers, keys of tasks that are over, gates, old workers, days ahead."""
        failed: Exception | None = None
        steps = (
            self._ensure_days,
            self._take_orphans,
            self._sweep_keys,
            self._sweep_slots,
            self._sweep_gates,
            self._forget_workers,
        )
        for step in steps:
            try:
                await step(limit)
            except Exception as error:  # one that cannot be done must not keep the others from being done
                failed = error
        if failed is not None:
            raise failed

    async def _ensure_days(self, _: int) -> None:
        await self._db.fetch(ENSURE_PARTITIONS)

    async def _take_orphans(self, limit: int) -> None:
        statements = (TAKE_ORPHANED_RUNS, TAKE_ORPHANED_RUN, ORPHANED_IDS)
        self._taken(await self._take(statements, limit, self._settings.lost_limit), "worker_lost")

    async def _sweep_keys(self, limit: int) -> None:
        rows = await self._db.fetch(SWEEP_KEYS, limit, *self._swept)
        self._swept = (rows[0]["scope"], rows[0]["key"]) if rows else ("", "")

    async def _sweep_slots(self, limit: int) -> None:
        await self._db.fetch(SWEEP_SLOTS, limit)
        await self._db.fetch(FORGET_LAPSED)

    async def _sweep_gates(self, _: int) -> None:
        if gates := await self._gates.step(self._db):
            log.warning("%d gates of jobs were decided and not carried out: they are looked at again", len(gates))

    async def _forget_workers(self, limit: int) -> None:
        await self._db.fetch(FORGET_WORKERS, limit)

    async def _meet(self, server: str) -> None:
        """Another server than before, or the same one started anew: each worker has a lease period to find it."""
        if server == self._server:
            return
        if self._server is not None:
            self._blind_until = time.monotonic() + self._settings.lease_seconds
        await meet_timeline(self._db, self._settings.lease_seconds)  # before the server is known: this may fail
        self._server = server

    async def _mark_lost(self, limit: int) -> int:
        # After an outage every worker looks silent: nobody is marked until each had a lease period to renew.
        now, lease = time.monotonic(), self._settings.lease_seconds
        if now - self._seen > lease:
            self._blind_until = now + lease
        limit = 0 if now < self._blind_until else limit
        rows = await self._db.fetch(MARK_LOST_WORKERS, limit, lease, self._server)
        for row in rows:
            log.warning("worker %s pid %d is lost: no heartbeat for a lease period", row["hostname"], row["pid"])
        return len(rows)


def _tallied(row: Any) -> Tallied:
    place = {"FAILED": FAILED, "RETRYING": RETRIED, "LOST": LOST}[row["kind"]]
    return Tallied(row["queue"], row["entrypoint"] or "", max(0.0, row["waited"]), max(0.0, row["ran"]), place)


async def ensure_partitions(tx: Transaction) -> None:
    """Have a place for the history of the next two weeks."""
    await tx.fetch(ENSURE_PARTITIONS)
