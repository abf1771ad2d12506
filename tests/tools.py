"""What the tests of the flow share: tasks put in line, workers that hold leases, and waiting for a condition."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

from aaiclick_queue import Middleware, Plan, Settings, Worker
from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue, id_source
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.middleware import installed
from aaiclick_queue.outcome import Ended, Outcome
from aaiclick_queue.postgres import Database, plain_dsn
from aaiclick_queue.resources import declared
from aaiclick_queue.schema import Transaction
from aaiclick_queue.tasks import registry

T = TypeVar("T")

PATIENCE = 60.0  # seconds: a limit for machines that are busy, never a measure
ENTRYPOINT = "tests.nowhere"


async def until(condition: Callable[[], Any], *, patience: float = PATIENCE) -> Any:
    """What the condition gives, plain or awaited, as soon as that is true."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {patience:g} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.01)


def changed(settings: Settings, **given: Any) -> Settings:
    """The same settings with others on top."""
    return Settings.load({}, **(settings.model_dump(exclude_unset=True) | given))


# Rows.


async def put(tx: Transaction, *tasks: NewTask, count: int = 1, **spec: Any) -> list[int]:
    """Enqueue tasks that no worker knows, unless `entrypoint` says otherwise; gives their ids."""
    given = Spec(**({"entrypoint": ENTRYPOINT, "queue": "default"} | spec))
    ids = await id_source(tx)
    return (await enqueue(tx, given, tasks or [NewTask("{}") for _ in range(count)], ids.take)).ids


async def put_one(tx: Transaction, kwargs: str = "{}", *, task: Mapping[str, Any] | None = None, **spec: Any) -> int:
    """Enqueue one task."""
    [task_id] = await put(tx, NewTask(kwargs, **(task or {})), **spec)
    return task_id


async def register_worker(db: Database, *, lease_seconds: float = 60, status: str = "ACTIVE") -> int:
    """The row of a worker that takes tasks and does nothing by itself; gives its id."""
    worker_id = time.monotonic_ns()
    await register(db, Identity(worker_id, 4711, 10, "somewhere", "0", ("default",)), lease_seconds=lease_seconds)
    if status != "ACTIVE":
        await db.fetch(
            "UPDATE aaiclick_queue.workers SET status = $2, stopped_at = now() WHERE id = $1", worker_id, status
        )
    return worker_id


async def claim(
    tx: Transaction, worker_id: int, limit: int = 10, *, queues: Sequence[str] = ("default",), line: Line | None = None
) -> list[Claimed]:
    """Lease what is next in line to that worker."""
    return await (line or Line(dict.fromkeys(queues, 1))).claim(tx, Wanted(limit, worker_id, 3600, 30))


async def leased(db: Database, **spec: Any) -> Claimed:
    """A task that runs, leased to a worker of its own."""
    task_id = await put_one(db, **spec)
    [run] = await claim(db, await register_worker(db), queues=[spec.get("queue", "default")])
    assert run.task_id == task_id
    return run


async def holder_of(db: Database, task_id: int) -> int | None:
    """The worker that has leased the task."""
    worker_id: int | None = await db.fetchval("SELECT worker_id FROM aaiclick_queue.leases WHERE task_id = $1", task_id)
    return worker_id


async def end(db: Database, run: Claimed, outcome: Outcome, *, worker_id: int | None = None) -> bool:
    """Record what the run came to, as its worker unless another is named; says whether it landed."""
    now = time.monotonic()
    owner = worker_id if worker_id is not None else await holder_of(db, run.task_id)
    ended = Ended(run.task_id, run.run_epoch, outcome, now, now, flags=run.flags)
    landed = await complete(db, [ended], worker_id=owner or 0)
    return run.task_id in landed


async def row(tx: Transaction, table: str, task_id: int) -> dict[str, Any]:
    """The one row of the task in that table."""
    key = "id" if table in ("tasks", "task_status") else "task_id"
    rows = await tx.fetch(f"SELECT * FROM aaiclick_queue.{table} WHERE {key} = $1", task_id)
    assert len(rows) == 1, f"{len(rows)} rows in {table}"
    return dict(rows[0])


