"""The graph of a job as it is written, held still: for clear and retry, which decide over it in Python.

Who adds to a job shares its row, so the graph cannot change while that row is held; who folds holds gates, so no count
can change while those are. What goes on meanwhile are ends of tasks, and each brings its status and its arrivals in one
commit. `see_ends` reads statuses and deletes arrivals in one statement, of one snapshot: a task has either ended there,
and its arrivals are gone, folded before or deleted now; or it has not, and they are still to come. So counts made from
those ends are right whenever they are written, as long as the gates are held, and no arrival counts twice or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import TasksBusy, UnknownJob
from ..postgres import LOCAL_FLOW_PLANS
from ..schema import Transaction
from .attach import ADOPT_ALL, results_of_continued
from .closure import Edge, Gate, Graph, Group, Line, Node
from .recount import End, Verdict

# A process that freezes with a job in its hands must not stop that job for ever.
BEGIN_CHANGE = """
SELECT set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '20s', true)
"""
HOLD_JOB = """
SELECT status, name, pruned_at, failing_at, paused_at FROM aaiclick_queue.jobs WHERE id = $1 FOR UPDATE
"""
HOLD_JOB_IF_FREE = HOLD_JOB.rstrip() + " SKIP LOCKED\n"
# It waits for a page that is being worked; whoever works it waits for nobody.
STOP_CANCELLING = """
UPDATE aaiclick_queue.operations SET status = 'CANCELLED', finished_at = now(), updated_at = now()
WHERE status = 'OPEN' AND kind = 'cancel_job' AND filter->>'job' = $1::bigint::text
"""
HOLD_GATES = """
SELECT id, kind, rule, parent_id, state, edge_cursor FROM aaiclick_queue.gates WHERE job_id = $1
ORDER BY job_id, id FOR UPDATE
"""
TASKS_OF_JOB = """
SELECT id, parent_id, group_id, wait_gate, exit_gate, after_gate FROM aaiclick_queue.tasks
WHERE job_id = $1 AND member_gate IS NOT NULL
"""
GROUPS_OF_JOB = "SELECT id, parent_group_id, spawned_by, entry_gate FROM aaiclick_queue.groups WHERE job_id = $1"
EDGES_OF_JOB = """
SELECT e.gate_id, e.next_gate_id, e.choices IS NOT NULL AS conditional
FROM aaiclick_queue.gates g JOIN aaiclick_queue.gate_edges e ON e.gate_id = g.id WHERE g.job_id = $1
"""
LINES_OF_JOB = """
SELECT previous_type, previous_id, next_type, next_id FROM aaiclick_queue.dependencies WHERE job_id = $1
"""
# Arrivals have no index by gate: each is looked up, and not all of them for each gate.
SEE_ENDS = """
WITH seen AS (
    DELETE FROM aaiclick_queue.arrivals WHERE id = ANY(ARRAY(
        SELECT a.id FROM aaiclick_queue.arrivals a CROSS JOIN LATERAL (
            SELECT FROM aaiclick_queue.gates g WHERE g.id = a.gate_id AND g.job_id = $1 OFFSET 0) AS its))
)
SELECT id, status, critical, worker_id IS NULL AS is_unrun FROM aaiclick_queue.tasks
WHERE job_id = $1 AND member_gate IS NOT NULL AND status IS NOT NULL
"""
CHOSEN_EDGES = """
SELECT e.gate_id, e.next_gate_id,
       aaiclick_queue.arrives_as('OPEN', e.choices, e.known, coalesce(wanted.result::jsonb, t.result)) AS verdict
FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS wanted(gate_id, next_gate_id, result)
JOIN aaiclick_queue.gate_edges e ON e.gate_id = wanted.gate_id AND e.next_gate_id = wanted.next_gate_id
JOIN aaiclick_queue.tasks t ON t.id = e.gate_id
"""
LOCK_NOT_AVAILABLE = "55P03"


async def hold_job(tx: Transaction, job_id: int) -> Any:
    """Hold the job's row until the transaction ends; `TasksBusy` when others hold it for long."""
    await tx.fetch(BEGIN_CHANGE)
    try:
        rows = await tx.fetch(HOLD_JOB, job_id)
    except Exception as error:
        if getattr(error, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            raise TasksBusy([job_id]) from error
        raise
    if not rows or rows[0]["pruned_at"] is not None:
        raise UnknownJob(f"no job {job_id}: it was pruned, or its transaction is not committed")
    return rows[0]


async def hold_job_if_free(tx: Transaction, job_id: int) -> bool:
    """The same without waiting; False when it is not to be had now, or not any more."""
    await tx.fetch(BEGIN_CHANGE)
    rows = await tx.fetch(HOLD_JOB_IF_FREE, job_id)
    return bool(rows) and rows[0]["pruned_at"] is None


async def load_graph(tx: Transaction, job_id: int) -> Graph:
    """The graph of a job whose row is held: its gates are held too, and nobody cancels its tasks any more."""
    await tx.fetch(LOCAL_FLOW_PLANS)
    gates = await tx.fetch(HOLD_GATES, job_id)
    if alone := [row["id"] for row in gates if row["kind"] == "TASK" and row["state"] == "WAITING"]:
        [adopted] = await tx.fetch(ADOPT_ALL, alone)
        gates = await tx.fetch(HOLD_GATES, job_id) if adopted["decided"] else gates
    await tx.fetch(STOP_CANCELLING, job_id)  # behind the gates: whoever folds at one may have made such an operation
    tasks = await tx.fetch(TASKS_OF_JOB, job_id)
    groups = await tx.fetch(GROUPS_OF_JOB, job_id)
    return Graph(
        job_id,
        {row[0]: Node(*row) for row in tasks},
        {row[0]: Group(*row) for row in groups},
        {row[0]: Gate(*row) for row in gates},
        [Edge(*row) for row in await tx.fetch(EDGES_OF_JOB, job_id)],
        [Line(*row) for row in await tx.fetch(LINES_OF_JOB, job_id)],
    )


class Seen:
    """The tasks of a job that have ended, and how."""

    def __init__(self, rows: Any, chosen: Mapping[tuple[int, int], Verdict]) -> None:
        self.statuses: dict[int, str] = {row["id"]: row["status"] for row in rows}
        self.ends = {row["id"]: _end(row) for row in rows}
        self.chosen = chosen


async def see_ends(tx: Transaction, graph: Graph) -> Seen:
    """Who has ended as of now; the arrivals that told of it are deleted, for the counts will be made from this."""
    rows = await tx.fetch(SEE_ENDS, graph.job_id)
    conditional = [edge for edge in graph.edges if edge.conditional]
    chosen: dict[tuple[int, int], Verdict] = {}
    if conditional:
        results = await results_of_continued(tx, sorted({edge.gate for edge in conditional}))
        columns = [(edge.gate, edge.next, results.get(edge.gate)) for edge in conditional]
        chosen = {
            (row[0], row[1]): row[2] for row in await tx.fetch(CHOSEN_EDGES, *map(list, zip(*columns, strict=True)))
        }
    return Seen(rows, chosen)


def _end(row: Any) -> End:
    match row["status"]:
        case "COMPLETED":
            return End("OPEN")
        case "SKIPPED":
            return End("SKIP", by_gate=row["is_unrun"])
        case "FAILED" if row["critical"] is False:
            return End("SKIP")
        case "UPSTREAM_FAILED":
            return End("FAIL", by_gate=True)
        case _:
            return End("FAIL")
