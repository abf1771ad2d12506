"""Closure: what a cleared task takes with it. A pure decision over a job's graph; flow/clear.py carries it out.

Whatever lies behind a cleared task runs again. What a task that runs again had added to its job leaves the graph, with
all that is in groups it had added: the new run adds its own. Upstream is never touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

State = Literal["WAITING", "OPEN", "FAIL", "SKIP"]


class Node(NamedTuple):
    """A task in the graph and the gates it has to do with."""

    id: int
    parent: int | None = None  # the task that added it
    group: int | None = None
    wait: int | None = None
    exit: int | None = None
    after: int | None = None  # decides its end in its place, where others continue it


class Group(NamedTuple):
    """A group."""

    id: int
    parent: int | None = None
    parent_task: int | None = None  # the task that added it
    entry: int | None = None


class Gate(NamedTuple):
    """A gate as it stands; `cursor` is the last of its edges that was told."""

    id: int
    kind: str
    rule: str
    parent: int | None = None
    state: State = "WAITING"
    cursor: int = 0


class Edge(NamedTuple):
    """What arrives at `next` when `gate` is decided; a conditional one arrives as the task's result chooses."""

    gate: int
    next: int
    conditional: bool = False


class Line(NamedTuple):
    """A dependency as it was asked for."""

    previous_type: Literal["task", "group"]
    previous: int
    next_type: Literal["task", "group"]
    next: int


class Graph(msgspec.Struct):
    """A job as it is written, without what has left it."""

    job_id: int
    tasks: dict[int, Node] = {}
    groups: dict[int, Group] = {}
    gates: dict[int, Gate] = {}
    edges: list[Edge] = []
    lines: list[Line] = []


class Closure(msgspec.Struct):
    """Tasks that run again, and tasks and groups that leave the graph."""

    again: set[int]
    gone: set[int]
    gone_groups: set[int]


Vertex = tuple[Literal["task", "start", "end", "gate"], int]


def downstream(graph: Graph, seeds: Iterable[int]) -> Closure:
    """What a clear of these tasks concerns: them, all behind them, and what any of those has added."""
    steps = _Steps(graph)
    path: list[Vertex] = [("task", task_id) for task_id in seeds]
    seen = set(path)
    gone: set[int] = set()
    gone_groups: set[int] = set()
    while path:
        vertex = path.pop()
        if vertex[0] == "task":
            tasks, groups = steps.added_by(vertex[1])
            gone.update(tasks)
            gone_groups.update(groups)
            behind: Iterable[Vertex] = (*(("task", task_id) for task_id in tasks), *steps.behind(vertex))
        else:
            behind = steps.behind(vertex)
        for step in behind:
            if step not in seen:
                seen.add(step)
                path.append(step)
    return Closure({number for kind, number in seen if kind == "task"} - gone, gone, gone_groups)


