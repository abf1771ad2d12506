"""Kinds of runs: on the event loop, in a thread, in a child process. Each has its own slots. After: slots."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from .flow.execute import Run

KindName = Literal["async", "thread", "process"]
RECENT_SECONDS = 0.1
A_FEW = 16  # runs that may wait for a slot of a full kind: what is behind them in line may be of another
RARE = 0.05  # a smaller share of what is claimed does not count
QUEUES_KNOWN = 100


class Kind:
    """The slots of one kind, the runs that wait for one, and how often the kind is met."""

    def __init__(self, name: KindName, size: int, *, share: float) -> None:
        self.name = name
        self.size = size
        self.share = share
        self.taken = 0
        self.waiting: deque[Run] = deque()
        self._recent: deque[tuple[float, int]] = deque()
        self._recently = 0

    @property
    def may_wait(self) -> int:
        """How many may wait while the kind is full: the rarer the others are, the less is there to be found."""
        return max(1, int(A_FEW * (1 - self.share)))

    def open(self, *, prefetch: bool) -> int:
        """Slots that are free, plus as many as became free in the last 100 ms, without those that are waited for."""
        ahead = self._finished_recently() if prefetch else 0
        return max(0, self.size - self.taken + ahead - len(self.waiting))

    def is_crowded(self, *, prefetch: bool) -> bool:
        """Whether it is full and as many wait for it as may."""
        return len(self.waiting) >= self.may_wait and not self.open(prefetch=prefetch)

    def met(self, count: int, of: int) -> None:
        """So many of the runs that a claim gave were of this kind."""
        self.share += 0.3 * (count / of - self.share)

    def finished(self) -> None:
        """A run of this kind is over."""
        self._recently += 1
        now = time.monotonic()
        if self._recent and now - self._recent[-1][0] < RECENT_SECONDS / 10:
            self._recent[-1] = (self._recent[-1][0], self._recent[-1][1] + 1)
        else:
            self._recent.append((now, 1))

    def _finished_recently(self) -> int:
        limit = time.monotonic() - RECENT_SECONDS
        while self._recent and self._recent[0][0] < limit:
            self._recently -= self._recent.popleft()[1]
        return self._recently


class Mix:
    """Which kinds each queue was seen to bring, for the queues that were seen last."""

    def __init__(self) -> None:
        self._shares: dict[str, dict[Kind, float]] = {}

    def met(self, queue: str, kinds: Mapping[Kind, int]) -> None:
        """A claim gave these of that queue."""
        total = sum(kinds.values())
        now = {kind: count / total for kind, count in kinds.items()}
        before = self._shares.pop(queue, now)
        self._shares[queue] = {
            kind: 0.7 * before.get(kind, 0.0) + 0.3 * now.get(kind, 0.0) for kind in before.keys() | now.keys()
        }
        if len(self._shares) > QUEUES_KNOWN:
            del self._shares[next(iter(self._shares))]

    def some_without(self, kind: Kind, *, resting: AbstractSet[str]) -> bool:
        """Whether queues are known beside those at rest, and none of them brings that kind."""
        others = [shares.get(kind, 0.0) for queue, shares in self._shares.items() if queue not in resting]
        return bool(others) and max(others) <= RARE


def room_of(kinds: Sequence[Kind], mix: Mix, *, most: int, prefetch: bool) -> int:
    """How many runs may be claimed so that each kind, by its share, has room for what comes of it.

    A full kind lets a few wait for it. Then the queues that brought them are left alone, and the others go on if they
    bring other kinds.
    """
    opened = {kind: kind.open(prefetch=prefetch) for kind in kinds}
    if not any(opened.values()):
        return 0
    crowded = [kind for kind in kinds if kind.is_crowded(prefetch=prefetch)]
    resting = {run.claimed.queue for kind in crowded for run in kind.waiting}
    if not all(mix.some_without(kind, resting=resting) for kind in crowded):
        return 0
    room = float(sum(opened.values()) if crowded else most)
    for kind, free in opened.items():
        if kind.share > RARE and kind not in crowded:
            room = min(room, (free or kind.may_wait - len(kind.waiting)) / kind.share)
    return max(1, min(int(room), most))
