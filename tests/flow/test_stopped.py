"""The slot of a cancelled run comes back, also where it had ended before its worker heard of it."""

from __future__ import annotations

import asyncio

from aaiclick_queue import Client, Settings, task
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import make
from tests.tools import changed, count, rows, running_worker, until

go: list[asyncio.Event] = []


@task(queue="narrow")
async def patient() -> None:
    await go[0].wait()


async def test_the_next_one_starts_after_a_cancelled_run_that_ended_by_itself(
    client: Client, db: Database, settings: Settings
) -> None:
    go[:] = [asyncio.Event()]
    await make(db, name="narrow", n=1)
    slow = changed(settings, heartbeat_seconds=5, lease_seconds=30)
    async with running_worker(slow, queues={"narrow": 1}):
        first = await patient.enqueue(client=client)
        second = await patient.enqueue(client=client)
        await until(lambda: count(db, "leases"))
        await cancel(db, [first.id])
        go[0].set()
        await second.result(timeout=15)
    assert await rows(db, "slots") == []
