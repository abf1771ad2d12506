"""A cancelled job stops what runs and never starts what waits; one that fails at once, or late, ends by itself."""

from __future__ import annotations

import asyncio

import pytest

from aaiclick_queue import Client, Settings, current, recovery, sync, task
from aaiclick_queue.errors import JobEnded, LeaseLost, TasksBusy, UnknownJob
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.job_control import cancel_job, pause_job
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.operate import AT_A_TIME, work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.submit import Adding
from aaiclick_queue.outcome import Later
from aaiclick_queue.postgres import Database
from tests.dag.hands import ERROR, FAILS, Hands, add, assert_counted, job_row, settle, statuses
from tests.dag.written import ended, planned, write_job
from tests.planned import Job
from tests.tools import count, make_due, running_worker, until


async def work(db: Database, *, limit: int = AT_A_TIME) -> None:
    """All operations to their ends."""
    while await work_once(db, limit=limit):
        pass


async def test_whatever_its_tasks_are_at_they_end_cancelled(db: Database) -> None:
    job = Job()
    first, running, retrying = job.tasks(3)
    later, waiting = job.task(countdown=3600), job.task(first)
    behind = job.task(waiting, rule="all_done")
    done = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(job[retrying], outcome=Later("RETRYING", ERROR, 3600))
    await hands.end(job[done])
    operation = await cancel_job(db, job.id, by="me")
    assert (await job_row(db, job.id))["status"] == "CANCELLED"
    await work(db, limit=2)
    found = await statuses(db, job.id)
    assert found.pop(job[done]) == "COMPLETED"
    assert {*found.values()} == {"CANCELLED"}
    assert await db.fetchval("SELECT status FROM aaiclick_queue.operations WHERE id = $1", operation) == "DONE"
    assert await db.fetchval("SELECT done FROM aaiclick_queue.operations WHERE id = $1", operation) == 6
    runs = [hands.held[one] for one in job.of([first, running])]
    assert await hands.finish(runs) == set()
    await settle(db)
    assert (await job_row(db, job.id))["status"] == "CANCELLED"
    await assert_counted(db, job.id)
    told = await db.fetch("SELECT type FROM aaiclick_queue.events WHERE job_id = $1 AND task_id IS NULL", job.id)
    assert [row["type"] for row in told] == ["JOB_CREATED", "JOB_STARTED", "JOB_CANCELLED"]
    assert job[later]
    assert job[behind]


