"""Kinds of runs: on the event loop, in a thread, in a child process. Each has its own slots. After: slots."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from .flow.execute import Run

KindName = Literal["async", "thread", "process"]
RECENT_SECONDS = 0.1
A_FEW = 16  # runs that may wait for a slot of a full kind: what is behind them in line may be of another
RARE = 0.05  # a smaller share of what is claimed does not count
QUEUES_KNOWN = 100
RECENCY = 0.3  # how much the last claim counts beside all before it


class Waiting:
    """The runs that wait for a slot, in order, and how many of each queue.

    Counted as they come and go: of a thousand that were claimed ahead, a look at each for every few that end took a
    fifth of the time of `def` tasks that do nothing.
    """

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self._of_queue: dict[str, int] = {}

    @property
    def queues(self) -> AbstractSet[str]:
        """Those that they are of."""
        return self._of_queue.keys()

    def append(self, run: Run) -> None:
        """One more, behind the others."""
        self._runs.append(run)
        queue = run.claimed.queue
        self._of_queue[queue] = self._of_queue.get(queue, 0) + 1

    def popleft(self) -> Run:
        """The first, which does not wait any more."""
        return self._gone(self._runs.popleft())

    def remove(self, run: Run) -> None:
        """This one does not wait any more."""
        self._runs.remove(run)
        self._gone(run)

    def _gone(self, run: Run) -> Run:
        queue = run.claimed.queue
        left = self._of_queue[queue] - 1
        if left:
            self._of_queue[queue] = left
        else:
            del self._of_queue[queue]
        return run

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, index: int) -> Run:
        return self._runs[index]


class Kind:
    """The slots of one kind, the runs that wait for one, and how often the kind is met."""

    def __init__(self, name: KindName, size: int, *, share: float) -> None:
        self.name = name
        self.size = size
        self.share = share
        self.taken = 0
        self.waiting = Waiting()
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
    """How what is claimed is spread over the kinds: altogether, and for each of the queues that were seen last."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._queues: dict[str, dict[Kind, float]] = {}

    def met(self, counts: Mapping[tuple[str, Kind], int]) -> None:
        """A claim gave so many of each queue and kind."""
        total = sum(counts.values())
        of_queue: dict[str, int] = {}
        of_kind = dict.fromkeys(self._kinds, 0)
        for (queue, kind), count in counts.items():
            of_queue[queue] = of_queue.get(queue, 0) + count
            of_kind[kind] += count
        for kind, count in of_kind.items():
            kind.share += RECENCY * (count / total - kind.share)
        for queue, of in of_queue.items():
            now = {kind: counts.get((queue, kind), 0) / of for kind in self._kinds}
            before = self._queues.pop(queue, now)
            self._queues[queue] = {kind: share + RECENCY * (now[kind] - share) for kind, share in before.items()}
        if len(self._queues) > QUEUES_KNOWN:
            del self._queues[next(iter(self._queues))]

    def brings_only(self, queue: str, kind: Kind) -> bool:
        """Whether next to nothing else was seen in that queue."""
        shares = self._queues.get(queue)
        return shares is not None and shares[kind] >= 1 - RARE

    def some_without(self, kind: Kind, *, resting: AbstractSet[str]) -> bool:
        """Whether queues are known beside those at rest, and none of them brings that kind."""
        others = [shares[kind] for queue, shares in self._queues.items() if queue not in resting]
        return bool(others) and max(others) <= RARE


def room_of(kinds: Sequence[Kind], mix: Mix, *, most: int, prefetch: bool) -> int:
    """How many runs may be claimed so that each kind, by its share, has room for what comes of it.

    A full kind lets a few wait for it. Then the queues that brought them are left alone, and the others go on if they
    bring other kinds.
    """
    opened = {kind: kind.open(prefetch=prefetch) for kind in kinds}
    if not any(opened.values()):
        return 0
    crowded = [kind for kind, free in opened.items() if not free and len(kind.waiting) >= kind.may_wait]
    resting = {queue for kind in crowded for queue in kind.waiting.queues}
    if not all(mix.some_without(kind, resting=resting) for kind in crowded):
        return 0
    room = float(sum(opened.values()) if crowded else most)
    for kind, free in opened.items():
        if kind.share > RARE and kind not in crowded:
            room = min(room, (free or kind.may_wait - len(kind.waiting)) / kind.share)
    return max(1, min(int(room), most))
