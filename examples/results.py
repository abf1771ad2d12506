"""Waiting for one task and for many: in order, as they end, with errors in their places.

Run it: python examples/results.py
"""

from __future__ import annotations

import asyncio

from aaiclick_queue import Settings, Status, TaskFailed, Worker, as_completed, gather, task


@task(max_attempts=1)
async def bake(what: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    if what == "charcoal":
        raise ValueError("forgot the timer")
    return f"a fresh {what}"


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        orders = [await bake.enqueue("loaf", 0.6), await bake.enqueue("bun", 0.1), await bake.enqueue("cake", 0.3)]
        async for order in as_completed(orders, timeout=30):
            print("ready:", await order.result())

        everything = await gather(*orders, timeout=30)
        print("in the order of the orders:", everything)
        assert everything == ["a fresh loaf", "a fresh bun", "a fresh cake"]

        burnt = await bake.enqueue("charcoal", 0.0)
        assert await burnt.wait(timeout=30) is Status.FAILED  # raises nothing
        good, bad = await gather(orders[0], burnt, return_exceptions=True, timeout=30)
        assert good == "a fresh loaf"
        assert isinstance(bad, TaskFailed)
        print(f"{bad.error_type}: {bad.error_message}")

        slow = await bake.enqueue("pudding", 2)
        try:
            await slow.result(timeout=0.1)
        except TimeoutError as error:
            print(error)
        print("waited after all:", await slow.result(timeout=30))
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
