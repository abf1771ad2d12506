"""Leaving: when a worker ends by itself. Its queues are empty (burst), or it has run or grown enough.

Whoever started it starts the next one: a fleet, `--processes`, a service manager, cron.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from .errors import PostgresUnavailable
from .postgres import Database

log = logging.getLogger("aaiclick_queue.worker")

LOOK_SECONDS = 0.1
DEAR = 20  # at most a twentieth of the time goes into asking what is left
MEMORY_SECONDS = 1.0
MEGABYTE = 2**20
LATER_LIMIT = 100_000
HELD_SECONDS = 5.0  # what a limit holds back may still get in line when others' runs end; not for ever

# What this worker could still get: its own leases too, for a claim may be on its way. A paused queue is left as it is,
# and what is due is somebody's to move only where background loops run ($4). $3: every queue there is.
WORK_LEFT = """
WITH RECURSIVE line AS (
    (SELECT queue FROM aaiclick_queue.ready WHERE $3 ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
    FROM line WHERE line.queue IS NOT NULL
), served AS (
    SELECT name FROM (SELECT unnest($2::text[]) AS name UNION SELECT queue FROM line WHERE queue IS NOT NULL) AS n
    WHERE NOT EXISTS (SELECT FROM aaiclick_queue.queues q WHERE q.name = n.name AND q.paused_at IS NOT NULL)
)
SELECT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.worker_id = $1)
    OR EXISTS (SELECT FROM served WHERE EXISTS (SELECT FROM aaiclick_queue.ready r WHERE r.queue = served.name))
    OR $4 AND EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.not_before <= now() AND ($3 OR d.queue = ANY($2))
                      AND NOT EXISTS (SELECT FROM aaiclick_queue.queues q
                                      WHERE q.name = d.queue AND q.paused_at IS NOT NULL)) AS work_left,
    EXISTS (SELECT FROM aaiclick_queue.held h WHERE $3) OR EXISTS (
        SELECT FROM served WHERE EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.queue = served.name)) AS work_held
"""
WAITS_FOR_LATER = """
SELECT count(*) AS n FROM (SELECT queue FROM aaiclick_queue.delayed LIMIT $1) AS d WHERE $3 OR d.queue = ANY($2::text[])
"""


class Leaver(Protocol):
    """What is asked of the worker."""

    worker_id: int

    @property
    def tally(self) -> Counter[str]:
        """Runs that ended here, by what they came to."""
        ...

    def held(self) -> Sequence[tuple[int, int]]:
        """Task id and run_epoch of every run that is not settled yet."""

    def found_nothing(self) -> None:
        """There is nothing to claim: what is held may be let in."""

    def stop(self, *, now: bool = False) -> None:
        """Stop taking tasks and end."""


class Leaving:
    """Watches for the moment to go, and says why."""

    def __init__(
        self, worker: Leaver, db: Database, queues: Sequence[str], *, burst: bool, looks_at_due: bool = True
    ) -> None:
        """`queues` is empty for every queue there is."""
        self._worker = worker
        self._db = db
        self._queues = list(queues)
        self._burst = burst
        self._looks_at_due = looks_at_due
        self._next_look = 0.0
        self._next_weighing = 0.0
        self._only_held_since: float | None = None
        self.max_tasks: int | None = None
        self.max_memory: int | None = None  # megabytes

    @property
    def ran(self) -> int:
        """Runs that ended here; those handed back are somebody else's."""
        return self._worker.tally.total() - self._worker.tally["Released"]

    def budget(self) -> int:
        """How many more runs may be claimed."""
        return sys.maxsize if self.max_tasks is None else self.max_tasks - self.ran - len(self._worker.held())

    async def run(self) -> None:
        """Until it is time, then tell the worker to stop."""
        while True:
            try:
                why = await self._due()
            except Exception as error:  # nobody is to lose a worker because it could not ask whether to go
                expected = isinstance(error, PostgresUnavailable)
                log.debug("cannot tell what is left: %s", error, exc_info=None if expected else error)
                why = None
            if why is not None:
                break
            await asyncio.sleep(LOOK_SECONDS)
        log.info("%s", why, extra={"event": "worker leaves", "reason": why, "runs": self.ran})
        self._worker.stop()

    async def _due(self) -> str | None:
        if self.max_tasks is not None and self.ran >= self.max_tasks:
            return f"{self.ran:,} runs ended here, as --max-tasks asks: leaving"
        now = time.monotonic()
        if self.max_memory is not None and self.ran and now >= self._next_weighing:
            self._next_weighing = now + MEMORY_SECONDS
            if (used := memory_megabytes()) > self.max_memory:
                return f"{used:,} MB are used, more than --max-memory {self.max_memory:,}: leaving"
        if self._burst and now >= self._next_look and not await self._work_is_left():
            return await self._sum_up()
        return None

    async def _work_is_left(self) -> bool:
        if self._worker.held():
            self._only_held_since = None
            return True
        began = time.monotonic()
        every = not self._queues
        [row] = await self._db.fetch(WORK_LEFT, self._worker.worker_id, self._queues, every, self._looks_at_due)
        self._next_look = time.monotonic() + DEAR * (time.monotonic() - began)
        if row["work_left"] or self._worker.held():
            self._only_held_since = None
            return True
        if not row["work_held"]:
            return False
        self._worker.found_nothing()
        self._only_held_since = self._only_held_since or began
        return began - self._only_held_since < HELD_SECONDS

    async def _sum_up(self) -> str:
        counts = Counter({WORDS[kind]: n for kind, n in self._worker.tally.items() if kind in WORDS})
        told = ", ".join(f"{n:,} {word}" for word, n in counts.items()) or "there was nothing to run"
        [row] = await self._db.fetch(WAITS_FOR_LATER, LATER_LIMIT, self._queues, not self._queues)
        return f"burst is over: {told}" + (f"; {row['n']:,} wait for their time" if row["n"] else "")


WORDS = {
    "Succeeded": "succeeded",
    "Failed": "failed",
    "Later": "come again later",
    "Cancelled": "cancelled",
    "Lost": "lost",
    "Gone": "were not this worker's any more",
}


def memory_megabytes() -> int:
    """Resident memory of this process in megabytes."""
    return memory_bytes() // MEGABYTE


def memory_bytes() -> int:
    """Resident memory of this process; where the system does not tell the present figure, its highest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
