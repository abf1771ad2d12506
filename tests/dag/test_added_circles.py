"""What is added closes no circle with what its job has: nested groups, and tasks and groups that continue others."""

from __future__ import annotations

import pytest

from aaiclick_queue.errors import BadJob
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.graph import Plan, PlannedGroup, Previous
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.outcome import Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import Hands, add, job_row, settle
from tests.dag.written import planned
from tests.planned import Job, group_before


async def test_behind_what_waits_for_a_group_around_its_own(db: Database) -> None:
    job = Job()
    outer = job.group()
    inner = job.group(parent=outer)
    job.task(group=inner)
    behind = job.task(group_before(outer))
    await job.submit(db)
    with pytest.raises(BadJob, match="cycle"):
        await add(db, Adding(job.id), planned(901, group=job[inner], after=[job[behind]]))
    await (await Hands.register(db)).run()


async def test_behind_a_task_in_a_group_whose_outer_one_waits_for_its_own(db: Database) -> None:
    job = Job()
    first = job.group()
    job.task(group=first)
    outer = job.group(group_before(first))
    inner = job.group(parent=outer)
    other = job.task()
    # It has a condition of its own, and no line leads to it but through its groups.
    inside = job.task(other, group=inner)
    await job.submit(db)
    with pytest.raises(BadJob, match="cycle"):
        await add(db, Adding(job.id), planned(901, group=job[first], after=[job[inside]]))
    await (await Hands.register(db)).run()


async def test_into_a_group_that_continues_a_task_behind_what_waits_for_that_task(db: Database) -> None:
    job = Job()
    first = job.task()
    behind = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    plan = Plan([planned(901, group=900)], [PlannedGroup(number=900, name="more")])
    adding = Adding(job.id, by=hands.fence(job[first]), returned=(group_before(900),))
    take = (await id_source(db)).take
    async with db.transaction() as tx:
        ids = (await add_to_job(tx, adding, plan, take)).ids
        await hands.finish([hands.held.pop(job[first])], Succeeded(f'{{"$group":{ids[900]}}}'), tx)
    await settle(db)
    with pytest.raises(BadJob, match="cycle"):
        await add(db, Adding(job.id), planned(902, group=ids[900], after=[job[behind]]))
    assert await hands.run() == [ids[901], job[behind]]


async def test_going_on_behind_what_waits_for_the_task_that_this_one_continues(db: Database) -> None:
    job = Job()
    first = job.task()
    behind = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(901))
    await settle(db)
    await hands.take(more)
    with pytest.raises(BadJob, match="cycle"):
        await hands.continue_by(more, job.id, planned(902, after=[job[behind]]))
    await hands.end(more)
    assert await hands.run() == [job[behind]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"


async def test_a_task_that_only_continues_itself_by_one_behind_it(db: Database) -> None:
    """The job has no arrow and no group before."""
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    late = planned(job[first] + 1, after=[Previous(job[first])])
    with pytest.raises(BadJob, match="cycle"):
        await hands.continue_by(job[first], job.id, late)
    await hands.end(job[first])
    await hands.run()


async def test_into_a_group_that_is_waited_for_in_the_group_before_it(db: Database) -> None:
    job = Job()
    first, second = job.group(), job.group()
    job.task(group=first)
    job.task(group_before(first), group=second)
    behind = job.task(group_before(second))
    await job.submit(db)
    with pytest.raises(BadJob, match="cycle"):
        await add(db, Adding(job.id), planned(901, group=job[first], after=[job[behind]]))
    await (await Hands.register(db)).run()
