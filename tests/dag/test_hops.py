"""The hop from one task of a job to the next."""

from __future__ import annotations

import pytest

from aaiclick_queue import Settings, task
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.outcome import Outcome
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, SKIPS, WELL, Hands, job_row, settle, statuses
from tests.dag.written import ended, planned, write_job
from tests.planned import Job, group_before
from tests.tools import ENTRYPOINT, running_worker


@task
async def link(number: int) -> int:
    return number


async def test_a_pass_says_whether_somebody_has_to_be_let_in(db: Database) -> None:
    job = Job()
    first = job.task()
    job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await set_limit(db, NewLimit("task", ENTRYPOINT, "running", 1), by="test")
    await hands.end(job[first])
    resolved = await Resolver(db).resolve_once()
    assert (resolved.entered, resolved.limited) == (1, True)


@pytest.mark.parametrize("outcome", [WELL, FAILS, SKIPS], ids=["well", "fail", "skip"])
async def test_a_pass_says_that_there_is_more_until_the_job_is_over(db: Database, outcome: Outcome) -> None:
    job = Job()
    outer = job.group()
    inner = job.group(parent=outer)
    first = job.task(group=inner)
    if outcome is not WELL:
        job.tasks(2, group_before(outer), job.task(first))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=outcome)
    resolver = Resolver(db)
    while (done := await resolver.resolve_once()).more:
        assert done.folded
    assert (await job_row(db, job.id))["finished_at"] is not None


async def test_a_task_tells_all_gates_behind_it_page_by_page(db: Database) -> None:
    job = Job()
    first, *others = job.tasks(6)
    behind = [job.task(first, other) for other in others]
    skipped = [job.task(Previous(first, choices=("?false",)), other) for other in others]
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(*hands.held)
    await settle(db, page=2)
    found = await statuses(db, job.id)
    assert {found[one] for one in job.of(behind)} == {"QUEUED"}
    assert {found[one] for one in job.of(skipped)} == {"SKIPPED"}


async def test_a_gate_lets_in_all_that_wait_there_page_by_page(db: Database) -> None:
    job = Job()
    first = job.task()
    job.tasks(4, first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first])
    await settle(db, page=2)  # two whole pages: the last of them tells that there may be more
    assert len(await hands.run()) == 4


@pytest.mark.parametrize("with_redis", [True, False])
async def test_a_long_chain_runs_to_its_end(
    db: Database, settings: Settings, redis_settings: Settings, with_redis: bool
) -> None:
    tasks = [planned(n, link, kwargs={"number": n}, after=[n - 1] if n > 1 else []) for n in range(1, 101)]
    job = await write_job(db, tasks)
    async with running_worker(redis_settings if with_redis else settings):
        assert await ended(db, job.job_id) == "COMPLETED"
