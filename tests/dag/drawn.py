"""Random plans of jobs."""

from __future__ import annotations

import random

from aaiclick_queue.errors import BadJob
from aaiclick_queue.flow.cycles import refuse_cycles
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, Previous
from aaiclick_queue.spec import RULES
from tests.dag.written import planned


def draw_plan(rng: random.Random, most: int = 14) -> Plan:
    """Tasks and groups in groups, all rules, every kind of dependency, choices and alternatives."""
    size = rng.randint(1, most)
    groups = [PlannedGroup(number=100 + n, name=f"g{n}") for n in range(rng.randint(0, 5))]
    for at, group in enumerate(groups):
        group.parent = rng.choice(groups[:at]).number if at and rng.random() < 0.5 else None
        group.rule = rng.choice(RULES)
    inside = [None, *(group.number for group in groups)]
    tasks = [planned(n, group=rng.choice(inside), rule=rng.choice(RULES)) for n in range(1, size + 1)]
    plan = Plan(tasks, groups)
    nodes: list[PlannedTask | PlannedGroup] = [*tasks, *groups]
    for _ in range(2 * size):
        before, after = rng.choice(nodes), rng.choice(nodes)
        kind = "task" if isinstance(before, PlannedTask) else "group"
        choices = ("?true",) if kind == "task" and rng.random() < 0.2 else ()
        one = Previous(before.number, kind, choices, any_of=rng.random() < 0.2)  # type: ignore[arg-type]
        if before is not after and one.number not in [other.number for other in after.previous]:
            after.previous = [*after.previous, one]
            try:
                refuse_cycles(plan)
            except BadJob:
                after.previous = after.previous[:-1]
    return plan
