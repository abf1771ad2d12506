"""Scheduler: fires what registered jobs are due, each tick once, however many schedulers there are.

Before: a registered job's row. After: a job with one task, which a worker that has imported its function runs. The
ticks, their jobs and the next moment of the schedule are one commit: who dies before it has done nothing. The row is
shared by SKIP LOCKED, and a tick is unique by its name besides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from ..errors import JobEnded, TasksBusy
from ..meters import METERS
from ..postgres import DATA_ERRORS, Database
from ..schema import Transaction
from .ahead import AHEAD_SECONDS, Ahead
from .enqueue import TakeIds, id_source
from .firing import DUE_COLUMNS, Firing
from .job_control import cancel_job_in
from .job_graph import hold_job_if_free

log = logging.getLogger(__name__)

# What waits for a run that has ended, or is to be cancelled, is taken too. One whose run goes on is not: two hundred of
# them would keep all others out. NOT EXISTS would hash all open jobs. $2 are those that cannot be read here.
HOLD_DUE = """
WITH due AS MATERIALIZED (
    (SELECT id FROM aaiclick_queue.registered_jobs WHERE next_run_at <= now() AND id <> ALL($2::bigint[])
     ORDER BY next_run_at, id LIMIT $1)
    UNION
    (SELECT id FROM aaiclick_queue.registered_jobs r
     WHERE (queued_fire_at IS NOT NULL OR replacing IS NOT NULL) AND id <> ALL($2::bigint[])
       AND (replacing IS NOT NULL OR overlap <> 'queue' OR (
           SELECT j.id FROM aaiclick_queue.jobs j
           WHERE j.registered_job_id = r.id AND j.status IN ('PENDING', 'RUNNING') LIMIT 1) IS NULL)
     ORDER BY id LIMIT $1)
)
SELECT r.id, r.name, r.xmin::text AS version FROM aaiclick_queue.registered_jobs r
WHERE r.id = ANY(ARRAY(SELECT id FROM due)) FOR UPDATE SKIP LOCKED
"""
HOLD_ONE = """
SELECT r.id, r.name, r.xmin::text AS version FROM aaiclick_queue.registered_jobs r WHERE r.id = $1::bigint
FOR UPDATE SKIP LOCKED
"""
READ_LOCKED = f"SELECT {DUE_COLUMNS} FROM aaiclick_queue.registered_jobs r WHERE r.id = ANY($1::bigint[])"
LOOK = """
SELECT n.next_run_at, extract(epoch FROM (
           SELECT greatest(now() - interval '1 day', least(now() + interval '1 day', n.next_run_at))
           WHERE n.next_run_at IS NOT NULL) - now())::float8 AS next_due,
       EXISTS (SELECT FROM aaiclick_queue.registered_jobs WHERE queued_fire_at IS NOT NULL OR replacing IS NOT NULL)
           AS is_left
FROM (SELECT (SELECT next_run_at FROM aaiclick_queue.registered_jobs
              WHERE next_run_at IS NOT NULL AND id <> ALL($1::bigint[]) ORDER BY next_run_at LIMIT 1)) AS n
"""
REPLACED = """
UPDATE aaiclick_queue.registered_jobs r SET replacing = (
    SELECT array_agg(one) FROM unnest(r.replacing) AS one WHERE one <> ALL($2::bigint[]))
