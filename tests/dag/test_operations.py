"""Changes of many tasks by filter meet what waits at gates as they meet the rest of what is PENDING."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from aaiclick_queue import Client
from aaiclick_queue.errors import BadTask
from aaiclick_queue.flow.filter_pages import RETRY_OF_JOB_PAGE
from aaiclick_queue.flow.job_pages import CANCEL_OF_JOB_PAGE, MOVE_OF_JOB_PAGE
from aaiclick_queue.flow.move import move_tasks
from aaiclick_queue.flow.wanted import COUNT_ENDED_OF_JOB, COUNT_OPEN_OF_JOB
from aaiclick_queue.operations import cancel_where, count_tasks, list_operations, move, purge, retry_where, set_priority
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


async def test_a_filter_by_job_means_the_tasks_of_that_job_alone(db: Database, client: Client) -> None:
    job, [first, second, third] = await a_chain(db)
    other, others = await a_chain(db)
    found = await count_tasks(job_id=job.id, client=client)
    assert (found.n, found.by_status) == (3, {"PENDING": 2, "SCHEDULED": 0, "QUEUED": 1, "RUNNING": 0})
    assert await move(to="slow", job_id=job.id, client=client) == 3
    assert await cancel_where(job_id=str(job.id), status="PENDING", client=client) == 2
    await settle(db)
    assert await statuses(db, job.id) == {first: "QUEUED", second: "CANCELLED", third: "CANCELLED"}
    assert await statuses(db, other.id) == dict(zip(others, ("QUEUED", "PENDING", "PENDING"), strict=True))
    assert await retry_where(job_id=job.id, status="CANCELLED", client=client) == 2
    assert await cancel_where(job_id=job.id, client=client) == 3
    [last, *_] = await list_operations(client=client)
    assert (last.kind, last.filter, last.done, last.total) == ("cancel", {"job_id": str(job.id)}, 3, 3)
    with pytest.raises(BadTask, match="give the digits of a job's id"):
        await cancel_where(job_id="etl", client=client)


async def test_a_release_that_knows_no_filter_by_job_refuses_the_operation(db: Database, client: Client) -> None:
    job, _ = await a_chain(db)
    await cancel_where(job_id=job.id, client=client)
    assert await db.fetchval("SELECT kind FROM aaiclick_queue.operations") == "cancel_of_job"


async def test_a_page_of_a_job_is_read_by_the_index_of_the_job(db: Database) -> None:
    where = '{"job_id": "4711"}'
    pages = [
        *((sql, (None, 1000, where, 1, "{}")) for sql in MOVE_OF_JOB_PAGE.values()),
        *((sql, (None, 1000, where, 1, "{}")) for sql in CANCEL_OF_JOB_PAGE.values()),
        (RETRY_OF_JOB_PAGE, (None, 1000, where, 1, "me", datetime.now(UTC))),
        (COUNT_OPEN_OF_JOB, (where, 10, 10, ["QUEUED"])),
        (COUNT_ENDED_OF_JOB, (where, 10, 10)),
    ]
    async with db.transaction() as tx:
        await tx.fetch("SET LOCAL enable_seqscan = off")
        for sql, given in pages:
            plan = "\n".join(row[0] for row in await tx.fetch("EXPLAIN " + sql, *given))
            assert "Index Scan using tasks_of_job" in plan or "Index Only Scan using tasks_of_job" in plan, plan
            assert "Seq Scan on tasks" not in plan
