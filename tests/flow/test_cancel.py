"""Cancel: a task ends as CANCELLED wherever it is, also while it moves from one place to another."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from aaiclick_queue.errors import TasksBusy
from aaiclick_queue.flow.cancel import BY_HAND, cancel, take_waiting
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Error, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import (
    claim,
    count,
    end,
    holder_of,
    leased,
    make_due,
    place_of,
    put,
    put_one,
    register_worker,
    row,
    rows,
)


async def task_in(db: Database, place: str) -> int:
    if place == "leases":
        return (await leased(db)).task_id
    return await put_one(db, task={"countdown": 60.0} if place == "delayed" else None)


@pytest.mark.parametrize("place", ["ready", "delayed", "leases"])
async def test_a_task_is_cancelled_in_whatever_place_it_is(db: Database, place: str) -> None:
    task_id = await task_in(db, place)
    worker_id = await holder_of(db, task_id)
    assert await cancel(db, [task_id]) == {task_id}
    assert await place_of(db, task_id) == ["CANCELLED"]
    task = await row(db, "tasks", task_id)
    assert msgspec.json.decode(task["error"], type=Error) == BY_HAND
    assert task["finished_at"] is not None
    assert (task["worker_id"], task["started_at"] is not None) == (worker_id, place == "leases")
    assert [noted["type"] for noted in await rows(db, "events")] == ["TASK_CANCELLED"]


async def test_a_cancelled_run_can_write_nothing_more(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    await cancel(db, [run.task_id])
    assert not await end(db, run, Succeeded("1"), worker_id=worker_id)
    assert await place_of(db, run.task_id) == ["CANCELLED"]


async def test_what_has_ended_and_what_never_was_are_not_cancelled(db: Database) -> None:
    run = await leased(db)
    assert await end(db, run, Succeeded("1"))
    assert await cancel(db, [run.task_id, 4711]) == set()
    assert await cancel(db, []) == set()
    assert await place_of(db, run.task_id) == ["COMPLETED"]


async def test_many_are_cancelled_at_once_and_those_that_were_open_are_named(db: Database) -> None:
    run = await leased(db)
    assert await end(db, run, Succeeded("1"))
    ids = [await task_in(db, place) for place in ("leases", "ready", "delayed") for _ in range(3)]
    assert await cancel(db, [*ids, run.task_id]) == set(ids)
    assert [await count(db, place) for place in ("ready", "delayed", "leases")] == [0, 0, 0]


async def test_a_task_that_is_being_claimed_is_cancelled_all_the_same(db: Database) -> None:
    task_id, worker_id = await put_one(db), await register_worker(db)
    async with db.transaction() as claiming:
        assert await claim(claiming, worker_id)
        cancelling = asyncio.create_task(cancel(db, [task_id]))
        for _ in range(5):  # it goes round while the claim is open
            await db.fetch("SELECT 1")
    assert await cancelling == {task_id}
    assert await place_of(db, task_id) == ["CANCELLED"]


async def test_a_task_is_never_missed_while_it_moves(db: Database) -> None:
    worker_id, reaper = await register_worker(db), Reaper(db)
    task_id = await put_one(db)
    moving = True

    async def move() -> None:
        while moving:
            for run in await claim(db, worker_id):
                outcome: Outcome = Released() if random.random() < 0.5 else Later("RETRYING", Error("Boom"), 0)
                await end(db, run, outcome, worker_id=worker_id)
            await reaper.due_once()

    mover = asyncio.create_task(move())
    try:
        for _ in range(15):
            assert await cancel(db, [task_id]) == {task_id}
            assert await place_of(db, task_id) == ["CANCELLED"]
            task_id = await put_one(db)
    finally:
        moving = False
        await mover


async def test_a_cancel_waits_for_no_lock_and_says_what_it_could_not_get(db: Database) -> None:
    task_id = await put_one(db)
    async with db.transaction() as other:
        await other.fetch("SELECT 1 FROM aaiclick_queue.ready FOR UPDATE")
        async with asyncio.timeout(10):
            with pytest.raises(TasksBusy, match=str(task_id)):
                await cancel(db, [task_id])
    assert await cancel(db, [task_id]) == {task_id}


async def test_taking_what_waits_leaves_what_runs(db: Database) -> None:
    ids = {place: await task_in(db, place) for place in ("leases", "ready", "delayed")}
    async with db.transaction() as tx:
        assert await take_waiting(tx, list(ids.values()), error=Error("Expired")) == {ids["ready"], ids["delayed"]}
    assert await place_of(db, ids["leases"]) == ["leases"]


async def test_a_retry_that_waits_keeps_what_its_runs_left_when_it_is_cancelled(db: Database) -> None:
    run = await leased(db)
    assert await end(db, run, Later("RETRYING", Error("Boom"), 60))
    await cancel(db, [run.task_id])
    assert [attempt["outcome"] for attempt in await rows(db, "attempts")] == ["RETRYING"]
    assert (await row(db, "tasks", run.task_id))["attempt"] == 1
    await make_due(db)
    assert (await Reaper(db).due_once())[0] == 0


async def test_cancelled_tasks_wake_nobody(db: Database) -> None:
    await put(db, count=2)
    await db.fetch("DELETE FROM aaiclick_queue.outbox")
    await cancel(db, [place["task_id"] for place in await rows(db, "ready")])
    assert await count(db, "outbox") == 0