WHERE r.id = $1
"""
HAS_ENDED = """
SELECT NOT EXISTS (SELECT FROM aaiclick_queue.jobs WHERE id = $1 AND status IN ('PENDING', 'RUNNING'))
"""
AT_A_TIME = 500
BUSY_SECONDS = 0.02
UNREADABLE_SECONDS = 60.0


class Fired(msgspec.Struct):
    """What one step did, and when the next one is wanted."""

    runs: int = 0
    ticks: int = 0
    is_full: bool = False
    next_due: float | None = None  # seconds; None: nothing is scheduled
    is_left: bool = False  # a tick waits for the end of a run, or a run is still to be cancelled

    @property
    def pause(self) -> float | None:
        """Seconds until the next step: a moment before something is due, then when it is."""
        if self.next_due is None or self.next_due <= AHEAD_SECONDS:
            return self.next_due
        return self.next_due - AHEAD_SECONDS


class Scheduler:
    """The scheduler of one process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._take: TakeIds | None = None
        self._unreadable: dict[int, float] = {}  # until when they are left to others
        self._ahead = Ahead()

    async def fire_once(self, *, limit: int = AT_A_TIME) -> Fired:
        """One bounded step: a look, and where something is due one transaction."""
        done = await self._look()
        if not done.is_left and (done.next_due is None or done.next_due > 0):
            return done
        try:
            runs, ticks, is_full = await self._step(HOLD_DUE, limit, self._skipped(), full=limit)
        except DATA_ERRORS:
            runs, ticks, is_full = await self._singly(limit)
        done = await self._look()
        done.runs, done.ticks, done.is_full = runs, ticks, is_full
        if not done.ticks and done.next_due is not None and done.next_due <= 0:
            done.next_due = BUSY_SECONDS  # another scheduler is at it
        return done

    async def _step(self, hold: str, *which: Any, full: int) -> tuple[int, int, bool]:
        """Fire what the statement holds, in one transaction: runs, ticks, and whether there may be more."""
        async with self._db.transaction() as tx:
            held = await tx.fetch(hold, *which)
            if not held:
                return 0, 0, False
            self._take = self._take or (await id_source(tx)).take
            firing = Firing(tx, self._take, timeout=self._db.settings.job_timeout_seconds)
            runs, ticks = await self._fire(tx, firing, held)
        self._leave(firing.unreadable)
        for registered_id, jobs in firing.replaced.items():
            await self._cancel(registered_id, jobs)
        return runs, ticks, firing.due >= full or firing.is_cut

    async def _singly(self, limit: int) -> tuple[int, int, bool]:
        """The same one by one, after a row that Postgres cannot make a job of has stopped all."""
        runs = ticks = 0
        for row in await self._db.fetch(HOLD_DUE, limit, self._skipped()):
            try:
                made, ticked, _ = await self._step(HOLD_ONE, row["id"], full=limit)
            except DATA_ERRORS as error:
                log.error("schedule %d cannot be fired: %s", row["id"], error)
                self._leave({row["id"]: row["name"]})
            else:
                runs, ticks = runs + made, ticks + ticked
        return runs, ticks, True

    def _leave(self, unreadable: Mapping[int, str]) -> None:
        self._unreadable |= dict.fromkeys(unreadable, time.monotonic() + UNREADABLE_SECONDS)
        for name in unreadable.values() if METERS.on else ():
            METERS.ticked(name, "error")

    async def _fire(self, tx: Transaction, firing: Firing, held: Sequence[Any]) -> tuple[int, int]:
        known, others = self._ahead.take(held)
        return await firing.fire(await tx.fetch(READ_LOCKED, others) if others else (), known)

    async def _look(self) -> Fired:
        [row] = await self._db.fetch(LOOK, self._skipped())
        if row["next_due"] is not None and 0 < row["next_due"] <= AHEAD_SECONDS:
            began = time.monotonic()
            await self._ahead.look(self._db, row["next_run_at"], seconds=row["next_due"])
            left = row["next_due"] - (time.monotonic() - began)
            return Fired(next_due=max(0.0, left), is_left=row["is_left"])
        return Fired(next_due=row["next_due"] and max(0.0, row["next_due"]), is_left=row["is_left"])

    def _skipped(self) -> list[int]:
        now = time.monotonic()
        self._unreadable = {one: until for one, until in self._unreadable.items() if now < until}
        return [*self._unreadable]

    async def _cancel(self, registered_id: int, jobs: Sequence[int]) -> None:
        """Cancel the runs that a new one takes the place of; one that somebody holds is met by the next step."""
        over: list[int] = []
        for job_id in jobs:
            with suppress(JobEnded, TasksBusy, asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                async with self._db.transaction() as tx:
                    if await hold_job_if_free(tx, job_id):
                        await cancel_job_in(tx, job_id, by="scheduler")
            if await self._db.fetchval(HAS_ENDED, job_id):
                over.append(job_id)
        await self._db.fetch(REPLACED, registered_id, over)
