"""The pulse of a worker: a thread of its own that renews the lease, whatever user code does to the event loop."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from .errors import PostgresUnavailable
from .flow.admit import Strays
from .flow.heartbeat import Beat, Counters, Signs, beat
from .flow.settle import settle_runs
from .flow.tally import Tally
from .outcome import Ended, Released
from .postgres import SCHEMA_ERRORS, Database
from .settings import Settings
from .skew import Skew
from .stacks import ASKED, tell_stacks

log = logging.getLogger(__name__)

STRANGERS_EVERY = 60.0
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.25
# For a beat of a worker that has given itself up: connecting and asking end by their own limits, 5 s each, and nothing
# is at stake any more. With the tenth of a second that was left to it, one on a slow wire or a busy machine never came
# back.
BACK_SECONDS = 10.0


class Beating(Protocol):
    """What the pulse needs of the worker; called from the pulse's thread."""

    worker_id: int
    skew: Skew

    @property
    def figures(self) -> Tally:
        """What its runs came to."""

    def signs(self) -> Signs:
        """How its process is, since the last call."""

    def held(self) -> Sequence[tuple[int, int]]:
        """Task id and run_epoch of every run that is not settled yet."""

    def at_work(self) -> set[int]:
        """Task ids of every run whose code may still run here, settled or not."""

    def give_up_unstarted(self) -> Sequence[tuple[int, int]]:
        """Runs that have not started, and from now on will not."""

    def take_counters(self) -> Counters:
        """What was done since the last call."""

    def give_back_counters(self, counters: Counters) -> None:
        """A beat did not land: count them again."""

    def answered(self, answer: Beat) -> None:
        """A beat landed."""

    def expired(self) -> None:
        """The lease could not be renewed in time by this process's own clock."""

    def suspect_schema(self) -> None:
        """What a beat uses is not there: the schema may have been taken back a version."""

    def stacks(self) -> str:
        """Where everything in this process is."""


