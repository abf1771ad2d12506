"""Heartbeat: keeps leases, tells what is gone and what nobody knows of, and never brings back the dead."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.heartbeat import BEAT, Beat, Counters, beat, set_status
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Released, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.tools import age, claim, end, holder_of, leased, put, register_worker, rows

NONE = Counters()


async def beat_of(
    db: Database, worker_id: int, *runs: tuple[int, int], strangers: bool = False, counters: Counters = NONE
) -> Beat:
    answer = await beat(db, worker_id, runs, lease_seconds=60, look_for_strangers=strangers, counters=counters)
    assert answer.now > 0
    assert answer.server
    return msgspec.structs.replace(answer, now=0.0, server="")


async def test_a_beat_renews_the_lease_by_the_databases_clock(db: Database) -> None:
    worker_id = await register_worker(db, lease_seconds=1)
    await age(db, "workers", "lease_expires_at", 100)
    await age(db, "workers", "last_heartbeat", 100)
    assert await beat_of(db, worker_id) == Beat(worker_id, "ACTIVE", (), ())
    [worker] = await rows(db, "workers")
    assert worker["lease_expires_at"] - worker["last_heartbeat"] == timedelta(seconds=60)
    assert await db.fetchval("SELECT last_heartbeat > now() - interval '30 s' FROM aaiclick_queue.workers")


async def test_a_beat_adds_what_was_done_since_the_last_one(db: Database) -> None:
    worker_id = await register_worker(db)
    await beat_of(db, worker_id, (1, 1), (2, 1), counters=Counters(5, 2, 1))
    await beat_of(db, worker_id, counters=Counters(1, 0, 0))
    [worker] = await rows(db, "workers")
    assert (worker["tasks_completed"], worker["tasks_failed"], worker["tasks_lost"]) == (6, 2, 1)
    assert worker["running"] == 0


async def test_a_run_that_was_cancelled_is_gone(db: Database) -> None:
    run, other = await leased(db), await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    assert (await beat_of(db, worker_id, (run.task_id, run.run_epoch))).gone == ()
    await cancel(db, [run.task_id])
    gone = (await beat_of(db, worker_id, (run.task_id, run.run_epoch), (other.task_id, other.run_epoch))).gone
    assert gone == ((run.task_id, run.run_epoch), (other.task_id, other.run_epoch))  # the other one is another worker's


async def test_a_run_whose_task_was_claimed_again_is_gone_and_the_new_run_is_not(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    assert await end(db, run, Released())
    [again] = await claim(db, worker_id)
    assert (again.task_id, again.run_epoch) == (run.task_id, 2)
    assert (await beat_of(db, worker_id, (run.task_id, 1))).gone == ((run.task_id, 1),)
    assert (await beat_of(db, worker_id, (run.task_id, 2))).gone == ()


async def test_leases_that_the_worker_does_not_know_of_are_named_when_asked_for(db: Database) -> None:
    worker_id = await register_worker(db)
    await put(db, count=3)
    known, fresh, unknown = await claim(db, worker_id)
    await leased(db)  # of somebody else
    assert (await beat_of(db, worker_id, (known.task_id, 1), strangers=True)).strangers == ()  # too young
    await db.fetch(
        "UPDATE aaiclick_queue.leases SET claimed_at = now() - interval '6 s' WHERE task_id <> $1", fresh.task_id
    )
    assert (await beat_of(db, worker_id, (known.task_id, 1))).strangers == ()
    answer = await beat_of(db, worker_id, (known.task_id, 1), strangers=True)
    assert answer.strangers == ((unknown.task_id, unknown.run_epoch),)


async def test_a_worker_that_was_marked_lost_stays_lost(db: Database) -> None:
    worker_id = await register_worker(db, status="LOST")
    answer = await beat_of(db, worker_id, counters=Counters(1, 1, 1))
    assert answer.status is None
    await set_status(db, worker_id, "STOPPED", NONE)
    [worker] = await rows(db, "workers")
    assert (worker["status"], worker["tasks_completed"]) == ("LOST", 0)
    assert await claim(db, worker_id) == []


async def test_a_worker_that_nobody_knows_is_told_so(db: Database) -> None:
    assert (await beat_of(db, 4711)).status is None


async def test_a_worker_hears_that_it_shall_stop(db: Database) -> None:
    worker_id = await register_worker(db, status="STOPPING")
    assert (await beat_of(db, worker_id)).status == "STOPPING"


@pytest.mark.parametrize("status", ["STOPPING", "STOPPED"])
async def test_a_worker_says_how_it_ends(db: Database, status: str) -> None:
    worker_id = await register_worker(db)
    await set_status(db, worker_id, status, Counters(2, 1, 0))
    [worker] = await rows(db, "workers")
    assert (worker["status"], worker["tasks_completed"], worker["tasks_failed"]) == (status, 2, 1)
    assert (worker["stopped_at"] is not None) == (status == "STOPPED")


async def test_a_worker_that_beats_is_never_marked(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    await age(db, "workers", "lease_expires_at", 100)
    await beat_of(db, worker_id, (run.task_id, 1))
    assert not (await Reaper(db).reap_once()).anything
    assert await end(db, run, Succeeded(None))


async def test_a_beat_looks_each_run_up_by_itself_however_few_leases_there_were(settings: Settings) -> None:
    async with Database(settings, size=1, flow=True) as flow:
        await flow.fetch("ANALYZE aaiclick_queue.leases")
        shown = await flow.fetch(f"EXPLAIN {BEAT}", 1, 30.0, [1, 2], [1, 1], False, 2, 0, 0, 0, None, None, None)
    plan = "\n".join(row[0] for row in shown)
    assert "Index Cond: (task_id = run.task_id)" in plan
    assert "Hash" not in plan
