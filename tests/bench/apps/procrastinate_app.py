# mypy: ignore-errors
"""Procrastinate under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector

from tests.bench.apps import driver, tally

ROWS = 1000  # of one statement
app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES_URL"], min_size=4, max_size=30))


@app.task(name="noop")
async def noop(value) -> None:
    tally.ran()


@app.task(name="clocked")
async def clocked(value) -> None:
    tally.clocked(value)


@app.task(name="slept")
async def slept(value) -> None:
    await asyncio.sleep(tally.SLEEP_SECONDS)
    tally.ran()


@app.task(name="burnt")
async def burnt(value) -> None:
    tally.burn()
    tally.ran()


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    async def one(self, name, value) -> None:
        await TASKS[name].defer_async(value=value)

    async def many(self, name, values) -> None:
        for start in range(0, len(values), ROWS):
            await TASKS[name].batch_defer_async(*({"value": value} for value in values[start : start + ROWS]))


@asynccontextmanager
async def producer():
    async with app.open_async():
        yield Producer()


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


if __name__ == "__main__":
    driver.main(producer, setup=setup)