async def rows(tx: Transaction, table: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    return [dict(row) for row in await tx.fetch(f"SELECT * FROM aaiclick_queue.{table}")]


async def count(tx: Transaction, table: str) -> int:
    """How many rows a table has."""
    [found] = await tx.fetch(f"SELECT count(*) AS n FROM aaiclick_queue.{table}")
    return int(found["n"])


async def place_of(tx: Transaction, task_id: int) -> list[str]:
    """The places that the task is in, or its final status."""
    found = [
        place
        for place in ("held", "ready", "delayed", "leases")
        if await tx.fetch(f"SELECT 1 FROM aaiclick_queue.{place} WHERE task_id = $1", task_id)
    ]
    final = (await row(tx, "tasks", task_id))["status"]
    return [*found, final] if final else found


async def lock_is_waited_for(db: Database) -> bool:
    """Whether a statement waits for a lock in this database."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(await db.fetchval(waiting))


async def make_due(tx: Transaction) -> None:
    """Whatever waits for its time has waited long enough."""
    await tx.fetch("UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 s'")


async def age(tx: Transaction, table: str, column: str, seconds: float) -> None:
    """Move a time column of every row into the past."""
    await tx.fetch(
        f"UPDATE aaiclick_queue.{table} SET {column} = {column} - make_interval(secs => $1::float8)", seconds
    )


# Workers.


@asynccontextmanager
async def running_worker(
    settings: Settings,
    *,
    middleware: Sequence[Middleware] = (),
    resources: Mapping[Any, Any] | None = None,
    **plan: Any,
) -> AsyncIterator[Worker]:
    """A worker in this process that takes tasks; stopped at once when the block ends."""
    worker = Worker(settings, Plan(**plan), middleware=middleware, resources=resources)
    running = asyncio.create_task(worker.run())
    try:
        await until(lambda: worker.started.is_set() or running.done())
        if running.done():
            running.result()
        yield worker
    finally:
        worker.stop(now=True)
        async with asyncio.timeout(PATIENCE):
            await running


@contextmanager
def declarations_of_its_own() -> Iterator[None]:
    """What this block registers, declares and installs is gone when it ends, else workers of other tests ask for it."""
    kept = (registry, *vars(declared).values(), installed)
    before = [copy.copy(one) for one in kept]
    try:
        yield
    finally:
        for one, was in zip(kept, before, strict=True):
            one.clear()
            one.update(was) if isinstance(one, dict) else one.extend(was)


class Proxy:
    """A wire to Postgres that can be cut and frozen: `async with Proxy(url) as proxy: connect(proxy.url)`.

    It has a thread of its own: what goes through it does not wait for the test's event loop.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(plain_dsn(url))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._breaks: tuple[bytes, bool] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._thread.start()
        port = await self._there(self._start())
        login = self._target.netloc.rpartition("@")[0] or "postgres"
        self.url = f"postgresql://{login}@127.0.0.1:{port}{self._target.path}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._there(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Break every connection; new ones work."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def freeze(self) -> None:
        """Nothing goes through any more, and nobody is told."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def break_at(self, words: bytes, *, carried_out: bool) -> None:
        """Break the connection that next sends these words: after Postgres has answered them, or before it got them."""
        self._breaks = (words, carried_out)

    async def _there(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def _start(self) -> int:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        self._server.close()
        self._abort_all()
        await self._server.wait_closed()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def _abort_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await self._dial()
        self._writers |= {writer, to_writer}
        wire = Wire(to_postgres=to_writer, to_client=writer)
        for one, other in ((reader, to_writer), (to_reader, writer)):
            pump = asyncio.create_task(self._pump(one, other, wire))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = self._target.hostname or parse_qs(self._target.query)["host"][0]
        port = self._target.port or int(parse_qs(self._target.query).get("port", ["5432"])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                if writer is wire.to_client and wire.loses_its_answer:
                    break
                if writer is wire.to_postgres and self._breaks and self._breaks[0] in data:
                    wire.loses_its_answer = self._breaks[1]
                    self._breaks = None
                    if not wire.loses_its_answer:
                        break
                writer.write(data)
                await writer.drain()
        for end in (wire.to_postgres, wire.to_client):
            self._writers.discard(end)
            end.transport.abort()


@dataclass
class Wire:
    """Both ends of one connection through a proxy."""

    to_postgres: asyncio.StreamWriter
    to_client: asyncio.StreamWriter
    loses_its_answer: bool = False


@contextmanager
def environment(monkeypatch: Any, settings: Settings) -> Iterator[None]:
    """The default client of this block is made from these settings."""
    with monkeypatch.context() as patched:
        patched.setenv("AAICLICK_QUEUE_POSTGRES_URL", settings.postgres_url)
        if settings.redis_url:
            patched.setenv("AAICLICK_QUEUE_REDIS_URL", settings.redis_url)
        yield