async def test_nothing_is_let_in_between_the_cancel_and_its_operation(db: Database) -> None:
    job = Job()
    first = job.task()
    behind = job.task(first)
    cleanup = job.task(first, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await cancel_job(db, job.id, by="me")
    await hands.end(job[first])
    await settle(db)
    assert await statuses(db, job.id) == {job[first]: "COMPLETED", job[behind]: "CANCELLED", job[cleanup]: "CANCELLED"}
    await work(db)
    await assert_counted(db, job.id)


async def test_a_running_task_adds_nothing_to_a_job_that_was_cancelled(db: Database) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await cancel_job(db, job.id, by="me")
    with pytest.raises(LeaseLost, match="was cancelled"):
        await hands.spawn(job[first], job.id, planned(900))
    with pytest.raises(JobEnded, match="has ended CANCELLED"):
        await add(db, Adding(job.id), planned(900))
    await work(db)
    assert await count(db, "tasks") == 1


async def test_an_ended_or_unknown_job_is_not_cancelled(db: Database, client: Client) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    await (await Hands.register(db)).run()
    with pytest.raises(JobEnded, match="has ended COMPLETED already") as refused:
        await recovery.cancel_job(job.id, client=client)
    assert (refused.value.job_id, refused.value.status) == (job.id, "COMPLETED")
    with pytest.raises(UnknownJob):
        await recovery.cancel_job(4711, client=client)


async def test_a_paused_job_that_is_cancelled_is_not_paused_any_more(db: Database) -> None:
    job = Job()
    job.tasks(3)
    await job.submit(db)
    await pause_job(db, job.id, by="me")
    await work(db)
    await cancel_job(db, job.id, by="me")
    await work(db)
    assert {*(await statuses(db, job.id)).values()} == {"CANCELLED"}
    assert await count(db, "limits") == 0
    assert (await job_row(db, job.id))["paused_at"] is None


async def test_a_transaction_that_adds_to_the_job_is_waited_for_and_then_said_so(db: Database, client: Client) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = $1 FOR SHARE", job.id)
        with pytest.raises(TasksBusy, match=f"holds {job.id}: commit that one first"):
            await recovery.cancel_job(job.id, client=client)
    assert await recovery.cancel_job(job.id, client=client) == 1


async def test_a_clear_stops_the_cancel_that_goes_on(db: Database) -> None:
    job = Job()
    tasks = job.tasks(5)
    await job.submit(db)
    operation = await cancel_job(db, job.id, by="me")
    for _ in range(4):
        await work_once(db, limit=2)
    await clear_task(db, job[tasks[0]], by="me")
    await work(db)
    assert await db.fetchval("SELECT status FROM aaiclick_queue.operations WHERE id = $1", operation) == "CANCELLED"
    assert (await job_row(db, job.id))["status"] == "RUNNING"
    hands = await Hands.register(db)
    assert job[tasks[0]] in await hands.run()
    await assert_counted(db, job.id)


async def test_a_retry_stops_the_cancel_that_goes_on(db: Database) -> None:
    job = Job()
    tasks = job.tasks(4)
    await job.submit(db)
    await cancel_job(db, job.id, by="me")
    while not [one for one in (await statuses(db, job.id)).values() if one == "CANCELLED"]:
        await work_once(db, limit=2)
    async with db.transaction() as tx:
        assert await retry_in_job(tx, job.id, by="me")
    await work(db)
    assert {*(await (await Hands.register(db)).run())} == {*job.of(tasks)}
    assert (await job_row(db, job.id))["status"] == "COMPLETED"


async def test_the_first_failure_of_a_job_that_fails_fast_cancels_the_rest(db: Database) -> None:
    job = Job(fail_fast=True)
    first, running = job.tasks(2)
    job.task(running, rule="all_done")
    job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(job[first], outcome=FAILS)
    await settle(db)
    with pytest.raises(LeaseLost, match="has failed"):
        await work_once(db)
        await hands.spawn(job[running], job.id, planned(900))
    with pytest.raises(JobEnded, match="has ended FAILED"):
        await add(db, Adding(job.id), planned(900))
    await work(db)
    await settle(db)
    found = await statuses(db, job.id)
    assert found[job[running]] == "CANCELLED"
    assert None not in found.values()
    row = await job_row(db, job.id)
    assert row["status"] == "FAILED"
    error = await db.fetchval("SELECT error->>'type' FROM aaiclick_queue.tasks WHERE id = $1", job[running])
    assert error == "FailFast"
    await assert_counted(db, job.id)


async def test_a_failure_is_not_forgotten_because_somebody_held_the_job(db: Database) -> None:
    job = Job(fail_fast=True)
    first, other = job.tasks(2)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(job[first], outcome=FAILS)
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = $1 FOR SHARE", job.id)
        await settle(db)
        worked = await work_once(db)
        assert worked is not None
        assert (worked.status, worked.taken) == ("OPEN", 0)
    await work(db)
    await settle(db)
    assert (await statuses(db, job.id))[job[other]] == "CANCELLED"
    assert (await job_row(db, job.id))["status"] == "FAILED"


async def test_a_job_past_its_deadline_ends_failed(db: Database) -> None:
    job = Job(timeout=3600)
    first = job.task()
    job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    reaper = Reaper(db)
    assert not (await reaper.reap_once()).operations
    next_end = (await reaper.reap_once()).next_end
    assert next_end is not None
    await db.fetch("UPDATE aaiclick_queue.jobs SET deadline_at = now()")
    assert (await reaper.reap_once()).operations
    assert await count(db, "operations") == 1
    await reaper.reap_once()
    assert await count(db, "operations") == 1
    await work(db)
    await settle(db)
    row = await job_row(db, job.id)
    assert row["status"] == "FAILED"
    assert '"TimedOut"' in row["error"]
    assert {*(await statuses(db, job.id)).values()} == {"CANCELLED"}
    await assert_counted(db, job.id)
    await clear_task(db, job[first], by="me")
    assert (await job_row(db, job.id))["deadline_at"] is None
    hands.held.clear()
    await hands.run()
    assert (await job_row(db, job.id))["status"] == "COMPLETED"


async def test_nothing_is_let_in_between_a_deadline_and_its_operation(db: Database) -> None:
    job = Job(timeout=3600)
    first = job.task()
    behind, cleanup = job.task(first), job.task(first, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await db.fetch("UPDATE aaiclick_queue.jobs SET deadline_at = now()")
    await Reaper(db).reap_once()
    await hands.end(job[first])
    await settle(db)
    assert await statuses(db, job.id) == {job[first]: "COMPLETED", job[behind]: "CANCELLED", job[cleanup]: "CANCELLED"}
    await work(db)
    await assert_counted(db, job.id)


async def test_a_job_that_was_late_and_done_meanwhile_is_failed_all_the_same(db: Database) -> None:
    job = Job(timeout=3600)
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await db.fetch("UPDATE aaiclick_queue.jobs SET deadline_at = now()")
    await Reaper(db).reap_once()
    await hands.end(job[first])
    await settle(db)
    await work(db)
    row = await job_row(db, job.id)
    assert (row["status"], '"TimedOut"' in row["error"]) == ("FAILED", True)


async def test_a_retry_that_is_due_does_not_slip_through_a_cancel(db: Database) -> None:
    job = Job()
    tasks = job.tasks(3)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await cancel_job(db, job.id, by="me")
    for _ in range(3):  # as far as those that wait for their time
        await work_once(db)
    for one in job.of(tasks):
        await hands.end(one, outcome=Later("RETRYING", ERROR, 3600))
    await work(db)
    await make_due(db)
    assert {*(await statuses(db, job.id)).values()} == {"CANCELLED"}


asleep: set[int] = set()


@task
async def sleeps() -> None:
    me = current().id
    asleep.add(me)
    try:
        await asyncio.sleep(3600)
    finally:
        asleep.discard(me)


@task
async def never() -> None:
    raise AssertionError("it was not to start")


async def test_a_worker_stops_the_runs_of_a_cancelled_job(client: Client, quick: Settings, db: Database) -> None:
    made = await write_job(db, [planned(1, sleeps), planned(2, never, after=[1], rule="all_done")])
    async with running_worker(quick):
        await until(lambda: asleep)
        assert await recovery.cancel_job(made.job_id, client=client) == 2
        await until(lambda: not asleep)
    assert await ended(db, made.job_id) == "CANCELLED"


async def test_workers_end_a_job_at_its_deadline(quick: Settings, db: Database) -> None:
    made = await write_job(db, [planned(1, sleeps)], timeout=0.2)
    async with running_worker(quick):
        assert await ended(db, made.job_id) == "FAILED"


def test_a_job_is_cancelled_without_an_event_loop(settings: Settings, as_default: None) -> None:
    with pytest.raises(UnknownJob):
        sync.cancel_job(4711)
    with pytest.raises(UnknownJob):
        sync.pause_job(4711)
    with pytest.raises(UnknownJob):
        sync.resume_job(4711)
    with pytest.raises(LookupError):
        sync.clear_task(4711)
    with pytest.raises(LookupError):
        sync.rerun(4711, from_=4712)
    with pytest.raises(LookupError):
        sync.retry_task(4711)
    with pytest.raises(LookupError):
        sync.retry_failed_tasks(4711)
