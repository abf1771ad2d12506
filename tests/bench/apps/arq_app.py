# mypy: ignore-errors
"""arq under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import ClassVar

import uvloop
from arq import create_pool
from arq.connections import RedisSettings

from tests.bench.apps import driver, tally

REDIS = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])
AT_ONCE = 100


async def noop(ctx, value) -> None:
    tally.ran()


async def clocked(ctx, value) -> None:
    tally.clocked(value)


async def slept(ctx, value) -> None:
    await asyncio.sleep(tally.SLEEP_SECONDS)
    tally.ran()


async def burnt(ctx, value) -> None:
    tally.burn()
    tally.ran()


class WorkerSettings:
    functions: ClassVar = [noop, clocked, slept, burnt]
    redis_settings = REDIS
    max_jobs = int(os.environ.get("BENCH_SLOTS", "100"))
    queue_read_limit = 1000
    poll_delay = 0.01
    keep_result = 0
    log_results = False


class Producer:
    def __init__(self, pool) -> None:
        self._pool = pool

    async def one(self, name, value) -> None:
        await self._pool.enqueue_job(name, value)

    async def many(self, name, values) -> None:
        # It has no bulk call: a hundred at a time.
        for start in range(0, len(values), AT_ONCE):
            await asyncio.gather(*(self.one(name, value) for value in values[start : start + AT_ONCE]))


@asynccontextmanager
async def producer():
    pool = await create_pool(REDIS)
    yield Producer(pool)
    await pool.aclose()


if __name__ == "__main__":
    driver.main(producer)
else:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
