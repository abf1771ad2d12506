"""Keeps the groups of a fleet as they are wanted, until it is told to stop. Before: cli/fleet.py. After: group.py.

When it ends, however that is, its processes read the end of a pipe that only it holds open, and end too.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ..errors import QueueError
from .group import Group, GroupView
from .lines import Screen
from .member import Command
from .place import Ground, State

log = logging.getLogger("aaiclick_queue.fleet")

CLEAR_SECONDS = 10.0
PAINTS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # cyan, yellow, green, magenta, blue, and bright


class Wanted(msgspec.Struct, frozen=True):
    """One group as it shall be."""

    command: Command
    count: int


class FleetView(msgspec.Struct, frozen=True):
    """The whole fleet for people."""

    name: str
    pid: int
    state: State
    file: str
    uptime_s: float
    groups: list[GroupView]


class Supervisor:
    """The groups of one fleet."""

    def __init__(
        self, name: str, wanted: Mapping[str, Wanted], screen: Screen, *, reread: Callable[[], Mapping[str, Wanted]]
    ) -> None:
        """`reread` gives what is wanted by now, or says why it cannot be used."""
        self.name = name
        self.file: Path | None = None
        self._wanted = wanted
        self._screen = screen
        self._reread = reread
        self._groups: dict[str, Group] = {}
        self._leaving: list[Group] = []
        self._steps = 0
        self._started_at = time.monotonic()
        self._over = asyncio.Event()
        self._rolled: asyncio.Future[list[bool]] | None = None

    async def run(self) -> int:
        """Until it was told to stop and all processes are gone, or none can be kept; gives the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGUSR1, self._ask_for_stacks)
        reading, writing = os.pipe()
        at_once = max(2, os.cpu_count() or 2)
        self._ground = Ground(self._screen, reading, at_once=at_once, ended=self._look)
        try:
            self._apply(self._wanted)
            await self._over.wait()
        finally:
            await self._clear_away()
            os.close(writing)
            os.close(reading)
        killed = 1 if self._steps > 2 else 0
        return next((group.exit_code for group in self._groups.values() if group.failed), killed)

    def stop(self, step: int | None = None) -> None:
        """One step further: finish what runs, hand it back now, kill."""
        self._steps = max(self._steps, step or min(self._steps + 1, 3))
        what = ("finishing what runs", "handing back what runs", "killing them")[self._steps - 1]
        log.info("stopping all processes: %s", what, extra={"event": "fleet stopping", "step": self._steps})
        for group in [*self._groups.values(), *self._leaving]:
            group.stop(self._steps)
        self._look()

    def reload(self) -> asyncio.Future[list[bool]]:
        """Read again what is wanted, and replace every process; the future says which groups came through."""
        if self._steps:
            raise QueueError(f"fleet {self.name!r} is stopping: start it again with `aaiclick-queue fleet up`")
        wanted = self._reread()
        log.info("rolling restart of %s", ", ".join(wanted), extra={"event": "fleet reloading"})
        return self._apply(wanted)

    def scale(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Other sizes until the next reload; gives each group's former and new one. All or nothing."""
        if self._steps:
            raise QueueError(f"fleet {self.name!r} is stopping: start it again with `aaiclick-queue fleet up`")
        for name in sizes:
            if name not in self._groups:
                near = difflib.get_close_matches(name, self._groups, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self._groups)}"
                raise QueueError(f"there is no group {name!r} in fleet {self.name!r}: {hint}")
        changes = {name: (self._groups[name].view().wanted, size) for name, size in sizes.items()}
        for name, (former, size) in changes.items():
            log.info("group %s: %d → %d processes", name, former, size, extra={"event": "group scaled", "group": name})
            self._groups[name].scale(size)
        return changes

    def view(self) -> FleetView:
        """How it is."""
        groups = [group.view() for group in [*self._groups.values(), *self._leaving]]
        states = {group.state for group in groups}
        worst = (State.FAILED, State.STARTING, State.RUNNING)
        state = State.STOPPING if self._steps else next(one for one in worst if one in states or one is worst[-1])
        uptime = round(time.monotonic() - self._started_at, 1)
        return FleetView(self.name, os.getpid(), state, str(self.file or ""), uptime, groups)

    def _ask_for_stacks(self) -> None:
        for group in [*self._groups.values(), *self._leaving]:
            group.ask_for_stacks()

    async def _clear_away(self) -> None:
        """End what still runs, if it is a mistake of ours that ends us: handed back first."""
        for step in (2, 3):
            for group in [*self._groups.values(), *self._leaving]:
                group.stop(step)
            self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLEAR_SECONDS):
                    await self._over.wait()
                    return

    def _apply(self, wanted: Mapping[str, Wanted]) -> asyncio.Future[list[bool]]:
        longest = max(len(f"{name}-{one.count}") for name, one in wanted.items())
        self._screen.width = max(self._screen.width, longest)
        for name in [name for name in self._groups if name not in wanted]:
            log.info("group %s is not wanted any more", name)
            self._leaving.append(group := self._groups.pop(name))
            group.stop()
        rolling = []
        for number, (name, one) in enumerate(wanted.items()):
            command = msgspec.structs.replace(one.command, paint=PAINTS[number % len(PAINTS)])
            if name not in self._groups:
                self._groups[name] = Group(name, self._ground)
                if self._rolled:
                    log.info("group %s is new", name)
            rolling.append(self._groups[name].reload(command, one.count))
        self._rolled = asyncio.gather(*rolling)
        return self._rolled

    def _look(self) -> None:
        """Whether there is anything left to do."""
        self._leaving = [group for group in self._leaving if not group.is_over]
        groups = self._groups.values()
        nothing_left = all(group.is_finished or (group.is_over and group.failed) for group in groups)
        if nothing_left or (self._steps and all(group.is_over for group in [*groups, *self._leaving])):
            self._over.set()


def on_hangup(act: Callable[[], None], terminal_gone: Callable[[], None]) -> None:
    """Have SIGHUP do what it is asked for; but the end of the terminal we were started in is still its end."""
    had_terminal = _has_terminal()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGHUP, lambda: terminal_gone() if had_terminal and not _has_terminal() else act()
    )


def _has_terminal() -> bool:
    with suppress(OSError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return True
    return False
