"""What producers ask for: each call has a number that its rows carry, and knows how it has to end."""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

from aaiclick_queue import Job, Task
from tests.chaos import tasks

Answer = Literal["accepted", "refused", "unknown", "rolled back"]


class Call(msgspec.Struct):
    """One call of a producer. `unknown`: its answer was lost, so it was written as a whole or not at all."""

    number: int
    kind: str
    tasks: int
    ends: frozenset[str]
    answer: Answer = "unknown"
    ids: list[int] = []
    job_id: int | None = None
    cancelled: Literal["no", "asked", "yes"] = "no"
    key: str | None = None
    result: Any = None


class Kind(msgspec.Struct, frozen=True):
    """One kind of call: how often, what is called, with which arguments and options."""

    name: str
    weight: int
    what: Task[..., Any] | Job[..., Any]
    arguments: dict[str, tuple[float, float] | int]
    ends: tuple[str, ...] = ("COMPLETED",)
    options: dict[str, Any] = {}
    many: tuple[int, int] | None = None

    def call_with(self, chance: random.Random) -> dict[str, Any]:
        """Arguments of one call: whole numbers between whole bounds."""
        return {name: _between(chance, bounds) for name, bounds in self.arguments.items()}


def _between(chance: random.Random, bounds: tuple[float, float] | int) -> float:
    if isinstance(bounds, int):
        return bounds
    low, high = bounds
    if isinstance(low, int) and isinstance(high, int):
        return chance.randint(low, high)
    return round(chance.uniform(low, high), 3)


KINDS = (
    Kind("many", 6, tasks.tick, {"seconds": (0.0, 0.05)}, many=(10, 60)),
    Kind("tick", 10, tasks.tick, {"seconds": (0.0, 0.5)}),
    Kind("slow", 4, tasks.tick, {"seconds": (1.0, 4.0)}),
    Kind("later", 5, tasks.tick, {"seconds": (0.0, 0.1)}, options={"countdown": (0.5, 5.0)}),
    Kind("in thread", 4, tasks.in_thread, {"seconds": (0.0, 0.3)}),
    Kind("apart", 3, tasks.apart, {"seconds": (0.1, 1.0)}),
    Kind("fails first", 5, tasks.fail_first, {"times": (1, 2)}, options={"max_attempts": 3}),
    Kind("gives up", 2, tasks.fail_first, {"times": 9}, ("FAILED",), options={"max_attempts": 2}),
    Kind("fails", 1, tasks.fail, {}, ("FAILED",)),
    Kind("snoozes", 2, tasks.snooze, {"times": (1, 2)}),
    Kind("pays", 10, tasks.pay, {"seconds": (0.0, 0.4)}),
    Kind("pays apart", 2, tasks.pay_apart, {"seconds": (0.1, 0.6)}),
    Kind("pays and spawns", 3, tasks.pay_and_spawn, {"many": (1, 3)}),
    Kind("tells", 4, tasks.tell, {"times": (5, 30)}),
    Kind("spawns", 3, tasks.spawn, {"many": (1, 8)}),
    Kind("sits", 6, tasks.sit, {"seconds": (0.05, 0.4)}),
    Kind("serves", 6, tasks.serve, {"tenant": (1, 4), "seconds": (0.05, 0.4)}),
    Kind("posts", 4, tasks.post, {"book": (1, 3), "number": 0, "seconds": (0.0, 0.2)}),
    Kind("keyed", 5, tasks.tick, {"seconds": (0.2, 2.0)}, ("COMPLETED", "CANCELLED"), options={"dedupe": "skip"}),
    Kind("pipeline", 2, tasks.pipeline, {"parts": (1, 3), "width": (2, 12), "mapped": (0, 15), "seconds": (0.0, 0.2)}),
    Kind("broken", 1, tasks.broken, {"seconds": (0.0, 0.3)}, ("FAILED",)),
)
BROKEN_SIZE = 8


def size_of(kind: Kind, arguments: dict[str, Any]) -> int:
    """How many rows a job of this call has when it has ended."""
    if kind.what is tasks.pipeline:
        return tasks.pipeline_size(arguments["parts"], arguments["width"], arguments["mapped"])
    return BROKEN_SIZE if kind.what is tasks.broken else 1
