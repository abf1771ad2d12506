"""A task, an enqueue, a worker in the same process, a result.

Run it: python examples/hello.py
Without AAICLICK_QUEUE_POSTGRES_URL it starts a Postgres of its own.
"""

from __future__ import annotations

import asyncio

from aaiclick_queue import Plan, Settings, Status, Worker, task


@task
async def greet(name: str) -> str:
    return f"hello {name}"


@task(queue="sums", priority=5)
def add(a: int, b: int) -> int:
    """A plain `def` runs in a thread of the worker."""
    return a + b


async def main() -> None:
    # Enqueued before any worker is there: a task is a row in Postgres, it waits.
    waiting = await greet.enqueue("Ada")
    assert await waiting.status() is Status.QUEUED
    print(f"task {waiting.id} waits in line")

    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(queues={"default": 1, "sums": 1}, slots=10))
        group.create_task(worker.run())

        greeting = await waiting.result(timeout=30)
        print(greeting)
        assert greeting == "hello Ada"

        total = await (await add.enqueue(2, b=40)).result(timeout=30)
        print(f"2 + 40 = {total}")
        assert total == 42

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
