"""Which side of a job runs is decided by a result: the other side is SKIPPED, and what joins both runs.

Run it: python examples/branching.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from aaiclick_queue import Settings, Skip, Worker, branch, job, task, when


@task
async def score(order: int) -> int:
    return order * 10


@task
async def is_large(points: int) -> bool:
    return points >= 50


@task
async def by_hand(order: int) -> str:
    return f"order {order} is looked at by a person"


@task
async def by_machine(order: int) -> str:
    return f"order {order} is let through"


@task
async def note(decision: str | None, other: str | None) -> str:
    """A join: the side that was skipped gives None."""
    return decision or other or "nobody decided"


@job
def review(order: int) -> Any:
    person, machine = by_hand(order), by_machine(order)
    when(is_large(score(order)), then=person, otherwise=machine)
    return note(person, machine)


@task
async def channels(order: int) -> list[str]:
    return {1: ["mail"], 2: ["mail", "sms"]}.get(order, ["pigeon"])


@task
async def send(channel: str) -> str:
    if channel == "sms":
        raise Skip("no number is known")  # ends SKIPPED, which is no failure
    return channel


@task
async def sent(by: list[str | None]) -> list[str]:
    return [one for one in by if one is not None]


@job
def notify(order: int) -> Any:
    mail, sms, letter = send("mail"), send("sms"), send("letter")
    branch(channels(order), {"mail": mail, "sms": sms}, default=letter)
    return sent([mail, sms, letter])


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        for order, expected in ((3, "order 3 is let through"), (7, "order 7 is looked at by a person")):
            decision = await (await review.enqueue(order)).result(timeout=30)
            print(decision)
            assert decision == expected

        for order, ways in ((1, ["mail"]), (2, ["mail"]), (3, ["letter"])):
            used = await (await notify.enqueue(order)).result(timeout=30)
            print(f"order {order} was sent by {', '.join(used)}")
            assert used == ways
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
