# mypy: ignore-errors
"""Dramatiq on its Redis broker under measurement, in a venv of its own."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from tests.bench.apps import driver, tally

URL = os.environ["BENCH_REDIS_URL"] + "?max_connections=2000"  # redis-py's 100 are too few for 500 greenlets
broker = RedisBroker(url=URL)
if "BENCH_JOBS" in os.environ:  # a group's callback counts its ends in Redis
    broker.add_middleware(GroupCallbacks(RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(value):
    tally.ran()


@dramatiq.actor
def clocked(value):
    tally.clocked(value)


@dramatiq.actor
def slept(value):
    time.sleep(tally.SLEEP_SECONDS)
    tally.ran()


@dramatiq.actor
def burnt(value):
    tally.burn()
    tally.ran()


@dramatiq.actor
def fan(count):
    tally.ran()
    group = dramatiq.group(noop.message(n) for n in range(count))
    group.add_completion_callback(noop.message(-1))
    group.run()


@dramatiq.actor
def hop(before):
    tally.ran()
    return before + 1


TASKS = {"noop": noop, "clocked": clocked, "slept": slept, "burnt": burnt}


class Producer:
    async def one(self, name, value) -> None:
        TASKS[name].send(value)

    async def many(self, name, values) -> None:
        # What its group().run() does, less the group: one message after another.
        task = TASKS[name]
        for value in values:
            task.send(value)

    async def wide(self, count) -> None:
        fan.send(count)

    async def deep(self, count) -> None:
        dramatiq.pipeline([hop.message(0), *(hop.message() for _ in range(count - 1))]).run()


if __name__ == "__main__":
    driver.main(driver.opened(Producer()))
