# mypy: ignore-errors
"""Procrastinate under measurement, in a venv of its own."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector

from tests.bench.apps import driver, tally

ROWS = 1000  # of one statement
app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES_URL"], min_size=4, max_size=30))


@app.task(name="noop")
async def noop(n: int) -> None:
    tally.ran()


@app.task(name="clocked")
async def clocked(sent_ns: int) -> None:
    tally.clocked(sent_ns)


class Producer:
    async def noop(self, n: int) -> None:
        await noop.defer_async(n=n)

    async def clocked(self, sent_ns: int) -> None:
        await clocked.defer_async(sent_ns=sent_ns)

    async def many(self, count: int) -> None:
        for start in range(0, count, ROWS):
            await noop.batch_defer_async(*({"n": n} for n in range(start, min(start + ROWS, count))))


@asynccontextmanager
async def producer():  # noqa: ANN201
    async with app.open_async():
        yield Producer()


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


if __name__ == "__main__":
    driver.main(producer, setup=setup)
