"""What may become of the tasks of a job, told from the sentences of the rulings (T10, T19–T22) and nothing else.

A graph of tasks and groups, and what was seen of the tasks that ran; from these follow the statuses that every task
may have (a set where the order of events decides), the earliest moment at which one may start, the verdict of the job
and the counts of each group. Numbers are those of the test; nothing here knows of gates, arrivals or tables.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Said = Literal["ok", "skipped", "failed", "not chosen"]
Fate = Literal["runs", "SKIPPED", "UPSTREAM_FAILED"]
NEVER = float("inf")


@dataclass(frozen=True)
class Choice:
    """The side of a `when` or of a `branch` on which a node stands.

    `when`: `wanted` is the truth it stands for. `branch`: its names, all names there are, whether it is the default's
    side, and whether there is a default at all.
    """

    wanted: bool | None = None
    names: frozenset[str] = frozenset()
    all_names: frozenset[str] = frozenset()
    is_default: bool = False
    has_default: bool = False

    def says(self, value: Any) -> Said:
        """What a result means for this side."""
        if self.wanted is not None:
            return "ok" if bool(value) == self.wanted else "not chosen"
        named = _names_in(value)
        if named & self.names or (self.is_default and not named & self.all_names):
            return "ok"
        chooses_nothing = value is None or value == []
        return "not chosen" if named & self.all_names or self.has_default or chooses_nothing else "failed"


def _names_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {json.dumps(value)}
    if isinstance(value, list):
        return {one if isinstance(one, str) else json.dumps(one) for one in value}
    return set()


@dataclass(frozen=True)
class Dependency:
    """One arrow: what it comes from, and how it is meant."""

    on: int
    any_of: bool = False
    choice: Choice | None = None


@dataclass
class Group:
    number: int
    parent: int | None = None
    rule: str = "all_success"
    after: list[Dependency] = field(default_factory=list)


@dataclass
class Task:
    number: int
    group: int | None = None
    rule: str = "all_success"
    critical: bool = True
    after: list[Dependency] = field(default_factory=list)
    continued_by: list[int] = field(default_factory=list)
    # What was seen of it.
    status: str | None = None
    value: Any = None  # what it returned
    ran: bool = False  # it ended by its own run
    by_hand: bool = False  # it was cancelled from outside
    first_start: float = NEVER
    end: float | None = None  # a moment before its end was written; None: nobody but the flow ended it


@dataclass(frozen=True)
class _Condition:
    rule: str
    on: tuple[Dependency, ...]


class Graph:
    """The tasks and groups of one job."""

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self.groups: dict[int, Group] = {}
        self._ends: dict[int, float] = {}

    # Who belongs to whom.

    def subtree(self, group: int) -> Iterator[Task]:
        """All tasks in the group, at any depth."""
        inside = self._groups_in(group)
        return (task for task in self.tasks.values() if task.group in inside)

    def _groups_in(self, group: int) -> set[int]:
        inside = {group}
        while more := {g.number for g in self.groups.values() if g.parent in inside} - inside:
            inside |= more
        return inside

    def around(self, task: Task) -> list[Task | Group]:
        """The task and all groups around it."""
        nodes: list[Task | Group] = [task]
        group = task.group
        while group is not None:
            nodes.append(self.groups[group])
            group = self.groups[group].parent
        return nodes

    def nodes(self) -> list[Task | Group]:
        return [*self.tasks.values(), *self.groups.values()]

    # What nodes say to those behind them.

    def said_by_task(self, task: Task) -> Said:
        """What the end of a task counts as, by itself."""
        match task.status:
            case "COMPLETED":
                return "ok"
            case "SKIPPED":
                return "skipped"
            case "FAILED" if not task.critical:
                return "skipped"
            case "FAILED" | "UPSTREAM_FAILED" | "CANCELLED":
                return "failed"
            case _:
                raise AssertionError(f"task {task.number} has not ended: {task.status}")

    def _said_together(self, said: Iterable[Said]) -> Said | None:
        every = list(said)
        if not every:
            return None
        return "failed" if "failed" in every else "skipped" if {*every} == {"skipped"} else "ok"

    def said_by(self, number: int) -> Said | None:
        """What a task or a group has come to for those behind it; None: a group without any task."""
        if number in self.groups:
            return self._said_together(self.said_by_task(task) for task in self.subtree(number))
        task = self.tasks[number]
        if task.status == "COMPLETED" and task.continued_by:
            return self._said_together(said for one in task.continued_by if (said := self.said_by(one))) or "ok"
        return self.said_by_task(task)

    def _said_to(self, arrow: Dependency) -> Said | None:
        said = self.said_by(arrow.on)
        if arrow.choice is None or said in (None, "failed"):
            return said
        return "not chosen" if said == "skipped" else arrow.choice.says(self.value_of(arrow.on))

    def value_of(self, number: int) -> Any:
        """The result of a task, that of what continued it if anything did; of a group, those that its tasks have."""
        if number in self.groups:
            tasks = [task for task in self.subtree(number) if task.status == "COMPLETED"]
            spoken_for = {one for task in tasks for one in task.continued_by}
            return [self.value_of(task.number) for task in tasks if task.number not in spoken_for]
        task = self.tasks[number]
        if task.status != "COMPLETED" or not task.continued_by:
            return task.value
        values = [self.value_of(one) for one in task.continued_by]
        return values[0] if len(values) == 1 else values

    def end_of(self, number: int) -> float:
        """A moment not after the one at which the node's end could be known to others."""
        if number in self.groups:
            return max((self._end_of_task(task) for task in self.subtree(number)), default=0)
        task = self.tasks[number]
        ends = [self._end_of_task(task)]
        if task.status == "COMPLETED":
            ends += [self.end_of(one) for one in task.continued_by]
        return max(ends)

    def _end_of_task(self, task: Task) -> float:
        if task.end is not None:
            return task.end
        if task.first_start < NEVER:
            return task.first_start
        if task.number not in self._ends:
            self._ends[task.number] = 0.0  # arrows to a group that has begun already may lead back here
            self._ends[task.number] = self._decided_at(task)
        return self._ends[task.number]

    # What a task waits for: its own arrows and those of all groups around it.

    def _conditions(self, task: Task) -> list[_Condition]:
        """All must be met: its own and those of the groups around it, and of each the ones that are alternatives."""
        conditions: list[_Condition] = []
        for node in self.around(task):
            needed = [arrow for arrow in node.after if not arrow.any_of]
            if node.rule == "always":
                # It asks for nothing; but a side that was not chosen does not run.
                conditions.append(_Condition("all_done", tuple(arrow for arrow in needed if arrow.choice)))
            else:
                conditions.append(_Condition(node.rule, tuple(needed)))
            conditions.append(_Condition("one_success", tuple(arrow for arrow in node.after if arrow.any_of)))
        return conditions

    def _real(self, condition: _Condition) -> list[tuple[Dependency, Said]]:
        return [(arrow, said) for arrow in condition.on if (said := self._said_to(arrow)) is not None]

    def fates(self, task: Task) -> set[Fate]:
        """How the task may have come out of its waiting."""
        fates: set[Fate] = set()
        opens = True
        for condition in self._conditions(task):
            if real := self._real(condition):
                may = _fates_of(condition.rule, {said for _, said in real})
                fates |= may - {"runs"}
                opens = opens and "runs" in may
        return fates | {"runs"} if opens else fates

    def may_start_after(self, task: Task) -> float:
        """The task must not have started before this moment."""
        moment = 0.0
        for condition in self._conditions(task):
            real = self._real(condition)
            if condition.rule == "one_success":
                ends = [self.end_of(arrow.on) for arrow, said in real if said == "ok"]
                moment = max(moment, min(ends, default=0))
            else:
                # A group without tasks is done at once.
                moment = max([moment, *(self.end_of(arrow.on) for arrow, _ in real)])
        return moment

    def _decided_at(self, task: Task) -> float:
        """The earliest moment at which a task that never ran can have become what it became."""
        moments = []
        for condition in self._conditions(task):
            real = self._real(condition)
            for arrow, said in real:
                if said == ("failed" if task.status == "UPSTREAM_FAILED" else "not chosen"):
                    moments.append(self.end_of(arrow.on))
            if condition.rule in ("one_success", "all_success") and real:
                moments.append(max(self.end_of(arrow.on) for arrow, _ in real))
        return min(moments, default=0)

    # The whole.

    def counts(self, tasks: Iterable[Task]) -> tuple[int, int, int]:
        """How many there are, how many count as failed, how many as skipped."""
        said = [self.said_by_task(task) for task in tasks]
        return len(said), said.count("failed"), said.count("skipped")

    def verdict(self) -> str:
        """What the job has come to, unless it was cancelled."""
        return "FAILED" if self.counts(self.tasks.values())[1] else "COMPLETED"

    def has_cycle(self) -> bool:
        """Whether something would wait for itself."""
        return _has_cycle(self._precedes())

    def _precedes(self) -> dict[Any, set[Any]]:
        """Every single thing that has to be over before another begins; a group is itself and all that is in it."""
        precedes: dict[Any, set[Any]] = defaultdict(set)
        for node in self.nodes():
            for arrow in node.after:
                for one in self._over_with(arrow.on):
                    precedes[one] |= self._span(node.number)
        for task in self.tasks.values():
            end = ("end", task.number)
            precedes[task.number].add(end)
            for one in task.continued_by:
                for last in self._over_with(one):
                    precedes[last].add(end)
        return precedes

    def _span(self, number: int) -> set[Any]:
        if number in self.tasks:
            return {number}
        return self._groups_in(number) | {task.number for task in self.subtree(number)}

    def _over_with(self, number: int) -> set[Any]:
        """What is over when the node is over."""
        if number in self.tasks:
            return {("end", number)}
        return self._span(number)


