# mypy: ignore-errors
"""pgqueuer under measurement, in a venv of its own."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from tests.bench.apps import driver, tally

URL = os.environ["BENCH_POSTGRES_URL"]
ROWS = 1000  # of one statement


async def work() -> None:
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @pgq.entrypoint("noop")
    async def noop(job: Job) -> None:
        tally.ran()

    @pgq.entrypoint("clocked")
    async def clocked(job: Job) -> None:
        tally.clocked(int(job.payload))

    await pgq.run(batch_size=100)


class Producer:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def noop(self, n: int) -> None:
        await self._queries.enqueue("noop", b"%d" % n)

    async def clocked(self, sent_ns: int) -> None:
        await self._queries.enqueue("clocked", b"%d" % sent_ns)

    async def many(self, count: int) -> None:
        for start in range(0, count, ROWS):
            part = range(start, min(start + ROWS, count))
            await self._queries.enqueue(["noop"] * len(part), [b"%d" % n for n in part], [0] * len(part))


@asynccontextmanager
async def producer():  # noqa: ANN201
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
