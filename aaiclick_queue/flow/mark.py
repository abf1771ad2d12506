"""The low-watermark: where a scan of a hot index starts, so that it does not walk over dead entries.

Under a snapshot held open the head of a line is all dead rows: scanning from the head fell to 3.7k claims/s where
the mark stayed at 22k. Rows behind the mark are found by a scan from the head, made as often as it is cheap.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)

CHEAP_SECONDS = 0.002
AT_MOST_ONE_IN = 50
EVERY_SECONDS = 1.0
IDLE_PAUSE_SECONDS = 5.0  # who found little has the time
ROW_SECONDS = 0.0002  # what a row costs by itself, on a busy machine: not the scan's fault


class HeadScans:
    """Says when to scan from the head: on a short result, each second, on a hint; at most a fiftieth of the time."""

    def __init__(self) -> None:
        self._cost = 0.0
        self._sample = 0.0
        self._last = 0.0
        self._wanted = True
        self._idle = True

    def want(self) -> None:
        """Something may lie behind the mark."""
        self._wanted = True

    def due(self) -> bool:
        """Whether the next scan starts at the head."""
        since = time.monotonic() - self._last
        if self._cost > CHEAP_SECONDS:
            pause = AT_MOST_ONE_IN * self._cost
            if since < (min(pause, IDLE_PAUSE_SECONDS) if self._idle else pause):
                return False
        return self._wanted or since > EVERY_SECONDS

    def done(self, seconds: float, *, rows: int, short: bool) -> None:
        """A scan from the head took `seconds`."""
        # The cheaper of two: a lock or a busy moment is no long scan, and would hide retries for 50 × its length.
        sample = max(0.0, seconds - rows * ROW_SECONDS)
        self._cost, self._sample = min(sample, self._sample), sample
        self._last = time.monotonic()
        self._wanted = self._idle = short


class Mark(Generic[K]):
    """One mark over one index: `begin()` says where to scan from, `end()` takes what was found."""

    def __init__(self, lowest: K) -> None:
        self._lowest = lowest
        self._position = lowest
        self._scans = HeadScans()
        self._from_head = True
        self._began = 0.0

    def begin(self) -> K:
        """Where the next scan starts."""
        self._from_head = self._scans.due()
        self._began = time.monotonic()
        return self._lowest if self._from_head else self._position

    def want(self) -> None:
        """Something may lie behind the mark."""
        self._scans.want()

    def end(self, keys: Sequence[K], *, full: bool) -> None:
        """The scan gave these keys; `full` when there may be more."""
        if self._from_head:
            self._scans.done(time.monotonic() - self._began, rows=len(keys), short=not full)
        elif not full:
            self._scans.want()
        if keys:
            self._position = min(keys) if full else max(keys)
