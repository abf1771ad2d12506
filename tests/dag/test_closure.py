"""What a clear concerns and how gates are counted anew, on random graphs, against definitions that share no code."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from aaiclick_queue.flow.closure import Closure, Edge, Gate, Graph, Group, Line, Node, downstream, trim
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, lay_out
from aaiclick_queue.flow.recount import Counted, End, Verdict, decide, recount
from tests.dag.drawn import draw_plan

SEEDS = 300
RULES_OF_GATES = ("all_success", "one_success", "all_done", "none_failed", "whole")


def as_graph(plan: Plan, rng: random.Random) -> tuple[Graph, dict[int, int]]:
    """The plan as it would be written: every number an id."""
    layout = lay_out(plan)
    numbers = [
        *(task.number for task in plan.tasks),
        *(group.number for group in plan.groups),
        *(gate.number for gate in layout.gates),
    ]
    unique = list(dict.fromkeys(numbers))
    ids = dict(zip(unique, rng.sample(range(10, 10_000), len(unique)), strict=True))
    job = Gate(1, "JOB", "whole")
    gates = [Gate(ids[gate.number], gate.kind, gate.rule, ids.get(gate.parent or 0, 1)) for gate in layout.gates]
    nodes: list[PlannedTask | PlannedGroup] = [*plan.tasks, *plan.groups]
    lines = [
        Line(
            "group" if one.kind == "group" else "task",
            ids[one.number],
            "task" if isinstance(node, PlannedTask) else "group",
            ids[node.number],
        )
        for node in nodes
        for one in node.previous
    ]

    def known(table: dict[int, int], number: int) -> int | None:
        return ids[table[number]] if number in table else None

    return Graph(
        1,
        {
            ids[task.number]: Node(
                ids[task.number],
                None,
                ids.get(task.group or 0),
                known(layout.waits, task.number),
                known(layout.exits, task.number),
            )
            for task in plan.tasks
        },
        {
            ids[group.number]: Group(
                ids[group.number], ids.get(group.parent or 0), None, known(layout.entries, group.number)
            )
            for group in plan.groups
        },
        {
            gate.id: gate._replace(state="OPEN") if gate.kind == "GROUP" and not layout.members.get(number) else gate
            for number, gate in [(0, job), *zip((gate.number for gate in layout.gates), gates, strict=True)]
        },
        [Edge(ids[edge.gate], ids[edge.next], bool(edge.choices)) for edge in layout.edges],
        lines,
    ), ids


# Behind, by definition.


def right_before(plan: Plan, node: PlannedTask | PlannedGroup) -> set[int]:
    """Tasks that are right before this node: what it or a group around it waits for."""
    groups = {group.number: group for group in plan.groups}
    found: set[int] = set()
    around = node.group if isinstance(node, PlannedTask) else node.parent
    for one in node.previous:
        if one.kind == "task":
            found.add(one.number)
        else:
            found |= {task.number for task in plan.tasks if is_in(groups, task.group, one.number)}
            for group in plan.groups:  # an empty one is still behind what it waits for
                if group.number == one.number or is_in(groups, group.parent, one.number):
                    found |= right_before(plan, group)
    if around is not None:
        found |= right_before(plan, groups[around])
    return found


def is_in(groups: dict[int, PlannedGroup], group: int | None, outer: int) -> bool:
    while group is not None and group != outer:
        group = groups[group].parent
    return group == outer


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_everything_behind_a_task_is_cleared_with_it_and_nothing_else(seed: int) -> None:
    for number in range(seed, seed + 50):
        rng = random.Random(number)
        plan = draw_plan(rng)
        graph, ids = as_graph(plan, rng)
        before = {task.number: right_before(plan, task) for task in plan.tasks}
        for task in plan.tasks:
            wanted, size = {task.number}, 0
            while len(wanted) != size:
                size = len(wanted)
                wanted |= {other for other, found in before.items() if found & wanted}
            found = downstream(graph, [ids[task.number]])
            assert found == Closure({ids[one] for one in wanted}, set(), set()), number


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_what_cleared_tasks_have_added_leaves_and_what_is_left_counts_only_itself(seed: int) -> None:
    for number in range(seed, seed + 50):
        rng = random.Random(number)
        graph, _ = as_graph(draw_plan(rng), rng)
        order = sorted(graph.tasks)
        for at, task_id in enumerate(order[1:], 1):  # tasks that others have added, and groups
            if rng.random() < 0.4:
                graph.tasks[task_id] = graph.tasks[task_id]._replace(parent=rng.choice(order[:at]))
        for group in list(graph.groups.values()):
            if rng.random() < 0.3:
                graph.groups[group.id] = group._replace(parent_task=rng.choice(order))
        closure = downstream(graph, [rng.choice(order)])
        everything = closure.again | closure.gone
        assert not closure.again & closure.gone
        for task in graph.tasks.values():
            dropped = task.parent in everything or task.group in closure.gone_groups
            assert (task.id in closure.gone) == dropped or task.id not in everything
            assert not dropped or task.id in closure.gone
        for group in graph.groups.values():
            dropped = group.parent_task in everything or group.parent in closure.gone_groups
            assert (group.id in closure.gone_groups) == dropped
        left = trim(graph, closure).graph
        assert {*left.tasks} == graph.tasks.keys() - closure.gone
        assert all(edge.gate in left.gates and edge.next in left.gates for edge in left.edges)
        named = {one for task in left.tasks.values() for one in (task.wait, task.exit, task.group) if one is not None}
        assert named <= left.gates.keys()
        counted = recount(left, {})
        assert counted.gates[1].total == len(left.tasks)


def test_a_fresh_job_counts_as_it_was_planned() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        plan = draw_plan(rng)
        graph, ids = as_graph(plan, rng)
        counted = recount(graph, {})
        for gate in lay_out(plan).gates:
            one = counted.gates[ids[gate.number]]
            assert (one.total, one.came) == (gate.total, 0)
            assert one.state == graph.gates[ids[gate.number]].state
        assert not counted.lifted


# Folding, as the resolver does it, one gate at a time and in any order.


class Folding:
    """A job that runs: tasks end, arrivals come in any order, gates open."""

    def __init__(self, graph: Graph, rng: random.Random) -> None:
        self.graph = graph
        self._rng = rng
        self.ends: dict[int, End] = {}
        self.chosen: dict[tuple[int, int], Verdict] = {
            (edge.gate, edge.next): rng.choice(["OPEN", "VETO"]) for edge in graph.edges if edge.conditional
        }
        self.counted = recount(graph, {}).gates
        self.arrivals: list[tuple[int, Verdict]] = []
        self.open = {task.id for task in graph.tasks.values() if task.wait is None}
        self.waiting = graph.tasks.keys() - self.open
        self.again: set[int] = set()  # gates whose page was not finished

    def now(self) -> Graph:
        """The graph with its gates as they stand."""
        gates = {
            gate.id: gate._replace(state=self.counted[gate.id].state, cursor=self.counted[gate.id].cursor)
            for gate in self.graph.gates.values()
        }
        return msgspec.structs.replace(self.graph, gates=gates)

    def on_the_way(self, gate_id: int) -> Iterator[Verdict]:
        """What has been told to this gate and is not folded: there, or at a group in it."""
        for at, verdict in self.arrivals:
            above: int | None = at
            while above is not None and above != gate_id:
                gate = self.graph.gates[above]
                above = gate.parent if gate.kind == "GROUP" else None
            if above == gate_id:
                yield verdict

    def step(self) -> bool:
        if self.open and (not self.arrivals or self._rng.random() < 0.5):
            task_id = self._rng.choice(sorted(self.open))
            self.open.discard(task_id)
            self._end(task_id, End(self._rng.choice(["OPEN", "OPEN", "FAIL", "SKIP"])))
        elif self.arrivals:
            self._fold(self._rng.choice(self.arrivals)[0])
        else:
            return False
        return True

    def _end(self, task_id: int, end: End) -> None:
        self.ends[task_id] = end
        task = self.graph.tasks[task_id]
        self.arrivals.append((task.group or self.graph.job_id, end.verdict))
        if task.exit is not None:
            self.arrivals.append((task.exit, end.verdict))

    def _fold(self, gate_id: int) -> None:
        gate, counted = self.graph.gates[gate_id], self.counted[gate_id]
        for one in [one for one in self.arrivals if one[0] == gate_id and self._rng.random() < 0.7]:
            self.arrivals.remove(one)
            counted.add(one[1])
            if gate.kind == "GROUP" and gate.parent is not None:
                self.arrivals.append((gate.parent, one[1]))
        if counted.state == "WAITING":
            counted.state = decide(gate.rule, counted, "WAITING")
        if counted.state != "WAITING":
            self.act(gate, counted)

    def act(self, gate: Gate, counted: Counted) -> None:
        for task_id in sorted(self.waiting):
            if self.graph.tasks[task_id].wait == gate.id and self._rng.random() < 0.8:
                self.waiting.discard(task_id)
                if counted.state == "OPEN":
                    self.open.add(task_id)
                else:
                    self._end(task_id, End(counted.state, by_gate=True))
        untold = sorted(edge for edge in self.graph.edges if edge.gate == gate.id and edge.next > counted.cursor)
        for edge in untold[: self._rng.randint(0, len(untold))]:
            verdict: Verdict = counted.state
            if counted.state == "SKIP" and (gate.kind == "WAIT" or edge.conditional):
                verdict = "VETO"
            elif edge.conditional and counted.state == "OPEN":
                verdict = self.chosen[edge.gate, edge.next]
            self.arrivals.append((edge.next, verdict))
            counted.cursor = edge.next
        left = any(self.graph.tasks[task_id].wait == gate.id for task_id in self.waiting)
        if left or len(untold) > len([edge for edge in untold if edge.next <= counted.cursor]):
            self.again.add(gate.id)
        else:
            self.again.discard(gate.id)


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_a_recount_comes_to_what_folding_has_come_to_at_any_moment(seed: int) -> None:
    for number in range(seed, seed + 50):
        rng = random.Random(number)
        graph, _ = as_graph(draw_plan(rng), rng)
        folding = Folding(graph, rng)
        while folding.step():
            for gate_id in [*folding.again]:
                folding.act(graph.gates[gate_id], folding.counted[gate_id])
            counted = recount(folding.now(), folding.ends, frozenset(), folding.chosen)
            assert not counted.lifted
            for gate_id, one in folding.counted.items():
                more = [*folding.on_the_way(gate_id)]
                found = counted.gates[gate_id]
                assert found.came == one.came + len(more), (number, gate_id)
                assert found.failed == one.failed + more.count("FAIL")
                assert found.skipped == one.skipped + more.count("SKIP")
                assert found.vetoed == one.vetoed + more.count("VETO")
                if one.state != "WAITING":
                    assert (found.state, found.cursor) == (one.state, one.cursor)


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_what_was_cleared_counts_as_if_it_had_never_ended(seed: int) -> None:
    for number in range(seed, seed + 50):
        rng = random.Random(number)
        graph, _ = as_graph(draw_plan(rng), rng)
        folding = Folding(graph, rng)
        for _ in range(rng.randint(0, 60)):
            folding.step()
            for gate_id in [*folding.again]:
                folding.act(graph.gates[gate_id], folding.counted[gate_id])
        closure = downstream(folding.now(), [rng.choice(sorted(graph.tasks))])
        again = closure.again & folding.ends.keys()
        counted = recount(folding.now(), folding.ends, again, folding.chosen)
        kept = {task_id: end for task_id, end in folding.ends.items() if task_id not in again}
        assert counted == recount(folding.now(), kept, frozenset(), folding.chosen)
        assert not counted.lifted, "whatever a cleared task had kept from starting is behind it"
        for gate_id, one in counted.gates.items():
            behind = [task for task in graph.tasks.values() if task.wait == gate_id and task.id in closure.again]
            upstream = {edge.gate for edge in graph.edges if edge.next == gate_id}
            if not behind and not upstream and one.state == "WAITING":
                assert one.came < one.total or one.total == 0


def test_counts_decide_as_they_do_in_the_database_unless_it_was_decided_before() -> None:
    for rule in RULES_OF_GATES:
        verdicts: list[Verdict] = ["OPEN", "FAIL", "SKIP"]
        verdicts += ["VETO"] if rule != "whole" else []
        for seed in range(200):
            rng = random.Random(f"{rule} {seed}")
            counted = Counted(total=rng.randint(1, 4))
            before = decide(rule, counted, "WAITING")
            assert before == "WAITING"
            for _ in range(counted.total):
                counted.add(rng.choice(verdicts))
                state = before if before != "WAITING" else decide(rule, counted, "WAITING")
                assert decide(rule, counted, state) == state, "what was decided stays so when the rest arrives"
                before = state
            assert before != "WAITING"


@pytest.mark.parametrize("seed", range(0, SEEDS, 50))
def test_what_a_gate_had_ended_waits_again_exactly_where_the_gate_would_not_end_it_now(seed: int) -> None:
    lifted = 0
    for number in range(seed, seed + 50):
        rng = random.Random(number)
        graph, _ = as_graph(draw_plan(rng), rng)
        folding = Folding(graph, rng)
        while folding.step() or folding.again:
            for gate_id in [*folding.again]:
                folding.act(graph.gates[gate_id], folding.counted[gate_id])
        failed = sorted(one for one, end in folding.ends.items() if end.verdict == "FAIL" and not end.by_gate)
        seeds = {one for one in failed if rng.random() < 0.5}
        counted = recount(folding.now(), folding.ends, seeds, folding.chosen)
        assert not counted.lifted & seeds
        assert counted.lifted <= downstream(graph, seeds).again
        open_ones = {*counted.lifted, *seeds}
        for task_id, end in folding.ends.items():
            at = graph.tasks[task_id].wait
            if end.by_gate and at is not None:
                assert (counted.gates[at].state == end.verdict) == (task_id not in open_ones)
        assert counted.gates[1].total - counted.gates[1].came == len(open_ones)
        lifted += len(counted.lifted)
    assert lifted
