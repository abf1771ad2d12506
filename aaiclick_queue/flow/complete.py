"""Complete: records what runs came to, a batch a statement, fenced. Before: execute. After: relay, reaper.

The fence is (task_id, run_epoch, worker_id): the lease row is deleted or nothing of that run is written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from ..errors import PostgresUnavailable
from ..flags import FORGET, IN_JOB, SPECIAL
from ..meters import METERS
from ..outcome import Ended, Error, Failed, Succeeded
from ..postgres import DATA_ERRORS, Connection, Database
from ..schema import Transaction
from .arrive import ARRIVED_WELL
from .ending import FORGET_ROWS, HOOKED_ROWS, SUCCESS_HOOKS, slots_of
from .outbox import append_from
from .place import enter_line
from .quarantine import SET_ASIDE_LEASED, set_aside
from .settle import SETTLE_OWN_RUNS, own_leases, recorded_as, settle_runs

log = logging.getLogger(__name__)

_RUNS = """unnest($1::bigint[], $2::int[], $3::text[], $4::float8[], $5::float8[])
             AS run(task_id, run_epoch, result, started, ended)"""
# Times by the statement: a task's own transaction may have begun long before.
_FREED_AND_FINAL = """freed AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d
        WHERE d.task_id = ANY(ARRAY(SELECT task_id FROM ended WHERE flags & 1 = 1)) AND d.until IS NULL
        FOR UPDATE SKIP LOCKED))
), final AS (
    UPDATE aaiclick_queue.tasks t
    SET status = 'COMPLETED', attempt = ended.attempt, run_epoch = ended.run_epoch, worker_id = $6,
        result = ended.result::jsonb, ready_at = ended.ready_at,
        started_at = statement_timestamp() - make_interval(secs => ended.started),
        finished_at = statement_timestamp() - make_interval(secs => ended.ended)
    FROM ended WHERE t.id = ended.task_id"""
_FINAL_IN_JOB = """
    RETURNING t.member_gate, t.exit_gate, t.after_gate"""
COMPLETE_SUCCEEDED = f"""
WITH ended AS (
    DELETE FROM aaiclick_queue.leases l USING ({own_leases(_RUNS, worker_id="$6")}) AS run WHERE l.ctid = run.at
    RETURNING l.task_id, l.run_epoch, l.attempt, l.flags, l.ready_at, run.result, run.started, run.ended
), {_FREED_AND_FINAL}
)
SELECT task_id FROM ended
"""
# The same for tasks of jobs.
COMPLETE_IN_JOB = f"""
WITH ended AS (
    DELETE FROM aaiclick_queue.leases l USING ({own_leases(_RUNS, worker_id="$6")}) AS run WHERE l.ctid = run.at
    RETURNING l.task_id, l.run_epoch, l.attempt, l.flags, l.ready_at, run.result, run.started, run.ended
), {_FREED_AND_FINAL}{_FINAL_IN_JOB}
), {ARRIVED_WELL}
SELECT task_id FROM ended
"""
# The same for runs that hold slots, have hooks or are not kept: a statement of its own, so that others pay nothing.
COMPLETE_SPECIAL = f"""
WITH ended AS (
    DELETE FROM aaiclick_queue.leases l USING ({own_leases(_RUNS, worker_id="$6")}) AS run WHERE l.ctid = run.at
    RETURNING l.task_id, l.run_epoch, l.attempt, l.flags, l.ready_at, l.claimed_at, run.result, run.started,
              run.ended
), {_FREED_AND_FINAL} AND ended.flags & {FORGET} = 0{_FINAL_IN_JOB}
), {ARRIVED_WELL}, gone AS (
    SELECT task_id FROM ended WHERE flags & {FORGET} <> 0
), {FORGET_ROWS}, held AS MATERIALIZED (
    SELECT slot.at, ended.claimed_at + make_interval(secs => slot.seconds) AS ends_at
    FROM ended CROSS JOIN LATERAL ({slots_of("ended.task_id")}) AS slot
), given_back AS (
    DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(
        SELECT at FROM held WHERE ends_at IS NULL OR ends_at <= now()))
), kept_slots AS (
    UPDATE aaiclick_queue.slots s SET ends_at = held.ends_at FROM held WHERE s.ctid = held.at AND held.ends_at > now()
), {SUCCESS_HOOKS}, {enter_line(HOOKED_ROWS)}, told AS (
    {append_from("entered")}
)
SELECT task_id FROM ended
"""
# An answer that was lost is looked up, never guessed. One by one: as two EXISTS a stale plan hashed all of `tasks`.
LANDED = """
SELECT run.task_id FROM unnest($1::bigint[], $2::int[], $3::text[]) AS run(task_id, run_epoch, outcome)
CROSS JOIN LATERAL (
    SELECT FROM aaiclick_queue.tasks t WHERE t.id = run.task_id AND t.run_epoch = run.run_epoch
        AND t.worker_id = $4 AND t.status = run.outcome
    UNION ALL
    SELECT FROM aaiclick_queue.attempts a WHERE a.task_id = run.task_id AND a.run_epoch = run.run_epoch
        AND a.worker_id = $4 AND a.outcome = run.outcome
    UNION ALL
    SELECT WHERE NOT EXISTS (SELECT FROM aaiclick_queue.tasks t WHERE t.id = run.task_id)
    LIMIT 1) AS landed
