# mypy: ignore-errors
"""arq under measurement, in a venv of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import uvloop
from arq import create_pool
from arq.connections import RedisSettings

from tests.bench.apps import driver, tally

REDIS = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])
AT_ONCE = 100


async def noop(ctx: dict[str, Any], n: int) -> None:
    tally.ran()


async def clocked(ctx: dict[str, Any], sent_ns: int) -> None:
    tally.clocked(sent_ns)


class WorkerSettings:
    functions: ClassVar = [noop, clocked]
    redis_settings = REDIS
    max_jobs = 100
    queue_read_limit = 1000
    poll_delay = 0.01
    keep_result = 0
    log_results = False


class Producer:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def noop(self, n: int) -> None:
        await self._pool.enqueue_job("noop", n)

    async def clocked(self, sent_ns: int) -> None:
        await self._pool.enqueue_job("clocked", sent_ns)

    async def many(self, count: int) -> None:
        # It has no bulk call: as many as a pool may have under way.
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(*(self.noop(n) for n in range(start, min(start + AT_ONCE, count))))


@asynccontextmanager
async def producer():  # noqa: ANN201
    pool = await create_pool(REDIS)
    yield Producer(pool)
    await pool.aclose()


if __name__ == "__main__":
    driver.main(producer)
else:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
