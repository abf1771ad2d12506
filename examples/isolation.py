"""Tasks in child processes: a crash costs one run, a timeout ends a busy loop for real, and the worker goes on.

Run it: python examples/isolation.py
"""

from __future__ import annotations

import asyncio
import os

from aaiclick_queue import Plan, Settings, TaskFailed, Worker, current, task


@task(isolation="process")
def render(page: int) -> tuple[int, int]:
    """Work for a processor: it has a child process to itself, and no other task waits for it."""
    current().sync.progress(page / 10)
    return page * page, os.getpid()


@task(isolation="process")
async def fetch() -> int:
    """`async def` as well, on the child's own event loop."""
    await asyncio.sleep(0.01)
    return os.getpid()


@task(isolation="process", timeout=0.5, max_attempts=1)
def hang() -> None:
    while True:  # nothing in here looks at a clock; in a thread nobody could end it
        pass


@task(isolation="process")
def crash() -> str:
    if current().run_epoch == 1:
        os._exit(9)  # as a fault in a C library would, or the kernel when memory runs out
    return f"run {current().run_epoch}, attempt {current().attempt}"


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(children=2, max_tasks_per_child=100))
        group.create_task(worker.run())

        square, child = await (await render.enqueue(7)).result(timeout=30)
        print(f"7 × 7 = {square}, by process {child}; the worker is {os.getpid()}")
        assert square == 49
        assert child != os.getpid()
        assert await (await fetch.enqueue()).result(timeout=30) != os.getpid()

        crashing = await crash.enqueue()
        try:
            await (await hang.enqueue()).result(timeout=30)
            raise AssertionError("a busy loop has ended by itself")
        except TaskFailed as failed:
            print(f"hang: {failed.error_type}, and its process is gone")

        # A lost run spends no attempt; it comes back after a second or less.
        again = await crashing.result(timeout=30)
        print(f"crash: done in {again}")
        assert again == "run 2, attempt 1"
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
