# mypy: ignore-errors
"""streaQ under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from streaq import Worker

from tests.bench.apps import driver, tally

ROWS = 1000  # of one pipeline
worker = Worker(
    redis_url=os.environ["BENCH_REDIS_URL"],
    concurrency=int(os.environ.get("BENCH_SLOTS", "32")),
    anyio_kwargs={"use_uvloop": True},
)
KEPT = {"ttl": None if "BENCH_JOBS" in os.environ else 0, "silent": True}


@worker.task(name="noop", **KEPT)
async def noop(value) -> None:
    tally.ran()


@worker.task(name="clocked", **KEPT)
async def clocked(value) -> None:
    tally.clocked(value)


@worker.task(name="slept", **KEPT)
async def slept(value) -> None:
    await asyncio.sleep(tally.SLEEP_SECONDS)
    tally.ran()


@worker.task(name="burnt", **KEPT)
async def burnt(value) -> None:
    tally.burn()
    tally.ran()


@worker.task(name="hop", **KEPT)
async def hop(before):
    tally.ran()
    return before + 1


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    async def one(self, name, value) -> None:
        await TASKS[name].enqueue(value)

    async def many(self, name, values) -> None:
        task = TASKS[name]
        for start in range(0, len(values), ROWS):
            await worker.enqueue_many([task.enqueue(value) for value in values[start : start + ROWS]])

    async def wide(self, count) -> None:
        # What has dependencies cannot be enqueued in bulk; first first, so that no part comes before it.
        first = await noop.enqueue(0)
        parts = [await noop.enqueue(n).start(after=first.id) for n in range(count)]
        await noop.enqueue(-1).start(after=[part.id for part in parts])

    async def deep(self, count) -> None:
        chain = hop.enqueue(0)
        for _ in range(count - 1):
            chain = chain.then(hop)
        await chain


@asynccontextmanager
async def producer():
    async with worker:
        yield Producer()


if __name__ == "__main__":
    driver.main(producer)
