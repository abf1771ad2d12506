"""Random graphs, each as the model knows it and as the flow is given it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from aaiclick_queue.flow.enqueue import NewTask, Spec
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, Previous
from aaiclick_queue.spec import RULES
from tests.dag.model import Choice, Dependency, Graph, Group, Task

SPEC = Spec("tests.nowhere", "default", max_attempts=3)
NAMES = ("red", "green", "blue")
VALUES: tuple[Any, ...] = (True, False, 0, 1, -0.0, 2.5, "", "no", None, [], [0], {}, {"a": 1}, "?false", ["?true"])
NAMED: tuple[Any, ...] = ("red", "green", "blue", "grey", "*", ["red", "blue"], ["green", "grey"], ["*"], [], None, 7)
numbers = itertools.count(1)


def draw_graph(rng: random.Random, size: int) -> Graph:
    """A job: nested groups, some without a task, and arrows of every kind that make no cycle."""
    graph = Graph()
    for _ in range(rng.randint(0, size // 3 + 1)):
        parent = rng.choice(list(graph.groups)) if graph.groups and rng.random() < 0.5 else None
        rule = rng.choice(RULES) if rng.random() < 0.3 else "all_success"
        number = next(numbers)
        graph.groups[number] = Group(number, parent, rule)
    for _ in range(size):
        group = rng.choice(list(graph.groups)) if graph.groups and rng.random() < 0.7 else None
        add_task(graph, rng, group)
    everything = [*graph.tasks, *graph.groups]
    for _ in range(rng.randint(0, size * 2)):
        draw_arrow(graph, rng, rng.choice(everything), rng.choice(everything))
    return graph


def add_task(graph: Graph, rng: random.Random, group: int | None) -> Task:
    rule = rng.choice(RULES) if rng.random() < 0.5 else "all_success"
    task = Task(next(numbers), group, rule, critical=rng.random() < 0.9)
    graph.tasks[task.number] = task
    return task


def draw_arrow(graph: Graph, rng: random.Random, before: int, behind: int, *, refuse_cycles: bool = True) -> None:
    """An arrow between the two, unless there is one or it would close a cycle."""
    node: Task | Group = graph.tasks[behind] if behind in graph.tasks else graph.groups[behind]
    if before == behind or any(arrow.on == before for arrow in node.after):
        return
    choice = draw_choice(rng) if before in graph.tasks and rng.random() < 0.15 else None
    node.after.append(Dependency(before, any_of=choice is None and rng.random() < 0.2, choice=choice))
    if refuse_cycles and graph.has_cycle():
        node.after.pop()


def draw_choice(rng: random.Random) -> Choice:
    """A side of a `when` or a `branch`."""
    if rng.random() < 0.5:
        return Choice(wanted=rng.random() < 0.7)
    names = frozenset(rng.sample(NAMES, rng.randint(1, 2)))
    has_default = rng.random() < 0.5
    if has_default and rng.random() < 0.4:
        return Choice(all_names=frozenset(NAMES), is_default=True, has_default=True)
    return Choice(names=names, all_names=frozenset(NAMES), has_default=has_default)


def draw_value(graph: Graph, rng: random.Random, number: int) -> Any:
    """A result that decides something, if anybody asks it."""
    arrows = (arrow for node in graph.nodes() for arrow in node.after)
    if any(arrow.on == number and arrow.choice and arrow.choice.wanted is None for arrow in arrows):
        return rng.choice(NAMED) if rng.random() < 0.9 else rng.choice(VALUES)
    return rng.choice(VALUES) if rng.random() < 0.5 else True


def as_plan(graph: Graph, new: Sequence[Task | Group], ids: Mapping[int, int], rng: random.Random) -> Plan:
    """What the flow is given of these nodes; those before are named by their ids."""
    groups = [node for node in new if isinstance(node, Group)]
    tasks = [node for node in new if isinstance(node, Task)]
    rng.shuffle(groups)
    return Plan(
        [
            PlannedTask(
                number=task.number,
                name=f"t{task.number}",
                spec=SPEC,
                task=NewTask("{}", countdown=0.05 if rng.random() < 0.05 else None),
                group=_known(task.group, ids),
                rule=task.rule,  # type: ignore[arg-type]
                critical=task.critical,
                previous=[_previous(graph, arrow, ids) for arrow in task.after],
            )
            for task in tasks
        ],
        [
            PlannedGroup(
                number=group.number,
                name=f"g{group.number}",
                parent=_known(group.parent, ids),
                rule=group.rule,  # type: ignore[arg-type]
                previous=[_previous(graph, arrow, ids) for arrow in group.after],
                max_parallel=rng.choice([None, None, None, 1, 2]),
            )
            for group in groups
        ],
    )


def returned(graph: Graph, nodes: Sequence[int]) -> tuple[Previous, ...]:
    """How the flow is told that these nodes continue a task."""
    return tuple(Previous(one, "group" if one in graph.groups else "task") for one in nodes)


def _known(number: int | None, ids: Mapping[int, int]) -> int | None:
    return None if number is None else ids.get(number, number)


def _previous(graph: Graph, arrow: Dependency, ids: Mapping[int, int]) -> Previous:
    number, kind = ids.get(arrow.on, arrow.on), "group" if arrow.on in graph.groups else "task"
    choices, known = as_choices(arrow.choice)
    return Previous(number, kind, choices, known, arrow.any_of)  # type: ignore[arg-type]


def as_choices(choice: Choice | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A side as the flow writes it."""
    if choice is None:
        return (), ()
    if choice.wanted is not None:
        return ("?true" if choice.wanted else "?false",), ()
    names = tuple(sorted(choice.names))
    if choice.is_default:
        return ("*", *names), tuple(sorted(choice.all_names))
    return names, () if choice.has_default else tuple(sorted(choice.all_names))
