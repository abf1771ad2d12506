"""Jobs in the queue of a test: drained to their end, and time passes for them too."""

from __future__ import annotations

import asyncio

import pytest

from aaiclick_queue import JobFailed, JobStatus, cancel_job, current, job, pause_job, resume_job, task
from aaiclick_queue.flow.prune import Policy
from aaiclick_queue.flow.prune_by_hand import prune_all
from aaiclick_queue.postgres import Database
from aaiclick_queue.testing import Clock, QueueUnderTest
from tests.tools import count


@task
async def add(x: int, y: int = 1) -> int:
    return x + y


@task(max_attempts=2, retry_delay=600)
async def flaky(x: int) -> int:
    if current().attempt == 1:
        raise ConnectionError("not yet")
    return x


@task
async def never_ends() -> None:
    await asyncio.sleep(3600)


@job
def chain_of(length: int) -> object:
    node = add(0)
    for _ in range(length - 1):
        node = add(node)
    return node


@job
def capped(width: int) -> object:
    return add.map(list(range(width)), max_parallel=2).sum()


@job
def tried_again() -> object:
    return add(flaky(1))


async def test_a_drain_goes_on_to_the_end_of_a_job(queue: QueueUnderTest) -> None:
    runs = [await chain_of.enqueue(12), await capped.enqueue(9)]
    ended = await queue.drain(timeout=60)
    assert len(ended) >= 12 + 9
    assert [await run.result(0) for run in runs] == [12, sum(range(1, 10))]


async def test_a_retry_of_a_job_waits_for_the_clock(queue: QueueUnderTest, clock: Clock) -> None:
    run = await tried_again.enqueue()
    assert await queue.drain() == []
    assert await run.status() == JobStatus.RUNNING
    await clock.advance(hours=1)
    assert len(await queue.drain()) == 2
    assert await run.result(0) == 2


async def test_a_deadline_passes_with_the_clock(queue: QueueUnderTest, clock: Clock) -> None:
    run = await tried_again.options(timeout=300).enqueue()
    await queue.drain()
    await clock.advance(minutes=6)  # its next attempt comes after ten
    await queue.drain()
    with pytest.raises(JobFailed, match="deadline"):
        await run.result(0)


async def test_a_cancelled_job_is_drained_to_its_end(queue: QueueUnderTest) -> None:
    run = await chain_of.enqueue(5)
    await cancel_job(run.id)
    await queue.drain()
    assert {one.status for one in await queue.tasks()} == {"CANCELLED"}


async def test_a_paused_job_is_left_alone(queue: QueueUnderTest) -> None:
    run = await chain_of.enqueue(3)
    await pause_job(run.id)
    assert await queue.drain() == []
    await resume_job(run.id)
    assert len(await queue.drain()) == 3


async def test_a_job_is_forgotten_when_its_time_has_passed(queue: QueueUnderTest, clock: Clock) -> None:
    await chain_of.enqueue(3)
    await queue.drain()
    async with Database(queue.settings, size=1) as db:
        policy = Policy.of(queue.settings)
        await clock.advance(days=6)
        assert (await prune_all(db, policy)).jobs == 0
        await clock.advance(days=2)
        assert (await prune_all(db, policy)).jobs == 1
        assert (await count(db, "tasks"), await count(db, "gates"), await count(db, "jobs")) == (0, 0, 0)
