"""What the start and the end of a job bring with them, and what its failures ask for."""

from __future__ import annotations

import asyncio

import pytest

from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Line, Wanted
from aaiclick_queue.flow.dedupe import Key
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.graph import Plan
from aaiclick_queue.flow.job_control import cancel_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.submit import NewJob, submit_job
from aaiclick_queue.outcome import Outcome
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, WELL, Hands, assert_counted, gate_row, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job
from tests.tools import count


async def work(db: Database) -> None:
    """All operations to their ends."""
    while await work_once(db):
        pass


@pytest.mark.parametrize(("outcome", "status"), [(WELL, "COMPLETED"), (FAILS, "FAILED")], ids=["well", "fail"])
async def test_the_key_of_a_job_is_free_with_its_end(db: Database, outcome: Outcome, status: str) -> None:
    take = (await id_source(db)).take
    async with db.transaction() as tx:
        made = await submit_job(tx, NewJob(name="a job"), Plan([planned(1)]), take, key=Key("k"))
    assert await count(db, "dedupe") == 1
    await (await Hands.register(db)).run({made.ids[1]: outcome})
    assert (await job_row(db, made.job_id))["status"] == status
    assert await count(db, "dedupe") == 0


async def test_the_key_of_a_job_is_free_with_its_cancel(db: Database) -> None:
    take = (await id_source(db)).take
    async with db.transaction() as tx:
        made = await submit_job(tx, NewJob(name="a job"), Plan([planned(1)]), take, key=Key("k"))
    await cancel_job(db, made.job_id, by="me")
    assert await count(db, "dedupe") == 0
    await work(db)


async def test_a_cancel_by_hand_takes_the_place_of_one_that_is_on_its_way(db: Database) -> None:
    job = Job(fail_fast=True)
    first, _ = job.tasks(2)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=FAILS)
    await settle(db)
    by_hand = await cancel_job(db, job.id, by="me")
    rows = await db.fetch("SELECT id FROM aaiclick_queue.operations WHERE status = 'OPEN'")
    assert [row["id"] for row in rows] == [by_hand]
    await work(db)
    await settle(db)


async def test_a_task_that_is_not_critical_and_was_cancelled_has_not_been_skipped(db: Database) -> None:
    job = Job()
    first = job.task(critical=False)
    behind = job.task(first)
    await job.submit(db)
    assert await cancel(db, [job[first]]) == {job[first]}
    await settle(db)
    assert (await statuses(db, job.id))[job[behind]] == "UPSTREAM_FAILED"
    assert (await job_row(db, job.id))["status"] == "FAILED"
    await assert_counted(db, job.id)


async def test_many_failures_of_a_job_that_fails_fast_are_one_cancel(db: Database) -> None:
    job = Job(fail_fast=True)
    job.tasks(3)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    for task_id in job.of([*job.ids][:2]):
        await hands.end(task_id, outcome=FAILS)
        await settle(db)
    assert await count(db, "operations") == 1
    await work(db)
    await settle(db)
    assert (await job_row(db, job.id))["status"] == "FAILED"
    assert await count(db, "operations") == 1


async def test_a_group_without_a_task_is_over_when_it_is_written(db: Database) -> None:
    job = Job()
    first = job.task()
    empty = job.group(first)
    await job.submit(db)
    gate = await gate_row(db, job[empty])
    assert (gate["state"], gate["remaining"]) == ("OPEN", 0)
    assert gate["decided_at"] is not None
    await (await Hands.register(db)).run()
    await assert_counted(db, job.id)


async def test_a_job_starts_once_with_the_first_of_its_tasks(db: Database) -> None:
    job = Job()
    first = job.task()
    behind = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    begun = await job_row(db, job.id)
    assert begun["status"] == "RUNNING"
    await hands.end(job[first])
    await settle(db)
    await hands.take(job[behind])
    assert (await job_row(db, job.id))["started_at"] == begun["started_at"]
    assert len(await db.fetch("SELECT FROM aaiclick_queue.events WHERE type = 'JOB_STARTED'")) == 1
    await hands.end(job[behind])
    await hands.run()


async def test_a_task_that_is_claimed_between_a_cancel_and_its_operation_starts_no_job(db: Database) -> None:
    job = Job()
    only = job.task()
    await job.submit(db)
    await cancel_job(db, job.id, by="me")
    hands = await Hands.register(db)
    await hands.take(job[only])
    assert (await job_row(db, job.id))["status"] == "CANCELLED"
    await work(db)
    await settle(db)


async def test_no_claim_waits_for_who_holds_the_job(db: Database) -> None:
    job = Job()
    first, second = job.task(queue="first"), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = $1 FOR UPDATE", job.id)
        async with asyncio.timeout(10):  # it would be for ever
            [run] = await Line({"first": 1}).claim(db, Wanted(10, hands.worker_id, 3600, 30))
    assert (run.task_id, (await job_row(db, job.id))["status"]) == (job[first], "PENDING")
    await hands.take(job[second])
    assert (await job_row(db, job.id))["status"] == "RUNNING"
    await hands.finish([run])
    await hands.end(job[second])
    await hands.run()
