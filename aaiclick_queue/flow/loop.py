"""Loop: repeats one bounded piece of background work with jitter and backoff; a kick runs it at once.

Any number of processes may run the same loop: the work itself shares rows by SKIP LOCKED. Which process polls fast
is decided by a row in `loops`; that is thrift, not safety.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable

from ..errors import PostgresUnavailable, StreamsDown
from ..meters import METERS
from ..schema import Transaction

log = logging.getLogger(__name__)

HOLD_LOOPS = """
INSERT INTO aaiclick_queue.loops (name, holder, expires_at)
VALUES ('background', $1, now() + interval '5 s')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE loops.holder = excluded.holder OR loops.expires_at < now()
RETURNING holder
"""
LET_LOOPS_GO = "DELETE FROM aaiclick_queue.loops WHERE holder = $1"
OTHERS_SECONDS = 1.0
REST = 100  # times as long as a look took pass before the next: an old snapshot makes it walk over dead rows
LEAST_REST = 2  # however long that is: never more than half of the time
LONGEST_PAUSE = 5.0
ERROR_LIMIT = 500


class Holder:
    """Knows whether this process is the one that polls fast."""

    def __init__(self, holder: int) -> None:
        self.id = holder
        self.holds = False
        self.seen = 0.0  # monotonic, of the last answer

    async def hold_once(self, tx: Transaction) -> float:
        """Take or keep the role; returns the seconds until the next look."""
        self.holds = bool(await tx.fetch(HOLD_LOOPS, self.id))
        self.seen = time.monotonic()
        return 2.0

    async def let_go(self, tx: Transaction) -> None:
        """Leave the role to the next process that asks."""
        if self.holds:
            self.holds = False
            await tx.fetch(LET_LOOPS_GO, self.id)


class Counts:
    """What a loop has done in this process."""

    def __init__(self) -> None:
        self.cycles = self.worked = self.folded = self.errors = 0
        self.seconds = 0.0  # that the last cycle took
        self.last_error: str | None = None
        self.untold: str | None = None  # the last error that no event tells of yet
        self._cycle_at = self._error_at = self._did_at = 0.0
        self._did: tuple[str, int] | None = None

    def did(self, words: str, n: int, *, folded: int = 0) -> None:
        """So much was done, in words with a `{}` for the number."""
        self.folded += folded
        if n:
            self.worked += n
            self._did, self._did_at = (words, n), time.monotonic()

    def cycled(self, began: float) -> None:
        """One cycle is over, that began then."""
        self._cycle_at = time.monotonic()
        self.cycles += 1
        self.seconds = self._cycle_at - began

    def failed(self, error: Exception) -> None:
        """One cycle raised."""
        self.errors += 1
        self._error_at = time.monotonic()
        self.last_error = self.untold = f"{type(error).__name__}: {error}"[:ERROR_LIMIT]

    def shown(self, now: float) -> dict[str, object]:
        """As it is written for others, with ages instead of times."""
        shown: dict[str, object] = {
            "cycles": self.cycles,
            "cycle_ago": now - self._cycle_at if self.cycles else None,
            "seconds": self.seconds,
            "worked": self.worked,
            "folded": self.folded,
            "errors": self.errors,
            "last_error": self.last_error,
            "error_ago": now - self._error_at if self.errors else None,
        }
        if self._did is not None:
            words, n = self._did
            shown |= {"did": words.format(f"{n:,}"), "did_ago": now - self._did_at}
        return shown


class Rest:
    """How long a look that nobody waits for rests: the longer, the longer it takes, up to a bound."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._sample = 0.0

    def after(self, seconds: float) -> float:
        """Seconds to rest after a look that took so long."""
        # The cheaper of two: a stall of 10 s is no long look, and would blind whoever relies on it for minutes.
        cost, self._sample = min(seconds, self._sample), seconds
        return max(min(REST * cost, self._longest), LEAST_REST * cost)


class Loop:
    """Repeats `once`, which returns the seconds until it wants to run again."""

    def __init__(
        self,
        name: str,
        once: Callable[[], Awaitable[float]],
        *,
        fast: Callable[[], bool] = lambda: True,
        exact: bool = False,
        longest_rest: float | None = None,
    ) -> None:
        """`fast` tells whether this process polls often; `exact`: `once` names a moment, from its end.

        `longest_rest`: nobody waits for it, so it is made the less often the longer it takes, down to this.
        """
        self.name = name
        self._once = once
        self._fast = fast
        self._exact = exact
        self._rest = None if longest_rest is None else Rest(longest_rest)
        self._kick = asyncio.Event()
        self._failures = 0
        self._told: type[BaseException] | None = None
        self.counts = Counts()

    def kick(self) -> None:
        """Run now instead of at the next poll."""
        self._kick.set()

    async def run(self) -> None:
        """Repeat for ever; errors are logged once a kind and slow the loop down, never end it."""
        while True:
            self._kick.clear()
            began = time.monotonic()
            try:
                pause = await self._once()
                if METERS.on:
                    METERS.statement(self.name, time.monotonic() - began)
            except Exception as error:
                pause = self._failed(error)
            else:
                if self._told:
                    log.log(_level(self._told, logging.INFO), "%s works again", self.name)
                self._failures, self._told = 0, None
                self.counts.cycled(began)
                pause = pause if self._fast() else max(pause, OTHERS_SECONDS)
                pause = pause if self._rest is None else max(pause, self._rest.after(self.counts.seconds))
            if not self._exact or self._failures:
                pause = max(0.0, pause * random.uniform(0.9, 1.1) - (time.monotonic() - began if pause else 0.0))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._kick.wait()

    def _failed(self, error: Exception) -> float:
        self._failures += 1
        self.counts.failed(error)
        if self._told is not type(error):
            self._told = type(error)
            expected = isinstance(error, PostgresUnavailable | StreamsDown)
            level = _level(type(error), logging.WARNING)
            log.log(level, "%s: %s", self.name, error, exc_info=None if expected else error)
        return min(LONGEST_PAUSE, 0.1 * float(2 ** min(self._failures, 10)))


def _level(kind: type[BaseException], level: int) -> int:
    """The listener says that Redis is away: twice would look like two troubles."""
    return logging.DEBUG if issubclass(kind, StreamsDown) else level
