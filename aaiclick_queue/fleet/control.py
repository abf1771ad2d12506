"""Looking at a fleet and changing it from another process: lines of JSON over a unix socket.

Before: cli/fleet.py asks. After: supervisor.py answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Self

import msgspec

from ..errors import BadFleet, NoFleet, QueueError
from .address import Address
from .keys import COUNT_LIMIT
from .supervisor import FleetView, Supervisor

log = logging.getLogger("aaiclick_queue.fleet")

ANSWER_SECONDS = 10.0
LINE_BYTES = 1 << 22


class Show(msgspec.Struct, frozen=True, tag="status"):
    """How is the fleet?"""


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Other sizes for these groups."""

    sizes: dict[str, Annotated[int, msgspec.Meta(ge=0, le=COUNT_LIMIT)]]


class Reload(msgspec.Struct, frozen=True, tag="reload"):
    """Read the file again and replace every process."""


class Down(msgspec.Struct, frozen=True, tag="down"):
    """Finish what runs and end; `now`: hand it back."""

    now: bool = False


Request = Show | Scale | Reload | Down


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A line on what is going on; more follows."""

    text: str


class View(msgspec.Struct, frozen=True, tag="view"):
    """The fleet as it is."""

    fleet: FleetView


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It was done, all of it or (`ok` false) not."""

    text: str
    ok: bool = True


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It cannot be done: what, why and how to mend it in one sentence."""

    error: str
    bad_file: bool = False


Answer = Said | View | Done | Refused

_request = msgspec.json.Decoder(Request)
_answer = msgspec.json.Decoder(Answer)
_encode = msgspec.json.Encoder().encode


# The supervisor's side.


@asynccontextmanager
async def answering(supervisor: Supervisor, listening: socket.socket) -> AsyncIterator[None]:
    """Answer whoever connects, as long as the block lasts."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _answer_to(supervisor, reader, writer)
        except (ConnectionError, TimeoutError):
            log.debug("somebody who asked has gone before the answer")
        finally:
            writer.close()

    server = await asyncio.start_unix_server(meet, sock=listening, limit=LINE_BYTES)
    try:
        yield
    finally:
        server.close()


async def _answer_to(supervisor: Supervisor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            request = _request.decode(await reader.readline())
    except (ValueError, msgspec.MsgspecError) as error:
        answer: Answer = Refused(
            f"this is no request that fleets know ({error}): use the same version of aaiclick-queue"
        )
        writer.write(_encode(answer) + b"\n")
        await writer.drain()
        return
    async for answer in _answers(supervisor, request):
        writer.write(_encode(answer) + b"\n")
        await writer.drain()


async def _answers(supervisor: Supervisor, request: Request) -> AsyncIterator[Answer]:
    try:
        match request:
            case Show():
                yield View(supervisor.view())
            case Scale(sizes):
                changes = supervisor.scale(sizes)
                yield Done("\n".join(f"{name}: {before} → {after}" for name, (before, after) in changes.items()))
            case Reload():
                with Overheard() as lines:
                    rolled = supervisor.reload()
                    yield Said(f"read {supervisor.file}")  # at once: what follows may take its time
                    async for line in lines.until(rolled):
                        yield Said(line)
                ok = all(rolled.result())
                problem = "not every process came up: `aaiclick-queue fleet status` says why"
                yield Done("every process is replaced" if ok else problem, ok=ok)
            case Down(now):
                supervisor.stop(2 if now else None)
                yield Done("stopping")
    except QueueError as error:
        yield Refused(str(error), isinstance(error, BadFleet))


class Overheard(logging.Handler):
    """The supervisor's own lines, for somebody who waits for what they tell of."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self._lines.put_nowait(record.getMessage())

    async def until(self, over: asyncio.Future[list[bool]]) -> AsyncIterator[str]:
        """Every line from now on, until that is over."""
        over.add_done_callback(lambda _: self._lines.put_nowait(None))
        while (line := await self._lines.get()) is not None:
            yield line

    def __enter__(self) -> Self:
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self)


# The other side.


async def ask(address: Address, request: Request) -> AsyncIterator[Answer]:
    """What the supervisor answers, line by line; NoFleet where there is none."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(address.socket), limit=LINE_BYTES)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoFleet(
            f"no fleet {address.name!r} runs here (asked at {address.socket}): start it with "
            "`aaiclick-queue fleet up FILE`, with the same AAICLICK_QUEUE_HOME as here"
        ) from None
    try:
        writer.write(_encode(request) + b"\n")
        await writer.drain()
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await reader.readline()
        while line:
            yield _answer.decode(line)
            line = await reader.readline()
    except TimeoutError:
        raise QueueError(
            f"the supervisor of fleet {address.name!r} (pid {address.pid}) does not answer: is it stopped by Ctrl-Z? "
            f"kill -CONT {address.pid}"
        ) from None
    except msgspec.MsgspecError as error:
        raise QueueError(
            f"the supervisor of fleet {address.name!r} is of another version ({error}): start it again"
        ) from None
    except ConnectionError:
        return
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def until_down(address: Address) -> None:
    """Until the supervisor is gone."""
    while address.pid is not None:  # noqa: ASYNC110 - its end is the kernel's to tell
        await asyncio.sleep(0.05)
