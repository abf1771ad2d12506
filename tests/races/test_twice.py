"""What happens twice counts once: a gate that is looked at again, a slot that is given back again."""

from __future__ import annotations

from aaiclick_queue.flow.admit import give_back_stopped
from aaiclick_queue.flow.attach import LOOK_AT
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.outcome import Failed, Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import ERROR, Hands, assert_counted, gate_row, job_row, settle, statuses
from tests.flow.test_admit import admit, ended, make
from tests.planned import Job
from tests.tools import claim, put, register_worker

GATES = "SELECT id FROM aaiclick_queue.gates WHERE total > remaining OR state <> 'WAITING'"


async def test_a_gate_that_is_decided_early_tells_those_behind_it_once(db: Database) -> None:
    job = Job()
    one, other, last = job.tasks(3)
    early = job.task(one, other, rule="one_success")
    both, all_of_them = job.task(one, last), job.task(early, other, last)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    steps: list[tuple[int, set[int]]] = [(one, {early}), (early, set()), (other, set()), (last, {both, all_of_them})]
    for ends, follow in steps:
        await hands.end(job[ends])
        for _ in range(2):
            await settle(db)
            await db.fetch(LOOK_AT, [row["id"] for row in await db.fetch(GATES)])  # a look changes nothing
        await settle(db)
        await assert_counted(db, job.id)
        held = {*hands.held}
        await hands.take()
        assert {*hands.held} - held == {job[number] for number in follow}
    await hands.end(job[both])
    await hands.end(job[all_of_them])
    await settle(db)
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    events = await db.fetch("SELECT FROM aaiclick_queue.events WHERE job_id = $1 AND type = 'JOB_COMPLETED'", job.id)
    assert len(events) == 1


async def test_a_gate_that_was_decided_stays_as_it_is(db: Database) -> None:
    job = Job()
    fails, chooses = job.tasks(2)
    after = job.task(fails, Previous(chooses, "task", ("?true",)))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    gate = await db.fetchval("SELECT wait_gate FROM aaiclick_queue.tasks WHERE id = $1", job[after])
    await hands.end(job[fails], outcome=Failed(ERROR))
    await settle(db)
    assert (await gate_row(db, gate))["state"] == "FAIL"
    await hands.end(job[chooses], outcome=Succeeded("false"))  # alone it would have skipped what is behind it
    await settle(db)
    assert (await gate_row(db, gate))["state"] == "FAIL"
    assert (await statuses(db, job.id))[job[after]] == "UPSTREAM_FAILED"
    assert (await job_row(db, job.id))["status"] == "FAILED"


async def test_a_slot_that_is_given_back_twice_frees_nobody_elses(db: Database) -> None:
    await make(db, n=2)
    first, second, *_ = await put(db, count=5)
    worker_id = await register_worker(db)
    assert await admit(db) == 2
    runs = {run.task_id: run for run in await claim(db, worker_id)}
    assert await ended(db, runs[first], Succeeded(None), worker_id)
    assert await admit(db) == 1
    for _ in range(2):
        assert not await ended(db, runs[first], Succeeded(None), worker_id)
        assert not await ended(db, runs[first], Failed(ERROR), worker_id)
        await give_back_stopped(db, [(first, 1)], worker_id=worker_id)
        assert await admit(db) == 0, "one end, one slot"
    assert await cancel(db, [second]) == {second}
    assert await admit(db) == 0, "its code may still run"
    for freed in (1, 0, 0):
        await give_back_stopped(db, [(second, 1)], worker_id=worker_id)
        assert not await ended(db, runs[second], Failed(ERROR), worker_id)
        assert await cancel(db, [second]) == set()
        assert await admit(db) == freed
    assert len(await claim(db, worker_id)) == 2