def _fates_of(rule: str, said: set[Said]) -> set[Fate]:
    """T19, a sentence a rule; a side that was not chosen is skipped, and where it meets another end either may win."""
    if "not chosen" in said:
        without = _RULES[rule](said - {"not chosen"})
        early = {"all_success": "UPSTREAM_FAILED", "none_failed": "UPSTREAM_FAILED", "one_success": "runs"}.get(rule)
        return {"SKIPPED", without} if without == early else {"SKIPPED"}
    return {_RULES[rule](said)}


def _all_success(said: set[Said]) -> Fate:
    return "UPSTREAM_FAILED" if "failed" in said else "SKIPPED" if said == {"skipped"} else "runs"


def _none_failed(said: set[Said]) -> Fate:
    return "UPSTREAM_FAILED" if "failed" in said else "runs"


def _all_done(_: set[Said]) -> Fate:
    return "runs"


def _one_success(said: set[Said]) -> Fate:
    return "runs" if "ok" in said else "UPSTREAM_FAILED" if "failed" in said else "SKIPPED"


_RULES: dict[str, Callable[[set[Said]], Fate]] = {
    "all_success": _all_success,
    "none_failed": _none_failed,
    "all_done": _all_done,
    "one_success": _one_success,
}


def _has_cycle(precedes: dict[Any, set[Any]]) -> bool:
    """Take away what nothing precedes, again and again; a cycle is what is left."""
    before: dict[Any, int] = defaultdict(int)
    for later in precedes.values():
        for one in later:
            before[one] += 1
    free = [one for one in precedes if not before[one]]
    seen = 0
    while free:
        one = free.pop()
        seen += 1
        for later in precedes.get(one, ()):
            before[later] -= 1
            if not before[later]:
                free.append(later)
    return seen < len({*precedes, *before})
