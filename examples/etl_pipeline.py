"""A pipeline as a job: calling a task in its body makes a node, passing a node on makes a dependency.

Run it: python examples/etl_pipeline.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aaiclick_queue import Group, JobStatus, Plan, Settings, Worker, job, task

SHOPS = {"berlin": [("Ada", 120), ("Bob", -5)], "paris": [("Cleo", 80), ("Ada", 40)]}
warehouse: dict[str, int] = {}


@dataclass
class Sale:
    customer: str
    amount: int


@task
async def extract(shop: str) -> list[Sale]:
    return [Sale(customer, amount) for customer, amount in SHOPS[shop]]


@task
async def clean(sales: list[Sale]) -> list[Sale]:
    return [sale for sale in sales if sale.amount > 0]


@task
async def check(sales: list[Sale]) -> int:
    return sum(sale.amount <= 0 for sale in sales)


@task
async def load(shops: list[list[Sale]]) -> int:
    for sale in (sale for sales in shops for sale in sales):
        warehouse[sale.customer] = warehouse.get(sale.customer, 0) + sale.amount
    return len(warehouse)


@task
async def report(customers: int, refused: list[int]) -> str:
    return f"{customers} customers, {sum(refused)} refused"


@job(queue="etl", max_parallel=4)
def sales_report(shops: list[str]) -> Any:
    extracted = [extract(shop) for shop in shops]
    with Group("checks") as checks:
        refused = [check(sales) for sales in extracted]
    loaded = load([clean(sales) for sales in extracted])
    checks >> loaded  # nothing is loaded before every shop was looked at
    return report(loaded, refused)


async def main() -> None:
    # The body runs here; job, groups, tasks and dependencies are written in one transaction.
    run = await sales_report.enqueue(["berlin", "paris"])
    assert await run.status() is JobStatus.PENDING
    print(f"job {run.id} waits for a worker")

    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load(), Plan(queues={"etl": 1}))
        group.create_task(worker.run())
        text = await run.result(timeout=30)
        worker.stop()

    print(text)
    print("in the warehouse:", warehouse)
    assert text == "2 customers, 1 refused"
    assert warehouse == {"Ada": 160, "Cleo": 80}


if __name__ == "__main__":
    asyncio.run(main())
