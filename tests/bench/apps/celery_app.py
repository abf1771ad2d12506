# mypy: ignore-errors
"""Celery on its Redis broker under measurement, in a venv of its own."""

from __future__ import annotations

import os
import threading
import time

from celery import Celery, chain, chord

from tests.bench.apps import driver, tally

URL = os.environ["BENCH_REDIS_URL"]
# A chord needs a result backend; nothing else here does.
app = Celery("bench", broker=URL, backend=URL if "BENCH_JOBS" in os.environ else None)
app.conf.update(
    task_ignore_result="BENCH_JOBS" not in os.environ,
    worker_prefetch_multiplier=128,
    broker_pool_limit=driver.WIDTH + 1,  # its guide: as many as threads that use it
    broker_connection_retry_on_startup=True,
)


@app.task(name="bench.noop")
def noop(value):
    tally.ran()


@app.task(name="bench.clocked")
def clocked(value):
    tally.clocked(value)


@app.task(name="bench.slept")
def slept(value):
    time.sleep(tally.SLEEP_SECONDS)
    tally.ran()


@app.task(name="bench.burnt")
def burnt(value):
    tally.burn()
    tally.ran()


@app.task(name="bench.part")
def part(before, value):
    tally.ran()
    return value


@app.task(name="bench.total")
def total(parts):
    tally.ran()
    return sum(parts)


@app.task(name="bench.hop")
def hop(before):
    tally.ran()
    return before + 1


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    """Everything through one producer a thread, which saves Celery the pool's lock a call."""

    def __init__(self) -> None:
        self._here = threading.local()

    def _own(self):
        if not hasattr(self._here, "producer"):
            self._here.producer = app.producer_pool.acquire(block=True)
        return self._here.producer

    async def one(self, name, value) -> None:
        TASKS[name].apply_async((value,), producer=self._own())

    async def many(self, name, values) -> None:
        task, producer = TASKS[name], self._own()
        for value in values:
            task.apply_async((value,), producer=producer)

    async def wide(self, count) -> None:
        chain(noop.si(0), chord([part.si(None, n) for n in range(count)], total.s())).apply_async()

    async def deep(self, count) -> None:
        chain(hop.s(0), *(hop.s() for _ in range(count - 1))).apply_async()


if __name__ == "__main__":
    driver.main(driver.opened(Producer()))
