"""One worker process from outside: started, heard, told to stop, ended. Before: place.py. After: lines.py."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from .lines import Screen, Speech
from .patience import Exit

if sys.platform != "win32":
    import fcntl

PIPE_BYTES = 1 << 18  # while we are stopped (Ctrl-Z) a process may say this much before it has to wait for us
LAST_WORDS_SECONDS = 1.0


class Command(msgspec.Struct, frozen=True):
    """How the processes of a group are started."""

    arguments: tuple[str, ...]  # of `aaiclick-queue`
    environment: Mapping[str, str] = {}  # on top of our own
    folder: Path | None = None
    paint: int = 36  # colour of the group's name
    opening: tuple[str, ...] = ()  # further arguments of the first process of all
    drain_seconds: float = 60.0  # after SIGTERM; whoever takes longer is killed
    probe_port: int | None = None  # of the first process; those behind it take the ports that follow
    once: bool = False  # one that ends well is not followed by another


class Member:
    """A process that runs."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self.ready = asyncio.Event()
        self.started_at = time.monotonic()
        self.signals = 0
        self._process = process
        self._speeches: list[Speech] = []
        self._transports: list[asyncio.BaseTransport] = []

    @classmethod
    async def start(cls, name: str, command: Command, screen: Screen, parent: int) -> Member:
        """Start it; `parent` is the pipe by whose end it learns that we are gone."""
        out, err, ready = os.pipe(), os.pipe(), os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):
                fcntl.fcntl(out[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        kept = [parent, ready[1], out[0], err[0]]
        # It holds the reading ends too: a print must not fail in the moment between our death and its noticing.
        descriptors = ["--parent-fd", parent, "--ready-fd", ready[1], "--output-fd", out[0], "--output-fd", err[0]]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aaiclick_queue", *command.arguments, *map(str, descriptors)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out[1],
                stderr=err[1],
                pass_fds=kept,
                env={**os.environ, **command.environment},
                cwd=command.folder,
                process_group=0,  # Ctrl-C is for us to pass on, else each process would count it twice
            )
        except BaseException:
            for end in (out[0], err[0], ready[0]):
                os.close(end)
            raise
        finally:
            for pipe in (out, err, ready):
                os.close(pipe[1])
        member = cls(name, process)
        await member._listen(out[0], err[0], screen, command.paint)
        asyncio.get_running_loop().add_reader(ready[0], member._told_ready, ready[0])
        return member

    async def ended(self) -> Exit:
        """Until it is gone, and its last words are heard."""
        code = await self._process.wait()
        lived = time.monotonic() - self.started_at
        if code != 0:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what it had started and could not end itself
        await asyncio.wait([speech.over for speech in self._speeches], timeout=LAST_WORDS_SECONDS)
        for transport in self._transports:
            transport.close()
        error = self._speeches[1].told_error() if code > 0 else ""
        return Exit(code, lived, self.ready.is_set(), error)

    def terminate(self) -> None:
        """The first signal has it finish what runs, the second hand it back."""
        # Not SIGTERM twice: two that are sent at once arrive as one.
        number = signal.SIGINT if self.signals else signal.SIGTERM
        self.signals += 1
        self.send(number)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def kill(self) -> None:
        """End it and all of its process group."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    @property
    def uptime(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.started_at

    async def _listen(self, out: int, err: int, screen: Screen, paint: int) -> None:
        loop = asyncio.get_running_loop()
        prefix = screen.prefix(self.name, paint)
        for end, sink in ((out, screen.stdout), (err, screen.stderr)):
            speech = Speech(sink, prefix)
            transport, _ = await loop.connect_read_pipe(lambda speech=speech: speech, os.fdopen(end, "rb", 0))  # type: ignore[misc]
            self._speeches.append(speech)
            self._transports.append(transport)

    def _told_ready(self, end: int) -> None:
        if os.read(end, 1):
            self.ready.set()
            if self.signals:
                self.send(signal.SIGTERM)  # the first may have got lost in a process that was still starting
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)
