"""Limits: so many at once, so many a second, fair turns for each tenant, strict order for each customer.

Run it: python examples/limits.py
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from aaiclick_queue import (
    Plan,
    QueueFull,
    Settings,
    Worker,
    current,
    handle,
    limit_queue,
    limit_task,
    list_limits,
    pause_task,
    resume_task,
    task,
)

running: Counter[str] = Counter()
most: Counter[str] = Counter()
starts: list[float] = []
order: list[int] = []


# The key is filled in from the arguments: each tenant has one of its own.
@task(queue="reports", concurrency_key="tenant-{tenant}")
async def report(tenant: str, page: int) -> int:
    for name in ("all", tenant):
        running[name] += 1
        most[name] = max(most[name], running[name])
    await asyncio.sleep(0.01)
    running.subtract(["all", tenant])
    return page


@task(queue="mail")
async def send(to: str) -> str:
    starts.append(time.monotonic())
    return to


# One at a time and in the order of the enqueue, for each customer. A retry keeps those behind it waiting.
@task(order_by="customer-{customer}", retry_delay=0.05)
async def change_address(customer: int, number: int) -> None:
    if number == 2 and current().attempt == 1:
        raise ConnectionError(f"customer {customer} cannot be changed now")
    order.append(number)


async def main() -> None:
    # Limits are rows: they hold for the whole fleet, and are changed while it works.
    await limit_queue("reports", max_running=5, per_key=2, fair=True)
    await limit_task(send.entrypoint, rate="5/s")

    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(queues={"default": 1, "reports": 1, "mail": 1}, slots=50))
        group.create_task(worker.run())

        calls = [{"tenant": tenant, "page": page} for page in range(20) for tenant in ("ada", "bob", "cleo")]
        reports = [handle(task_id) for task_id in await report.enqueue_many(calls)]
        mails = [await send.enqueue(f"{n}@example.com") for n in range(8)]
        changes = [await change_address.enqueue(7, number) for number in range(5)]

        for one in (*reports, *mails, *changes):
            await one.result(timeout=30)

        print(f"{len(reports)} reports, at most {most['all']} at once and {most['ada']} of a tenant")
        assert most["all"] <= 5
        assert max(most[tenant] for tenant in ("ada", "bob", "cleo")) <= 2
        print(f"8 mails in {starts[-1] - starts[0]:.1f} s: the sixth waits until the first one's second is over")
        print(f"the customer's changes in the order of their enqueue: {order}")
        assert order == [0, 1, 2, 3, 4]

        await pause_task(send.entrypoint, reason="the provider is down")
        waiting = await send.enqueue("ada@example.com")
        for limit in await list_limits():
            print(f"{limit.scope} {limit.name}: {limit.kind} {limit.n}, {limit.used} taken {limit.reason or ''}")
        assert not (await waiting.status()).is_final
        await resume_task(send.entrypoint)
        await waiting.result(timeout=30)

        await limit_queue("nobody-serves-it", max_depth=1)
        await send.options(queue="nobody-serves-it").enqueue("ada@example.com")
        try:
            await send.options(queue="nobody-serves-it").enqueue("bob@example.com")
        except QueueFull as full:
            print(full)

        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
