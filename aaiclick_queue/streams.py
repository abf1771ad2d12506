"""Wake-ups over Redis streams: the relay publishes hints, idle workers listen; claims go to Postgres all the same.

Hints may repeat, get lost or come late, so nothing here retries, and every call is bounded in time and in memory.
redis_url.py says where Redis is, redis_wire.py carries the commands; no other module imports redis.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import SettingsError, StreamsDown
from .redis_url import Server
from .redis_wire import CONNECT_SECONDS, Wire, ask, explained

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

CALL_SECONDS = 0.25
LISTEN_MARGIN_SECONDS = CONNECT_SECONDS  # a listen may have to connect first
ENTRIES_KEPT = 10_000
TASKS_AN_ENTRY = 100
ENTRIES_A_QUEUE = 32
ENTRIES_READ = 8
SWEEP_QUEUES = 100
SWEEP_CONSUMERS = 1_000

# UNBLOCKED: the key went away during the read. WRONGTYPE does not say of which key; making the groups does.
# The last is what fakeredis says for NOGROUP.
NO_GROUP = ("NOGROUP", "UNBLOCKED", "WRONGTYPE", "The XGROUP subcommand requires the key")

INT4, INT8 = 2**31 - 1, 2**63 - 1


class Hint(msgspec.Struct, frozen=True):
    """About `n` tasks became ready in this queue, the first of them at (rank, order_key) in line.

    `early`: they are being committed at this moment, so who hears it looks until they are there, for a moment.
    """

    queue: str
    rank: int
    order_key: int
    n: int
    task_ids: tuple[int, ...] = ()
    early: bool = False


class Heard(msgspec.Struct, frozen=True):
    """What a listen brought; `rescan` says that hints may have been missed, so look at Postgres."""

    hints: tuple[Hint, ...]
    rescan: bool


class Streams:
    """One process's wires to Redis: one connection to publish and one for each listening consumer."""

    def __init__(self, url: str, *, prefix: str = "aaiq", client: Any | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", prefix):
            # A brace in it would move the hash tag, and an empty one would unmake it: CROSSSLOT in a Cluster.
            raise SettingsError(
                f"AAICLICK_QUEUE_REDIS_PREFIX = {prefix!r}: give 1 to 64 letters, digits, dots, dashes or underscores"
            )
        # Here and not in the first call: the import takes longer than a call may.
        import redis.asyncio  # noqa: F401

        self._prefix = prefix
        self._client = client
        self._server = Server.parse(url) if client is None else None
        self._shown = self._server.shown if self._server else "the given client"
        self._pen = Wire(self._made)
        self._ears: defaultdict[str, Wire] = defaultdict(lambda: Wire(self._made))
        self._is_closed = False
        self.sent: list[float] = []  # by the clock of Redis, of what was heard last

    def key(self, queue: str) -> str:
        """The stream of a queue; the first pair of braces is the Cluster hash tag, so all lie in one slot."""
        return f"{{{self._prefix}}}:wake:{queue}"

    async def publish(self, hints: Sequence[Hint]) -> None:
        """Write the hints, merged per queue, in one round trip of at most 250 ms; or raise StreamsDown."""
        entries = list(_entries(hints))
        if not entries:
            return
        keys = [self.key(entry.queue) for entry in entries]
        commands = [_xadd(key, entry) for key, entry in zip(keys, entries, strict=True)]
        async with self._bounded("take wake-ups", CALL_SECONDS), self._pen.taken() as (connection, _):
            self._refuse_errors(keys, await ask(connection, commands))

    async def ping(self) -> None:
        """Whether Redis answers; or raise StreamsDown."""
        async with self._bounded("answer", CALL_SECONDS), self._pen.taken() as (connection, _):
            self._refuse_errors(["PING"], await ask(connection, [("PING",)]))

    async def listen(self, queues: Sequence[str], *, consumer: str, seconds: float) -> Heard:
        """Wait for hints of these queues; at once with `rescan` where some may have been missed.

        A new connection is such a case: without acknowledgements a hint sent to the old one is gone.
        """
        names = {self.key(queue).encode(): queue for queue in queues}
        if not names:
            await asyncio.sleep(seconds)
            return Heard((), rescan=False)
        within = max(seconds, 0) + LISTEN_MARGIN_SECONDS
        async with self._bounded("give wake-ups", within), self._ears[consumer].taken() as (connection, is_new):
            # COUNT is per stream: shared out, so that one worker does not eat a burst meant for many.
            count = max(1, ENTRIES_READ // len(names))
            block = () if is_new or seconds <= 0 else ("BLOCK", max(1, int(seconds * 1000)))
            read = ("XREADGROUP", "GROUP", self._prefix, consumer, "COUNT", count, *block, "NOACK", "STREAMS")
            [answer] = await ask(connection, [(*read, *names, *[">"] * len(names))])
            if isinstance(answer, Exception) and str(answer).startswith(NO_GROUP):
                await self._create_groups(connection, names)
                return Heard((), rescan=True)
            self._refuse_errors([""], [answer])
        self.sent = _moments(answer)
        return _heard(answer, names, rescan=is_new)

    async def _create_groups(self, connection: Any, names: Mapping[bytes, str]) -> None:
        create = [("XGROUP", "CREATE", key, self._prefix, "$", "MKSTREAM") for key in names]
        answers = await ask(connection, create)
        made = [None if str(answer).startswith("BUSYGROUP") else answer for answer in answers]
        self._refuse_errors([self.key(queue) for queue in names.values()], made)

    async def lengths(self, queues: Sequence[str]) -> dict[str, int]:
        """How many entries each queue's stream keeps."""
        async with self._bounded("tell lengths", CALL_SECONDS), self._pen.taken() as (connection, _):
            answers = await ask(connection, [("XLEN", self.key(queue)) for queue in queues])
            self._refuse_errors([self.key(queue) for queue in queues], answers)
        return dict(zip(queues, map(int, answers), strict=True))

    async def leave(self, queues: Sequence[str], consumer: str) -> None:
        """Take a consumer out of the groups, as well as 250 ms allow."""
        if ear := self._ears.pop(consumer, None):
            await ear.hang_up()
        commands = [self._delete_consumer(self.key(queue), consumer) for queue in queues]
        with suppress(StreamsDown):
            async with self._bounded("let a consumer go", CALL_SECONDS), self._pen.taken() as (connection, _):
                await ask(connection, commands)

    async def sweep(self, queues: Sequence[str], *, idle_seconds: float) -> int:
        """Remove consumers idle for longer, as far as 250 ms allow; one that comes back is simply made again."""
        removed = 0
        # In any order: queues that one sweep has no time for get their turn in another.
        keys = random.sample([self.key(queue) for queue in queues], len(queues))
        with suppress(StreamsDown):
            async with self._bounded("sweep consumers", CALL_SECONDS), self._pen.taken() as (connection, _):
                for start in range(0, len(keys), SWEEP_QUEUES):
                    some = keys[start : start + SWEEP_QUEUES]
                    told = await ask(connection, [("XINFO", "CONSUMERS", key, self._prefix) for key in some])
                    dead = [
                        self._delete_consumer(key, name)
                        for key, consumers in zip(some, told, strict=True)
                        for name in _idle(consumers, idle_seconds)
                    ]
                    answers = await ask(connection, dead[:SWEEP_CONSUMERS])
                    removed += sum(not isinstance(answer, Exception) for answer in answers)
        return removed

    def _delete_consumer(self, key: str, consumer: str | bytes) -> tuple[Any, ...]:
        return ("XGROUP", "DELCONSUMER", key, self._prefix, consumer)

    async def close(self) -> None:
        """Close every connection; later calls raise StreamsDown. A given client stays open."""
        self._is_closed = True
        ears = list(self._ears.values())
        self._ears.clear()
        for wire in (self._pen, *ears):
            await wire.hang_up()
        # One turn of the loop closes the sockets.
        await asyncio.sleep(0)

    async def _made(self) -> Any:
        if self._is_closed:
            raise StreamsDown("these streams were closed: make new ones to publish or listen again")
        if self._client is not None:
            return self._client.connection_pool.make_connection()
        assert self._server
        return await self._server.connection(self.key(""))

    @asynccontextmanager
    async def _bounded(self, doing: str, seconds: float) -> AsyncIterator[None]:
        """Everything within `seconds`, and whatever Redis did wrong as StreamsDown."""
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(seconds):
                yield
        except StreamsDown:
            raise
        except (RedisError, OSError) as error:
            why = f"no answer within {seconds:g} s" if type(error) is TimeoutError else explained(error)
            raise StreamsDown(
                f"Redis at {self._shown} did not {doing}: {why}. No work is lost, workers poll Postgres meanwhile"
            ) from error

    def _refuse_errors(self, keys: Sequence[str], answers: Sequence[Any]) -> None:
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Exception) and str(answer).startswith("WRONGTYPE"):
                raise StreamsDown(
                    f"the key {key!r} in Redis at {self._shown} is no stream: somebody else uses it; "
                    "delete or rename it, or set another AAICLICK_QUEUE_REDIS_PREFIX. Workers poll Postgres meanwhile"
                ) from answer
            if isinstance(answer, Exception):
                raise answer


def _entries(hints: Sequence[Hint]) -> Iterator[Hint]:
    """Per queue one entry for each hundred tasks, 32 at most: one entry wakes one worker."""
    merged: defaultdict[str, list[Hint]] = defaultdict(list)
    for hint in hints:
        merged[hint.queue].append(hint)
    for queue, same in merged.items():
        rank, order_key = min((hint.rank, hint.order_key) for hint in same)
        n = max(1, sum(hint.n for hint in same))
        ids = [task_id for hint in same for task_id in hint.task_ids]
        count = min(-(-n // TASKS_AN_ENTRY), ENTRIES_A_QUEUE)
        early = any(hint.early for hint in same)
        for i in range(count):
            share = tuple(ids[i::count][:TASKS_AN_ENTRY])
            yield Hint(queue, rank, order_key, n // count + (i < n % count), share, early)


def _xadd(key: str, entry: Hint) -> tuple[Any, ...]:
    fields = ("rank", entry.rank, "order_key", entry.order_key, "n", entry.n)
    ids = ("task_ids", ",".join(map(str, entry.task_ids))) if entry.task_ids else ()
    early = ("early", 1) if entry.early else ()
    return ("XADD", key, "MAXLEN", "~", ENTRIES_KEPT, "*", *fields, *ids, *early)


def _heard(answer: Any, names: Mapping[bytes, str], *, rescan: bool) -> Heard:
    hints = []
    for key, entries in answer.items() if isinstance(answer, dict) else answer or ():
        for _, fields in entries:
            hint = _hint(names[key], _fields(fields))
            rescan = rescan or hint is None
            if hint is not None:
                hints.append(hint)
    return Heard(tuple(hints), rescan=rescan)


def _moments(answer: Any) -> list[float]:
    """When Redis took each entry, which its id begins with."""
    found = []
    for _, entries in answer.items() if isinstance(answer, dict) else answer or ():
        for entry_id, _ in entries:
            milliseconds = _number(bytes(entry_id).partition(b"-")[0], 0, INT8) if isinstance(entry_id, bytes) else None
            found.append((milliseconds or 0) / 1000)
    return found


def _hint(queue: str, said: Mapping[Any, Any]) -> Hint | None:
    """The hint an entry holds; None where a newer or a hostile client wrote no place in line that can be read."""
    rank = _number(said.get(b"rank"), -INT4, INT4)
    order_key = _number(said.get(b"order_key"), 0, INT8)
    if rank is None or order_key is None:
        return None
    listed = bytes(said.get(b"task_ids", b""))[: 20 * TASKS_AN_ENTRY + 1].split(b",")
    ids = [_number(text, 0, INT8) for text in listed]
    whole = len(ids) <= TASKS_AN_ENTRY and None not in ids
    return Hint(
        queue,
        rank,
        order_key,
        _number(said.get(b"n"), 1, INT4) or 1,
        tuple(task_id for task_id in ids if task_id is not None) if whole else (),
        said.get(b"early") == b"1",
    )


def _number(text: Any, low: int, high: int) -> int | None:
    if not isinstance(text, bytes) or not re.fullmatch(rb"-?[0-9]{1,19}", text):
        return None
    return number if low <= (number := int(text)) <= high else None


def _fields(answer: Any) -> Mapping[Any, Any]:
    if isinstance(answer, dict):
        return answer
    return dict(zip(answer[::2], answer[1::2], strict=False)) if isinstance(answer, list | tuple) else {}


def _idle(consumers: Any, seconds: float) -> list[bytes]:
    if not isinstance(consumers, list):
        return []  # an error: nobody made the group yet
    told = map(_fields, consumers)
    return [consumer[b"name"] for consumer in told if consumer.get(b"idle", 0) > seconds * 1000]
