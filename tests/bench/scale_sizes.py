"""How far the figures of scale go, and what a part of them gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from .places import Place
from .verdict import Mark

Point = tuple[float, float]


class ScaleSizes(NamedTuple):
    """How far each part goes."""

    backlogs: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    history: int = 1_000_000
    jobs: tuple[int, ...] = (100, 1_000, 10_000)
    queues: tuple[int, ...] = (1, 10, 100, 1_000)
    workers: tuple[int, ...] = (1, 2, 4, 8)
    tasks: int = 40_000  # of one point
    pairs: int = 2  # how often A and B are taken in turn
    snapshot_seconds: float = 60
    snapshot_tasks: int = 500_000  # drained meanwhile
    snapshot_lot: int = 40_000  # at a time
    soak_seconds: float = 60
    soak_rate: float = 1_000
    processes: int = 2

    def leaves_out(self) -> str:
        """What of the full sizes these do not reach; empty where they do."""
        own, all_ = self._asdict(), FULL._asdict()
        reach = {name: (_most(own[name]), _most(all_[name])) for name in REACH}
        short = [f"{REACH[name]} {mine:,.0f} of {full:,.0f}" for name, (mine, full) in reach.items() if mine < full]
        return ", ".join(short)


def _most(value: float | tuple[int, ...]) -> float:
    return max(value) if isinstance(value, tuple) else value


REACH = {
    "backlogs": "a backlog of",
    "history": "a history of",
    "jobs": "a job of",
    "workers": "worker processes:",
    "snapshot_seconds": "seconds of a held snapshot:",
    "soak_seconds": "seconds of soak:",
}
QUICK = ScaleSizes()
FULL = ScaleSizes(
    backlogs=(10_000, 100_000, 1_000_000, 10_000_000),
    history=10_000_000,
    jobs=(100, 1_000, 10_000, 100_000, 1_000_000),
    workers=(1, 2, 4, 8, 16),
    tasks=200_000,
    pairs=3,
    snapshot_seconds=600,
    snapshot_tasks=1_000_000,
    soak_seconds=1200,
    soak_rate=2_000,
)
TINY = ScaleSizes((200, 400), 500, (10, 20), (1, 3), (1, 2), 200, 1, 1.0, 600, 200, 3.0, 50, 1)


class Found(NamedTuple):
    """What a part gave."""

    title: str
    across: str
    curves: dict[str, list[Point]]
    marks: list[Mark]
    samples: Sequence[dict[str, Any]] = ()  # all that was seen, for the file


Places = Callable[[], AbstractContextManager[Place]]
