"""This product under measurement: its tasks, its producer, and a worker for as long as there is no command line."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aaiclick_queue import Client, Plan, Settings, Worker, connect, migrate, task
from tests.bench.apps import driver, tally


@task(entrypoint="bench.noop")
async def noop(n: int) -> None:
    tally.ran()


@task(entrypoint="bench.clocked")
async def clocked(sent_ns: int) -> None:
    tally.clocked(sent_ns)


class Producer:
    """Enqueues through one client."""

    def __init__(self, client: Client) -> None:
        self._noop = noop.options(client=client)
        self._clocked = clocked.options(client=client)

    async def noop(self, n: int) -> None:
        await self._noop.enqueue(n)

    async def clocked(self, sent_ns: int) -> None:
        await self._clocked.enqueue(sent_ns)

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
