"""The client: writes tasks from application code, and reads what became of them.

`connect(...)` makes one; the default one is made from the settings on first use, one per event loop, and closes with
its loop. Synchronous code uses the one of the portal's loop.
"""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from .around import enqueue_through
from .around_plans import plan_through, submitting_through
from .callers import run_sync
from .channel import Channel
from .errors import PostgresUnavailable, StreamsDown
from .flow.cancel import cancel
from .flow.dedupe import Key
from .flow.enqueue import NewTask, Spec, Told
from .flow.graph import Plan
from .flow.kick import kick_claimers, tell_ended
from .flow.reaper import ensure_partitions
from .flow.relay import FORGET_SECONDS, forget, publish_own
from .flow.submit import Adding, NewJob, Submitted
from .local import database_url
from .middleware import Enqueuing, Middleware, around_enqueue, checked, installed, middleware_here
from .migrate import require_head
from .portal import portal_loop, submit
from .postgres import Database
from .rows import PART
from .settings import Settings
from .streams import Hint, Streams
from .tracing import trace_if_wanted
from .waiting import Waiting
from .writing import Writer

TRUSTED_SECONDS = 0.004  # how long after an early wake-up a commit is found by those whom it woke (claimer.py)
QUIET_SECONDS = 0.003
LAST_SECONDS = 0.5  # for wake-ups that are on their way when a client closes


class Client:
    """Everything an application does with the queue, over a few connections of its own."""

    def __init__(self, settings: Settings, *, middleware: Sequence[Middleware] = ()) -> None:
        self.settings = settings
        self._middleware = checked(middleware)
        self.waiting = Waiting(self.database, self._nudges)
        self._db: Database | None = None
        self._streams: Streams | None = None
        self._channel: Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._untold: list[Told] = []  # committed, and nobody elsewhere is woken yet
        self._publishing: asyncio.Task[None] | None = None
        self._published: list[Told] = []  # rows of the outbox that nobody needs any more
        self._forgetting: asyncio.Task[None] | None = None
        self._announced_at = 0.0  # monotonic
        self._writer = Writer(settings, self.database, self._wake, self._announce)

    async def database(self) -> Database:
        """Our own connections, opened and checked on first use."""
        if self._db is not None:
            return self._db
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._db is None:
                trace_if_wanted(self.settings)
                db = Database(self.settings, size=4, flow=True, dsn=await database_url(self.settings))
                try:
                    await require_head(db)
                    await self._writer.id_source(db)
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
        await self._writer.finished()
        await self._settle()
        if self._streams is not None:
            await self._streams.close()
        if self._channel is not None:
            await self._channel.close()
        if self._db is not None:
            await self._db.close()
        self._db = self._streams = self._channel = self._loop = None
        self._untold, self._published, self._publishing, self._forgetting = [], [], None, None

    async def _settle(self) -> None:
        """Until wake-ups on their way are sent and their rows are forgotten, or the time for that is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                while self._background:
                    await asyncio.wait(self._background)

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
        return await self._writer.write(spec, tasks, key=key, connection=connection, wait=wait)

    def write_blocking(
        self, spec: Spec, tasks: Sequence[NewTask], *, key: Key | None, connection: Any, wait: bool = False
    ) -> list[int]:
        """As `write`, for synchronous code: in its connection or session, else on the portal's loop."""
        if connection is None:
            return submit(self.write(spec, tasks, key=key, wait=wait))
        return run_sync(self.write(spec, tasks, key=key, connection=connection))

    async def submit(self, job: NewJob, plan: Plan, *, key: Key | None = None, connection: Any = None) -> Submitted:
        """Write a job and all its nodes in one transaction; its middleware is called once for each kind of task."""
        chain = around_enqueue(self._middleware or middleware_here.get())
        write = functools.partial(self._writer.submit, job, plan, key=key, connection=connection)
        if not chain:
            return await write()
        with submitting_through(chain, job):
            return await plan_through(chain, plan, write, connection=connection)

    async def add_to_job(self, to: Adding, plan: Plan) -> Submitted:
        """Add nodes to a job that is there, in a transaction of our own."""
        chain = around_enqueue(self._middleware or middleware_here.get())
        write = functools.partial(self._writer.add, to, plan)
        return await (plan_through(chain, plan, write) if chain else write())

    def known(self, task_id: int) -> Mapping[str, Any] | None:  # noqa: ARG002 - one that runs tasks knows
        """The final row of the task, from a client that runs tasks itself; else None: ask the database."""
        return None

    async def cancel(self, ids: Sequence[int]) -> set[int]:
        """End tasks as CANCELLED wherever they are; returns those that were not final before."""
        db = await self.database()
        await ensure_partitions(db)
        cancelled: set[int] = set()
        for start in range(0, len(ids), PART):
            cancelled |= await cancel(db, ids[start : start + PART])
        self._tell_ended(sorted(cancelled))
        return cancelled

    def _announce(self, spec: Spec, task_id: int) -> Announced | None:
        """Wake a worker for a task that is about to be committed, if this process has been quiet.

        A commit takes longer than the way to a worker, which then finds the task a fifth sooner. Who enqueues one
        after another has its workers awake, and looks that come too soon would only take their time.
        """
        now, quiet_since = time.monotonic(), self._announced_at
        self._announced_at = now
        if self._streams is None or now - quiet_since < QUIET_SECONDS or not _is_running(self._loop):
            return None
        hint = Hint(spec.queue, -spec.priority, task_id, 1, (task_id,), early=True)
        return Announced(self._in_background(self._streams.publish([hint]), "aaiclick-queue early wake-up"))

    def _wake(self, told: Sequence[Told], announced: Announced | None = None) -> None:
        """Tell claimers here at once, those elsewhere over Redis; an enqueue never waits for either."""
        if not told:
            return
        kick_claimers()
        if self._streams is None or self._loop is None or self._loop.is_closed():
            return
        if announced is not None and announced.suffices():
            self._forget_soon(told)
            return
        if _is_running(self._loop):
            self._start_publishing(told)  # without the turn of the loop that the way from another thread takes
        else:
            self._loop.call_soon_threadsafe(self._start_publishing, told)

    def _start_publishing(self, told: Sequence[Told]) -> None:
        # What is committed while Redis takes the wake-ups before it goes together after them: a round trip for each
        # took half of the speed of fifty who enqueue at once.
        self._untold += told
        if _is_over(self._publishing):
            self._publishing = self._in_background(self._publish(), "aaiclick-queue wake-up")

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _publish(self) -> None:
        while self._untold and self._db is not None and self._streams is not None:
            told, self._untold = self._untold, []
            with suppress(StreamsDown):  # the relay takes what is left
                await publish_own(self._streams, told)
                self._forget_soon(told)

    def _forget_soon(self, told: Sequence[Told]) -> None:
        self._published += told
        if _is_over(self._forgetting):
            self._forgetting = self._in_background(self._forget_published(), "aaiclick-queue outbox")

    async def _forget_published(self) -> None:
        while self._published:
            # A little later, with whatever else is published by then: at once it took the claim's time on a small
            # machine.
            await asyncio.sleep(FORGET_SECONDS)
            told, self._published = self._published, []
            with suppress(PostgresUnavailable):
                if self._db is not None:
                    await forget(self._db, told)

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


