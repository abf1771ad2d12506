"""A paused job starts nothing and goes on with what runs; resumed, it goes on where it was."""

from __future__ import annotations

import pytest

from aaiclick_queue import Client, recovery
from aaiclick_queue.errors import JobEnded, UnknownJob
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Later
from aaiclick_queue.postgres import Database
from tests.dag.hands import ERROR, Hands, assert_counted, job_row, settle, statuses
from tests.planned import Job
from tests.tools import claim, count, make_due, place_of


async def test_tasks_of_a_paused_job_do_not_start_and_its_runs_go_on(db: Database, client: Client) -> None:
    job, other = Job(), Job()
    first, second = job.tasks(2)
    last = job.task(first)
    beside = other.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[second])
    third = await other.submit(db)
    assert await recovery.pause_job(job, reason="a look", client=client, by="me")
    assert not await recovery.pause_job(job, client=client)
    row = await job_row(db, job.id)
    assert (row["paused_by"], row["reason"], row["status"]) == ("me", "a look", "RUNNING")
    await hands.end(job[first])
    await settle(db)
    assert await place_of(db, job[last]) == ["held"]
    await hands.end(job[second])
    assert await hands.run() == [third[beside]]
    assert await recovery.resume_job(job, client=client)
    assert not await recovery.resume_job(job, client=client)
    assert await hands.run() == [job[last]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    assert await count(db, "limits") == 0
    told = await db.fetch("SELECT type FROM aaiclick_queue.events WHERE job_id = $1 ORDER BY created_at", job.id)
    assert [row["type"] for row in told if "PAUSED" in row["type"] or "RESUMED" in row["type"]] == [
        "JOB_PAUSED",
        "JOB_RESUMED",
    ]
    await assert_counted(db, job.id)


async def test_a_pause_of_a_job_outlasts_the_sweep(db: Database, client: Client) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    await recovery.pause_job(job.id, client=client)
    await Reaper(db).sweep_once()
    assert await count(db, "limits") == 1
    assert await recovery.resume_job(job.id, client=client)


async def test_what_is_in_line_leaves_it_at_once(db: Database, client: Client) -> None:
    job, other = Job(), Job()
    tasks = job.tasks(5)
    other.tasks(3)
    await job.submit(db)
    await other.submit(db)
    await recovery.pause_job(job.id, client=client)
    for task_id in job.of(tasks):
        assert await place_of(db, task_id) == ["held"]
    hands = await Hands.register(db)
    runs = await claim(db, hands.worker_id)
    assert {run.task_id for run in runs} == {*other.ids.values()}
    await hands.finish(runs)
    await recovery.resume_job(job.id, client=client)
    assert {*(await hands.run())} == {*job.of(tasks)}


async def test_whatever_comes_back_to_a_paused_job_is_held(db: Database, client: Client) -> None:
    job = Job()
    retried, cleared, later = job.task(), job.task(), job.task(countdown=3600)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[retried], job[cleared])
    await recovery.pause_job(job.id, client=client)
    await hands.end(job[retried], outcome=Later("RETRYING", ERROR, 3600))
    await clear_task(db, job[cleared], by="me")
    hands.held.clear()
    await make_due(db)
    await Reaper(db).due_once()
    assert {*(await statuses(db, job.id)).values()} == {"PENDING"}
    assert await hands.run() == []
    await recovery.resume_job(job.id, client=client)
    assert {*(await hands.run())} == {*job.of([retried, cleared, later])}


async def test_an_ended_or_unknown_job_is_not_paused(db: Database, client: Client) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    await (await Hands.register(db)).run()
    with pytest.raises(JobEnded, match="has ended COMPLETED already"):
        await recovery.pause_job(job.id, client=client)
    assert not await recovery.resume_job(job.id, client=client)
    with pytest.raises(UnknownJob):
        await recovery.pause_job(4711, client=client)


async def test_the_pause_of_a_job_that_was_pruned_is_swept_away(db: Database, client: Client) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await recovery.pause_job(job.id, client=client)
    await hands.end(job[first])
    await settle(db)
    await Reaper(db).sweep_once()
    assert await count(db, "limits") == 1
    await db.fetch("DELETE FROM aaiclick_queue.jobs")
    await Reaper(db).sweep_once()
    assert await count(db, "limits") == 0
