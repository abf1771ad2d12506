"""The tasks that workers/fleet.toml serves: short mails, and reports that take a thread each.

Run the fleet: aaiclick-queue fleet up workers/fleet.toml
Give it work:  python examples/fleet_tasks.py
"""

from __future__ import annotations

import asyncio
import time

from aaiclick_queue import task


@task(queue="mail")
async def send(address: str) -> str:
    await asyncio.sleep(0.05)  # the mail server's time
    return f"sent to {address}"


@task(queue="reports", timeout=60)
def summarise(day: str, seconds: float = 0.5) -> str:
    time.sleep(seconds)
    return f"report of {day}"


@task
async def greet(name: str) -> str:
    return f"hello {name}"


async def main() -> None:
    mails = await send.enqueue_many([{"address": f"user{number}@example.com"} for number in range(100)])
    reports = await summarise.enqueue_many([{"day": f"2026-11-{day:02}"} for day in range(1, 6)])
    await greet.enqueue("Ada")
    print(f"{len(mails)} mails, {len(reports)} reports and a greeting wait for the fleet")


if __name__ == "__main__":
    asyncio.run(main())
