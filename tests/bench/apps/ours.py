"""This product under measurement: its tasks and its producer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aaiclick_queue import Client, Settings, connect, job, migrate, task
from tests.bench.apps import driver, tally

ROWS = 5000  # of one transaction


@task(entrypoint="bench.noop")
async def noop(value: int) -> None:
    tally.ran()


@task(entrypoint="bench.clocked")
async def clocked(value: int) -> None:
    tally.clocked(value)


@task(entrypoint="bench.slept")
async def slept(value: int) -> None:
    await asyncio.sleep(tally.SLEEP_SECONDS)
    tally.ran()


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
        named = {"noop": noop, "clocked": clocked, "slept": slept} | _of_other_workers()
        self._tasks: dict[str, Any] = {name: given.options(client=client) for name, given in named.items()}
        self._hop = hop.options(client=client)

    async def one(self, name: str, value: int) -> None:
        await self._tasks[name].enqueue(value)

    async def many(self, name: str, values: Sequence[int]) -> None:
        for start in range(0, len(values), ROWS):
            await self._tasks[name].enqueue_many({"value": value} for value in values[start : start + ROWS])

    async def result(self, value: int) -> None:
        handle = await self._hop.enqueue(value)
        assert await handle.result(timeout=tally.step_seconds()) == value + 1

    async def wide(self, count: int) -> None:
        await wide.enqueue(count, client=self._client)

    async def deep(self, count: int) -> None:
        await deep.enqueue(count, client=self._client)


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    async with connect() as client:
        yield Producer(client)


def _of_other_workers() -> dict[str, Any]:
    # A worker that knows them keeps warm children, or slots for threads, and the others should not.
    from tests.bench.apps.ours_cpu import burnt
    from tests.bench.apps.ours_plain import plain

    return {"burnt": burnt, "plain": plain}


async def setup() -> None:
    await migrate.upgrade(Settings.load())


if __name__ == "__main__":
    driver.main(producer, setup=setup)
