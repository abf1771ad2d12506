"""Recount: what all gates of a job have to be, told from how its tasks stand. A pure decision, for clear and retry.

It comes to what folding would have come to: `decide` is the rule of FOLD_ARRIVALS. Where that depends on what arrived
first, a gate stays what it is as long as it can be. A task that its gate had ended, UPSTREAM_FAILED or SKIPPED, is
lifted where the gate is not decided that way any more: it waits again, and so on behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

import msgspec

from .closure import Edge, Gate, Graph, Node, State

Verdict = Literal[State, "VETO"]  # VETO: a branch that was not taken


class End(NamedTuple):
    """How a task has ended: as what it counts, and whether its gate ended it and not a run."""

    verdict: State
    by_gate: bool = False


class Counted(msgspec.Struct):
    """What a gate has to be."""

    total: int = 0
    came: int = 0
    failed: int = 0
    skipped: int = 0
    vetoed: int = 0
    state: State = "WAITING"
    cursor: int = 0

    def add(self, verdict: Verdict) -> None:
        """One has arrived."""
        self.came += 1
        self.failed += verdict == "FAIL"
        self.skipped += verdict == "SKIP"
        self.vetoed += verdict == "VETO"


class Recount(msgspec.Struct):
    """All gates, and the tasks that wait again."""

    gates: dict[int, Counted]
    lifted: set[int]


def recount(
    graph: Graph,
    ends: Mapping[int, End],
    again: AbstractSet[int] = frozenset(),
    chosen: Mapping[tuple[int, int], Verdict] | None = None,
) -> Recount:
    """Count anew. `ends` are the tasks that have ended, of which those in `again` count as open; `chosen` says as what
    a conditional edge arrives if its task completed.
    """
    return _Recounting(graph, ends, again, chosen or {}).run()


def decide(rule: str, counted: Counted, before: State) -> State:
    """The state of a gate with these counts: as FOLD_ARRIVALS decides, but `before` where that is as right."""
    come_first: list[State] = []
    if counted.vetoed:
        come_first.append("SKIP")
    if rule in ("all_success", "none_failed") and counted.failed:
        come_first.append("FAIL")
    if rule == "one_success" and counted.came - counted.vetoed > counted.failed + counted.skipped:
        come_first.append("OPEN")
    if come_first:
        return before if before in come_first else come_first[0]
    if counted.came < counted.total:
        return "WAITING"
    if rule in ("one_success", "whole") and counted.failed:
        return "FAIL"
    if rule in ("all_success", "one_success", "whole") and counted.skipped == counted.total > 0:
        return "SKIP"
    return "OPEN"


class _Recounting:
    """Gates in the order in which they can be known: each after all that arrives there."""

    def __init__(
        self,
        graph: Graph,
        ends: Mapping[int, End],
        again: AbstractSet[int],
        chosen: Mapping[tuple[int, int], Verdict],
    ) -> None:
        self._graph = graph
        self._chosen = chosen
        self._ends = {task_id: end for task_id, end in ends.items() if task_id not in again}
        self._counted = {gate_id: Counted() for gate_id in graph.gates}
        self._lifted: set[int] = set()
        self._unknown: dict[int, int] = defaultdict(int)  # how many that count at a gate are not known yet
        self._ended_by: dict[int, list[Node]] = defaultdict(list)
        self._edges: dict[int, list[Edge]] = defaultdict(list)

    def run(self) -> Recount:
        for edge in self._graph.edges:
            self._edges[edge.gate].append(edge)
            self._counted[edge.next].total += 1
            self._unknown[edge.next] += 1
        for task in self._graph.tasks.values():
            self._count_task(task)
        known = [gate for gate in self._graph.gates.values() if not self._unknown[gate.id]]
        for gate in known:  # grows as it is walked
            known += (self._graph.gates[gate_id] for gate_id in self._settle(gate))
        assert len(known) == len(self._graph.gates), "gates that wait for each other"
        return Recount(self._counted, self._lifted)

    def _count_task(self, task: Node) -> None:
        end = self._ends.get(task.id)
        by_gate = end is not None and end.by_gate and task.wait in self._graph.gates
        if by_gate and task.wait is not None:
            self._ended_by[task.wait].append(task)
        for gate_id in self._counts_at(task):
            counted = self._counted[gate_id]
            counted.total += 1
            if by_gate:
                self._unknown[gate_id] += 1
            elif end is not None:
                counted.add(end.verdict)

    def _counts_at(self, task: Node) -> Iterator[int]:
        if task.exit is not None and task.after is None:
            yield task.exit
        at = task.group
        while at is not None:
            yield at
            at = self._graph.groups[at].parent
        yield self._graph.job_id

    def _settle(self, gate: Gate) -> Iterator[int]:
        """Decide a gate; gives those of which everything is known with it."""
        counted = self._counted[gate.id]
        counted.state = decide(gate.rule, counted, gate.state)
        if counted.state != "WAITING" and counted.state == gate.state:
            counted.cursor = gate.cursor
        for edge in self._edges[gate.id]:
            if edge.next <= counted.cursor:
                self._counted[edge.next].add(self._arrives_as(edge, gate.kind, counted.state))
            yield from self._know(edge.next)
        for task in self._ended_by[gate.id]:
            verdict = self._ends[task.id].verdict
            if verdict != counted.state:
                self._lifted.add(task.id)
            for gate_id in self._counts_at(task):
                if verdict == counted.state:
                    self._counted[gate_id].add(verdict)
                yield from self._know(gate_id)

    def _arrives_as(self, edge: Edge, kind: str, state: State) -> Verdict:
        """As TELL_EDGES tells it."""
        if state == "SKIP" and (kind == "WAIT" or edge.conditional):
            return "VETO"
        return self._chosen[edge.gate, edge.next] if edge.conditional and state == "OPEN" else state

    def _know(self, gate_id: int) -> Iterator[int]:
        self._unknown[gate_id] -= 1
        if not self._unknown[gate_id]:
            yield gate_id
