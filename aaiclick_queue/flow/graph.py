"""Graph: lays out what was planned as gates, edges and exits. A pure decision; flow/submit.py writes it.

Before: a job's body, or a task that adds to its job. After: submit. Nodes have numbers until they are written, when
each gets an id; a number that the plan does not know is the id of a node that was written before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from ..spec import Rule
from .enqueue import NewTask, Spec

Kind = Literal["task", "group", "gate"]


class Previous(NamedTuple):
    """What a node waits for. With `choices`: only if its result chooses one of them, else the node is skipped.

    `known` are all names that the branch has, so that a result that is none of them fails what waits; empty where
    there is a default. A choice of "*" is that default: taken when the result is none of `known`.
    """

    number: int
    kind: Kind = "task"
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    any_of: bool = False


class PlannedGroup(msgspec.Struct, kw_only=True, gc=False):
    """A group to be written; `parent` is the number of the group that it is in."""

    number: int
    name: str
    parent: int | None = None
    rule: Rule = "all_success"
    previous: list[Previous] = []
    max_parallel: int | None = None
    mapped: bool = False


class PlannedTask(msgspec.Struct, kw_only=True, gc=False):
    """A task to be written. `task.kwargs` may name others as {"$node": number}, {"$nodes": […]} or {"$group": …}."""

    number: int
    name: str
    spec: Spec
    task: NewTask
    group: int | None = None
    rule: Rule = "all_success"
    critical: bool = True
    previous: list[Previous] = []
    map_index: int | None = None


class Plan(msgspec.Struct):
    """Nodes to be written together."""

    tasks: list[PlannedTask] = []
    groups: list[PlannedGroup] = []


class Gate(NamedTuple):
    """A gate to be written; its number is that of the node it belongs to, or a new one below zero."""

    number: int
    kind: Literal["GROUP", "TASK", "WAIT", "AFTER"]
    rule: str
    total: int
    parent: int | None = None


class Edge(NamedTuple):
    """What arrives at a gate when another one is decided."""

    gate: int
    next: int
    choices: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


class Outside(NamedTuple):
    """A gate that waits for a node which was written before."""

    previous: Previous
    gate: int


class Layout(msgspec.Struct):
    """The plan as gates: where each task waits, where its end arrives."""

    gates: list[Gate] = []
    edges: list[Edge] = []
    outside: list[Outside] = []
    waits: dict[int, int] = {}  # task → gate
    exits: dict[int, int] = {}  # task → gate
    entries: dict[int, int] = {}  # group → gate
    members: dict[int | None, int] = {}  # group of the plan or before → new tasks in its subtree; None: the job
    after: int | None = None  # the gate of the nodes that a task has returned


_Condition = tuple[str, frozenset[Previous]]


class _Builder:
    def __init__(self, plan: Plan, entries: Mapping[int, int], empty: Iterable[int]) -> None:
        self.layout = Layout()
        self.groups = {group.number: group for group in plan.groups}
        self.tasks = plan.tasks
        self._numbers = {task.number for task in plan.tasks}
        self._outside_entries = entries
        self._group_of = {task.number: task.group for task in plan.tasks}
        self._entries: dict[int | None, int | None] = {None: None}
        self._gates: dict[tuple[str, frozenset[Previous]], int] = {}
        self._sources: dict[tuple[Kind, int], list[Edge]] = defaultdict(list)
        self._empty = frozenset(empty)

    def lay_out(self, returned: Sequence[Previous]) -> Layout:
        layout = self.layout
        layout.members = self._count_members()
        self._empty |= {number for number in self.groups if not layout.members.get(number)}
        for number, group in self.groups.items():
            if (entry := self._entry_of(number)) is not None:
                layout.entries[number] = entry
            layout.gates.append(Gate(number, "GROUP", "whole", layout.members.get(number, 0), group.parent))
        known: dict[object, int | None] = {}  # most tasks of a wide job wait for the same
        for task in self.tasks:
            waits_for = (task.rule, tuple(task.previous), task.group)
            if waits_for not in known:
                known[waits_for] = self._gate_of(task)
            if (gate := known[waits_for]) is not None:
                layout.waits[task.number] = gate
        if continues := self._not_empty(returned):
            layout.after = self._new_gate("AFTER", "whole", continues)
        self._draw_exits()
        return layout

    def _count_members(self) -> dict[int | None, int]:
        members: dict[int | None, int] = defaultdict(int)
        for task in self.tasks:
            at: int | None = task.group
            members[None] += 1
            while at is not None:
                members[at] += 1
                at = self.groups[at].parent if at in self.groups else None
        return dict(members)

    def _entry_of(self, number: int | None) -> int | None:
        """The gate that all tasks of this group wait at: what it waits for itself, and the groups around it."""
        above: list[int] = []
        while number is not None and number not in self._entries:
            above.append(number)
            number = self.groups[number].parent if number in self.groups else None
        for one in reversed(above):
            if one in self.groups:
                group = self.groups[one]
                gates = self._gates_of(group.rule, group.previous)
                self._entries[one] = self._all_of([*gates, self._entries[group.parent]])
            else:
                self._entries[one] = self._outside_entries.get(one)
        return self._entries[above[0] if above else number]

    def _gate_of(self, task: PlannedTask) -> int | None:
        gates = self._gates_of(task.rule, task.previous)
        if gates and task.rule == "all_success" and self._all_inside(task):
            return self._all_of(gates)  # they were let in by the same entry, and tell by their ends how that came out
        return self._all_of([*gates, self._entry_of(task.group)])

    def _all_inside(self, task: PlannedTask) -> bool:
        """Whether all that the task waits for is in its own group or groups of that."""
        if any(one.any_of for one in task.previous):
            return False
        around = (
            self._group_of.get(one.number)
            if one.kind == "task"
            else self.groups[one.number].parent
            if one.number in self.groups
            else None
            for one in task.previous
        )
        return all(self._is_within(group, task.group) for group in around)

    def _is_within(self, group: int | None, outer: int | None) -> bool:
        while group is not None and group != outer:
            group = self.groups[group].parent if group in self.groups else None
        return group is not None

    def _gates_of(self, rule: Rule, previous: Sequence[Previous]) -> list[int | None]:
        conditions = ((rule, self._not_empty(needed)) for rule, needed in _conditions(rule, previous))
        return [self._shared(rule, needed) for rule, needed in conditions if needed]

    def _all_of(self, gates: Iterable[int | None]) -> int | None:
        """One gate for several conditions: one that is skipped is not met, so it skips what waits, as a veto."""
        conditions = {gate for gate in gates if gate is not None}
        if len(conditions) < 2:
            return next(iter(conditions), None)
        return self._shared("all_success", frozenset(Previous(gate, "gate") for gate in conditions))

    def _not_empty(self, previous: Iterable[Previous]) -> frozenset[Previous]:
        """Without groups that have no task: they are done at once."""
        return frozenset(one for one in previous if not (one.kind == "group" and one.number in self._empty))

    def _shared(self, rule: str, previous: frozenset[Previous]) -> int:
        key = (rule, without_doubles(previous))
        if key not in self._gates:
            self._gates[key] = self._new_gate("WAIT", *key)
        return self._gates[key]

    def _new_gate(self, kind: Literal["WAIT", "AFTER"], rule: str, previous: frozenset[Previous]) -> int:
        number = -1 - len(self._gates)  # AFTER is the last that is made
        self.layout.gates.append(Gate(number, kind, rule, len(previous)))
        for one in previous:
            edge = Edge(one.number, number, one.choices, one.known)
            self._sources[one.kind, one.number].append(edge)
        return number

    def _draw_exits(self) -> None:
        layout = self.layout
        for (kind, number), edges in self._sources.items():
            ours = number in self._numbers if kind == "task" else kind == "gate" or number in self.groups
            if not ours or (kind == "gate" and number > 0):
                layout.outside += [Outside(Previous(number, kind, e.choices, e.known), e.next) for e in edges]
            elif kind == "task" and len(edges) == 1 and not edges[0].choices:
                layout.exits[number] = edges[0].next
            else:
                if kind == "task":
                    layout.gates.append(Gate(number, "TASK", "whole", 1))
                    layout.exits[number] = number
                layout.edges += edges


def lay_out(
    plan: Plan,
    *,
    returned: Sequence[Previous] = (),
    entries: Mapping[int, int] | None = None,
    empty: Iterable[int] = (),
) -> Layout:
    """Gates for the plan. `returned` are the nodes that continue the task which planned them.

    Of groups that were written before, `entries` are the gates of those that get tasks now, and `empty` are those that
    have none: they are done, as those of the plan are.
    """
    return _Builder(plan, entries or {}, empty).lay_out(returned)


def _conditions(rule: Rule, previous: Sequence[Previous]) -> tuple[_Condition, ...]:
    """What has to hold: `rule` over all that is needed, and one of those that are alternatives."""
    needed = frozenset(one for one in previous if not one.any_of)
    if rule == "always":
        # What was not chosen does not run, whatever its rule says of failures.
        needed = frozenset(one for one in needed if one.choices)
    any_of = frozenset(one._replace(any_of=False) for one in previous if one.any_of)
    conditions: list[_Condition] = []
    if needed:
        conditions.append(("all_done" if rule == "always" else rule, needed))
    if any_of:
        conditions.append(("one_success", any_of))
    return tuple(conditions)


def without_doubles(previous: frozenset[Previous]) -> frozenset[Previous]:
    """A node that is waited for as it is and by its choice counts once, by its choice."""
    found: dict[tuple[Kind, int], Previous] = {}
    for one in previous:
        other = found.get((one.kind, one.number))
        if other is None:
            found[one.kind, one.number] = one
        else:
            choices = tuple(sorted({*other.choices, *one.choices}))
            known = tuple(sorted({*other.known, *one.known}))
            any_of = one.any_of and other.any_of
            found[one.kind, one.number] = one._replace(choices=choices, known=known, any_of=any_of)
    return previous if len(found) == len(previous) else frozenset(found.values())
