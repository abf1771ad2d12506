"""One group of a fleet: as many places as wanted, replaced one at a time. Before: supervisor.py. After: place.py."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

import msgspec

from .member import Command
from .patience import PERMANENT
from .place import Ground, Place, State

log = logging.getLogger("aaiclick_queue.fleet")

READY_SECONDS = 300.0  # a new process that takes no tasks by then stops a rolling restart


class ProcessView(msgspec.Struct, frozen=True):
    """One process for people."""

    name: str
    state: State
    pid: int | None
    uptime_s: float | None


class GroupView(msgspec.Struct, frozen=True):
    """One group for people."""

    name: str
    state: State
    wanted: int
    running: int
    restarts: int
    last_exit: str | None
    next_start_s: float | None
    note: str
    processes: list[ProcessView]


class Group:
    """Keeps a number of processes of one kind."""

    def __init__(self, name: str, ground: Ground) -> None:
        self.name = name
        self.note = ""
        self._command: Command | None = None
        self._ground = ground
        self._wanted = 0
        self._places: list[Place] = []
        self._others: list[Place] = []  # on their way out, or on their way in during a rolling restart
        self._stale: list[Place] = []  # to be replaced
        self._fresh: list[Place] = []  # to be waited for
        self._all_up = True
        self._rolling: asyncio.Task[bool] | None = None
        self._restarts = 0
        self._last_exit: str | None = None

    # What is wanted.

    def scale(self, count: int) -> None:
        """From now on that many; those that are too many finish what they run."""
        self._wanted = count
        while len(self._places) > count:
            # The failed ones first, then the highest number.
            self._retire(max(self._places, key=lambda place: (bool(place.failed), _number(place))))
        taken = {_number(place) for place in self._places}
        for number in range(1, count + 1):
            if number not in taken:
                self._places.append(self._new(number))

    def reload(self, command: Command, count: int) -> asyncio.Task[bool]:
        """Run that many of this command, replacing those there are; the task says whether all came up."""
        self._command = command
        self.note = ""
        self._all_up = True
        for place in [place for place in self._places if place.failed]:
            self._retire(place)
        stale = list(self._places)
        self.scale(count)
        self._stale = [place for place in stale if place in self._places]
        self._fresh = [place for place in self._places if place not in stale]
        if self._rolling is None or self._rolling.done():
            self._rolling = asyncio.create_task(self._roll(), name=f"rolling {self.name}")
        return self._rolling

    def stop(self, step: int = 1) -> None:
        """Have all processes 1 finish what they run, 2 hand it back now, 3 be killed."""
        self._wanted = 0
        self._stale.clear()
        for place in [*self._places, *self._others]:
            place.leave(step)

    def ask_for_stacks(self) -> None:
        """Have every process that takes tasks print where it is; one that still starts would be ended by it."""
        for place in [*self._places, *self._others]:
            if place.member is not None and place.member.ready.is_set():
                place.member.send(signal.SIGUSR1)

    # What is.

    @property
    def failed(self) -> str:
        """Why it was given up; empty if it was not."""
        return next((place.failed for place in self._places if place.failed), "")

    @property
    def is_over(self) -> bool:
        """Whether nothing runs and nothing will."""
        return all(place.is_done for place in [*self._places, *self._others])

    @property
    def is_finished(self) -> bool:
        """Whether all its processes have ended well, and that was asked of them."""
        return self.is_over and self._command is not None and self._command.once

    @property
    def exit_code(self) -> int:
        """What a process that was given up at its first try ended with, else 1; 0 if none was given up."""
        codes = [place.last_exit.code for place in self._places if place.failed and place.last_exit]
        return next((code for code in codes if code in PERMANENT), 1 if self.failed else 0)

    def view(self) -> GroupView:
        """How it is."""
        alive = [place for place in [*self._places, *self._others] if not place.is_done or place.failed]
        starts = [place.next_start_at for place in self._places if place.next_start_at is not None]
        running = sum(place.state is State.RUNNING for place in self._places)
        return GroupView(
            name=self.name,
            state=self._state(running),
            wanted=self._wanted,
            running=running,
            restarts=self._restarts + sum(place.restarts for place in self._places),
            last_exit=self._latest_exit(),
            next_start_s=round(max(0.0, min(starts) - time.monotonic()), 1) if starts else None,
            note=self.failed or self.note,
            processes=[_view(place) for place in sorted(alive, key=_number)],
        )

    def _state(self, running: int) -> State:
        if self.failed:
            return State.FAILED
        if self._wanted == 0 and not self.is_over:
            return State.STOPPING
        return State.RUNNING if running == self._wanted else State.STARTING

    def _latest_exit(self) -> str | None:
        exits = [place.last_exit for place in self._places if place.last_exit]
        return str(exits[-1]) if exits else self._last_exit

    # One after the other.

    async def _roll(self) -> bool:
        while self._stale or self._fresh:  # both may be set anew by another reload while we wait
            if self._stale:
                await self._replace(self._stale.pop(0))
            else:
                place = self._fresh.pop(0)
                self._all_up &= await self._comes_up(place) or place.leaving
        return self._all_up

    async def _replace(self, old: Place) -> None:
        if old not in self._places:
            return
        new = self._new(_number(old))
        self._others.append(new)
        up = await self._comes_up(new)
        if not up and not new.leaving:
            self._stop_rolling(new)
        if not up or old not in self._places:  # told to stop, or scaled down meanwhile
            await self._dismiss(new)
            return
        self._others.remove(new)
        self._places[self._places.index(old)] = new
        log.info("%s is replaced: pid %s takes over from %s", new.name, _pid(new), _pid(old))
        self._remember(old)
        await self._dismiss(old)

    async def _comes_up(self, place: Place) -> bool:
        try:
            async with asyncio.timeout(READY_SECONDS):
                return await place.ready()
        except TimeoutError:
            return False

    def _stop_rolling(self, new: Place) -> None:
        self._all_up = False
        self._stale.clear()
        why = new.failed or f"{new.name} took no tasks within {READY_SECONDS:g} s"
        self.note = f"the rolling restart was stopped, the former processes go on: {why}"
        fields = {"event": "rolling restart stopped", "group": self.name, "error": why}
        log.error("rolling restart of %s stopped, the former processes go on: %s", self.name, why, extra=fields)

    async def _dismiss(self, place: Place) -> None:
        self._retire(place)
        await place.gone()

    def _retire(self, place: Place) -> None:
        if place in self._places:
            self._places.remove(place)
            self._remember(place)
        self._others = [other for other in self._others if not other.is_done and other is not place]
        self._others.append(place)
        place.leave()

    def _remember(self, place: Place) -> None:
        self._restarts += place.restarts
        self._last_exit = str(place.last_exit) if place.last_exit else self._last_exit

    def _new(self, number: int) -> Place:
        assert self._command is not None
        place = Place(f"{self.name}-{number}", self._command, self._ground)
        place.gave_up = self._gave_up
        return place

    def _gave_up(self, place: Place) -> None:
        if place not in self._places:
            return
        fields = {"event": "group failed", "group": self.name, "error": place.failed}
        log.error("group %s is FAILED, as %s cannot be kept running", self.name, place.name, extra=fields)
        if place.last_exit is not None and place.last_exit.code in PERMANENT:
            for other in self._places:
                if other.state is State.STARTING:
                    other.fail(place.failed)


def _number(place: Place) -> int:
    return int(place.name.rsplit("-", 1)[1])


def _pid(place: Place) -> int | None:
    return place.member.pid if place.member else None


def _view(place: Place) -> ProcessView:
    uptime = round(place.member.uptime, 1) if place.member else None
    return ProcessView(place.name, place.state, _pid(place), uptime)
