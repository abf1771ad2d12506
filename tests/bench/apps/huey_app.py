# mypy: ignore-errors
"""Huey on Redis under measurement, in a venv of its own."""

from __future__ import annotations

import os
import time

from huey import RedisHuey
from huey.api import chord

from tests.bench.apps import driver, tally

URL = os.environ["BENCH_REDIS_URL"] + "?max_connections=2000"  # redis-py's 100 are too few for 500 greenlets
# Results are needed for a chord alone.
huey = RedisHuey("bench", url=URL, results="BENCH_JOBS" in os.environ)


@huey.task()
def noop(value):
    tally.ran()


@huey.task()
def clocked(value):
    tally.clocked(value)


@huey.task()
def slept(value):
    time.sleep(tally.SLEEP_SECONDS)
    tally.ran()


@huey.task()
def burnt(value):
    tally.burn()
    tally.ran()


@huey.task()
def fan(count):
    tally.ran()
    huey.enqueue(chord([part.s(n) for n in range(count)], total.s()))


@huey.task()
def part(value):
    tally.ran()
    return value


@huey.task()
def total(parts):
    tally.ran()
    return sum(parts)


@huey.task()
def hop(before):
    tally.ran()
    return before + 1


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    async def one(self, name, value) -> None:
        TASKS[name](value)

    async def many(self, name, values) -> None:
        # It has no bulk call.
        task = TASKS[name]
        for value in values:
            task(value)

    async def wide(self, count) -> None:
        fan(count)

    async def deep(self, count) -> None:
        pipeline = hop.s(0)
        for _ in range(count - 1):
            pipeline = pipeline.then(hop)
        huey.enqueue(pipeline)


if __name__ == "__main__":
    from tests.bench.apps import huey_app  # its tasks are named for their module, which must not be __main__

    driver.main(driver.opened(huey_app.Producer()))
