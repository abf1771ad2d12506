"""A task of a group that is retried or cleared waits for what its group waits for, if that runs again too."""

from __future__ import annotations

import pytest

from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.outcome import Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, SKIPS, Hands, assert_counted, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job


class Scene:
    """A task that fails, a group that begins when it is done, and in it first → second, of which the second fails."""

    def __init__(self, *, nested: bool = False, chosen: bool = False) -> None:
        self.job = Job()
        self.before = self.job.task()
        previous = Previous(self.before, choices=("?true",)) if chosen else Previous(self.before)
        self.group = self.job.group(previous, rule="all_done")
        inner = self.job.group(parent=self.group) if nested else self.group
        self.first = self.job.task(group=inner)
        self.second = self.job.task(self.first, group=inner)

    async def begin(self, db: Database) -> Hands:
        await self.job.submit(db)
        hands = await Hands.register(db)
        await hands.run({self.job[self.before]: FAILS, self.job[self.second]: FAILS})
        return hands


async def retry(db: Database, job: Job, *numbers: int) -> None:
    async with db.transaction() as tx:
        await retry_in_job(tx, job.id, job.of(numbers) or None, by="me")


async def only_starts(hands: Hands, *ids: int) -> None:
    """These are all that can start now."""
    await settle(hands.db)
    await hands.take()
    assert {*hands.held} == {*ids}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("together", [True, False])
async def test_it_starts_behind_the_one_before_its_group(db: Database, nested: bool, together: bool) -> None:
    scene = Scene(nested=nested)
    job, hands = scene.job, await scene.begin(db)
    if together:
        await retry(db, job)
    else:
        await retry(db, job, scene.before)
        await retry(db, job, scene.second)
    await only_starts(hands, job[scene.before])
    assert await hands.run() == [job[scene.before], job[scene.second]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)


async def test_one_that_is_cleared_starts_behind_the_one_before_its_group_that_was_retried(db: Database) -> None:
    scene = Scene()
    job, hands = scene.job, await scene.begin(db)
    await retry(db, job, scene.before)
    await clear_task(db, job[scene.second], by="me")
    await only_starts(hands, job[scene.before])
    assert await hands.run() == [job[scene.before], job[scene.second]]
    await assert_counted(db, job.id)


async def test_it_starts_at_once_if_it_alone_is_retried(db: Database) -> None:
    scene = Scene()
    job, hands = scene.job, await scene.begin(db)
    await retry(db, job, scene.second)
    assert await hands.run({job[scene.second]: FAILS}) == [job[scene.second]]
    await retry(db, job)
    await retry(db, job)
    await only_starts(hands, job[scene.before])
    assert await hands.run() == [job[scene.before], job[scene.second]]
    await assert_counted(db, job.id)


async def test_it_is_skipped_if_its_group_is_not_chosen_this_time(db: Database) -> None:
    scene = Scene(chosen=True)
    job, hands = scene.job, await scene.begin(db)
    await retry(db, job)
    assert await hands.run({job[scene.before]: Succeeded("false")}) == [job[scene.before]]
    assert (await statuses(db, job.id))[job[scene.second]] == "SKIPPED"
    await assert_counted(db, job.id)


async def test_it_still_waits_for_those_of_its_group(db: Database) -> None:
    scene = Scene()
    job, hands = scene.job, await scene.begin(db)
    await retry(db, job)
    await hands.run({job[scene.second]: FAILS})
    await clear_task(db, job[scene.first], by="me")
    assert await hands.run({job[scene.first]: SKIPS}) == [job[scene.first]]
    assert (await statuses(db, job.id))[job[scene.second]] == "SKIPPED"
    await assert_counted(db, job.id)


async def test_one_that_waits_again_behind_a_continuation_outside_its_group_waits_for_it_too(db: Database) -> None:
    job = Job()
    before = job.task()
    group = job.group(before, rule="all_done")
    other = job.group()
    first = job.task(group=group)
    second = job.task(first, group=group)
    job.task(group=other)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[before])
    await hands.end(job[before], outcome=FAILS)
    [more] = await _continued(db, hands, job, first, other)
    await hands.run({more: FAILS})
    await retry(db, job)
    await only_starts(hands, job[before], more)
    await hands.end(more)
    await only_starts(hands, job[before])
    assert await hands.run() == [job[before], job[second]]
    await assert_counted(db, job.id)


async def _continued(db: Database, hands: Hands, job: Job, first: int, other: int) -> list[int]:
    """The first of the group is continued by a task of another group."""
    await settle(db)
    await hands.take(job[first])
    return await hands.continue_by(job[first], job.id, planned(900, group=job[other]))
