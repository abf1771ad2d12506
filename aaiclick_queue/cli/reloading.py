"""`--reload`: one worker as a child process, started anew when its code changes. This process imports no user code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .program import BAD_SETTINGS, INTERRUPTED, TERMINATED, USAGE, echo
from .watching import Watch, folders

GRACE_SECONDS = 3.0  # for what runs, at the desk; then it is handed back
LONGEST_SECONDS = 8.0  # and the worker ends, or is ended
AGAIN_SECONDS = 1.0
LONGEST_AGAIN_SECONDS = 30.0
PERMANENT = frozenset({USAGE, BAD_SETTINGS})  # starting again would say the same again
BY_SIGNAL = frozenset({INTERRUPTED, TERMINATED, -signal.SIGINT, -signal.SIGTERM})


def ended_as_told(code: int, signals: int) -> bool:
    """Whether a child ended as it should after so many signals; one that still starts is ended by the first."""
    return code == 0 or (signals == 1 and code in BY_SIGNAL)


async def reload_worker(arguments: Sequence[str], modules: Sequence[str]) -> int:
    """Keep one worker with these arguments running on the newest code; returns the exit code."""
    watch = Watch(folders(modules))
    echo(f"   watching    {', '.join(_shown(str(root)) for root in watch.roots)}", err=True)
    return await Reloader(arguments, watch).run()


class Reloader:
    """A worker that is started anew after each change, and ends with us."""

    def __init__(self, arguments: Sequence[str], watch: Watch) -> None:
        """`arguments` are those of the worker."""
        self._arguments = list(arguments)
        self._watch = watch
        self._child: Process | None = None
        self._stopping = asyncio.Event()
        self._signals = 0
        self._again = AGAIN_SECONDS
        self._shown = 1  # the banner, once

    async def run(self) -> int:
        """Until a signal; returns the exit code of the last worker."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._forward, number)
        loop.add_signal_handler(signal.SIGUSR1, self._ask_for_stacks)
        # Only we hold the writing end: when we die, however that is, the worker reads its end of file.
        reading, writing = os.pipe()
        code = 0
        try:
            while not self._stopping.is_set():
                await self._watch.start()  # before the import: what changes during it is a change
                code = await self._live(reading)
        finally:
            if self._child is not None and self._child.returncode is None:
                self._child.kill()
                await self._child.wait()
            os.close(writing)
            os.close(reading)
        if ended_as_told(code, self._signals):
            return 0
        return code if code >= 0 else 128 - code

    async def _live(self, reading: int) -> int:
        """One worker's life: until it has ended, and it is time for the next one."""
        self._child = child = await self._start(reading)
        if self._stopping.is_set():
            child.terminate()
        changed = asyncio.create_task(self._watch.changed())
        try:
            await self._first_of(child.wait(), _done(changed), self._stopping.wait())
            if child.returncode is None and not self._stopping.is_set():
                _tell(changed.result())
                await self._end(child)
                return 0
            code = await child.wait()
            if self._stopping.is_set():
                return code
            await self._pause(code, changed)
        finally:
            changed.cancel()
        return 0

    async def _start(self, reading: int) -> Process:
        shown, self._shown = self._shown, 0
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aaiclick_queue", *self._arguments),
            *("--parent-fd", str(reading), "--banner-processes", str(shown)),
            pass_fds=[reading],
            process_group=0,  # Ctrl-C is for us to pass on, else the worker would count it twice
            # A .pyc is taken for fresh when second and size are the same: two quick saves would run the older code.
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )

    async def _end(self, child: Process) -> None:
        """Let what runs finish for a moment, then have it handed back, then end it."""
        began = time.monotonic()
        for seconds, stop in (
            (GRACE_SECONDS, child.terminate),
            (LONGEST_SECONDS, child.terminate),
            (LONGEST_SECONDS, child.kill),
        ):
            with suppress(ProcessLookupError):
                stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await child.wait()
                    self._again = AGAIN_SECONDS
                    return
            if stop == child.kill:
                break
        echo(f"{_now()} ! the worker did not end for {time.monotonic() - began:.0f} s: waiting for it", err=True)
        await child.wait()

    async def _pause(self, code: int, changed: asyncio.Task[list[str]]) -> None:
        """After a worker has ended by itself: at once, after a moment, or when its code has changed."""
        if code == 0:
            return  # it was told to stop, or has run enough: only our own end ends this
        if code in PERMANENT:
            echo(f"{_now()} ! the worker cannot start like this: waiting for a change", err=True)
            await self._first_of(_done(changed), self._stopping.wait())
        else:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            echo(f"{_now()} ! the worker {how}: again in {self._again:g} s, or after a change", err=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._again):
                    await self._first_of(_done(changed), self._stopping.wait())
            self._again = min(2 * self._again, LONGEST_AGAIN_SECONDS)
        if changed.done():
            self._again = AGAIN_SECONDS
            _tell(changed.result())

    async def _first_of(self, *waits: Coroutine[Any, Any, Any]) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _ask_for_stacks(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(signal.SIGUSR1)

    def _forward(self, number: int) -> None:
        self._stopping.set()
        self._signals += 1
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number if self._signals < 3 else signal.SIGKILL)


async def _done(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


def _tell(names: Sequence[str]) -> None:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    echo(f"{_now()} → {_shown(names[0])}{more} changed: starting anew", err=True)


def _shown(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


def _now() -> str:
    return time.strftime("%H:%M:%S")
