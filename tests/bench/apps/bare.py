"""The limit of the design: the product's own statements and Redis commands in a loop, with no product around them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import redis.asyncio

from aaiclick_queue import Settings
from aaiclick_queue.flow.claim import CLAIM_NEXT_IN_LINE, HEAD
from aaiclick_queue.flow.complete import COMPLETE_SUCCEEDED
from aaiclick_queue.flow.enqueue import NODE
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.flow.plain import ENQUEUE_PLAIN
from aaiclick_queue.flow.relay import FORGET_OUTBOX_ROWS
from aaiclick_queue.ids import IdSource
from aaiclick_queue.postgres import FLOW_PLANS, SESSION, plain_dsn
from tests.bench.apps import driver, tally
from tests.bench.apps.ours import setup

BATCH = int(os.environ.get("BENCH_BATCH", "500"))  # 500: as many as a worker of the product claims at most
CONNECTIONS = 2  # one claims while the other completes
WRITERS = 4
STREAM, GROUP = "{aaiq}:wake:default", "aaiq"
ENTRIES_KEPT = 10_000
TASKS_AN_ENTRY = 100
ENTRIES_A_QUEUE = 32
FREE: list[Any] = [None, None]  # correlation ids, metadata
# Name, queue, priority, attempts, retry, timeout, flags, keep, hooks.
SPEC: list[Any] = [None, "default", 0, None, None, None, 0, None, None]


async def work() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_claim_and_complete())


async def _claim_and_complete() -> None:
    connection = await _connection()
    server = redis.asyncio.Redis.from_url(os.environ["BENCH_REDIS_URL"])
    worker_id = secrets.randbits(62)
    await register(
        connection, Identity(worker_id, os.getpid(), BATCH, "bare", "bare", ("default",)), lease_seconds=3600.0
    )
    await _make_group(server)
    mark = HEAD
    while True:
        place = ([part] for part in mark)
        rows = await connection.fetch(CLAIM_NEXT_IN_LINE, ["default"], *place, BATCH, worker_id, 3600.0, 35.0)
        if not rows:
            await server.xreadgroup(GROUP, str(worker_id), {STREAM: ">"}, count=8, block=1000, noack=True)
            mark = HEAD
            continue
        await _execute(rows)
        mark = min((row["rank"], row["order_key"], row["task_id"]) for row in rows) if len(rows) == BATCH else HEAD
        ids, epochs = [row["task_id"] for row in rows], [row["run_epoch"] for row in rows]
        ages = [0.0] * len(rows)
        await connection.fetch(COMPLETE_SUCCEEDED, ids, epochs, [None] * len(rows), ages, ages, worker_id)


async def _execute(rows: Sequence[Any]) -> None:
    match rows[0]["entrypoint"]:
        case "bench.clocked":
            for row in rows:
                tally.clocked(json.loads(row["kwargs"])["value"])
            return
        case "bench.slept":
            await asyncio.gather(*(asyncio.sleep(tally.SLEEP_SECONDS) for _ in rows))
        case "bench.burnt":
            for _ in rows:
                tally.burn()
    tally.ran(len(rows))


class Producer:
    """One statement a call; wake-ups go, and outbox rows are deleted, while the next statement is on its way."""

    def __init__(self, pool: asyncpg.Pool, server: Any, ids: IdSource) -> None:
        self._pool = pool
        self._server = server
        self._ids = ids
        self._telling: set[asyncio.Task[None]] = set()

    async def one(self, name: str, value: int) -> None:
        await self.many(name, [value])

    async def many(self, name: str, values: Sequence[int]) -> None:
        ids, kwargs = self._ids.take(len(values)), [f'{{"value":{value}}}' for value in values]
        [row] = await self._pool.fetch(ENQUEUE_PLAIN, ids, kwargs, *FREE, f"bench.{name}", *SPEC)
        telling = asyncio.create_task(self._tell(row))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def told(self) -> None:
        await asyncio.gather(*self._telling)

    async def _tell(self, row: Any) -> None:
        n, ids = row["n"], row["task_ids"]
        count = min(-(-n // TASKS_AN_ENTRY), ENTRIES_A_QUEUE)
        async with self._server.pipeline(transaction=False) as pipeline:
            for i in range(count):
                place = {"rank": row["rank"], "order_key": row["order_key"], "n": n // count + (i < n % count)}
                some = ",".join(map(str, ids[i::count]))
                fields = place | ({"task_ids": some} if some else {})
                pipeline.xadd(STREAM, fields, maxlen=ENTRIES_KEPT, approximate=True)
            await pipeline.execute()
        await self._pool.execute(FORGET_OUTBOX_ROWS, [row["outbox_id"]])


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    server = redis.asyncio.Redis.from_url(os.environ["BENCH_REDIS_URL"])
    await _make_group(server)
    given: dict[str, Any] = {"min_size": WRITERS, "max_size": WRITERS, "server_settings": SESSION | FLOW_PLANS}
    async with asyncpg.create_pool(_dsn(), **given) as pool:
        row = await pool.fetchrow(NODE)
        assert row is not None
        made = Producer(pool, server, IdSource(row["node"], row["clock"] - asyncio.get_running_loop().time()))
        yield made
        await made.told()
    await server.aclose()


async def _make_group(server: Any) -> None:
    try:
        await server.xgroup_create(STREAM, GROUP, id="$", mkstream=True)
    except redis.ResponseError:
        return  # it is there


async def _connection() -> Any:
    return await asyncpg.connect(_dsn(), server_settings=SESSION | FLOW_PLANS)


def _dsn() -> str:
    url = Settings.load().postgres_url
    assert url is not None
    return plain_dsn(url)


if __name__ == "__main__":
    driver.main(producer, setup=setup, work=work)
