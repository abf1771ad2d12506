"""What ran because of an end stays right when that task is retried; the doctor excuses this and nothing else."""

from __future__ import annotations

import pytest

from aaiclick_queue import doctor
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.submit import Adding
from aaiclick_queue.outcome import Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, Hands, add, settle
from tests.dag.written import planned
from tests.planned import Job, group_before

EARLY = "nothing starts before its dependencies allow it"


async def is_early(db: Database) -> bool:
    return any(one.name == EARLY and not one.ok for one in await doctor.check(db))


async def retry(db: Database, job: Job, *ids: int) -> None:
    async with db.transaction() as tx:
        assert await retry_in_job(tx, job.id, ids, by="me") == {*ids}


async def start(db: Database, task_id: int) -> None:
    await db.fetch("UPDATE aaiclick_queue.tasks SET started_at = now() WHERE id = $1", task_id)


@pytest.mark.parametrize("how", ["a task", "in a group", "behind one that was lifted"])
async def test_what_ran_because_of_an_end_stays_right_when_that_is_retried(db: Database, how: str) -> None:
    job = Job()
    group = job.group()
    first = job.task(group=group)
    before = {"a task": first, "in a group": group, "behind one that was lifted": job.task(first)}[how]
    job.task(group_before(group) if before == group else before, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS})
    await retry(db, job, job[first])
    assert not await is_early(db)
    await hands.run()
    assert not await is_early(db)


async def test_what_ran_because_of_a_continuation_stays_right_when_that_is_retried(db: Database) -> None:
    job = Job()
    first = job.task()
    job.task(first, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(900))
    await settle(db)
    await hands.take(more)
    [last] = await hands.continue_by(more, job.id, planned(901))
    await hands.run({last: FAILS})
    await retry(db, job, last)
    assert not await is_early(db)
    await hands.run()


@pytest.mark.breaks_invariants
async def test_a_task_that_was_retried_excuses_no_other(db: Database) -> None:
    job = Job()
    first, other = job.task(), job.task()
    late = job.task(first, other, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[other])
    await hands.end(job[first], outcome=FAILS)
    await settle(db)
    await retry(db, job, job[first])
    await start(db, job[late])
    assert await is_early(db), "the other one has never ended"
    await hands.end(job[other])
    assert not await is_early(db)


@pytest.mark.breaks_invariants
async def test_what_was_reset_with_a_retried_task_has_to_wait_for_it(db: Database) -> None:
    job = Job()
    first = job.task()
    late = job.task(first, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS, job[late]: FAILS})
    await retry(db, job, job[first], job[late])
    assert not await is_early(db)
    await start(db, job[late])
    assert await is_early(db)


@pytest.mark.breaks_invariants
async def test_what_was_added_behind_a_retried_task_has_to_wait_for_it(db: Database) -> None:
    job = Job()
    first, _ = job.task(), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=FAILS)
    await retry(db, job, job[first])
    [late] = await add(db, Adding(job.id), planned(900, after=[job[first]], rule="all_done"))
    assert not await is_early(db)
    await start(db, late)
    assert await is_early(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=Succeeded("1"))
    assert not await is_early(db)
