"""Hooks: tasks that the end or a retry of another one enqueues, in the same commit; and rows that nobody keeps.

Run it: python examples/hooks.py
"""

from __future__ import annotations

import asyncio

from aaiclick_queue import EndedTask, Plan, Settings, Worker, task
from aaiclick_queue.errors import ResultExpired, TaskFailed

told: asyncio.Queue[str] = asyncio.Queue()


# A hook is an ordinary task with one argument, `ended`: it has attempts, a queue, limits, and may have hooks itself.
@task(queue="alerts")
async def alert(ended: EndedTask) -> None:
    assert ended.error is not None
    await told.put(
        f"gave up on {ended.entrypoint}({ended.kwargs}) after attempt {ended.attempt}: {ended.error.message}"
    )


@task
async def thank(ended: EndedTask) -> None:
    await told.put(f"thanks for {ended.result}")


@task(max_attempts=2, retry_delay=0.05, on_success=thank, on_give_up=alert)
async def charge(amount: int) -> str:
    if amount > 100:
        raise ConnectionError("the bank does not answer")
    return f"{amount} euros"


# Of a task like this only failures are worth a row.
@task(keep="failed", on_success=thank)
async def ping() -> str:
    return "the ping"


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(queues={"default": 1, "alerts": 1}))
        group.create_task(worker.run())

        assert await (await charge.enqueue(7)).result(timeout=30) == "7 euros"
        said = await asyncio.wait_for(told.get(), 30)
        print(said)
        assert said == "thanks for 7 euros"

        try:
            await (await charge.enqueue(700)).result(timeout=30)
        except TaskFailed as failed:
            print(f"{failed.error_type} after {failed.attempts} attempts")
        said = await asyncio.wait_for(told.get(), 30)
        print(said)
        assert said.endswith("after attempt 2: the bank does not answer")

        pinged = await ping.enqueue()
        assert await asyncio.wait_for(told.get(), 30) == "thanks for the ping"
        try:
            await pinged.result(timeout=30)
        except ResultExpired:
            print("the ping has left no row, and was thanked for")

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
