"""One child process as its worker sees it: a socket to talk over, and an end that is always noticed. Before: pool."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from .guard import guard
from .orders import HEAD, LONGEST, Asked, Begin, Said, frame, said

STOP_SECONDS = 2.0
LAST_WORDS_SECONDS = 1.0
READ_AHEAD = 1 << 20


class ChildProcess:
    """A process group of its own: what a task has started there ends with it, and Ctrl-C is the worker's alone."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.pid = process.pid
        self.served = 0
        self.modules: set[str] = set()
        self._process = process
        self._reader = reader
        self._writer = writer
        self._code: int | None = None
        self._cause = ""
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def is_alive(self) -> bool:
        """Whether it can be talked to, as far as is known."""
        return self._code is None and not self._reader.at_eof() and not self._writer.is_closing()

    def say(self, what: Asked) -> None:
        """Send it; a child that is gone is noticed when its answer is read."""
        with suppress(ConnectionError):
            self._writer.write(frame(what))

    async def said(self) -> Said | None:
        """The next thing it says; None: it will never say anything again."""
        try:
            length = HEAD.unpack(await self._reader.readexactly(HEAD.size))[0]
            if length > LONGEST:
                raise msgspec.DecodeError(f"a frame of {length:,} bytes")  # noqa: TRY301 - as any other nonsense
            return said(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except msgspec.DecodeError:
            self._cause = "wrote into the descriptor over which it talks to its worker"
            self.kill()
            return None

    def kill(self, cause: str = "") -> None:
        """End it now, and what it has started with it; `cause` is told instead of the signal."""
        if self._code is None:
            self._cause = self._cause or cause
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def ended(self) -> None:
        """Until it is gone; it has a moment to go by itself."""
        await asyncio.wait([self._watching], timeout=LAST_WORDS_SECONDS)
        if not self._watching.done():
            self._cause = self._cause or "closed the descriptor over which it talks to its worker"
            self.kill()
            await asyncio.wait([self._watching])

    async def leave(self) -> None:
        """Tell it to go, wait until it has, and kill it if that takes long."""
        self._writer.close()  # it sees that, whatever the task does with signals
        try:
            await asyncio.wait([self._watching], timeout=STOP_SECONDS)
        finally:
            self.kill()
            await asyncio.wait([self._watching])

    def how_it_ended(self) -> str:
        """In words, for the error of the run that it had."""
        if self._cause:
            return self._cause
        code = self._code or 0
        names = {int(one): one.name for one in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"ended with exit code {code}"

    def when_gone(self, call: Callable[[ChildProcess], None]) -> None:
        """Call it when the process has ended."""
        self._watching.add_done_callback(lambda _: call(self))

    async def _watch(self) -> None:
        self._code = await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it left behind in its group
        guard.forget(self.pid)
        # Something that left its group may hold the socket open; what the child said last is in it by now.
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._reader.feed_eof)


async def start_child(begin: Begin) -> ChildProcess:
    """A new interpreter that is told how to live; OSError when the system has no room for one."""
    ours, theirs = socket.socketpair()
    descriptors = [theirs.fileno(), *([begin.logs.descriptor] if begin.logs else [])]
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aaiclick_queue.child", str(theirs.fileno()), str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in begin.path if path)},
        )
        guard.watch(process.pid)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=READ_AHEAD)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    child = ChildProcess(process, reader, writer)
    child.say(begin)
    return child
