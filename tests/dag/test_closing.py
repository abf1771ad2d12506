"""What the end of a job brings with it, and what its failures ask for."""

from __future__ import annotations

import pytest

from aaiclick_queue.flow.dedupe import Key
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.graph import Plan
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.submit import NewJob, submit_job
from aaiclick_queue.outcome import Outcome
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, WELL, Hands, assert_counted, gate_row, job_row, settle
from tests.dag.written import planned
from tests.planned import Job
from tests.tools import count


@pytest.mark.parametrize(("outcome", "status"), [(WELL, "COMPLETED"), (FAILS, "FAILED")], ids=["well", "fail"])
async def test_the_key_of_a_job_is_free_with_its_end(db: Database, outcome: Outcome, status: str) -> None:
    take = (await id_source(db)).take
    async with db.transaction() as tx:
        made = await submit_job(tx, NewJob(name="a job"), Plan([planned(1)]), take, key=Key("k"))
    assert await count(db, "dedupe") == 1
    await (await Hands.register(db)).run({made.ids[1]: outcome})
    assert (await job_row(db, made.job_id))["status"] == status
    assert await count(db, "dedupe") == 0


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
    while await work_once(db):
        pass
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
