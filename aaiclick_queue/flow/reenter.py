"""Reenter: a task that runs again waits for what its group waits for, if that runs again too. For clear and retry.

Whoever waits for tasks of its own group alone has no edge from the group's entry (flow/graph.py): those were let in by
it. They may have ended before the entry was closed again, so such a task gets a gate behind both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from ..schema import Transaction
from .closure import Edge, Gate, Graph
from .job_graph import Seen
from .plan_rows import INSERT_EDGES, INSERT_GATES
from .recount import Recount, recount

NEW_IDS = "SELECT aaiclick_queue.new_id() AS id FROM generate_series(1, $1::int)"
SET_WAITS = """
UPDATE aaiclick_queue.tasks t SET wait_gate = given.gate_id
FROM unnest($1::bigint[], $2::bigint[]) AS given(id, gate_id) WHERE t.id = given.id
"""

Passed = dict[tuple[int, int], list[int]]  # a gate and the entry that it is not behind → the tasks that wait there


async def recount_reset(tx: Transaction, graph: Graph, seen: Seen, again: AbstractSet[int]) -> Recount:
    """Count anew with these tasks open, each of them behind its group's entry where that is closed."""
    recounted = recount(graph, seen.ends, again, seen.chosen)
    if passed := _pass_by(graph, recounted, again | recounted.lifted):
        await _wait_at_entry(tx, graph, passed)
        recounted = recount(graph, seen.ends, again, seen.chosen)
    return recounted


def _pass_by(graph: Graph, recounted: Recount, reset: Iterable[int]) -> Passed:
    """Those of the tasks that would start, or be decided, without their group's entry, which is closed."""
    sources: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        if graph.gates[edge.gate].kind == "WAIT":
            sources[edge.next].append(edge.gate)
    passed: Passed = defaultdict(list)
    for task_id in sorted(reset):
        task = graph.tasks[task_id]
        entry = graph.groups[task.group].entry if task.group is not None else None
        if entry is None or task.wait is None or recounted.gates[entry].state != "WAITING":
            continue
        if not _is_behind(sources, task.wait, entry):
            passed[task.wait, entry].append(task_id)
    return passed


def _is_behind(sources: dict[int, list[int]], gate: int, entry: int) -> bool:
    path = [gate]
    for one in path:  # grows as it is walked
        path += sources[one]
    return entry in path


async def _wait_at_entry(tx: Transaction, graph: Graph, passed: Passed) -> None:
    """Write a gate for each that is behind both, and have the tasks wait there; the counts are left to the recount."""
    new = [row["id"] for row in await tx.fetch(NEW_IDS, len(passed))]
    count = len(new)
    await tx.fetch(
        INSERT_GATES, graph.job_id, new, [None] * count, [2] * count, ["WAIT"] * count, ["all_success"] * count
    )
    edges = [Edge(source, gate_id) for gate_id, pair in zip(new, passed, strict=True) for source in pair]
    nothing = [None] * len(edges)
    await tx.fetch(INSERT_EDGES, [edge.gate for edge in edges], [edge.next for edge in edges], nothing, nothing)
    waits = {task_id: gate_id for gate_id, ids in zip(new, passed.values(), strict=True) for task_id in ids}
    await tx.fetch(SET_WAITS, list(waits), list(waits.values()))
    graph.gates |= {gate_id: Gate(gate_id, "WAIT", "all_success") for gate_id in new}
    graph.edges = [*graph.edges, *edges]
    graph.tasks |= {task_id: graph.tasks[task_id]._replace(wait=gate_id) for task_id, gate_id in waits.items()}
