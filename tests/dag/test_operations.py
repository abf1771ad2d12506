"""Changes of many tasks by filter meet what waits at gates as they meet the rest of what is PENDING."""

from __future__ import annotations

from typing import Any

from aaiclick_queue import Client
from aaiclick_queue.flow.move import move_tasks
from aaiclick_queue.operations import cancel_where, count_tasks, move, purge, set_priority
from aaiclick_queue.postgres import Database
from tests.dag.hands import Hands, assert_counted, job_row, settle, statuses
from tests.planned import Job
from tests.tools import row


async def a_chain(db: Database, **given: Any) -> tuple[Job, list[int]]:
    """Three tasks, one behind the other; the last ones in the queue given."""
    job = Job()
    first = job.task()
    second = job.task(first, **given)
    third = job.task(second, **given)
    await job.submit(db)
    return job, job.of([first, second, third])


async def test_what_waits_at_a_gate_is_counted_and_cancelled_as_pending(db: Database, client: Client) -> None:
    job, [first, second, third] = await a_chain(db)
    found = await count_tasks(client=client)
    assert found.by_status == {"PENDING": 2, "SCHEDULED": 0, "QUEUED": 1, "RUNNING": 0}
    assert await cancel_where(status="PENDING", client=client) == 2
    await settle(db)
    assert await statuses(db, job.id) == {first: "QUEUED", second: "CANCELLED", third: "CANCELLED"}
    await (await Hands.register(db)).run()
    assert (await job_row(db, job.id))["status"] == "FAILED"
    await assert_counted(db, job.id)


async def test_a_purge_takes_what_waits_for_others_in_that_queue_alone(db: Database, client: Client) -> None:
    job, [first, second, third] = await a_chain(db, queue="slow")
    assert await purge("slow", client=client) == 2
    await settle(db)
    assert await statuses(db, job.id) == {first: "QUEUED", second: "CANCELLED", third: "CANCELLED"}
    await (await Hands.register(db)).run()


async def test_what_waits_at_a_gate_is_moved_where_it_stands(db: Database, client: Client) -> None:
    job, [first, second, third] = await a_chain(db, queue="slow")
    assert await move(to="default", queue="slow", client=client) == 2
    assert await set_priority(7, entrypoint="nowhere", client=client) == 3
    assert await move_tasks(db, [third], {"priority": 3}) == {third}
    assert await statuses(db, job.id) == {first: "QUEUED", second: "PENDING", third: "PENDING"}
    hands = await Hands.register(db)
    assert await hands.run() == [first, second, third]
    found = await row(db, "tasks", third)
    assert (found["queue"], found["priority"]) == ("default", 3)
    told = await db.fetch("SELECT task_id FROM aaiclick_queue.events WHERE job_id = $1 AND type = 'TASK_MOVED'", job.id)
    assert len(told) == 6
    await assert_counted(db, job.id)
