"""A job as a round knows it, and what is added to one that is there."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any

from aaiclick_queue.flow.graph import Previous
from tests.dag.model import Graph, Group, Task
from tests.dag.plans import add_task, as_plan, draw_arrow, numbers, returned


@dataclass
class Job:
    """One job: what the test knows of it."""

    graph: Graph
    id: int = 0
    ids: dict[int, int] = field(default_factory=dict)
    adds_left: int = 0
    cancels_left: int = 0
    stop_left: bool = False
    stopped: float | None = None  # a moment before it was cancelled
    given: dict[str, Any] = field(default_factory=dict)  # what is said of it when it is submitted
    cycles: list[tuple[list[Task | Group], list[int], int | None]] = field(default_factory=list)
    refused: list[tuple[int, float]] = field(default_factory=list)  # a group that took no more, and when

    def learn(self, ids: dict[int, int], nodes: list[Task | Group]) -> None:
        self.ids |= ids
        for node in nodes:
            if isinstance(node, Task):
                self.graph.tasks[node.number] = node
            else:
                self.graph.groups[node.number] = node


class Addition:
    """A few nodes that somebody adds to a job that is there."""

    def __init__(self, job: Job, rng: random.Random, by: int | None = None) -> None:
        self.job = job
        self.by = by
        self._rng = rng
        self.returns: list[int] = []
        own = job.graph.tasks[by].group if by is not None else None
        self.own_group = None if own is None else job.ids[own]
        self._graph = copy.copy(job.graph)
        self._graph.tasks, self._graph.groups = dict(job.graph.tasks), dict(job.graph.groups)
        places = [own, own, *rng.sample(list(job.graph.groups), min(2, len(job.graph.groups)))]
        groups: list[Group] = []
        for _ in range(rng.randint(0, 2)):
            rule = rng.choice(["all_success", "all_done", "none_failed"])
            group = Group(next(numbers), rng.choice([*places, *(g.number for g in groups)]), rule)
            self._graph.groups[group.number] = group
            groups.append(group)
        places += [group.number for group in groups]
        tasks = [add_task(self._graph, rng, rng.choice(places)) for _ in range(rng.randint(1, 4))]
        self.new: list[Task | Group] = [*groups, *tasks]
        before = [*job.graph.tasks, *job.graph.groups]
        for _ in range(rng.randint(0, 4)):
            target = rng.choice(self.new).number
            source = rng.choice(before) if rng.random() < 0.6 else rng.choice(self.new).number
            draw_arrow(self._graph, rng, source, target, refuse_cycles=rng.random() < 0.9)

    @property
    def can_continue(self) -> bool:
        return self.by is not None and not self.job.graph.tasks[self.by].continued_by

    def continue_by(self, rng: random.Random) -> None:
        tasks = [node.number for node in self.new if isinstance(node, Task)]
        groups = [node.number for node in self.new if isinstance(node, Group) and any(self._graph.subtree(node.number))]
        if groups and rng.random() < 0.3:
            self.returns = [rng.choice(groups)]
        else:
            self.returns = rng.sample(tasks, min(len(tasks), rng.randint(1, 2)))

    def returned(self) -> tuple[Previous, ...]:
        return returned(self._graph, self.returns)

    def plan(self) -> Any:
        return as_plan(self._graph, self.new, self.job.ids, self._rng)

    def result(self) -> str:
        """What the task returned, by the numbers of its nodes."""
        [first, *more] = self.returns
        if more:
            return json.dumps({"$nodes": self.returns})
        return json.dumps({"$group" if first in self._graph.groups else "$node": first})

    @staticmethod
    def with_ids(result: str | None, ids: dict[int, int]) -> str | None:
        match json.loads(result or "null"):
            case {"$nodes": list(given)}:
                return json.dumps({"$nodes": [ids[one] for one in given]})
            case {"$node": int(one)}:
                return json.dumps({"$node": ids[one]})
            case {"$group": int(one)}:
                return json.dumps({"$group": ids[one]})
            case _:
                return result
