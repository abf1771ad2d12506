"""A task that is put back is the task that it was: what its end has to do, when it expires, its turn in an order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaiclick_queue.flags import FORGET, HOOKED, IN_JOB, INPUTS, LIMITED, ORDERED, STOPS
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Later, Outcome, Released
from aaiclick_queue.postgres import Database
from tests.dag.hands import ERROR, FAILS, Hands, gate_row, job_row, settle, statuses
from tests.planned import Job
from tests.tools import count, make_due

HOOKS = json.dumps({"failure": {"entrypoint": "hooks.failure"}})


async def retry(db: Database, job: Job) -> set[int]:
    async with db.transaction() as tx:
        return await retry_in_job(tx, job.id, by="me")


@pytest.mark.parametrize("given", ["nothing", "inputs", "hooks", "an order", "an order that stops"])
async def test_it_has_the_flags_that_it_was_written_with(db: Database, given: str) -> None:
    job = Job()
    first = job.task()
    known: dict[str, tuple[dict[str, Any], int]] = {
        "nothing": ({}, 0),
        "inputs": ({"kwargs": f'{{"x":{{"$node":{first}}}}}'}, INPUTS),
        "hooks": ({"hooks": HOOKS, "flags": HOOKED}, HOOKED),
        "an order": ({"order_by": "k"}, ORDERED),
        "an order that stops": ({"order_by": "k", "flags": STOPS}, ORDERED | STOPS),
    }
    options, flags = known[given]
    behind = job.task(first, **options)
    await job.submit(db)
    hands = await Hands.register(db)
    for _ in range(2):
        await hands.take(job[first])
        await hands.end(job[first])
        await settle(db)
        [run] = await hands.take(job[behind])
        assert run.flags & ~LIMITED == IN_JOB | flags
        await hands.end(job[behind])
        await settle(db)
        await clear_task(db, job[first], by="me")
    await hands.run()


async def test_an_expiry_that_has_passed_does_not_end_what_runs_again_and_a_later_one_stays(db: Database) -> None:
    job = Job()
    passed, later = job.tasks(2)
    for task, seconds in zip(job.plan.tasks, (3600, 7200), strict=True):
        task.task.expires = seconds
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[passed]: FAILS, job[later]: FAILS})
    for statement in (
        "UPDATE aaiclick_queue.tasks SET expires_at = now() WHERE id = $1",
        "UPDATE aaiclick_queue.timers SET due_at = now() WHERE task_id = $1",
    ):
        await db.fetch(statement, job[passed])
    assert await retry(db, job) == {job[passed], job[later]}
    assert not (await hands.take(job[passed]))[0].expired
    rows = await db.fetch("SELECT id FROM aaiclick_queue.tasks WHERE expires_at IS NOT NULL")
    assert [row["id"] for row in rows] == [job[later]]
    timers = await db.fetch("SELECT task_id FROM aaiclick_queue.timers WHERE task_id = $1", job[passed])
    assert not timers
    await hands.end(*hands.held)
    await hands.run()


async def test_a_failure_that_stops_its_order_lets_go_of_it_when_it_runs_again(db: Database) -> None:
    job = Job()
    first, second = job.task(order_by="k", flags=STOPS), job.task(order_by="k", flags=STOPS)
    await job.submit(db)
    hands = await Hands.register(db)
    assert await hands.run({job[first]: FAILS}) == [job[first]]
    assert await count(db, "slots") == 1
    await retry(db, job)
    assert await count(db, "slots") == 0
    assert await hands.run() == [job[first], job[second]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"


async def test_a_gate_that_stays_as_it_was_decided_keeps_the_time_of_that(db: Database) -> None:
    job = Job()
    one, other = job.tasks(2)
    behind = job.task(one, other, rule="one_success")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    gate_id = await db.fetchval("SELECT wait_gate FROM aaiclick_queue.tasks WHERE id = $1", job[behind])
    before = await gate_row(db, gate_id)
    await clear_task(db, job[one], by="me")
    after = await gate_row(db, gate_id)
    assert (after["state"], after["remaining"]) == ("OPEN", 1)
    assert after["decided_at"] == before["decided_at"]
    await hands.run()


async def test_the_rows_of_a_jobs_tasks_stay_with_their_job_whatever_they_say(db: Database) -> None:
    job = Job()
    first = job.task(flags=FORGET)
    job.task(first)
    await job.submit(db)
    await (await Hands.register(db)).run()
    assert {*(await statuses(db, job.id)).values()} == {"COMPLETED"}
    assert len(await statuses(db, job.id)) == 2


async def test_a_task_that_waits_for_others_expires_in_time_too(db: Database) -> None:
    job = Job()
    first = job.task()
    waiting = job.task(first)
    job.plan.tasks[1].task.expires = 3600
    await job.submit(db)
    rows = await db.fetch("SELECT task_id FROM aaiclick_queue.timers")
    assert [row["task_id"] for row in rows] == [job[waiting]]
    await (await Hands.register(db)).run()


@pytest.mark.parametrize(
    ("outcome", "place"), [(Later("RETRYING", ERROR, 3600), "delayed"), (Released(), "held")], ids=["retry", "release"]
)
async def test_a_run_of_a_capped_job_comes_back_to_its_place_in_the_line_of_its_job(
    db: Database, outcome: Outcome, place: str
) -> None:
    job = Job(max_parallel=1)
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await settle(db)
    [run] = await hands.take(job[first])
    assert run.flags & LIMITED
    await set_limit(db, NewLimit("queue", "default", "running", 5), by="me")  # it has no slot of that
    await hands.end(job[first], outcome=outcome)
    assert await db.fetchval(f"SELECT order_key FROM aaiclick_queue.{place}") == job.id
    await make_due(db)
    await Reaper(db).due_once()
    assert await hands.run() == [job[first]]


async def test_an_end_that_nobody_had_folded_is_told_though_another_task_is_retried(db: Database) -> None:
    job = Job()
    first, bad, other = job.tasks(3)
    behind = [job.task(first), job.task(first, other)]
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[bad], job[other])
    await hands.end(job[bad], outcome=FAILS)
    await settle(db)
    await hands.end(job[first], job[other])
    assert await retry(db, job) == {job[bad]}
    assert {*await hands.run()} == {job[bad], *job.of(behind)}
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
