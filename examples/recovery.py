"""A task of a job fails, its cause is mended, and only what is missing runs: what had succeeded is kept.

Run it: python examples/recovery.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from aaiclick_queue import JobFailed, JobHandle, Settings, Worker, current, job, rerun, retry_failed_tasks, task

ran: Counter[str] = Counter()
provider = {"is up": False}


@task
async def orders() -> list[int]:
    ran["orders"] += 1
    return [10, 20, 30]


@task(max_attempts=1)
async def charge(amounts: list[int]) -> int:
    ran["charge"] += 1
    charged = await current().load_checkpoint() or 0
    for amount in amounts[charged:]:
        if amount == 30 and not provider["is up"]:
            raise ConnectionError("the provider does not answer")
        charged += 1
        await current().checkpoint(charged)  # a retry goes on from here
        ran[f"charge of {amount}"] += 1
    return sum(amounts)


@task
async def receipt(total: int, currency: str) -> str:
    ran["receipt"] += 1
    return f"{total} {currency}"


@job
def billing(currency: str) -> Any:
    return receipt(charge(orders()), currency)


async def show(run: JobHandle[Any]) -> None:
    print(f"job {run.id} is {await run.status()}; so far {dict(ran)}")


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        run = await billing.enqueue("EUR")
        try:
            await run.result(timeout=30)
        except JobFailed as failed:
            print(failed)
        await show(run)
        assert ran["receipt"] == 0  # it was UPSTREAM_FAILED at once

        provider["is up"] = True
        retried = await retry_failed_tasks(run)
        print(f"{len(retried)} task is tried again, the one behind it waits again")
        assert await run.result(timeout=30) == "60 EUR"
        await show(run)
        assert ran["orders"] == ran["charge of 10"] == ran["charge of 20"] == 1

        # Or a task and all that is behind it, whatever became of them: here nothing had failed.
        cleared = await rerun(run, from_="receipt")
        print(f"{len(cleared)} task runs again")
        assert await run.result(timeout=30) == "60 EUR"
        await show(run)
        assert (ran["charge"], ran["receipt"]) == (2, 2)
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
