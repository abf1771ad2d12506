"""The claimer of a worker: asks for as much as there is room for, and waits well when there is nothing."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from .caps import Lines
from .errors import PostgresUnavailable
from .flow.claim import Claimed, Line, Wanted, queues_in_line
from .flow.kick import add_claimer, remove_claimer
from .flow.mark import HeadScans
from .flow.quarantine import claim_surely
from .listener import Listener
from .meters import METERS
from .postgres import SCHEMA_ERRORS, Database
from .settings import Settings
from .slots import Slots
from .spans import TOLD

log = logging.getLogger("aaiclick_queue.worker")

RESCAN_SECONDS = 1.0  # bounds the loss of any wake-up
EXPECTED_SECONDS = 0.006  # longer than a writer trusts an early wake-up (client.py)
SLOW_CLAIM_SECONDS = 4.0  # the heartbeat takes leases that nobody knows of for strangers after 5 s
REST_SECONDS = 5.0
EARLY_SECONDS = 0.1
HEAD_START_SECONDS = 1.5  # an idle worker looks about once a second
MANY_UNKNOWN = 20  # a queue full of them is left to others for a while; a few just wait for their cool-down


class Claiming(Protocol):
    """What the claimer needs of the worker."""

    worker_id: int

    async def take(self, claimed: Sequence[Claimed], worker_id: int) -> Mapping[str, Sequence[float]]:
        """Start the runs that were leased to this worker id; gives the cool-downs, by queue, of those unknown here."""

    def unanswered(self) -> None:
        """A claim may have happened without our knowing."""

    def found_nothing(self) -> None:
        """There was a wake-up and nothing to claim: what was enqueued may be held."""

    async def look_at_schema(self) -> None:
        """What a claim uses is not there: the schema may have been taken back a version."""


class Yields:
    """When this worker lets others go first: what it did not know comes back to the line then, and they may know it.

    Without it the same worker takes the same tasks again, each time for longer: after a minute half of them had not run
    beside an idle worker that knew them all.
    """

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[float, float]]] = {}

    def add(self, queue: str, cool_downs: Sequence[float], now: float) -> None:
        """Tasks of this queue are due again after these seconds."""
        spans = self._spans.setdefault(queue, [])
        for seconds in sorted(set(cool_downs)):
            start, end = now + seconds - EARLY_SECONDS, now + seconds + HEAD_START_SECONDS
            # Never more than a third of the time: whatever else waits there is this worker's as well.
            if not any(start < until + 2 * (until - since) and end > since for since, until in spans):
                spans.append((start, end))

    def now(self, now: float) -> frozenset[str]:
        """Queues to keep away from at this moment."""
        if not self._spans:
            return frozenset()
        self._spans = {
            queue: left for queue, spans in self._spans.items() if (left := [s for s in spans if s[1] > now])
        }
        return frozenset(queue for queue, spans in self._spans.items() if any(start <= now for start, _ in spans))


class Expected:
    """Tasks of which a wake-up came while they were being committed: they are looked for until they are there."""

    def __init__(self) -> None:
        self._queues: dict[int, str] = {}  # by task
        self._until = 0.0

    def add(self, queue: str, ids: Iterable[int]) -> None:
        """These are on their way to the queue."""
        self._queues.update(dict.fromkeys(ids, queue))
        self._until = time.monotonic() + EXPECTED_SECONDS

    def looked(self, began: float, claimed: Sequence[Claimed]) -> None:
        """A look that began then has given these; one that began after the time is the last."""
        for one in claimed if self._queues else ():
            self._queues.pop(one.task_id, None)
        if began >= self._until:
            self._queues.clear()

    def keep(self, can_claim: Callable[[str], bool]) -> None:
        """Of queues that cannot be claimed from now nothing is looked for."""
        if self._queues:
            kept = {queue for queue in set(self._queues.values()) if can_claim(queue)}
            self._queues = {task_id: queue for task_id, queue in self._queues.items() if queue in kept}

    def none_any_more(self) -> None:
        """Nothing can be claimed now, so nothing is looked for."""
        self._queues.clear()

    def __bool__(self) -> bool:
        return bool(self._queues)


class Claimer:
    """The one claimer of a process."""

    def __init__(self, worker: Claiming, db: Database, line: Line | Lines, slots: Slots, *, every_queue: bool) -> None:
        self._worker = worker
        self._db = db
        self._settings: Settings = db.settings
        self._line = line
        self._slots = slots
        self._every_queue = every_queue
        self._kicked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pause = self._settings.poll_min_seconds
        self._resting: dict[str, float] = {}
        self._yields = Yields()
        self.listener: Listener | None = None
        self.may_claim: Callable[[], bool] = lambda: True
        self.budget: Callable[[], int] | None = None  # how many more this worker is to run before it leaves
        self._stopped = False
        self._had_no_room = False  # the last look was none: a kick before it has not been answered
        self._probe_at = 0.0
        self._unasked = False  # the next look is the rescan: no wake-up asked for it
        self.turned = 0.0  # monotonic, of the last look
        self._queue_scans = HeadScans()
        self._expected = Expected()

    def stop(self) -> None:
        """Claim no more; a claim that is on its way is taken to its end."""
        self._stopped = True
        self._kicked.set()
        self._slots.freed.set()

    def kick(self) -> None:
        """There may be work; callable from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._kicked.set)

    def look(self) -> None:
        """The same on its own thread, without the turn of the event loop that the way from another one takes."""
        self._kicked.set()

    def expect(self, queue: str, ids: Iterable[int]) -> None:
        """These tasks are being committed by somebody at this moment: they are looked for if they could run here."""
        if self._can_claim(queue):
            self._expected.add(queue, ids)

    def ended(self, queue: str) -> None:
        """A run of this queue is over: where its cap was reached, the next may start."""
        if isinstance(self._line, Lines) and self._line.is_capped(queue):
            self._kicked.set()

    async def run(self) -> None:
        """Claim for ever."""
        add_claimer(self.kick)
        failures = 0
        try:
            while not self._stopped:
                self.turned = time.monotonic()
                kicked = self._kicked.is_set()
                self._kicked.clear()
                try:
                    found, full = await self._claim()
                    failures = 0
                    if kicked and self._had_no_room:
                        self._kicked.set()  # for the look that has
                except Exception as error:
                    # Whatever it is, the runs that are held must go on and be recorded.
                    self._worker.unanswered()
                    if failures == 0:
                        expected = isinstance(error, PostgresUnavailable)
                        log.warning("cannot claim: %s", error, exc_info=None if expected else error)
                    failures += 1
                    if isinstance(error, SCHEMA_ERRORS):
                        await self._worker.look_at_schema()
                    await asyncio.sleep(min(1.0, 0.05 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.5))
                    continue
                self._expected.keep(self._can_claim)
                if self._expected:
                    self._kicked.set()
                    await asyncio.sleep(0)  # a look that needs no statement gives way to nobody
                    continue
                if kicked and not found:
                    self._worker.found_nothing()
                if not full and not self._stopped:
                    await self._wait(found)
        finally:
            remove_claimer(self.kick)

    async def _claim(self) -> tuple[int, bool]:
        """One claim: how many runs it gave, and whether to ask again at once."""
        limit = self._slots.room() or self._probe()
        self._had_no_room = limit == 0
        if self.budget is not None:
            limit = min(limit, self.budget())
        if limit <= 0 or not self.may_claim():
            self._expected.none_any_more()
            return 0, False
        if self._every_queue and self._queue_scans.due():
            await self._look_for_queues()
        worker_id, settings = self._worker.worker_id, self._settings
        crowded = self._slots.crowded()
        resting = self._at_rest(time.monotonic()) | crowded
        if crowded and resting.issuperset(self._line.queues):
            self._had_no_room = True
            self._expected.none_any_more()
            return 0, False
        wanted = Wanted(limit, worker_id, settings.task_timeout_seconds, settings.grace_seconds, resting)
        async with self._db.connection() as connection:
            began = time.monotonic()
            self._slots.fences.asks()
            claimed = await claim_surely(self._line, connection, wanted)
        self._expected.looked(began, claimed)
        if METERS.on:
            METERS.claimed(claimed, time.monotonic() - began, unasked=self._unasked)
        self._unasked = False
        if claimed and TOLD.tracer is not None:
            TOLD.tracer.claimed(claimed, worker_id, began)
        if time.monotonic() - began > SLOW_CLAIM_SECONDS or worker_id != self._worker.worker_id:
            self._worker.unanswered()  # too late to run them: they may be taken for strangers, or be a dead worker's
            return 0, False
        unknown = await self._worker.take(claimed, worker_id)
        for queue, cool_downs in unknown.items():
            if len(cool_downs) >= MANY_UNKNOWN and len(cool_downs) * 2 > len(claimed):
                self._resting[queue] = time.monotonic() + REST_SECONDS
            self._yields.add(queue, cool_downs, time.monotonic())
        return len(claimed), len(claimed) >= limit

    async def _look_for_queues(self) -> None:
        # As any scan from a head: dear while an old snapshot keeps dead rows, so it is made as often as it is cheap.
        began = time.monotonic()
        queues = await queues_in_line(self._db)
        self._queue_scans.done(time.monotonic() - began, rows=len(queues), short=True)
        self._line.serve(queues)

    def _can_claim(self, queue: str) -> bool:
        """Whether a look of this moment may give a task of the queue."""
        if isinstance(self._line, Lines) and not self._line.leaves_room(queue):
            return False
        return queue not in self._slots.crowded() and queue not in self._at_rest(time.monotonic())

    def _at_rest(self, now: float) -> frozenset[str]:
        if self._resting:
            self._resting = {queue: until for queue, until in self._resting.items() if until > now}
        return frozenset(self._resting) | self._yields.now(now)

    def _probe(self) -> int:
        """1 once a second while one kind of run is full and another is not: it may stand in another queue."""
        now = time.monotonic()
        if now < self._probe_at or not self._slots.has_room_for_others():
            return 0
        self._probe_at = now + RESCAN_SECONDS
        return 1

    async def _wait(self, found: int) -> None:
        """Until a wake-up, a kick, a free slot, or the time for another look."""
        crowded = self._slots.crowded()
        if self._slots.room() == 0 or (crowded and crowded.issuperset(self._line.queues)):
            self._slots.freed.clear()
            await self._either(RESCAN_SECONDS, self._slots.freed)
            return
        wake = [self._kicked]
        if crowded:  # its slots are as good a reason to look as a kick
            self._slots.freed.clear()
            wake.append(self._slots.freed)
        if self.listener is not None and self.listener.up and self._line.queues:
            self.listener.listen(True)
            await self._either(RESCAN_SECONDS, *wake)
            self.listener.listen(False)
            self._unasked = not self._kicked.is_set()
            return
        if self.listener is not None:
            self.listener.listen(True)  # so that it notices when Redis is back
        self._pause = self._settings.poll_min_seconds if found else self._pause * 1.5
        self._pause = min(self._pause, self._settings.poll_max_seconds)
        # What rests is to be looked at when its rest is over, whatever the settings say of polling.
        longest = RESCAN_SECONDS if crowded or self._at_rest(time.monotonic()) else self._pause
        # Sooner and never later than that: it is the longest time between two looks.
        await self._either(0.9 * min(self._pause, longest), *wake)

    async def _either(self, seconds: float, event: asyncio.Event, *others: asyncio.Event) -> None:
        seconds *= random.uniform(0.9, 1.1)
        if others:
            waits = [asyncio.ensure_future(one.wait()) for one in (event, *others)]
            try:
                await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            return
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return
