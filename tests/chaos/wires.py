"""Wires between two parties, one for each pair: they can be cut, frozen, slow, and lose the answer to a statement."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from tests.chaos.statements import Answers, Statements

T = TypeVar("T")
Port = Callable[[], int]


class Wire:
    """One wire: whoever connects to `port` talks to the port that `target` gives at that moment."""

    def __init__(self, wires: Wires, target: Port, *, is_postgres: bool) -> None:
        self._wires = wires
        self._target = target
        self._is_postgres = is_postgres
        self._connections: set[Connection] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        self.delay = 0.0
        self.refuses = False
        self.doomed: list[str] = []  # kinds of statements whose next answer is lost
        self.lost: list[tuple[float, str]] = []  # when, and of which kind

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Break every connection by a reset; new ones work."""
        self._wires.soon(self._abort_all)

    def freeze(self) -> None:
        """Nothing goes through any more, and nobody is told."""
        self._wires.soon(self._flows.clear)

    def refuse(self) -> None:
        """Break every connection, and every new one."""
        self.refuses = True
        self.cut()

    def lose_answers(self, kind: str, times: int) -> None:
        """The next answers to statements of this kind are read and thrown away, and the connection is reset."""
        self.doomed = [kind] * times

    def heal(self) -> None:
        """Everything goes through again; connections that were frozen are broken first, as routers do."""
        self.delay, self.refuses, self.doomed = 0.0, False, []
        self._wires.soon(self._heal)

    def _heal(self) -> None:
        if not self._flows.is_set():
            self._abort_all()
        self._flows.set()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refuses:
                raise ConnectionRefusedError
            await self._flows.wait()
            there = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            writer.transport.abort()
            return
        connection = Connection(self, (reader, writer), there, watches=self._is_postgres)
        self._connections.add(connection)
        await connection.run()
        self._connections.discard(connection)

    async def pause(self) -> None:
        """What each piece of data waits for."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._flows.wait()

    def close(self) -> None:
        self._server.close()
        self._abort_all()


class Connection:
    """Two pumps of one connection."""

    def __init__(self, wire: Wire, here: Any, there: Any, *, watches: bool) -> None:
        self._wire = wire
        self._here, self._there = here, there
        self._statements = Statements() if watches else None
        self._answers = Answers()
        self._losing: str | None = None

    def abort(self) -> None:
        for _, writer in (self._here, self._there):
            writer.transport.abort()

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._out()), asyncio.create_task(self._back())]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self.abort()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _out(self) -> None:
        reader, writer = self._here[0], self._there[1]
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._wire.pause()
                if self._statements is not None:
                    sent = self._statements.seen(data)
                    if self._losing is None:
                        self._losing = self._doom(sent)
                writer.write(data)
                await writer.drain()

    def _doom(self, sent: list[str]) -> str | None:
        for kind in sent:
            if kind in self._wire.doomed:
                self._wire.doomed.remove(kind)
                self._answers = Answers()
                return kind
        return None

    async def _back(self) -> None:
        reader, writer = self._there[0], self._here[1]
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self._losing is not None:
                    if self._answers.is_ready_in(data):
                        self._wire.lost.append((time.time(), self._losing))
                        return  # the server has done it, and nobody will hear of it
                    continue
                await self._wire.pause()
                writer.write(data)
                await writer.drain()


class Wires:
    """All wires of a round, on an event loop in a thread of their own: they do not wait for anybody's code."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._wires: list[Wire] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            self.soon(wire.close)
        self._there(asyncio.sleep(0.05))
        self._there(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, target: Port, *, is_postgres: bool = False) -> Wire:
        """A new wire to that port."""

        async def make() -> Wire:
            wire = Wire(self, target, is_postgres=is_postgres)
            await wire.listen()
            return wire

        wire = self._there(make())
        self._wires.append(wire)
        return wire

    def soon(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)

    def _there(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _end_all(self) -> None:
        others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
