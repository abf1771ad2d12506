"""Skew: how far this host's clock is off the database's, from the answers to heartbeats."""

from __future__ import annotations

import time

LONGEST = 1.0  # an answer that took longer tells nothing: the time in it may have been read at any moment of that


class Skew:
    """Measured around statements that tell the database's time, corrected by half of what they took."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # this clock minus the database's
        self._offset = time.time() - time.monotonic()

    def begin(self) -> float:
        """The moment before such a statement."""
        return time.monotonic()

    def end(self, began: float, database_now: float) -> float:
        """It was answered: returns the database's clock minus `time.monotonic()`."""
        now = time.monotonic()
        if now - began < LONGEST:
            middle = (began + now) / 2
            self._offset = database_now - middle
            self.seconds = round(time.time() - now + middle - database_now, 4)
        return self._offset
