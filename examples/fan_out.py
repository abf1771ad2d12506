"""One task, then N at once, then one that takes all of their results.

Run it: python examples/fan_out.py 100000
Without a number it is a small one. Another terminal can help: cd examples && aaiclick-queue worker -A fan_out -c 1000
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from aaiclick_queue import Plan, Settings, Worker, job, task

FEW = 500


@task
async def first(n: int) -> int:
    return n


@task
async def square(number: int, n: int) -> int:
    return number * number % n


@task
async def last(squares: list[int]) -> int:
    return len(squares)


@job
def wide(n: int) -> Any:
    # Each of the N waits for `first` and takes its result; they are written in bulk, with what waits behind them.
    return last(square.map(range(n), n=first(n)))


async def main(n: int) -> None:
    began = time.perf_counter()
    run = await wide.enqueue(n)
    written = time.perf_counter()
    print(f"1 → {n:,} → 1 written in {written - began:.2f} s")

    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(queues={"default": 1}, slots=1000))
        group.create_task(worker.run())
        count = await run.result(timeout=600)
        took = time.perf_counter() - written
        worker.stop()

    print(f"{count:,} results came together; {(n + 2) / took:,.0f} tasks a second")
    assert count == n


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else FEW))
