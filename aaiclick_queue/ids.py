"""Task ids: 41 bit milliseconds since the Unix epoch, 10 bit node, 12 bit sequence, in a BIGINT.

The same layout as ClickHouse's generateSnowflakeID(). Node 0 belongs to ids made inside Postgres.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

NODES = 1024
SEQUENCES = 4096


class IdSource:
    """Gives ids that grow with the database's clock, whatever the host's clock does."""

    def __init__(self, node: int, offset_seconds: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`offset_seconds` is the database clock minus `monotonic()`, taken when the connection was made."""
        if not 0 < node < NODES:
            raise ValueError(f"node {node} is outside 1…{NODES - 1}")
        self._node = node << 12
        self._offset = offset_seconds
        self._monotonic = monotonic
        self._millisecond = 0
        self._sequence = 0
        self._left = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> list[int]:
        """`count` new ids, ascending."""
        ids: list[int] = []
        with self._lock:  # callers in threads and the portal's loop share one source
            while len(ids) < count:
                self._step()
                batch = min(count - len(ids), self._left)
                first = (self._millisecond << 22) | self._node | self._sequence
                ids.extend(range(first, first + batch))
                self._sequence += batch
                self._left -= batch
        return ids

    def _step(self) -> None:
        now = int((self._monotonic() + self._offset) * 1000)
        if now > self._millisecond or self._left == 0:
            # A random start parts two processes that share a node id; the millisecond may run ahead of the clock.
            self._millisecond = max(now, self._millisecond + 1)
            self._sequence = random.randrange(SEQUENCES // 2)
            self._left = SEQUENCES - self._sequence
