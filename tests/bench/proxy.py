"""`python -m tests.bench.proxy DELAY_MS LISTEN_PORT UPSTREAM`: a TCP proxy that adds a delay in each direction.

UPSTREAM is host:port, or the path of a unix socket. Bytes keep their order; nothing is dropped, nothing comes early.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
from typing import Any


class Pipe(asyncio.Protocol):
    """One side of a connection: what it reads goes to the other side, late."""

    def __init__(self, delay: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self.other: asyncio.Future[Pipe] = self._loop.create_future()
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._delay, self._hand_over, data)

    def connection_lost(self, _: Exception | None) -> None:
        self._loop.call_later(self._delay, self._hand_over, None)

    def _hand_over(self, data: bytes | None) -> None:
        self.other.add_done_callback(lambda other: None if other.cancelled() else other.result().write(data))

    def write(self, data: bytes | None) -> None:
        """Bytes of the other side; None: it has closed."""
        if data is None:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write(data)


class Front(Pipe):
    """The client's side: connects to the server as soon as it is there."""

    def __init__(self, delay: float, upstream: str) -> None:
        super().__init__(delay)
        self._upstream = upstream

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        made = (lambda: Pipe(self._delay)), self._upstream
        try:
            if self._upstream.startswith("/"):
                _, back = await self._loop.create_unix_connection(*made)
            else:
                host, _, port = self._upstream.rpartition(":")
                _, back = await self._loop.create_connection(made[0], host, int(port))
        except OSError:
            self._transport.close()
            return
        back.other.set_result(self)
        self.other.set_result(back)


async def serve(delay_ms: float, port: int, upstream: str) -> None:
    """Until it is killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Front(delay_ms / 1000, upstream), "127.0.0.1", port)
    print("ready", flush=True)  # noqa: T201 - whoever started it waits for this
    await server.serve_forever()


def precise_loop() -> asyncio.AbstractEventLoop:
    """A loop whose timers are never early, and late by 0.1 ms where the machine is idle."""
    # select() takes microseconds. epoll takes whole milliseconds, so asyncio's usual loop makes 2 ms of 1 ms and a bit;
    # uvloop counts in milliseconds from the start of its turn, and made of 1 ms anything from 0 on.
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(serve(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
