"""The client: writes tasks from application code, and reads what became of them.

`connect(...)` makes one; the default one is made from the settings on first use, one per event loop, and closes with
its loop. Synchronous code uses the one of the portal's loop.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from .around import enqueue_through
from .callers import caller_transaction, is_sync, on_commit, run_sync
from .channel import Channel
from .errors import PostgresUnavailable, QueueFull, StreamsDown
from .flow.cancel import cancel
from .flow.dedupe import Key, enqueue_keyed
from .flow.enqueue import NewTask, Spec, Told, Written, id_source, insert_again, insert_tasks, written_before
from .flow.kick import kick_claimers, tell_ended
from .flow.limits import queue_is_full
from .flow.reaper import ensure_partitions
from .flow.relay import publish_own
from .gathering import Gatherer
from .gathering import Waiting as Gathered
from .ids import IdSource
from .local import database_url
from .middleware import Enqueuing, Middleware, around_enqueue, checked, installed, middleware_here
from .migrate import require_head
from .portal import submit
from .postgres import DATA_ERRORS, Database
from .schema import Transaction
from .settings import Settings
from .streams import Streams
from .waiting import Waiting

T = TypeVar("T")

BULK = 1000  # rows of one statement
RETRY_SECONDS = 0.1
FULL_SECONDS = 0.05
FULL_LONGEST_SECONDS = 1.0


class Client:
    """Everything an application does with the queue, over a few connections of its own."""

    def __init__(self, settings: Settings, *, middleware: Sequence[Middleware] = ()) -> None:
        self.settings = settings
        self._middleware = checked(middleware)
        self.waiting = Waiting(self.database, self._nudges)
        self._ids: IdSource | None = None
        self._db: Database | None = None
        self._streams: Streams | None = None
        self._channel: Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._gatherer = Gatherer(self._write_gathered)

    async def database(self) -> Database:
        """Our own connections, opened and checked on first use."""
        if self._db is not None:
            return self._db
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._db is None:
                db = Database(self.settings, size=4, flow=True, dsn=await database_url(self.settings))
                try:
                    await require_head(db)
                    await self._id_source(db)
                except BaseException:
                    await db.close()
                    raise
                if self.settings.redis_url:
                    self._streams = Streams(self.settings.redis_url, prefix=self.settings.redis_prefix)
                self._db, self._loop = db, asyncio.get_running_loop()
        return self._db

    def lives_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether its connections may be used on that event loop."""
        return self._loop is None or self._loop is loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that its connections belong to, once there are any."""
        return self._loop

    async def close(self) -> None:
        """Close the connections; what was written stays written."""
        await self.waiting.close()
        await self._gatherer.finished()
        if self._background:
            await asyncio.wait(self._background, timeout=0.5)  # wake-ups on their way
        if self._streams is not None:
            await self._streams.close()
        if self._channel is not None:
            await self._channel.close()
        if self._db is not None:
            await self._db.close()
        self._db = self._streams = self._channel = self._loop = None

    def write(
        self,
        spec: Spec,
        tasks: Sequence[NewTask],
        *,
        key: Key | None = None,
        connection: Any = None,
        wait: bool = False,
    ) -> Coroutine[Any, Any, list[int]]:
        """Write tasks and return their ids: in the caller's transaction if there is one, else in one of our own.

        `wait` until the queue has room, instead of raising QueueFull.
        """
        if not (installed or self._middleware or middleware_here.get()):
            return self._write(spec, tasks, key, connection, wait=wait)
        call = Enqueuing(spec, tasks, dedupe_key=key.key if key else None, connection=connection)
        chain = around_enqueue(self._middleware or middleware_here.get())
        return enqueue_through(chain, call, lambda spec, tasks: self._write(spec, tasks, key, connection, wait=wait))

    async def _write(
        self, spec: Spec, tasks: Sequence[NewTask], key: Key | None, connection: Any, *, wait: bool
    ) -> list[int]:
        if connection is not None:
            return await self._write_for_caller(spec, tasks, key, connection)
        pause = FULL_SECONDS
        while True:
            try:
                return await self._write_ours(spec, tasks, key)
            except QueueFull as full:
                await queue_is_full(await self.database(), spec.queue)
                if not wait or len(tasks) > full.max_depth:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 1.5, FULL_LONGEST_SECONDS)

    async def _write_ours(self, spec: Spec, tasks: Sequence[NewTask], key: Key | None) -> list[int]:
        if key is None and len(tasks) == 1:
            return [await self._gatherer.add(spec, tasks[0])]
        ids = await self._take_ids(1 if key else len(tasks))
        if key is not None:
            written = await self._commit(lambda tx, again: self._write_keyed(tx, spec, tasks[0], key, ids, again=again))
        else:
            written = await self._commit(lambda tx, again: self._insert(tx, spec, tasks, ids, again=again))
        self._wake(written.told)
        return written.ids

    def write_blocking(
        self, spec: Spec, tasks: Sequence[NewTask], *, key: Key | None, connection: Any, wait: bool = False
    ) -> list[int]:
        """As `write`, for synchronous code: in its connection or session, else on the portal's loop."""
        if connection is None:
            return submit(self.write(spec, tasks, key=key, wait=wait))
        return run_sync(self.write(spec, tasks, key=key, connection=connection))

    def known(self, task_id: int) -> Mapping[str, Any] | None:  # noqa: ARG002 - one that runs tasks knows
        """The final row of the task, from a client that runs tasks itself; else None: ask the database."""
        return None

    async def cancel(self, ids: Sequence[int]) -> set[int]:
        """End tasks as CANCELLED wherever they are; returns those that were not final before."""
        db = await self.database()
        await ensure_partitions(db)
        cancelled: set[int] = set()
        for start in range(0, len(ids), BULK):
            cancelled |= await cancel(db, ids[start : start + BULK])
        self._tell_ended(sorted(cancelled))
        return cancelled

    async def _write_for_caller(
        self, spec: Spec, tasks: Sequence[NewTask], key: Key | None, connection: Any
    ) -> list[int]:
        tx = caller_transaction(connection, schema=self.settings.postgres_schema)
        written = await self._write_in(tx, spec, tasks, key)
        if not is_sync(connection) and self.settings.redis_url:
            with suppress(PostgresUnavailable):
                await self.database()  # so that the wake-up after the commit need not open it
        on_commit(connection, lambda: self._wake(written.told))
        return written.ids

    async def _write_in(self, tx: Transaction, spec: Spec, tasks: Sequence[NewTask], key: Key | None) -> Written:
        ids = (await self._id_source(tx)).take(1 if key else len(tasks))
        if key is not None:
            return await self._write_keyed(tx, spec, tasks[0], key, ids, again=False)
        return await self._insert(tx, spec, tasks, ids, again=False)

    async def _write_keyed(  # noqa: PLR0913 - one value a fact
        self, tx: Transaction, spec: Spec, task: NewTask, key: Key, ids: Sequence[int], *, again: bool
    ) -> Written:
        if again and await written_before(tx, spec, set(ids)):  # its key may be free again by now
            return Written(list(ids), [])
        source = await self._id_source(tx)
        first = iter(ids)
        return await enqueue_keyed(tx, spec, task, key, lambda n: [next(first, None) or source.take(n)[0]])

    async def _write_gathered(self, groups: dict[Spec, list[Gathered]]) -> None:
        ids = {spec: await self._take_ids(len(group)) for spec, group in groups.items()}

        async def insert(tx: Transaction, again: bool) -> dict[Spec, Written]:
            return {
                spec: await self._insert(tx, spec, [waiting.task for waiting in group], ids[spec], again=again)
                for spec, group in groups.items()
            }

        try:
            written = await self._commit(insert, one_statement=len(groups) == 1)
        except (*DATA_ERRORS, QueueFull):
            await self._write_one_by_one(groups)
            return
        self._wake([told for one in written.values() for told in one.told])
        for spec, group in groups.items():
            for waiting, task_id in zip(group, written[spec].ids, strict=True):
                if not waiting.written.done():
                    waiting.written.set_result(task_id)

    async def _commit(self, write: Callable[[Transaction, bool], Awaitable[T]], *, one_statement: bool = False) -> T:
        """Write in a transaction of our own, again and again until it is answered or the time is up.

        A commit whose answer was lost may have happened: `again` says so, and the same ids cannot insert twice.
        """
        again = False

        async def once() -> T:
            nonlocal again
            repeated, again = again, True
            async with (await self.database()).connection() as tx:
                if one_statement:
                    return await write(tx, repeated)
                async with tx.transaction():
                    return await write(tx, repeated)

        return await self._in_time(once)

    async def _in_time(self, once: Callable[[], Awaitable[T]]) -> T:
        """Try for ENQUEUE_TIMEOUT_SECONDS; an embedded server takes its own time when it starts."""
        if self._db is None and not self.settings.postgres_url:
            await self.database()
        until = time.monotonic() + self.settings.enqueue_timeout_seconds
        while True:
            try:
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    return await once()
            except (PostgresUnavailable, TimeoutError) as error:
                if time.monotonic() + RETRY_SECONDS > until:
                    raise PostgresUnavailable(
                        f"not enqueued within {self.settings.enqueue_timeout_seconds:g} s: "
                        f"{error or self.settings.postgres_shown + ' gave no answer'}"
                    ) from None
                await asyncio.sleep(RETRY_SECONDS)

    async def _insert(
        self, tx: Transaction, spec: Spec, tasks: Sequence[NewTask], ids: Sequence[int], *, again: bool
    ) -> Written:
        whole = Written([], [])
        for start in range(0, len(tasks), BULK):
            some, mine = tasks[start : start + BULK], list(ids[start : start + BULK])
            # Room for all of them or for none; a repeated try may meet its own rows.
            written = await insert_tasks(tx, spec, some, mine, room_for=0 if start or again else len(tasks))
            missing = set(mine) - set(written.ids)
            if missing and again:
                missing -= await written_before(tx, spec, missing)
            take = (await self._id_source(tx)).take
            renewed = await insert_again(tx, spec, some, ids=mine, missing=missing, take_ids=take)
            whole.ids += renewed.ids
            whole.told += [*written.told, *renewed.told]
        return whole

    async def _write_one_by_one(self, groups: dict[Spec, list[Gathered]]) -> None:
        """One of them is refused by Postgres: find out which, and let the others through."""
        db = await self.database()
        for spec, group in groups.items():
            for waiting in group:
                try:
                    async with db.connection() as tx:
                        written = await self._write_in(tx, spec, [waiting.task], None)
                except Exception as error:
                    if not waiting.written.done():  # its caller may have given up meanwhile
                        waiting.written.set_exception(error)
                else:
                    self._wake(written.told)
                    if not waiting.written.done():
                        waiting.written.set_result(written.ids[0])

    async def _take_ids(self, count: int) -> list[int]:
        if self._ids is None:
            await self._in_time(self.database)
        assert self._ids is not None
        return self._ids.take(count)

    async def _id_source(self, tx: Transaction) -> IdSource:
        if self._ids is None:
            self._ids = await id_source(tx)
        return self._ids

    def _wake(self, told: Sequence[Told]) -> None:
        """Tell claimers here at once, those elsewhere over Redis; an enqueue never waits for either."""
        if not told:
            return
        kick_claimers()
        if self._streams is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._start_publishing, told)

    def _start_publishing(self, told: Sequence[Told]) -> None:
        self._in_background(self._publish(told), "aaiclick-queue wake-up")

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _publish(self, told: Sequence[Told]) -> None:
        if self._db is not None and self._streams is not None:
            with suppress(StreamsDown, PostgresUnavailable):  # the relay takes what is left
                await publish_own(self._db, self._streams, told)

    def _nudges(self) -> Channel | None:
        """Where nudges come from and go to, if there is a Redis."""
        if self._channel is None and self.settings.redis_url:
            self._channel = Channel(self.settings.redis_url, prefix=self.settings.redis_prefix)
        return self._channel

    def _tell_ended(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        tell_ended(ids)
        if (channel := self._nudges()) is not None:
            self._in_background(_nudge(channel, ids), "aaiclick-queue nudge")


async def _nudge(channel: Channel, ids: Sequence[int]) -> None:
    with suppress(StreamsDown):  # who waits looks now and then all the same
        await channel.publish(ids)


@asynccontextmanager
async def connect(
    *, settings: Settings | None = None, middleware: Sequence[Middleware] = (), **given: Any
) -> AsyncIterator[Client]:
    """A client of one's own: `async with connect(postgres_url=…, redis_url=…) as queue:`."""
    client = Client(settings or Settings.load(**given), middleware=middleware)
    try:
        await client.database()
        yield client
    finally:
        await client.close()


# A worker says here with which settings it runs, so that a task that enqueues talks to the worker's own queue.
settings_here: ContextVar[Settings] = ContextVar("aaiclick_queue_settings")
_Clients = dict[Settings | None, tuple[Client, AsyncGenerator[None]]]
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = weakref.WeakKeyDictionary()


# The testing kit says here what the default client of the whole process is, or what it is made from.
_instead: list[Client | Settings] = []


@contextmanager
def default_from(instead: Client | Settings) -> Iterator[None]:
    """Have the default client be this one, or be made from these settings, wherever in this process it is asked for."""
    _instead.append(instead)
    try:
        yield
    finally:
        _instead.remove(instead)


async def default_client() -> Client:
    """The client of the running loop, made from the settings on first use; it closes with the loop."""
    instead = _instead[-1] if _instead else None
    if isinstance(instead, Client):
        return instead
    here = settings_here.get(instead)
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if here not in clients:
        client = Client(here or Settings.load())
        guard = _close_with_loop(client)
        clients[here] = (client, guard)
        await anext(guard)
    return clients[here][0]


def default_blocking_client() -> Client:
    """The client of synchronous code: it lives on the portal's loop."""
    return submit(default_client())


def forget_clients(settings: Settings) -> list[tuple[asyncio.AbstractEventLoop, Client]]:
    """Give up the default clients that were made from these settings: the caller closes each on its loop."""
    found = [(loop, clients.pop(settings)[0]) for loop, clients in list(_clients.items()) if settings in clients]
    return [(loop, client) for loop, client in found if not loop.is_closed()]


async def _close_with_loop(client: Client) -> AsyncGenerator[None]:
    # asyncio.run() closes async generators before it closes the loop: the one moment to say good-bye to Postgres.
    try:
        yield
    finally:
        loop = asyncio.get_running_loop()
        left = {key: kept for key, kept in _clients.pop(loop, {}).items() if kept[0] is not client}
        if left:
            _clients[loop] = left
        await client.close()
