"""A run that is handed back gets in again only by the limits that there are then."""

from __future__ import annotations

from aaiclick_queue.outcome import Released
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import admit, ended, make
from tests.tools import age, claim, place_of, put_one, register_worker


async def test_a_run_that_is_handed_back_to_a_paused_task_waits(db: Database) -> None:
    await make(db, n=5)
    one = await put_one(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    await make(db, "task", "tests.nowhere", "pause", n=0)
    await ended(db, run, Released(), worker_id)
    await admit(db)
    assert await place_of(db, one) == ["held"]


async def test_runs_that_are_handed_back_are_let_in_by_a_limit_made_since(db: Database) -> None:
    await make(db, n=5)
    ids = [await put_one(db) for _ in range(2)]
    await admit(db)
    worker_id = await register_worker(db)
    runs = await claim(db, worker_id)
    await make(db, "task", "tests.nowhere", "running", n=1)
    for run in runs:
        await ended(db, run, Released(), worker_id)
    await admit(db)
    assert sorted([(await place_of(db, one))[0] for one in ids]) == ["held", "ready"]


async def test_a_start_after_a_hand_back_counts_where_the_period_of_the_first_is_over(db: Database) -> None:
    await make(db, kind="rate", n=1, seconds=60.0)
    first = await put_one(db)
    second = await put_one(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    await age(db, "leases", "claimed_at", 100)
    await admit(db)  # its period is over, the next one gets in
    assert await place_of(db, second) == ["ready"]
    await ended(db, run, Released(), worker_id)
    await admit(db)
    assert await place_of(db, first) == ["held"]
