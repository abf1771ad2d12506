"""Settle: what becomes of a task that is taken out of its place and did not succeed, in one statement.

Used by complete (its own leases), the reaper (lost and overdue leases), cancel and expire (any place).
Whoever settles has just deleted the task's one place row in the CTE `taken`; all that follows is from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ..outcome import Cancelled, Ended, Failed, Later, Lost, Outcome, Released, Skipped, Succeeded
from ..schema import Transaction
from .arrive import ARRIVED_BADLY
from .ending import FAILURE_HOOKS, FORGET_ROWS, HOOKED_ROWS, slots_of
from .outbox import append_from
from .place import enter_line, lacks_slot

# `taken` has: task_id, run_epoch, worker_id, attempt, lost_count, snoozes, flags, queue, rank, order_key, ready_at,
# started_at, kind, error (text), seconds, retry (text), stops (its code may still run). attempt counts the running
# one; a kind that does not spend it writes attempt - 1.
_SETTLE = """
final AS (
    UPDATE aaiclick_queue.tasks t
    SET status = taken.kind, attempt = taken.attempt, run_epoch = taken.run_epoch, worker_id = taken.worker_id,
        error = taken.error::jsonb, ready_at = taken.ready_at, started_at = taken.started_at, finished_at = now()
    FROM taken WHERE t.id = taken.task_id AND taken.kind IN ('FAILED', 'CANCELLED', 'SKIPPED') AND taken.flags & 32 = 0
    RETURNING t.status, t.critical, t.member_gate, t.exit_gate
), {arrived}, gone AS (
    SELECT task_id FROM taken WHERE kind IN ('FAILED', 'CANCELLED', 'SKIPPED') AND flags & 32 = 32
), {forget_rows}, freed AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d WHERE d.until IS NULL AND d.task_id = ANY(ARRAY(
            SELECT task_id FROM taken WHERE flags & 1 = 1 AND kind IN ('FAILED', 'CANCELLED', 'SKIPPED')))
        FOR UPDATE SKIP LOCKED))
), later AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, run_epoch, attempt, lost_count,
                                        snoozes, flags, queue, reason)
    SELECT taken.task_id,
           now() + CASE WHEN taken.seconds IS NOT NULL THEN make_interval(secs => taken.seconds)
                        WHEN taken.kind = 'LOST' THEN make_interval(secs => (1 << least(taken.lost_count, 6))
                                                                            * (0.5 + random() / 2))
                        ELSE aaiclick_queue.backoff(coalesce(t.retry, taken.retry::jsonb), taken.attempt) END,
           CASE WHEN taken.flags & 2 = 2 THEN coalesce(t.job_id, t.id) ELSE taken.order_key END, -t.priority::int,
           taken.run_epoch,
           CASE WHEN taken.kind = 'RETRYING' THEN taken.attempt ELSE taken.attempt - 1 END,
           taken.lost_count + (taken.kind = 'LOST')::int, taken.snoozes + (taken.kind = 'SNOOZED')::int,
           taken.flags & ~2, t.queue,
           CASE taken.kind WHEN 'RETRYING' THEN 'retry' WHEN 'SNOOZED' THEN 'snooze' WHEN 'LOST' THEN 'lost'
                           ELSE 'unknown entrypoint' END
    FROM taken JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
    WHERE taken.kind IN ('RETRYING', 'SNOOZED', 'UNKNOWN', 'LOST')
    ON CONFLICT DO NOTHING
    RETURNING task_id, not_before
), released AS (
    SELECT taken.task_id, taken.run_epoch, taken.attempt - 1 AS attempt, taken.lost_count, taken.snoozes, taken.flags,
           t.queue, -t.priority::int AS rank, t.entrypoint, t.concurrency_key, t.order_by, t.job_id, t.crowd,
           taken.order_key, coalesce(t.job_id, t.id) AS own_key,
           taken.flags & 2 = 2 AND t.queue = taken.queue AND taken.order_key = coalesce(t.job_id, t.id)
           AND NOT taken.stops
           AND NOT {lacks_slot} AS admitted
    FROM taken JOIN aaiclick_queue.tasks t ON t.id = taken.task_id WHERE taken.kind = 'RELEASED'
), kept AS (
    INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags)
    SELECT queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags
    FROM released WHERE admitted
    ON CONFLICT DO NOTHING
    RETURNING queue, rank, order_key, task_id
), {hooks}, again AS (
    SELECT task_id, CASE WHEN flags & 2 = 2 THEN own_key ELSE order_key END AS order_key, run_epoch, attempt,
           lost_count, snoozes, flags, queue, rank, entrypoint, concurrency_key, order_by, job_id, crowd
    FROM released WHERE NOT admitted
    UNION ALL
    {hooked_rows}
), {enter}, told AS (
    {outbox}
), {slots}, history AS (
    INSERT INTO aaiclick_queue.attempts (task_id, worker_id, ready_at, started_at, run_epoch, attempt, outcome, error)
    SELECT task_id, worker_id, ready_at, started_at, run_epoch, attempt, kind, error::jsonb FROM taken
    WHERE kind IN ('RETRYING', 'SNOOZED', 'UNKNOWN', 'LOST', 'CLEARED') AND worker_id IS NOT NULL
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, job_id, run_epoch, type, data)
    SELECT taken.task_id, CASE WHEN taken.flags & 128 = 128 THEN (SELECT t.job_id FROM aaiclick_queue.tasks t
                                                                  WHERE t.id = taken.task_id) END,
           taken.run_epoch, 'TASK_' || taken.kind,
           jsonb_strip_nulls(jsonb_build_object(
               'error', (taken.error::jsonb)->>'type', 'reason', left((taken.error::jsonb)->>'message', 300),
               'attempt', nullif(taken.attempt + (taken.kind = 'RETRYING')::int, 0), 'not_before', later.not_before))
    FROM taken LEFT JOIN later ON later.task_id = taken.task_id
    WHERE taken.kind IN ('RETRYING', 'LOST', 'CANCELLED', 'UNKNOWN', 'SKIPPED')
       OR (taken.kind = 'SNOOZED' AND taken.flags & 128 = 128)
)
"""
# A slot is given back with its run. One of a run that may still work is kept, as stopping, until its worker says that
# it has ended or is over itself; one of a rate ends a period after the start, and is kept beside that of the task's
# next start (as minus its run_epoch: as one row four attempts counted once); one of a strict order is kept until
# the task is final, and beyond that if its failure stops the order.
_SLOTS = f"""fates AS MATERIALIZED (
    SELECT slot.at, taken.worker_id, taken.run_epoch,
           taken.started_at + make_interval(secs => slot.seconds) AS ends_at, CASE
               WHEN taken.kind = 'RELEASED' AND taken.task_id = ANY(ARRAY(SELECT task_id FROM released WHERE admitted))
                   THEN CASE WHEN slot.seconds IS NULL THEN 'as it is' ELSE 'unclaimed' END
               WHEN slot.limit_id = 0 AND (taken.kind NOT IN ('FAILED', 'CANCELLED', 'SKIPPED', 'CLEARED')
                                           OR (taken.kind = 'FAILED' AND taken.flags & 8 = 8)) THEN 'as it is'
               WHEN slot.seconds IS NULL AND taken.stops THEN 'stopping'
               WHEN slot.seconds > 0 AND taken.started_at + make_interval(secs => slot.seconds) > now() THEN 'until'
               ELSE 'free' END AS fate
    FROM taken CROSS JOIN LATERAL ({slots_of("taken.task_id")}) AS slot
    WHERE taken.flags & 6 <> 0 OR taken.stops  -- one that ran before there was a limit was not let in by it
), given_back AS (
    DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(SELECT at FROM fates WHERE fate = 'free'))
), kept_slots AS (
    UPDATE aaiclick_queue.slots s
    SET stopping = CASE fates.fate WHEN 'stopping' THEN fates.run_epoch WHEN 'until' THEN -fates.run_epoch ELSE 0 END,
        worker_id = fates.worker_id,
        ends_at = CASE WHEN fates.fate = 'until' THEN fates.ends_at END
    FROM fates WHERE s.ctid = fates.at AND fates.fate IN ('stopping', 'until', 'unclaimed')
)"""
SETTLE = _SETTLE.format(
    arrived=ARRIVED_BADLY,
    forget_rows=FORGET_ROWS,
    lacks_slot=lacks_slot("t"),
    hooks=FAILURE_HOOKS,
    hooked_rows=HOOKED_ROWS,
    enter=enter_line("again"),
    outbox=append_from(
        "(SELECT queue, rank, order_key, task_id FROM kept UNION ALL"
        " SELECT queue, rank, order_key, task_id FROM entered) AS line"
    ),
    slots=_SLOTS,
)


def own_leases(runs: str, *, worker_id: str) -> str:
    """A subquery that finds the leases of this worker's runs, by their key; `at` is where each one is, to be deleted.

    Looked up one by one and deleted by ctid: joined the obvious way, a plan cached on an empty table drove from the
    worker's index (2.5 s for a hundred rows), and `task_id = ANY($1)` beside the join is quadratic (109 ms for 480).
    Not locked first: the delete locks what it deletes, and finds nothing where somebody was quicker (57 B of WAL less).
    """
    return f"""
        SELECT held.ctid AS at, run.* FROM {runs}
        CROSS JOIN LATERAL (
            SELECT l.ctid FROM aaiclick_queue.leases l
            WHERE l.task_id = run.task_id AND l.run_epoch = run.run_epoch AND l.worker_id + 0 = {worker_id}
            OFFSET 0) AS held"""


_RUNS = """unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::float8[], $6::float8[], $8::text[],
                $9::boolean[]) AS run(task_id, run_epoch, kind, error, seconds, ran, retry, stops)"""
SETTLE_OWN_RUNS = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.leases l USING ({own_leases(_RUNS, worker_id="$7")}) AS run WHERE l.ctid = run.at
    RETURNING l.task_id, l.run_epoch, l.worker_id, l.attempt, l.lost_count, l.snoozes, l.flags, l.queue, l.rank,
              l.order_key, l.ready_at, now() - make_interval(secs => run.ran) AS started_at, run.kind, run.error,
              run.seconds, run.retry, run.stops
), {SETTLE}
SELECT taken.task_id FROM taken
"""

