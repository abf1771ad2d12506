"""Reset: writes back what was decided over a job: tasks that run again, tasks that leave, gates as they have to be.

Before: clear, retry. After: the line for what can start, gates for the rest, the resolver for what a gate ends at once.
In the caller's transaction, which holds the job's row and its gates, and owns every task that is reset: it had ended,
or its place row was taken here. A page of 10,000 ids a statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from ..outcome import Error
from ..schema import Transaction
from .attach import LOOK_AT
from .closure import Closure, Trimmed
from .outbox import append_from
from .place import enter_line
from .plan_rows import BULK, INSERT_EDGES, INSERT_GATES
from .plan_tasks import pages as pages_of
from .recount import Counted, Recount
from .resolve import LOOK_AGAIN, OPEN_GATES

T = TypeVar("T")

# When it ended, if that day is still kept.
_ENDED_AT = """CASE WHEN to_regclass('aaiclick_queue.attempts' || to_char(finished_at AT TIME ZONE 'UTC', '_YYYYMMDD'))
                    IS NOT NULL THEN finished_at ELSE now() END"""
# A run that has ended moves to `attempts`. An expiry that has passed does not end what somebody wants to run again.
# The events come in the order of the resets, which is that of the job's row: a transaction may have begun long before.
RESET_TASKS = f"""
WITH ended AS MATERIALIZED (
    SELECT t.id, t.worker_id, t.ready_at, t.started_at, t.finished_at, t.attempt, t.status, t.error,
           coalesce(given.run_epoch, t.run_epoch, 0) AS run_epoch, given.type
    FROM unnest($1::bigint[], $2::int[], $3::text[]) AS given(id, run_epoch, type)
    JOIN aaiclick_queue.tasks t ON t.id = given.id
), history AS (
    INSERT INTO aaiclick_queue.attempts (task_id, worker_id, ready_at, started_at, finished_at, run_epoch, attempt,
                                         outcome, error)
    SELECT id, worker_id, ready_at, started_at, {_ENDED_AT}, run_epoch, coalesce(attempt, 0), status, error
    FROM ended WHERE status IS NOT NULL AND worker_id IS NOT NULL
), open AS (
    UPDATE aaiclick_queue.tasks t
    SET status = NULL, attempt = NULL, worker_id = NULL, result = NULL, error = NULL, ready_at = NULL,
        started_at = NULL, finished_at = NULL, run_epoch = NULL, after_gate = NULL,
        expires_at = CASE WHEN t.expires_at > now() THEN t.expires_at END,
        eta = CASE WHEN ended.type <> 'TASK_RETRIED' THEN t.eta END,
        countdown = CASE WHEN ended.type <> 'TASK_RETRIED' THEN t.countdown END
    FROM ended WHERE t.id = ended.id
    RETURNING t.id AS task_id, t.job_id, t.wait_gate, t.job_id AS order_key, ended.run_epoch + 1 AS run_epoch,
              0 AS attempt, 0 AS lost_count, 0 AS snoozes, t.queue, -t.priority::int AS rank, t.entrypoint,
              t.concurrency_key, t.order_by, t.crowd, ended.type,
              coalesce(now() + make_interval(secs => t.countdown), t.eta) AS due,
              128 | CASE WHEN t.order_by IS NULL THEN 0 ELSE 4 END | CASE WHEN t.order_stops THEN 8 ELSE 0 END
              | CASE WHEN t.hooks IS NULL THEN 0 ELSE 16 END
              | CASE WHEN t.kwargs::text LIKE '%{{"$%' THEN 256 ELSE 0 END AS flags
), at_gates AS (
    INSERT INTO aaiclick_queue.waiting (gate_id, task_id, run_epoch, flags)
    SELECT wait_gate, task_id, run_epoch, flags FROM open WHERE wait_gate IS NOT NULL
), later AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, run_epoch, flags, queue, reason)
    SELECT task_id, due, order_key, rank, run_epoch, flags, queue, 'eta' FROM open
    WHERE wait_gate IS NULL AND due > now() ON CONFLICT DO NOTHING
), at_once AS (
    SELECT task_id, order_key, run_epoch, attempt, lost_count, snoozes, flags, queue, rank, entrypoint,
           concurrency_key, order_by, job_id, crowd
    FROM open WHERE wait_gate IS NULL AND (due IS NULL OR due <= now())
), {enter_line("at_once")}, told AS (
    {append_from("entered")}
), orders AS (
    DELETE FROM aaiclick_queue.slots WHERE limit_id = 0 AND stopping = 0 AND task_id = ANY($1::bigint[])
), timers AS (
    DELETE FROM aaiclick_queue.timers WHERE due_at <= now() AND task_id = ANY($1::bigint[])
), progress AS (
    DELETE FROM aaiclick_queue.progress WHERE $5::boolean AND task_id = ANY($1::bigint[])
), checkpoints AS (
    DELETE FROM aaiclick_queue.checkpoints WHERE $5::boolean AND task_id = ANY($1::bigint[])
), noted AS (
    INSERT INTO aaiclick_queue.events (created_at, task_id, job_id, run_epoch, type, data)
    SELECT statement_timestamp(), task_id, job_id, run_epoch,
           CASE type WHEN 'TASK_LIFTED' THEN 'TASK_CLEARED' ELSE type END,
           jsonb_strip_nulls(jsonb_build_object('by', $4::text, 'reason', CASE type
               WHEN 'TASK_LIFTED' THEN 'what it waits for runs again' END)) FROM open
)
SELECT task_id, wait_gate FROM open
"""
# They stay as rows, for people; the graph knows nothing of them any more, and their spawn keys are free.
DROP_TASKS = f"""
WITH gone AS MATERIALIZED (
    SELECT t.id, t.job_id, t.worker_id, t.ready_at, t.started_at, t.finished_at, t.attempt, t.status, t.error,
           coalesce(t.run_epoch, 0) AS run_epoch
    FROM unnest($1::bigint[]) AS given(id) JOIN aaiclick_queue.tasks t ON t.id = given.id
), history AS (
    INSERT INTO aaiclick_queue.attempts (task_id, worker_id, ready_at, started_at, finished_at, run_epoch, attempt,
                                         outcome, error)
    SELECT id, worker_id, ready_at, started_at, {_ENDED_AT}, run_epoch, coalesce(attempt, 0), status, error
    FROM gone WHERE status <> 'CANCELLED' AND worker_id IS NOT NULL
), dropped AS (
    UPDATE aaiclick_queue.tasks t
    SET status = 'CANCELLED', result = NULL, error = $2::text::jsonb, group_id = NULL, member_gate = NULL,
        wait_gate = NULL, exit_gate = NULL, after_gate = NULL, spawn_key = NULL,
        worker_id = CASE WHEN gone.status = 'CANCELLED' THEN t.worker_id END,
        started_at = CASE WHEN gone.status = 'CANCELLED' THEN t.started_at END
    FROM gone WHERE t.id = gone.id
), orders AS (
    DELETE FROM aaiclick_queue.slots WHERE limit_id = 0 AND stopping = 0 AND task_id = ANY($1::bigint[])
), timers AS (
    DELETE FROM aaiclick_queue.timers WHERE task_id = ANY($1::bigint[])
), progress AS (
    DELETE FROM aaiclick_queue.progress WHERE task_id = ANY($1::bigint[])
), checkpoints AS (
    DELETE FROM aaiclick_queue.checkpoints WHERE task_id = ANY($1::bigint[])
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, job_id, run_epoch, type, data)
    SELECT id, job_id, run_epoch, 'TASK_CANCELLED', jsonb_build_object('error', ($2::text::jsonb)->>'type')
    FROM gone WHERE status <> 'CANCELLED'
)
SELECT id FROM gone
"""
FORGET_GROUPS = "DELETE FROM aaiclick_queue.groups WHERE id = ANY($1::bigint[])"
FORGET_LINES = """
DELETE FROM aaiclick_queue.dependencies
WHERE job_id = $1::bigint AND (previous_id = ANY($2::bigint[]) OR next_id = ANY($2::bigint[]))
"""
FORGET_GATES = "DELETE FROM aaiclick_queue.gates WHERE id = ANY($1::bigint[])"
FORGET_EDGES = """
DELETE FROM aaiclick_queue.gate_edges e USING unnest($1::bigint[], $2::bigint[]) AS gone(gate_id, next_gate_id)
WHERE e.gate_id = gone.gate_id AND e.next_gate_id = gone.next_gate_id
"""
# After the exits were set: the arrival of an end that came before is committed by then, and a later end has none.
FORGET_ARRIVALS = "DELETE FROM aaiclick_queue.arrivals WHERE gate_id = ANY($1::bigint[])"
SET_EXITS = """
UPDATE aaiclick_queue.tasks t SET exit_gate = given.gate_id
FROM unnest($1::bigint[], $2::bigint[]) AS given(id, gate_id) WHERE t.id = given.id
"""
SET_GATES = """
UPDATE aaiclick_queue.gates g
SET total = given.total, remaining = given.remaining, failed = given.failed, skipped = given.skipped,
    vetoed = given.vetoed, state = given.state, edge_cursor = given.edge_cursor,
    decided_at = CASE WHEN given.state = g.state THEN g.decided_at WHEN given.state <> 'WAITING' THEN now() END
FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[], $7::text[], $8::bigint[])
     AS given(id, total, remaining, failed, skipped, vetoed, state, edge_cursor)
WHERE g.id = given.id AND (g.total, g.remaining, g.failed, g.skipped, g.vetoed, g.state, g.edge_cursor)
    IS DISTINCT FROM (given.total, given.remaining, given.failed, given.skipped, given.vetoed, given.state,
                      given.edge_cursor)
"""
# A deadline that has passed would end the job again at once.
REOPEN_JOB = """
WITH before AS MATERIALIZED (
    SELECT id, status FROM aaiclick_queue.jobs WHERE id = $1
), reopened AS (
    UPDATE aaiclick_queue.jobs j
    SET status = CASE WHEN j.status IN ('PENDING', 'RUNNING') THEN j.status ELSE 'RUNNING' END, finished_at = NULL,
        failing_at = NULL, error = NULL, deadline_at = CASE WHEN j.deadline_at > now() THEN j.deadline_at END
    WHERE j.id = $1
)
INSERT INTO aaiclick_queue.events (job_id, type, data)
SELECT id, 'JOB_REOPENED', jsonb_build_object('by', $2::text, 'was', status, 'tasks', $3::int) FROM before
WHERE status NOT IN ('PENDING', 'RUNNING')
"""
LEFT = Error("Cleared", "the task that had added it to its job runs again")


class Reset(msgspec.Struct):
    """Tasks to be reset: the event that tells of each, and the run_epoch of those that were taken out of a place.

    A task that a gate had ended and that waits again is TASK_LIFTED: told as cleared, with the reason.
    """

    types: dict[int, str]
    epochs: Mapping[int, int | None]
    forget: bool  # checkpoints and progress too


async def drop(tx: Transaction, trimmed: Trimmed, closure: Closure, *, job_id: int) -> None:
    """Take out of the graph what leaves it; nobody may hold a place any more."""
    for ids in pages(sorted(closure.gone)):
        await tx.fetch(DROP_TASKS, ids, LEFT.text())
    for ids in pages(sorted(closure.gone | closure.gone_groups)):
        await tx.fetch(FORGET_LINES, job_id, ids)
    await tx.fetch(FORGET_GROUPS, sorted(closure.gone_groups))
    if trimmed.new_exits:
        await tx.fetch(SET_EXITS, list(trimmed.new_exits), list(trimmed.new_exits.values()))
    if trimmed.left_behind:
        await tx.fetch(FORGET_ARRIVALS, sorted(trimmed.left_behind))
    for ids in pages(trimmed.gone_gates):
        await tx.fetch(FORGET_GATES, ids)
    for edges in pages(trimmed.gone_edges):
        await tx.fetch(FORGET_EDGES, [edge.gate for edge in edges], [edge.next for edge in edges])
    for ids in pages(trimmed.new_gates):
        ones = [1] * len(ids)
        await tx.fetch(INSERT_GATES, job_id, ids, [None] * len(ids), ones, ["TASK"] * len(ids), ["whole"] * len(ids))
    for edges in pages(trimmed.new_edges):
        nothing = [None] * len(edges)
        await tx.fetch(INSERT_EDGES, [edge.gate for edge in edges], [edge.next for edge in edges], nothing, nothing)


async def write_back(tx: Transaction, job_id: int, recounted: Recount, reset: Reset, *, by: str) -> list[int]:
    """Set the gates, reset the tasks and put them where they belong; gives those that a gate has ended again."""
    if reset.types:
        await tx.fetch(REOPEN_JOB, job_id, by, len(reset.types))
    await _set_gates(tx, recounted.gates)
    waited_at: set[int] = set()
    for ids in pages(sorted(reset.types)):
        epochs = [reset.epochs.get(task_id) for task_id in ids]
        types = [reset.types[task_id] for task_id in ids]
        for row in await tx.fetch(RESET_TASKS, ids, epochs, types, by, reset.forget):
            if row["wait_gate"] is not None:
                waited_at.add(row["wait_gate"])
    ended: list[int] = []
    if opened := sorted(gate for gate in waited_at if recounted.gates[gate].state != "WAITING"):
        [row] = await tx.fetch(OPEN_GATES, opened, BULK)
        ended = row["ended"] or []
    # Also where nothing is decided: a resolver whose snapshot is older than these rows may decide it, and not see them.
    await tx.fetch(LOOK_AT, sorted(waited_at))
    for ids in pages(sorted(recounted.gates)):
        await tx.fetch(LOOK_AGAIN, ids)
    return ended


async def _set_gates(tx: Transaction, gates: Mapping[int, Counted]) -> None:
    for some in pages(sorted(gates.items(), key=lambda one: one[0])):
        counted = [one for _, one in some]
        await tx.fetch(
            SET_GATES,
            [gate_id for gate_id, _ in some],
            [one.total for one in counted],
            [one.total - one.came for one in counted],
            [one.failed for one in counted],
            [one.skipped for one in counted],
            [one.vetoed for one in counted],
            [one.state for one in counted],
            [one.cursor for one in counted],
        )


def pages(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows, as many at a time as one statement takes."""
    return pages_of(rows, BULK)
