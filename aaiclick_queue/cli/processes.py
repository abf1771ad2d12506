"""`--processes N`: keeps N children of the same command running. The parent imports no user code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

from ..settings import Settings
from .banner import postgres_facts
from .program import echo
from .reloading import PERMANENT, ended_as_told

AGAIN_SECONDS = 1.0


async def supervise(settings: Settings, arguments: Sequence[str], count: int, *, once: bool = False) -> int:
    """Keep `count` children with these arguments running, `once` until they end by themselves; gives the exit code."""
    await postgres_facts(settings)  # what is wrong with the database is said once, not by each child
    return await Processes(arguments, count, once=once).run()


class Processes:
    """Children that are started again when they end, and end with us."""

    def __init__(self, arguments: Sequence[str], count: int, *, once: bool = False) -> None:
        """`arguments` are those of one child; `once`: one that ends with 0 has done what it was for."""
        self._once = once
        self._arguments = list(arguments)
        self._count = count
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals = 0
        self._code = 0

    async def run(self) -> int:
        """Until every child has ended by itself or after a signal; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._forward, number)
        loop.add_signal_handler(signal.SIGUSR1, self._ask_for_stacks)
        # Only we hold the writing end: when we die, however that is, the children read its end of file.
        reading, writing = os.pipe()
        try:
            await asyncio.gather(*(self._keep(place, reading) for place in range(self._count)))
        finally:
            for child in self._children.values():
                child.kill()
            os.close(writing)
            os.close(reading)
        return self._code

    async def _keep(self, place: int, reading: int) -> None:
        shown = str(self._count if place == 0 else 0)
        while not self._stopping.is_set():
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aaiclick_queue", *self._arguments),
                *("--parent-fd", str(reading), "--banner-processes", shown),
                pass_fds=[reading],
                process_group=0,  # Ctrl-C is for us to pass on, else each child would count it twice
            )
            self._children[place] = child
            if self._stopping.is_set():
                child.terminate()
            code = await child.wait()
            del self._children[place]
            if ended_as_told(code, self._signals) if self._stopping.is_set() else self._once and code == 0:
                return
            shown = "0"
            if code == 0:
                continue  # it has run or grown enough, or was told to stop: the next one takes its place
            if self._stopping.is_set() or code in PERMANENT:
                self._code = self._code or (code if code > 0 else 128 - code)
                self._stop_others()
                return
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            echo(f"{time.strftime('%H:%M:%S')} ! process {child.pid} {how}: starting it again", err=True)
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(AGAIN_SECONDS):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _stop_others(self) -> None:
        if not self._stopping.is_set():
            self._forward(signal.SIGTERM)

    def _ask_for_stacks(self) -> None:
        for child in self._children.values():
            child.send_signal(signal.SIGUSR1)

    def _forward(self, number: int) -> None:
        self._stopping.set()
        self._signals += 1
        for child in self._children.values():
            child.send_signal(number if self._signals < 3 else signal.SIGKILL)
