# mypy: ignore-errors
"""Celery on its Redis broker under measurement, in a venv of its own."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import Any

from celery import Celery

from tests.bench.apps import driver, tally

app = Celery("bench", broker=os.environ["BENCH_REDIS_URL"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=128, broker_connection_retry_on_startup=True)


@app.task(name="bench.noop")
def noop(n: int) -> None:
    tally.ran()


@app.task(name="bench.clocked")
def clocked(sent_ns: int) -> None:
    tally.clocked(sent_ns)


class Producer:
    """Everything through one producer, which saves Celery the pool's lock a call."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    async def noop(self, n: int) -> None:
        noop.apply_async((n,), producer=self._producer)

    async def clocked(self, sent_ns: int) -> None:
        clocked.apply_async((sent_ns,), producer=self._producer)

    async def many(self, count: int) -> None:
        for n in range(count):
            noop.apply_async((n,), producer=self._producer)


@asynccontextmanager
async def producer():  # noqa: ANN201
    with app.producer_pool.acquire(block=True) as given:
        yield Producer(given)


if __name__ == "__main__":
    driver.main(producer)
