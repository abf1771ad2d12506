"""The slot of a cancelled run comes back, also where it had ended before its worker heard of it."""

from __future__ import annotations

import asyncio

from aaiclick_queue import Client, Settings, task
from aaiclick_queue.flow.admit import Strays
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


async def test_a_slot_kept_for_a_run_that_its_worker_never_heard_of_is_given_back(db: Database) -> None:
    await db.fetch(
        "INSERT INTO aaiclick_queue.slots (task_id, limit_id, stopping, worker_id) VALUES (1, 7, 3, 42), (2, 7, 1, 42)"
    )
    strays = Strays()
    assert await strays.give_back_once(db, 42, {2}) == 0, "the answer to its claim may be on its way"
    assert await strays.give_back_once(db, 42, {1, 2}) == 0, "it was"
    assert await strays.give_back_once(db, 42, {2}) == 0
    assert await strays.give_back_once(db, 42, {2}) == 1
    assert [row["task_id"] for row in await rows(db, "slots")] == [2]
    await db.fetch("DELETE FROM aaiclick_queue.slots")
