# mypy: ignore-errors
"""taskiq on its Redis streams broker under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

from taskiq_redis import RedisStreamBroker

from tests.bench.apps import driver, tally

AT_ONCE = 100
broker = RedisStreamBroker(os.environ["BENCH_REDIS_URL"], max_connection_pool_size=AT_ONCE * 2)


@broker.task(task_name="noop")
async def noop(value) -> None:
    tally.ran()


@broker.task(task_name="clocked")
async def clocked(value) -> None:
    tally.clocked(value)


@broker.task(task_name="slept")
async def slept(value) -> None:
    await asyncio.sleep(tally.SLEEP_SECONDS)
    tally.ran()


@broker.task(task_name="burnt")
def burnt(value) -> None:
    tally.burn()
    tally.ran()


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    async def one(self, name, value) -> None:
        await TASKS[name].kiq(value)

    async def many(self, name, values) -> None:
        # It has no bulk call: a hundred at a time.
        for start in range(0, len(values), AT_ONCE):
            await asyncio.gather(*(self.one(name, value) for value in values[start : start + AT_ONCE]))


@asynccontextmanager
async def producer():
    await broker.startup()  # makes the consumer group, so that what is sent now is read later
    yield Producer()
    await broker.shutdown()


if __name__ == "__main__":
    driver.main(producer)