SETTLE_ALL_OF_WORKER = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.leases l WHERE l.ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.leases WHERE worker_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING l.task_id, l.run_epoch, l.worker_id, l.attempt, l.lost_count, l.snoozes, l.flags, l.queue, l.rank,
              l.order_key, l.ready_at, l.claimed_at AS started_at, 'RELEASED' AS kind, NULL::text AS error,
              NULL::float8 AS seconds, NULL::text AS retry, false AS stops
), {SETTLE}
SELECT taken.task_id FROM taken
"""


async def release_all(tx: Transaction, worker_id: int, *, limit: int = 500) -> int:
    """Hand back whatever is still leased to a worker that ends, known to it or not; returns how many."""
    released = 0
    while rows := await tx.fetch(SETTLE_ALL_OF_WORKER, worker_id, limit):
        released += len(rows)
    return released


async def settle_runs(tx: Transaction, runs: Sequence[Ended], *, worker_id: int, now: float) -> set[int]:
    """Record runs that did not succeed; returns the task ids that still were this worker's."""
    settled = [_columns(run.outcome) for run in runs]
    rows = await tx.fetch(
        SETTLE_OWN_RUNS,
        [run.task_id for run in runs],
        [run.run_epoch for run in runs],
        [kind for kind, _, _ in settled],
        [error for _, error, _ in settled],
        [seconds for _, _, seconds in settled],
        [now - run.started for run in runs],
        worker_id,
        [run.outcome.retry if isinstance(run.outcome, Later) else None for run in runs],
        [run.still_running for run in runs],
    )
    return {row["task_id"] for row in rows}


def _columns(outcome: Outcome) -> tuple[str, str | None, float | None]:
    match outcome:
        case Failed(error):
            return "FAILED", error.text(), None
        case Cancelled(error):
            return "CANCELLED", error.text(), None
        case Skipped(error):
            return "SKIPPED", error.text(), None
        case Later(kind, error, seconds, _):
            return kind, error.text(), seconds
        case Lost(error):
            return "LOST", error.text(), None
        case Released():
            return "RELEASED", None, None
        case Succeeded():
            raise AssertionError("a success is completed, not settled")
        case _:
            assert_never(outcome)


def recorded_as(outcome: Outcome) -> str:
    """The word under which an outcome is found again."""
    return "COMPLETED" if isinstance(outcome, Succeeded) else _columns(outcome)[0]
