"""What ran before there was a limit counts against it until its code has ended."""

from __future__ import annotations

from aaiclick_queue.flow.admit import give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import admit, make
from tests.tools import claim, place_of, put_one, register_worker


async def test_a_cancelled_run_counts_until_it_stops(db: Database) -> None:
    first = await put_one(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    await make(db, n=1)
    second = await put_one(db)
    await cancel(db, [first])
    await admit(db)
    assert await place_of(db, second) == ["held"]
    await give_back_stopped(db, [(first, run.run_epoch)], worker_id=worker_id)
    await admit(db)
    assert await place_of(db, second) == ["ready"]


async def test_one_that_was_claimed_while_the_limit_was_applied_counts(db: Database) -> None:
    first = await put_one(db)
    worker_id = await register_worker(db)
    await set_limit(db, NewLimit("task", "tests.nowhere", "running", 1), by="a test")
    await work_once(db)  # the page of held
    [run] = await claim(db, worker_id)
    while await work_once(db):
        pass
    second = await put_one(db)
    await admit(db)
    assert run.task_id == first
    assert await place_of(db, second) == ["held"]
