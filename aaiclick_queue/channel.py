"""Which tasks have ended, told over one Redis channel: workers publish ids, whoever waits for a result listens.

Nudges may get lost, repeat or come late, so nothing here retries: who listens asks Postgres all the same.
Before: redis_url.py says where Redis is, redis_wire.py carries the commands. After: nudges.py and waiting.py.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from .errors import StreamsDown
from .redis_url import Server
from .redis_wire import CONNECT_SECONDS, Wire, ask, explained

CALL_SECONDS = 0.25
PING_SECONDS = 1.0  # a Redis that hangs is given up after two of them
IDS_A_MESSAGE = 1000
LOOK_AT_ALL = b""  # a message without ids: more have ended than can be named


class Channel:
    """One process's wires to the channel of one queue system: one connection to publish, one while it listens."""

    def __init__(self, url: str, *, prefix: str = "aaiq") -> None:
        # Here and not in the first call: the import takes longer than a call may.
        import redis.asyncio  # noqa: F401

        self._server = Server.parse(url)
        # The hash tag of the wake-ups: in a Cluster publishers and listeners meet at the owner of that slot, so that
        # the count of receivers is right. A Cluster passes messages on between nodes while the slot moves.
        self.name = f"{{{prefix}}}:ended"
        self._pen = Wire(self._made)
        self._is_closed = False

    async def publish(self, ids: Sequence[int], *, look_at_all: bool = False) -> int:
        """Tell that these tasks have ended, within 250 ms; returns how many listen, or raises StreamsDown."""
        messages = [LOOK_AT_ALL] if look_at_all else []
        messages += [packed(ids[start : start + IDS_A_MESSAGE]) for start in range(0, len(ids), IDS_A_MESSAGE)]
        async with self._redis_errors("take news of ended tasks"):
            async with asyncio.timeout(CALL_SECONDS), self._pen.taken() as (connection, _):
                answers = await ask(connection, [("PUBLISH", self.name, message) for message in messages])
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return max(answers, default=0)

    async def listen(self, live: Callable[[], None], told: Callable[[Sequence[int] | None], None]) -> None:
        """Call `live` when nothing is missed from now on and `told` with what ended (None: look at all), for ever.

        Raises StreamsDown when the connection ends or Redis hangs for two seconds.
        """
        async with self._redis_errors("tell of ended tasks"):
            wire = Wire(self._made)
            async with wire.taken() as (connection, _):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await connection.send_command("SUBSCRIBE", self.name)
                    kind, *_ = await connection.read_response(disable_decoding=True)
                assert kind == b"subscribe"
                live()
                while True:
                    message = await self._next(connection)
                    told(unpacked(message))

    async def _next(self, connection: Any) -> bytes:
        """The next message; in quiet times a PING shows whether Redis is there."""
        is_asked = False
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    # A read that is given up here loses nothing: what came stays in the connection's buffer.
                    answer = await connection.read_response(disable_decoding=True, disconnect_on_error=False)
            except TimeoutError:
                if is_asked:
                    raise
                is_asked = True
                await connection.send_command("PING")
                continue
            is_asked = False
            if answer[0] == b"message":
                return bytes(answer[2])

    async def close(self) -> None:
        """Close the publishing connection; later calls raise StreamsDown. A listen ends by its cancellation."""
        self._is_closed = True
        await self._pen.hang_up()
        await asyncio.sleep(0)  # one turn of the loop closes the socket

    async def _made(self) -> Any:
        if self._is_closed:
            raise StreamsDown("this channel was closed: make a new one to publish or listen again")
        return await self._server.connection(self.name)

    @asynccontextmanager
    async def _redis_errors(self, doing: str) -> AsyncIterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except StreamsDown:
            raise
        except (RedisError, OSError) as error:
            why = "no answer in time" if type(error) is TimeoutError else explained(error)
            raise StreamsDown(
                f"Redis at {self._server.shown} did not {doing}: {why}. Results are looked for in Postgres meanwhile"
            ) from error


def packed(ids: Sequence[int]) -> bytes:
    """The ids as a message: eight bytes each."""
    return struct.pack(f">{len(ids)}q", *ids)


def unpacked(message: bytes) -> Sequence[int] | None:
    """The ids of a message; None where it names none, or a newer or a hostile client wrote it."""
    if not message or len(message) % 8:
        return None
    return struct.unpack(f">{len(message) // 8}q", message)