class _Steps:
    """From a vertex to those right behind it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._members: dict[int, list[int]] = defaultdict(list)
        self._inner: dict[int, list[int]] = defaultdict(list)
        self._added: dict[int, list[int]] = defaultdict(list)
        self._added_groups: dict[int, list[int]] = defaultdict(list)
        self._waiting: dict[int, list[int]] = defaultdict(list)
        self._entries: dict[int, list[int]] = defaultdict(list)
        self._edges: dict[int, list[int]] = defaultdict(list)
        self._lines: dict[tuple[str, int], list[Vertex]] = defaultdict(list)
        for task in graph.tasks.values():
            for of, by in ((self._members, task.group), (self._added, task.parent), (self._waiting, task.wait)):
                if by is not None:
                    of[by].append(task.id)
        for group in graph.groups.values():
            for of, by in (
                (self._inner, group.parent),
                (self._added_groups, group.parent_task),
                (self._entries, group.entry),
            ):
                if by is not None:
                    of[by].append(group.id)
        for edge in graph.edges:
            self._edges[edge.gate].append(edge.next)
        for line in graph.lines:
            step: Vertex = ("task" if line.next_type == "task" else "start", line.next)
            self._lines[line.previous_type, line.previous].append(step)

    def behind(self, vertex: Vertex) -> Iterator[Vertex]:
        kind, number = vertex
        match kind:
            case "task":
                task = self._graph.tasks[number]
                if task.exit is not None:
                    yield "gate", task.exit
                if task.group is not None:
                    yield "end", task.group
                yield from self._lines.get(("task", number), ())
            case "gate":
                yield from (("task", one) for one in self._waiting.get(number, ()))
                yield from (("start", one) for one in self._entries.get(number, ()))
                yield from (("gate", one) for one in self._edges.get(number, ()))
            case "start":
                yield from (("task", one) for one in self._members.get(number, ()))
                yield from (("start", one) for one in self._inner.get(number, ()))
                yield "end", number
            case "end":
                yield from (("gate", one) for one in self._edges.get(number, ()))
                yield from self._lines.get(("group", number), ())
                if (parent := self._graph.groups[number].parent) is not None:
                    yield "end", parent

    def added_by(self, task_id: int) -> tuple[list[int], list[int]]:
        """Tasks and groups that the task has added, with all that is in those groups."""
        groups = list(self._added_groups.get(task_id, ()))
        for group in groups:  # grows as it is walked
            groups += self._inner.get(group, ())
        tasks = [*self._added.get(task_id, ()), *(one for group in groups for one in self._members.get(group, ()))]
        return tasks, groups


class Trimmed(msgspec.Struct):
    """The graph without what leaves it, and what has to be written for that."""

    graph: Graph
    gone_gates: list[int] = []
    gone_edges: list[Edge] = []
    new_gates: list[int] = []  # of tasks that tell more than one gate now
    new_edges: list[Edge] = []
    new_exits: dict[int, int | None] = {}
    left_behind: set[int] = set()  # gates that are gone, at which tasks that stay would have arrived


def trim(graph: Graph, closure: Closure) -> Trimmed:
    """Take out what leaves, and make whoever was continued by it tell those behind it by itself again."""
    tasks = {task.id: task for task in graph.tasks.values() if task.id not in closure.gone}
    continued = [tasks[task_id] for task_id in closure.again if tasks[task_id].after is not None]
    if not closure.gone and not closure.gone_groups and not continued:
        return Trimmed(graph)
    groups = {group.id: group for group in graph.groups.values() if group.id not in closure.gone_groups}
    trimmed = Trimmed(msgspec.structs.replace(graph, tasks=tasks, groups=groups, gates=dict(graph.gates)))
    told: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        told[edge.gate].append(edge.next)
    for task in continued:
        assert task.after is not None
        _tell_itself(trimmed, task, {*told[task.after]} - {task.id}, known={*told[task.id]})
    _drop_gates(trimmed)
    return trimmed


def _tell_itself(trimmed: Trimmed, task: Node, behind: set[int], *, known: set[int]) -> None:
    graph, has_gate = trimmed.graph, task.id in trimmed.graph.gates
    if not has_gate and behind <= {task.exit}:
        graph.tasks[task.id] = task._replace(after=None)
        return
    if not has_gate:
        graph.gates[task.id] = Gate(task.id, "TASK", "whole")
        trimmed.new_gates.append(task.id)
    if task.exit != task.id:
        trimmed.new_exits[task.id] = task.id
    graph.tasks[task.id] = task._replace(after=None, exit=task.id)
    trimmed.new_edges += [Edge(task.id, gate) for gate in sorted(behind - known)]


def _drop_gates(trimmed: Trimmed) -> None:
    """Gates that nobody waits at or counts by any more, and the edges from and to them."""
    graph = trimmed.graph
    sources: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        sources[edge.next].append(edge.gate)
    alive = {graph.job_id} | graph.groups.keys()
    alive.update(task.after for task in graph.tasks.values() if task.after is not None)
    alive.update(task_id for task_id in graph.tasks if task_id in graph.gates)
    waited_at = [
        *(task.wait for task in graph.tasks.values() if task.wait is not None),
        *(group.entry for group in graph.groups.values() if group.entry is not None),
    ]
    while waited_at:  # and gates that decide about such a one together with others
        gate = waited_at.pop()
        if gate not in alive:
            alive.add(gate)
            waited_at += (one for one in sources[gate] if graph.gates[one].kind == "WAIT")
    trimmed.gone_gates = [gate for gate in graph.gates if gate not in alive]
    for gate in trimmed.gone_gates:
        del graph.gates[gate]
    for task in list(graph.tasks.values()):
        if task.exit is not None and task.exit not in alive:
            trimmed.left_behind.add(task.exit)
            trimmed.new_exits[task.id] = None
            graph.tasks[task.id] = task._replace(exit=None)
    trimmed.gone_edges = [edge for edge in graph.edges if edge.gate not in alive or edge.next not in alive]
    gone = {*trimmed.gone_edges}
    graph.edges = [edge for edge in graph.edges if edge not in gone] + trimmed.new_edges
