"""This product under measurement: its tasks, its producer, and a worker for as long as there is no command line."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aaiclick_queue import Client, Plan, Settings, Worker, connect, job, migrate, task
from tests.bench.apps import driver, tally


@task(entrypoint="bench.noop")
async def noop(n: int) -> None:
    tally.ran()


@task(entrypoint="bench.clocked")
async def clocked(sent_ns: int) -> None:
    tally.clocked(sent_ns)


@task(entrypoint="bench.first")
async def first() -> None:
    tally.ran()


@task(entrypoint="bench.branch")
async def part(before: None, n: int) -> int:
    tally.ran()
    return n


@task(entrypoint="bench.total")
async def total(parts: list[int]) -> int:
    tally.ran()
    return sum(parts)


@task(entrypoint="bench.hop")
async def hop(before: int) -> int:
    tally.ran()
    return before + 1


@job
def wide(count: int) -> Any:
    root = first()
    return total([part(root, n) for n in range(count)])


@job
def deep(count: int) -> Any:
    last: Any = 0
    for _ in range(count):
        last = hop(last)
    return last


class Producer:
    """Enqueues through one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._noop = noop.options(client=client)
        self._clocked = clocked.options(client=client)

    async def noop(self, n: int) -> None:
        await self._noop.enqueue(n)

    async def clocked(self, sent_ns: int) -> None:
        await self._clocked.enqueue(sent_ns)

    async def wide(self, count: int) -> None:
        run = await wide.enqueue(count, client=self._client)
        assert await run.result() == count * (count - 1) // 2

    async def deep(self, count: int) -> None:
        run = await deep.enqueue(count, client=self._client)
        assert await run.result() == count

    async def many(self, count: int) -> None:
        await self._noop.enqueue_many({"n": n} for n in range(count))


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    async with connect() as client:
        yield Producer(client)


async def setup() -> None:
    await migrate.upgrade(Settings.load())


async def work() -> None:
    settings = Settings.load()
    logging.basicConfig(level=settings.log_level)
    worker = Worker(settings, Plan())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    driver.main(producer, setup=setup, work=work)
