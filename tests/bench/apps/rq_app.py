# mypy: ignore-errors
"""RQ under measurement, in a venv of its own."""

from __future__ import annotations

import os
import time

from redis import Redis
from rq import Queue
from rq.job import Dependency

from tests.bench.apps import driver, tally

ROWS = 1000  # of one pipeline
KEPT = {"result_ttl": 0}  # results are not kept


def noop(value) -> None:
    tally.ran()


def clocked(value) -> None:
    tally.clocked(value)


def slept(value) -> None:
    time.sleep(tally.SLEEP_SECONDS)
    tally.ran()


def burnt(value) -> None:
    tally.burn()
    tally.ran()


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    def __init__(self) -> None:
        self._queue = Queue(connection=Redis.from_url(os.environ["BENCH_REDIS_URL"]))

    async def one(self, name, value) -> None:
        self._queue.enqueue(f"{__spec__.name}.{name}", value, **KEPT)

    async def many(self, name, values) -> None:
        for start in range(0, len(values), ROWS):
            part = values[start : start + ROWS]
            self._queue.enqueue_many(
                [Queue.prepare_data(f"{__spec__.name}.{name}", (value,), **KEPT) for value in part]
            )

    async def wide(self, count) -> None:
        name = f"{__spec__.name}.noop"
        first = self._queue.enqueue(name, 0)
        parts = [self._queue.enqueue(name, n, depends_on=first) for n in range(count)]
        self._queue.enqueue(name, -1, depends_on=Dependency(jobs=parts))

    async def deep(self, count) -> None:
        last = None
        for n in range(count):
            last = self._queue.enqueue(f"{__spec__.name}.noop", n, depends_on=last)


if __name__ == "__main__":
    driver.main(driver.opened(Producer()))