"""
FLUSH_LIMIT = 500

Parts = dict[str, list[Ended]]  # outcomes by the statement that records them


async def complete(tx: Transaction, runs: Sequence[Ended], *, worker_id: int, parts: Parts | None = None) -> set[int]:
    """Record outcomes. Task ids that are missing had lost their lease; nothing of theirs was written."""
    landed = await _record(tx, parts or _by_statement(runs), worker_id)
    missing = [run for run in runs if run.task_id not in landed]
    if missing:
        # A run that was just given more time has moved its lease row to where only a new statement sees it.
        landed |= await _record(tx, _by_statement(missing), worker_id)
    return landed


async def _record(tx: Transaction, parts: Parts, worker_id: int) -> set[int]:
    now = time.monotonic()
    landed: set[int] = set()
    for statement, some in parts.items():
        if statement == SETTLE_OWN_RUNS:
            landed |= await settle_runs(tx, some, worker_id=worker_id, now=now)
            continue
        rows = await tx.fetch(
            statement,
            [run.task_id for run in some],
            [run.run_epoch for run in some],
            [run.outcome.result for run in some if type(run.outcome) is Succeeded],
            [now - run.started for run in some],  # ages: the database's clock makes times of them
            [now - run.ended for run in some],
            worker_id,
        )
        landed.update(row["task_id"] for row in rows)
    return landed


def _by_statement(runs: Sequence[Ended]) -> Parts:
    parts: Parts = {}
    for run in runs:
        parts.setdefault(_statement_for(run), []).append(run)
    return parts


def _statement_for(run: Ended) -> str:
    if type(run.outcome) is not Succeeded:  # isinstance of a struct takes four times as long
        return SETTLE_OWN_RUNS
    if run.flags & SPECIAL:
        return COMPLETE_SPECIAL
    return COMPLETE_IN_JOB if run.flags & IN_JOB else COMPLETE_SUCCEEDED


class Completer:
    """The one writer of outcomes in a process: flushes at once when idle, else all that gathered meanwhile."""

    def __init__(
        self, db: Database, *, worker_id: Callable[[], int], landed: Callable[[Sequence[Ended], set[int]], None]
    ) -> None:
        self._db = db
        self._worker_id = worker_id
        self._landed = landed
        self._pending: list[Ended] = []
        self._refused: dict[int, Failed] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, run: Ended) -> None:
        """Take an outcome; it is written with the next flush."""
        self._pending.append(run)
        self._wake.set()
        self._idle.clear()

    async def drained(self) -> None:
        """Wait until everything that was added has been written or found stale."""
        await self._idle.wait()

    async def run(self) -> None:
        """Flush for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                batch, self._pending = self._pending[:FLUSH_LIMIT], self._pending[FLUSH_LIMIT:]
                await self._flush(batch)
            self._idle.set()

    async def _flush(self, batch: Sequence[Ended]) -> None:
        by_worker: dict[int, list[Ended]] = {}
        for run in batch:
            by_worker.setdefault(run.worker_id or self._worker_id(), []).append(run)
        for worker_id, runs in by_worker.items():
            landed = await self._insist(runs, worker_id)
            refused, self._refused = self._refused, {}
            self._landed([_refused(run, refused) for run in runs] if refused else runs, landed)

    async def _insist(self, batch: Sequence[Ended], worker_id: int) -> set[int]:
        """Write until there is an answer: an outcome is given up only when its lease is gone."""
        answered, delay = True, 0.05
        while True:
            try:
                async with self._db.connection() as connection:
                    began = time.monotonic()
                    landed = await self._complete(connection, batch, worker_id)
                    METERS.statement("complete", time.monotonic() - began)
                    if not answered:
                        landed |= await _landed_before(connection, batch, worker_id)
                    return landed
            except Exception as error:
                if answered:
                    expected = isinstance(error, PostgresUnavailable)
                    log.warning("outcomes wait: %s", error, exc_info=None if expected else error)
                answered = False
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)

    async def _complete(self, tx: Connection, batch: Sequence[Ended], worker_id: int) -> set[int]:
        try:
            parts = _by_statement(batch)
            if len(parts) == 1:
                return await complete(tx, batch, worker_id=worker_id, parts=parts)
            async with tx.transaction():  # several statements: all land or none, so that halving starts clean
                return await complete(tx, batch, worker_id=worker_id)
        except DATA_ERRORS as error:
            # One row that Postgres refuses must not hold up the others: halve until it stands alone.
            if len(batch) == 1:
                log.error("task %d: Postgres refused its outcome: %s", batch[0].task_id, error)
                return await self._refuse(tx, batch[0], error, worker_id)
            middle = len(batch) // 2
            first = await self._complete(tx, batch[:middle], worker_id)
            return first | await self._complete(tx, batch[middle:], worker_id)

    async def _refuse(self, tx: Connection, run: Ended, error: Exception, worker_id: int) -> set[int]:
        refused = self._refused[run.task_id] = Failed(Error.of(error))
        try:
            return await complete(tx, [msgspec.structs.replace(run, outcome=refused)], worker_id=worker_id)
        except DATA_ERRORS as again:  # then it is not what the run came to, but the task's own row
            is_aside = await set_aside(tx, SET_ASIDE_LEASED, run.task_id, again, worker_id)
            return {run.task_id} if is_aside else set()


def _refused(run: Ended, refused: dict[int, Failed]) -> Ended:
    return msgspec.structs.replace(run, outcome=refused.get(run.task_id, run.outcome))


async def _landed_before(tx: Transaction, batch: Sequence[Ended], worker_id: int) -> set[int]:
    rows = await tx.fetch(
        LANDED,
        [run.task_id for run in batch],
        [run.run_epoch for run in batch],
        [recorded_as(run.outcome) for run in batch],
        worker_id,
    )
    return {row["task_id"] for row in rows}