class Announced:
    """A wake-up that was sent while its task was being committed."""

    def __init__(self, sending: asyncio.Task[None]) -> None:
        self._sending = sending
        self._sent = time.monotonic()
        sending.add_done_callback(_seen)

    def suffices(self) -> bool:
        """Whether whoever heard it looks after this moment, that of the commit, too."""
        is_there = self._sending.done() and not self._sending.cancelled() and self._sending.exception() is None
        return is_there and time.monotonic() - self._sent < TRUSTED_SECONDS


def _seen(sending: asyncio.Task[None]) -> None:
    if not sending.cancelled():
        sending.exception()  # the wake-up after the commit goes the same way, and is what counts


def _is_over(work: asyncio.Task[None] | None) -> bool:
    """Whether it has come to its end, also one that was cancelled before its first step."""
    return work is None or work.done()


def _is_running(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Whether the caller runs on this loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


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


def given_settings() -> Settings | None:
    """What the testing kit has the default client of this process made from."""
    instead = _instead[-1] if _instead else None
    return instead.settings if isinstance(instead, Client) else instead


async def default_client() -> Client:
    """The client of the running loop, made from the settings on first use; it closes with the loop."""
    loop = asyncio.get_running_loop()
    if (known := _known_client(loop)) is not None:
        return known
    here = settings_here.get(given_settings())
    client = Client(here or Settings.load())
    guard = _close_with_loop(client)
    _clients.setdefault(loop, {})[here] = (client, guard)
    await anext(guard)
    return client


def default_blocking_client() -> Client:
    """The client of synchronous code: it lives on the portal's loop."""
    return _known_client(portal_loop()) or submit(default_client())


def _known_client(loop: asyncio.AbstractEventLoop) -> Client | None:
    """The client that calls on this loop are to use, if it is there already."""
    instead = _instead[-1] if _instead else None
    if isinstance(instead, Client):
        return instead
    known = _clients.get(loop, {}).get(settings_here.get(instead))
    return known[0] if known is not None else None


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
