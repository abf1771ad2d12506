"""Caps: queues of which one worker runs only so many at once. Before: slots say how many run. After: claim.

Each capped queue has a line of its own, claimed with what its cap leaves free: the claim statement knows nothing of it,
and a worker without caps has its one line as ever.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from .flow.claim import Claimed, Line, Wanted
from .flow.quarantine import claim_surely
from .schema import Transaction

UNCAPPED = ""  # no queue has this name
EMPTY_SECONDS = 0.05  # a busy worker asks an empty capped line no more often: each is a statement of its own


class Lines:
    """The lines of a worker with caps; it stands where a worker without them has its one line."""

    def __init__(self, queues: Mapping[str, int], limits: Mapping[str, int], running: Callable[[str], int]) -> None:
        """`running` says how many runs of a queue are here; `queues` is empty for all that there are."""
        self._limits = dict(limits)
        self._running = running
        self._lines = {UNCAPPED: Line({name: weight for name, weight in queues.items() if name not in limits})}
        self._lines |= {name: Line({name: queues.get(name, 1)}) for name in limits}
        weights = queues or dict.fromkeys([UNCAPPED, *limits], 1)
        names = [name if name in limits else UNCAPPED for name, weight in weights.items() for _ in range(weight)]
        self._turns = itertools.cycle(names)
        self._empty_at = dict.fromkeys(limits, 0.0)
        self._busy = False
        self.head = Heads(list(self._lines.values()))

    @property
    def queues(self) -> list[str]:
        """Names of the queues that are served."""
        return [name for line in self._lines.values() for name in line.queues]

    def is_capped(self, queue: str) -> bool:
        """Whether it is one of those."""
        return queue in self._limits

    def leaves_room(self, queue: str) -> bool:
        """Whether fewer of this queue run than its cap, if it has one."""
        return queue not in self._limits or self._running(queue) < self._limits[queue]

    def serve(self, queues: Sequence[str]) -> None:
        """Serve these queues from now on, and those with a cap."""
        self._lines[UNCAPPED].serve([name for name in queues if name not in self._limits])

    def passed(self, queue: str, rank: int, order_key: int) -> bool:
        """Whether work at this place lies behind the mark of its line."""
        return self._lines[queue if queue in self._limits else UNCAPPED].passed(queue, rank, order_key)

    async def claim(self, tx: Transaction, want: Wanted) -> list[Claimed]:
        """Lease at most `want.limit` tasks, of a capped queue no more than its cap leaves."""
        claimed: list[Claimed] = []
        for name in self._order(want.resting):
            left = want.limit - len(claimed)
            limit = min(left, self._limits[name] - self._running(name)) if name in self._limits else left
            if limit <= 0:
                continue
            try:
                got = await claim_surely(self._lines[name], tx, msgspec.structs.replace(want, limit=limit))
            except Exception:
                if not claimed:
                    raise
                break  # the next claim meets the same error, and these can start meanwhile
            if name in self._limits:
                self._empty_at[name] = 0.0 if len(got) == limit else time.monotonic()
            claimed += got
        self._busy = len(claimed) >= want.limit
        return claimed

    def _order(self, resting: AbstractSet[str]) -> Iterator[str]:
        first, now = next(self._turns), time.monotonic()
        for name in sorted(self._lines, key=lambda name: name != first):
            just_empty = self._busy and now - self._empty_at.get(name, 0.0) < EMPTY_SECONDS
            if name not in resting and not just_empty and self._lines[name].queues:
                yield name


class Heads:
    """The scans from the head of several lines."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def want(self) -> None:
        """Something may lie behind a mark."""
        for line in self._lines:
            line.head.want()
