"""Rates: so many starts in any stretch of a period, counted from the claim, whoever starts."""

from __future__ import annotations

from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.operations import work_to_end
from aaiclick_queue.outcome import Error, Later, Released, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import age, claim, count, end, make_due, put, register_worker

SECONDS = 60.0
AGAIN = Later("RETRYING", Error("ValueError"), 60.0)


async def limited(db: Database, n: int) -> None:
    operation = await set_limit(db, NewLimit("queue", "mail", "rate", n, seconds=SECONDS), by="me")
    assert operation
    await work_to_end(db, operation)


async def test_every_attempt_of_one_task_counts_against_a_rate(db: Database) -> None:
    await limited(db, 2)
    await put(db, queue="mail", max_attempts=10)
    admission, worker_id = Admission(db), await register_worker(db)
    starts = 0
    for _ in range(4):
        await admission.admit_once()
        for run in await claim(db, worker_id, queues=["mail"]):
            starts += 1
            assert await end(db, run, AGAIN)
        await make_due(db)
        await Reaper(db).due_once()
    assert starts == 2
    await age(db, "slots", "ends_at", SECONDS)
    assert (await admission.admit_once()).count == 1


async def test_a_start_counts_for_a_period_after_its_run_has_ended(db: Database) -> None:
    await limited(db, 2)
    await put(db, count=4, queue="mail")
    admission, worker_id = Admission(db), await register_worker(db)
    assert (await admission.admit_once()).count == 2
    for run in await claim(db, worker_id, queues=["mail"]):
        assert await end(db, run, Succeeded("1"))
    assert (await admission.admit_once()).count == 0
    await age(db, "slots", "ends_at", SECONDS)
    assert (await admission.admit_once()).count == 2
    assert await count(db, "slots") == 2


async def test_a_run_that_is_handed_back_has_not_started(db: Database) -> None:
    await limited(db, 1)
    await put(db, count=2, queue="mail")
    admission, worker_id = Admission(db), await register_worker(db)
    await admission.admit_once()
    [run] = await claim(db, worker_id, queues=["mail"])
    assert await end(db, run, Released())
    assert (await admission.admit_once()).count == 0
    [again] = await claim(db, worker_id, queues=["mail"])
    assert again.task_id == run.task_id
