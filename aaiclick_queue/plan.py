"""How a worker was asked to work."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

DEFAULT_QUEUES: Mapping[str, int] = {"default": 1}
EVERY_QUEUE = "*"


class Plan(msgspec.Struct, frozen=True):
    """How a worker was asked to work: queues with weights and caps, slots of each kind, background loops, its end."""

    queues: Mapping[str, int] = msgspec.field(default_factory=lambda: dict(DEFAULT_QUEUES))
    slots: int = 100
    threads: int = msgspec.field(default_factory=lambda: 4 * (os.cpu_count() or 1))
    background: bool = True
    fleet: str | None = None  # the group of a fleet that it belongs to
    modules: tuple[str, ...] = ()  # what children import before their first task; else the task's own module
    children: int = msgspec.field(default_factory=lambda: os.cpu_count() or 1)
    max_tasks_per_child: int = 1000
    max_memory_per_child: int = 300  # megabytes
    limits: Mapping[str, int] = msgspec.field(default_factory=dict)  # runs at once, by queue, in this process
    burst: bool = False  # end when nothing is left to do
    max_tasks: int | None = None  # end after so many runs
    max_memory: int | None = None  # end when the process has grown beyond so many megabytes

    @property
    def ends_by_itself(self) -> bool:
        """Whether there is a moment at which it is to leave."""
        return self.burst or self.max_tasks is not None or self.max_memory is not None
