"""A job of thousands of tasks for workers that are about to have a bad day: groups, joins, a map, and nodes added."""

from __future__ import annotations

from typing import Any

from aaiclick_queue import Group, TaskResult, fan_in, job, task
from tests.faults.tasks import note, tick

PARTS = 30
WIDTH = 60
MAPPED = 400
ADDED = 5
SECONDS = 0.15  # of a task: so long that a fault finds the job at work
TASKS = 2 + PARTS * (WIDTH + 2 + ADDED) + 2 + MAPPED + 3
RESULT = {"parts": PARTS * WIDTH, "mapped": MAPPED}


@task(max_attempts=100)
async def count(numbers: list[int]) -> int:
    """How many there are: each is the epoch of a run, which is never nought."""
    note("count")
    assert all(numbers), "a result that is not there yet"
    return len(numbers)


@task(max_attempts=100)
async def spread(many: int) -> list[float]:
    """What a map goes over."""
    note("spread")
    return [SECONDS] * many


@task(max_attempts=100)
async def grow(counted: int) -> TaskResult:
    """Add some tasks to the job, and no more when run again."""
    note("grow")
    return TaskResult(data=counted, tasks=[tick(SECONDS) for _ in range(ADDED)])


@task(max_attempts=100)
async def total(parts: list[int], mapped: int) -> dict[str, int]:
    """The end of it."""
    note("total")
    return {"parts": sum(parts), "mapped": mapped}


@job
def pipeline() -> Any:
    """One, thousands, one."""
    first, last = tick(0.0), tick(0.0)
    parts = []
    for number in range(PARTS):
        with Group(f"part {number}") as part, Group(f"inside {number}"):
            ticks = [tick(SECONDS) for _ in range(WIDTH)]
        first >> part >> last
        parts.append(grow(count(ticks)))
    mapped = tick.map(first >> spread(MAPPED))
    return last >> total(parts, count(fan_in(mapped, "collect")))


@job
def chain() -> Any:
    """One, three, one."""
    first = tick(0.0)
    return count([first >> tick(0.01) for _ in range(3)])
