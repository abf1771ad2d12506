"""A claim that a crash of Postgres has forgotten, and that the same worker gets again: one fence is one run."""

from __future__ import annotations

import asyncio
import threading

from aaiclick_queue import Client, Settings, current, task
from aaiclick_queue.fences import KEPT, Fences
from aaiclick_queue.flow.execute import Run
from aaiclick_queue.flow.pause import pause_queue, resume_queue
from aaiclick_queue.postgres import Database
from aaiclick_queue.slots import Slots
from tests.tools import changed, count, leased, row, running_worker, until

# What a crash leaves of a claim that it forgets: the line as it was before.
FORGET_CLAIM = """
WITH forgotten AS (DELETE FROM aaiclick_queue.leases WHERE task_id = $1
                   RETURNING queue, rank, order_key, task_id, run_epoch, attempt, ready_at)
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, run_epoch, attempt, ready_at)
SELECT queue, rank, order_key, task_id, run_epoch - 1, attempt - 1, ready_at FROM forgotten
"""

started: list[int] = []  # run_epochs
go: list[asyncio.Event] = []
thread_may_end = threading.Event()
wrote: list[bool] = []


@task
async def patient() -> int:
    started.append(current().run_epoch)
    await go[0].wait()
    return current().run_epoch


@task
def blind() -> int:
    run = current()
    started.append(run.run_epoch)
    if run.run_epoch == 1:
        thread_may_end.wait(30)
        wrote.append(run.sync.progress(0.5))
    return run.run_epoch


def _anew(settings: Settings, *, beat: float) -> Settings:
    started.clear()
    wrote.clear()
    thread_may_end.clear()
    go[:] = [asyncio.Event()]
    return changed(settings, heartbeat_seconds=beat, lease_seconds=60.0, poll_max_seconds=0.05)


async def test_a_run_whose_claim_was_forgotten_and_taken_again_goes_on_and_is_not_started_twice(
    client: Client, db: Database, settings: Settings
) -> None:
    async with running_worker(_anew(settings, beat=20.0)) as worker:
        handle = await patient.enqueue(client=client)
        await until(lambda: started)
        await db.fetch(FORGET_CLAIM, handle.id)
        await until(lambda: count(db, "leases"))  # claimed again, by the only worker there is
        other = await patient.enqueue(client=client)
        await until(lambda: len(started) == 2)  # so that answer was taken too
        assert (await row(db, "leases", handle.id))["run_epoch"] == 1
        assert len(worker.slots.held) == 2
        go[0].set()
        assert [await handle.result(timeout=15), await other.result(timeout=15)] == [1, 1]
    assert started == [1, 1]
    assert not worker.slots.busy
    assert worker.tally == {"Succeeded": 2}


async def test_a_claim_that_was_forgotten_after_its_run_was_told_to_stop_comes_back_under_a_new_fence(
    client: Client, db: Database, settings: Settings
) -> None:
    async with running_worker(_anew(settings, beat=0.1), threads=4) as worker:
        handle = await blind.enqueue(client=client)
        await until(lambda: started)
        await pause_queue(db, "default", by="me", reason=None)
        await db.fetch(FORGET_CLAIM, handle.id)
        await until(lambda: not worker.slots.held)  # a beat has said so; the thread cannot be stopped
        await resume_queue(db, "default", by="me")
        assert await handle.result(timeout=15) == 2
        assert started == [1, 2]
        thread_may_end.set()
        await until(lambda: wrote)
        assert wrote == [False], "the thread of the first run writes under no fence that is alive"


async def test_a_claim_is_used_up_by_the_run_that_was_recorded_while_its_answer_was_on_its_way(db: Database) -> None:
    claimed = await leased(db)
    one, other = (Run(claimed, patient, Settings.load({}), 7) for _ in range(2))
    fences = Fences()
    fences.asks()
    fences.over(one, recorded=True)
    assert fences.was_recorded(other)
    assert not fences.was_unrecorded(other)
    fences.asks()
    assert not fences.was_recorded(other)
    slots = Slots(size=1, threads=1, ended=lambda *_: None)
    slots.fences.over(one, recorded=True)
    assert slots.start([other]) == 1
    assert not slots.held


async def test_fences_of_runs_that_were_not_recorded_are_kept_in_bounded_memory(db: Database) -> None:
    claimed = await leased(db)
    fences = Fences()
    runs = [Run(claimed, patient, Settings.load({}), worker_id) for worker_id in range(KEPT + 1)]
    for run in runs:
        fences.over(run, recorded=False)
    assert not fences.was_unrecorded(runs[0])
    assert fences.was_unrecorded(runs[1])
    assert fences.was_unrecorded(runs[-1])
    assert not fences.was_recorded(runs[-1])
