"""One place of a group, as `mail-1`: a process is kept there until the place is given up. Before: group.py."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

import msgspec

from .lines import Screen
from .member import Command, Member
from .patience import EARLY_EXITS, PERMANENT, Exit, Patience

log = logging.getLogger("aaiclick_queue.fleet")

START_SECONDS = 20.0  # for a process that is not wanted any more before it has taken a task
TURN_SECONDS = 15.0  # a process that starts slowly keeps the others waiting no longer than this


class State(StrEnum):
    """Of a place, a group or the whole fleet."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    FAILED = "FAILED"


class Ground:
    """What all places of a fleet share: our streams, the pipe that tells of our death, turns for starting."""

    def __init__(self, screen: Screen, parent: int, *, at_once: int, ended: Callable[[], None]) -> None:
        """`ended` is called when a place has come to its end."""
        self.screen = screen
        self.parent = parent
        self.ended = ended
        self.turn = asyncio.Semaphore(at_once)


class Place:
    """A process, and the next one when it ends."""

    def __init__(self, name: str, command: Command, ground: Ground) -> None:
        self.name = name
        self.command = command
        self.member: Member | None = None
        self.restarts = 0
        self.last_exit: Exit | None = None
        self.next_start_at: float | None = None
        self.failed = ""
        self.leaving = False
        self.gave_up: Callable[[Place], None] = lambda _: None
        self.changed = asyncio.Event()
        self._step = 0
        self._ground = ground
        self._patience = Patience()
        self._left = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=name)
        self._task.add_done_callback(self._done)

    # From outside.

    def leave(self, step: int = 1) -> None:
        """Have its process 1 finish what it runs, 2 hand it back now, 3 be killed; a lower step changes nothing."""
        self.leaving = True
        self._step = max(step, self._step)
        self._left.set()
        self._push()

    def fail(self, why: str) -> None:
        """Give it up, as nothing can be started here."""
        self.failed = why
        self._step = max(1, self._step)
        self._left.set()
        self._push()

    async def gone(self) -> None:
        """Until nothing of it runs any more."""
        await asyncio.wait([self._task])

    async def ready(self) -> bool:
        """Until its process takes tasks, True; or it never will, False."""
        while not self._task.done() and not self.leaving:
            member = self.member
            if member is not None and member.ready.is_set():
                return True
            changed = asyncio.ensure_future(self.changed.wait())
            await asyncio.wait([self._task, changed], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            self.changed.clear()
        return False

    @property
    def is_done(self) -> bool:
        """Whether nothing runs here and nothing will."""
        return self._task.done()

    @property
    def state(self) -> State:
        """What it is doing."""
        if self.leaving:
            return State.STOPPING
        if self.failed:
            return State.FAILED
        return State.RUNNING if self.member is not None and self.member.ready.is_set() else State.STARTING

    # Inside.

    async def _keep(self) -> None:
        while not self._left.is_set():
            ended = await self._one()
            if ended is None:
                return
            self.last_exit = ended
            pause = self._patience.after(ended)
            if self._left.is_set() or (self.command.once and ended.code == 0):
                return
            if pause is None:
                self._give_up(ended)
                return
            self._tell(ended, pause)
            self.restarts += 1
            await self._pause(pause)

    async def _one(self) -> Exit | None:
        """The life of one process; None when it was not wanted any more before it began."""
        async with self._ground.turn:
            if self._left.is_set():
                return None
            try:
                self.member = await Member.start(self.name, self._next(), self._ground.screen, self._ground.parent)
            except OSError as error:
                return Exit(1, 0.0, was_ready=False, error=f"could not be started: {error}")
            ending = asyncio.ensure_future(self.member.ended())
            ready = asyncio.ensure_future(self.member.ready.wait())
            if self._left.is_set():
                self._push()
            await asyncio.wait([ending, ready], timeout=TURN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        left = asyncio.ensure_future(self._left.wait())
        await asyncio.wait([ending, ready, left], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        left.cancel()
        self.changed.set()
        try:
            return await self._until_gone(ending)
        finally:
            self.member = None
            self.changed.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed = f"this should not happen: {type(error).__name__}: {error}"
            log.critical("%s is given up", self.name, exc_info=error)
        self._ground.ended()

    def _next(self) -> Command:
        first = not self.restarts and self.name.endswith("-1")
        arguments = (*self.command.arguments, *self.command.opening) if first else self.command.arguments
        if self.command.probe_port is not None:
            number = int(self.name.rpartition("-")[2])
            arguments = (*arguments, "--probe-port", str(self.command.probe_port + number - 1))
        return msgspec.structs.replace(self.command, arguments=arguments)

    def _push(self) -> None:
        if self.member is None:
            return
        if self._step > 2:
            self.member.kill()
        while self.member.signals < min(self._step, 2):
            self.member.terminate()

    async def _until_gone(self, ending: asyncio.Task[Exit]) -> Exit:
        left = asyncio.ensure_future(self._left.wait())
        await asyncio.wait([ending, left], return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if self.member is not None and not self.member.ready.is_set():
            await self._stop_starting(self.member, ending)
        done, _ = await asyncio.wait([ending], timeout=self.command.drain_seconds)
        if not done and self.member is not None:
            log.error("%s (pid %d) did not end in time: killing it", self.name, self.member.pid)
            self.member.kill()
        return await ending

    async def _stop_starting(self, member: Member, ending: asyncio.Task[Exit]) -> None:
        """Until it is gone or takes tasks after all, and so was told once more; who does neither is killed."""
        ready = asyncio.ensure_future(member.ready.wait())
        done, _ = await asyncio.wait([ending, ready], timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not done:
            log.warning("%s (pid %d) did not end while it started: killing it", self.name, member.pid)
            member.kill()

    async def _pause(self, seconds: float) -> None:
        self.next_start_at = time.monotonic() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._left.wait()
        self.next_start_at = None

    def _tell(self, ended: Exit, pause: float) -> None:
        fields = {"event": "process ended", "process_name": self.name, "exit": ended.how, "again_in_s": pause}
        if not pause:
            log.info("%s has done its part: starting the next", self.name, extra=fields)
            return
        early = self._patience.early_exits
        count = f", {early} of {EARLY_EXITS} early exits" if early else ""
        log.warning("%s ended (%s): starting it again in %g s%s", self.name, ended, pause, count, extra=fields)

    def _give_up(self, ended: Exit) -> None:
        self.failed = str(ended) if ended.code in PERMANENT else f"{EARLY_EXITS} early exits, the last: {ended}"
        fields = {"event": "process given up", "process_name": self.name, "exit": ended.how, "error": ended.error}
        log.error("%s is given up: %s", self.name, self.failed, extra=fields)
        self.gave_up(self)
