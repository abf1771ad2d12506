"""Plans under rough use: groups in a circle, a key that is another's when the answer to a submit is lost."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue import Client, Group, JobFailed, Settings, job, task
from aaiclick_queue.flow.dedupe import Key
from aaiclick_queue.flow.graph import Plan
from aaiclick_queue.flow.submit import NewJob, submit_job
from aaiclick_queue.postgres import Database
from tests.tools import PATIENCE, running_worker


@task
def same(value: Any) -> Any:
    return value


@task
def in_a_circle() -> Any:
    one, two = Group("one"), Group("two")
    one.add(two, same(1))
    two.add(one)
    return one


@job
def circle() -> Any:
    return in_a_circle()


async def test_groups_in_a_circle_fail_the_task_that_adds_them(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await circle.enqueue(client=client)
        with pytest.raises(JobFailed, match="a cycle"):
            await run.result(PATIENCE)


async def test_a_job_whose_answer_was_lost_is_itself_although_its_key_is_anothers_by_now(db: Database) -> None:
    ids = iter(range(1001, 1100))

    def take(count: int) -> list[int]:
        return [next(ids) for _ in range(count)]

    async with db.transaction() as tx:
        first = await submit_job(tx, NewJob(name="keyed"), Plan([], []), take, key=Key("k"))
    await db.fetch(
        "UPDATE aaiclick_queue.jobs SET status = 'COMPLETED', finished_at = now() WHERE id = $1", first.job_id
    )
    async with db.transaction() as tx:
        second = await submit_job(tx, NewJob(name="keyed"), Plan([], []), take, key=Key("k"))
    assert second.job_id != first.job_id
    async with db.transaction() as tx:
        again = await submit_job(tx, NewJob(name="keyed"), Plan([], []), take, key=Key("k"), before=first)
    assert again.job_id == first.job_id
    assert not again.is_another
