# mypy: ignore-errors
"""pgqueuer under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from tests.bench.apps import driver, tally

URL = os.environ["BENCH_POSTGRES_URL"]
ROWS = 1000  # of one statement
BATCH = 100


async def work() -> None:
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @pgq.entrypoint("noop")
    async def noop(job) -> None:
        tally.ran()

    @pgq.entrypoint("clocked")
    async def clocked(job) -> None:
        tally.clocked(int(job.payload))

    @pgq.entrypoint("slept")
    async def slept(job) -> None:
        await asyncio.sleep(tally.SLEEP_SECONDS)
        tally.ran()

    @pgq.entrypoint("burnt")
    async def burnt(job) -> None:
        tally.burn()
        tally.ran()

    slots = os.environ.get("BENCH_SLOTS")
    await pgq.run(batch_size=BATCH, max_concurrent_tasks=int(slots) if slots else None)


class Producer:
    def __init__(self, queries) -> None:
        self._queries = queries

    async def one(self, name, value) -> None:
        await self._queries.enqueue(name, b"%d" % value)

    async def many(self, name, values) -> None:
        for start in range(0, len(values), ROWS):
            part = values[start : start + ROWS]
            await self._queries.enqueue([name] * len(part), [b"%d" % value for value in part], [0] * len(part))


@asynccontextmanager
async def producer():
    async with asyncpg.create_pool(URL, min_size=4, max_size=10) as pool:
        yield Producer(Queries(AsyncpgPoolDriver(pool)))


async def setup() -> None:
    connection = await asyncpg.connect(URL)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


if __name__ == "__main__":
    driver.main(producer, setup=setup, work=work)
