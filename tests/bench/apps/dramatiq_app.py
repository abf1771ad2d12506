# mypy: ignore-errors
"""Dramatiq on its Redis broker under measurement, in a venv of its own."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.bench.apps import driver, tally

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS_URL"]))


@dramatiq.actor
def noop(n: int) -> None:
    tally.ran()


@dramatiq.actor
def clocked(sent_ns: int) -> None:
    tally.clocked(sent_ns)


class Producer:
    async def noop(self, n: int) -> None:
        noop.send(n)

    async def clocked(self, sent_ns: int) -> None:
        clocked.send(sent_ns)

    async def many(self, count: int) -> None:
        dramatiq.group(noop.message(n) for n in range(count)).run()


@asynccontextmanager
async def producer():  # noqa: ANN201
    yield Producer()


if __name__ == "__main__":
    driver.main(producer)
