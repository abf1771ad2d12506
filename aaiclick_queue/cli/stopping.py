"""How a long-running command ends: by signals, in three steps, or because its parent is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

ORPHAN_SECONDS = 4.0  # nothing of us is left five seconds after our parent's end


def survive_sigusr1() -> None:
    """Until there is something to show, SIGUSR1 does nothing; by default it would end the process."""
    # Not SIG_IGN, which programs that a task starts would inherit.
    signal.signal(signal.SIGUSR1, lambda *_: None)


@contextmanager
def told_by_signals(stop: Callable[[bool], None]) -> Iterator[None]:
    """SIGTERM and SIGINT: the first calls `stop(False)`, the second `stop(True)`, the third ends the process."""
    loop = asyncio.get_running_loop()
    times = 0

    # Not loop.add_signal_handler: the third must get through to a loop that user code has blocked.
    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times >= 3:
            os._exit(128 + number)
        loop.call_soon_threadsafe(stop, times == 2)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Supervised:
    """What binds a process to the supervisor that started it, if one did."""

    def __init__(self, parent: Parent | None = None, ready: int | None = None) -> None:
        self.parent = parent
        self._ready = ready

    async def tell(self, started: asyncio.Event) -> None:
        """Say so to the supervisor when tasks are taken."""
        if self._ready is not None:
            await started.wait()
            with suppress(OSError):
                os.write(self._ready, b"\n")
            os.close(self._ready)


class Parent:
    """The other end of a pipe that only the parent holds open: its end of file is the parent's death."""

    def __init__(self, descriptor: int, outputs: Sequence[int] = ()) -> None:
        """`outputs`: reading ends of our own stdout and stderr, held so that no print fails before we know."""
        self._descriptor = descriptor
        self._outputs = outputs
        self._stop: Callable[[], object] | None = None
        threading.Thread(target=self._watch, name="aaiclick-queue parent", daemon=True).start()

    def when_gone(self, stop: Callable[[], object]) -> None:
        """Call it, from another thread; until then the process just ends."""
        self._stop = stop

    def _watch(self) -> None:
        os.read(self._descriptor, 1)
        self._speak_to_nobody()
        if self._stop is None:
            os._exit(1)
        self._stop()
        threading.Event().wait(ORPHAN_SECONDS)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with what a task has started and cannot end now
        os._exit(1)

    def _speak_to_nobody(self) -> None:
        if self._outputs:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        for end in self._outputs:
            os.close(end)
