"""One bare connection to Redis: commands out, answers in, and what people are told when it fails.

Bare, because a pool gives a half-read connection to the next caller and reconnects without a word; here a call that
does not end cleanly costs the connection, and the next one knows that its connection is new.
Before: redis_url.py makes the connection. After: streams.py says the commands.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

CONNECT_SECONDS = 1.0


class Wire:
    """One connection that serves one call at a time; a call that does not end cleanly closes it."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self._make = make
        self._lock = asyncio.Lock()
        self._connection: Any | None = None

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[tuple[Any, bool]]:
        """The connection, and whether it is new."""
        async with self._lock:
            is_new, is_clean = self._connection is None, False
            try:
                if self._connection is None:
                    self._connection = await self._make()
                    await self._connection.connect()
                yield self._connection, is_new
                is_clean = True
            finally:
                # Also when cancelled: the answer of a cancelled read would be taken for that of the next call.
                if not is_clean:
                    await self.hang_up()

    async def hang_up(self) -> None:
        """Close the connection without waiting for the other side."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


async def ask(connection: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The answers to all commands in one round trip; an error stands in its place in the list."""
    from redis.exceptions import ResponseError

    if not commands:
        return []
    await connection.send_packed_command(connection.pack_commands(commands))
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            answers.append(error)
    return answers


_FAILING_OVER = "it is starting or failing over; the next call looks for the primary again"
_RIGHTS = "+ping +xadd +xreadgroup +xgroup +xinfo +xlen +publish +subscribe, keys ~{aaiq}:*, channels &{aaiq}:*"
_DENIED = f"check user and password in AAICLICK_QUEUE_REDIS_URL and the user's rights: {_RIGHTS}"
# redis-py 5 gives the cluster's errors no class of their own, only their first word.
_ADVICE = {
    "OutOfMemoryError": "it is out of memory: raise its maxmemory or give the queue a Redis of its own",
    **dict.fromkeys(("AuthenticationError", "NoPermissionError"), _DENIED),
    **dict.fromkeys(("ReadOnlyError", "BusyLoadingError", "MasterDownError"), _FAILING_OVER),
    **dict.fromkeys(("MovedError", "AskError", "TryAgainError", "ClusterDownError"), _FAILING_OVER),
    **dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"), _FAILING_OVER),
}


def explained(error: Exception) -> str:
    """What Redis or the way to it did wrong, and how to mend it."""
    advice = _ADVICE.get(type(error).__name__) or _ADVICE.get(str(error).partition(" ")[0])
    # redis-py tells of a refused connection or certificate less than what it caught.
    caught = error.__context__ if isinstance(error.__context__, OSError) else None
    text = str(caught or "") or str(error) or type(error).__name__
    return f"{text[:200]} ({advice or 'check that it runs and that AAICLICK_QUEUE_REDIS_URL names it'})"