class Pulse:
    """Beats until it is stopped."""

    def __init__(self, settings: Settings, dsn: str, worker: Beating) -> None:
        self._settings = settings
        self._dsn = dsn
        self._worker = worker
        self._thread = threading.Thread(target=self._main, name="aaiclick-queue heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopped = False
        self._renewed = time.monotonic()
        self._strangers_at = time.monotonic() + STRANGERS_EVERY
        self._strays = Strays()
        self._suspect_until = 0.0
        self._server: str | None = None
        self._is_expired = False
        self._stall_told = False
        self.loop_seen = time.monotonic()
        self._main_thread = threading.get_ident()
        self.noted: Callable[[], None] = lambda: None  # called about once a second
        self._margin = min(1.0, settings.lease_seconds / 10)

    @property
    def stalled(self) -> bool:
        """Whether the event loop has not turned for longer than LOOP_STALL_SECONDS."""
        return time.monotonic() - self.loop_seen > self._settings.loop_stall_seconds

    @property
    def renewed(self) -> float:
        """When the last beat that landed was sent, by the monotonic clock."""
        return self._renewed

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to beat; the worker's row was written a moment ago."""
        self._renewed = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopped = True
        self.hurry()
        self._thread.join(timeout=5)

    def hurry(self) -> None:
        """Beat now."""
        if self._loop is not None and self._wake is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def suspect_strangers(self) -> None:
        """A claim was not answered, say: look for leases that we do not know of, for one lease period."""
        self._suspect_until = time.monotonic() + self._settings.lease_seconds + 10

    def new_incarnation(self) -> None:
        """The worker has a new row."""
        self._renewed = time.monotonic()
        self._is_expired = False

    def _main(self) -> None:
        asyncio.run(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        next_beat = time.monotonic() + self._settings.heartbeat
        async with Database(self._settings, size=1, flow=True, dsn=self._dsn) as db:
            while not self._stopped:
                hurried = await self._pause()
                if self._stopped:
                    return
                try:
                    self.noted()
                    self._watch_own_lease()
                    await self._watch_loop(db)
                    if hurried or time.monotonic() >= next_beat:
                        landed = await self._beat(db)
                        next_beat = time.monotonic() + (self._settings.heartbeat if landed else AGAIN_SECONDS)
                except SCHEMA_ERRORS as error:
                    log.warning("heartbeat failed: %s", error)
                    self._worker.suspect_schema()  # fenced without beats, it would never claim and find out
                except Exception:
                    log.exception("heartbeat failed")

    async def _pause(self) -> bool:
        assert self._wake is not None
        try:
            async with asyncio.timeout(min(LOOK_SECONDS, self._settings.lease_seconds / 20)):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _beat(self, db: Database) -> bool:
        now = time.monotonic()
        look = now >= self._strangers_at or now < self._suspect_until
        counters = self._worker.take_counters()
        worker_id, asked_at = self._worker.worker_id, self._worker.skew.begin()
        try:
            async with asyncio.timeout(self._patience(now)):
                answer = await beat(
                    db,
                    worker_id,
                    self._worker.held(),
                    lease_seconds=self._settings.lease_seconds,
                    look_for_strangers=look,
                    counters=counters,
                    signs=self._worker.signs(),
                )
        except BaseException as error:
            self._worker.give_back_counters(counters)
            if not isinstance(error, PostgresUnavailable | TimeoutError):
                raise
            log.debug("heartbeat failed: %s", error)
            return False
        if answer.status is None:
            self._worker.give_back_counters(counters)  # no row took them
        else:
            self._renewed, self._is_expired = now, False
        self._meet(answer.server)
        self._worker.answered(answer)
        self._worker.figures.set_clock(self._worker.skew.end(asked_at, answer.now))
        await self._flush(db)
        if answer.asked == ASKED:
            await self._tell_stacks(db, worker_id)
        if look:
            self._strangers_at = now + STRANGERS_EVERY
            # Not those that a claim has brought while the beat was on its way.
            await self._strays.give_back_once(db, worker_id, self._worker.at_work())
            known = set(self._worker.held())
            await self._release(db, worker_id, [run for run in answer.strangers if run not in known])
        return True

    def _meet(self, server: str) -> None:
        # A standby that was behind has leases of runs whose end it does not know: for us they are long over.
        if self._server not in (None, server):
            self.suspect_strangers()
        self._server = server

    async def _flush(self, db: Database) -> None:
        try:
            await self._worker.figures.flush(db, patience=self._patience(time.monotonic()))
        except (PostgresUnavailable, TimeoutError) as error:
            log.debug("figures wait for the next beat: %s", error)

    async def _tell_stacks(self, db: Database, worker_id: int) -> None:
        try:
            async with asyncio.timeout(self._patience(time.monotonic())):
                await tell_stacks(db, worker_id, self._worker.stacks())
        except (PostgresUnavailable, TimeoutError) as error:
            log.debug("could not tell the stacks: %s", error)  # they are asked for until they are told

    def _patience(self, now: float) -> float:
        """How long a beat may wait: not past the moment at which this process must give itself up."""
        usual = self._settings.lease_seconds / 3
        if self._is_expired:
            return BACK_SECONDS
        return max(0.1, min(usual, self._renewed + self._settings.lease_seconds - self._margin - now))

    async def _release(self, db: Database, worker_id: int, runs: Sequence[tuple[int, int]]) -> None:
        if not runs:
            return
        now = time.monotonic()
        ended = [Ended(task_id, run_epoch, Released(), now, now) for task_id, run_epoch in runs]
        released = await settle_runs(db, ended, worker_id=worker_id, now=now)
        log.info("handed back %d tasks that were leased to this worker without its knowing", len(released))

    def _watch_own_lease(self) -> None:
        # A little before the database would say so: by then this process must write nothing more.
        if not self._is_expired and time.monotonic() - self._renewed > self._settings.lease_seconds - self._margin:
            self._is_expired = True
            self._worker.expired()

    async def _watch_loop(self, db: Database) -> None:
        if not self.stalled:
            self._stall_told = False
            return
        if self._stall_told:
            return
        self._stall_told = True
        frame = sys._current_frames().get(self._main_thread)  # noqa: SLF001 - the only way to see another thread
        stack = "".join(traceback.format_stack(frame)) if frame else "unknown"
        log.error(
            "the event loop has been blocked for %.0f s, so this worker claims nothing: move the blocking call into a "
            "`def` task or a thread. It is at:\n%s",
            time.monotonic() - self.loop_seen,
            stack,
        )
        async with asyncio.timeout(self._patience(time.monotonic())):
            await self._release(db, self._worker.worker_id, self._worker.give_up_unstarted())
