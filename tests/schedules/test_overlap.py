"""A tick whose previous run has not ended: each policy, with runs in each state, and with everybody in the way."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue import Client, Settings, run_job
from aaiclick_queue.flow import scheduler as scheduler_module
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import (
    disable_job,
    enable_job,
    get_registered_job,
    register_job,
    upsert_registered_job,
)
from tests.dag.hands import Hands
from tests.schedules.acting import (
    assert_whole,
    drop_wakeups,
    end_runs,
    fire,
    note,
    outcomes,
    pass_by,
    statuses,
    ticks,
)
from tests.tools import running_worker, until

HOLD_JOBS = "SELECT id FROM aaiclick_queue.jobs FOR UPDATE"
LEFT = "SELECT queued_fire_at, replacing FROM aaiclick_queue.registered_jobs WHERE name = 'it'"


async def hourly(settings: Settings, client: Client, db: Database, **options: Any) -> None:
    """A schedule whose first tick has fired."""
    await register_job("it", note, interval="1h", client=client, **options)
    await pass_by(settings, minutes=60)
    assert await fire(db) == 1


async def next_hour(settings: Settings, db: Database) -> int:
    await pass_by(settings, minutes=60)
    runs = await fire(db)
    await assert_whole(db)
    await drop_wakeups(db)
    return runs


PREVIOUS = {  # what becomes of a tick when the run before it is PENDING, RUNNING, ended
    "allow": ("FIRED", "FIRED", "FIRED"),
    "skip": ("SKIPPED", "SKIPPED", "FIRED"),
    "queue": ("QUEUED", "QUEUED", "FIRED"),
    "replace": ("FIRED", "FIRED", "FIRED"),
}


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED"])
@pytest.mark.parametrize("overlap", PREVIOUS)
async def test_a_tick_over_a_run_goes_by_its_policy(
    settings: Settings, client: Client, db: Database, overlap: str, state: str
) -> None:
    await hourly(settings, client, db, overlap=overlap)
    if state == "RUNNING":
        await (await Hands.register(db)).take()
        assert await statuses(db) == ["RUNNING"]
    elif state == "COMPLETED":
        await end_runs(db)
    await next_hour(settings, db)
    outcome = PREVIOUS[overlap][["PENDING", "RUNNING", "COMPLETED"].index(state)]
    assert await outcomes(db) == ["FIRED", outcome]
    replaced = overlap == "replace" and state != "COMPLETED"
    assert (await statuses(db))[0] == ("CANCELLED" if replaced else state)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_a_run_by_hand_is_a_run_too(settings: Settings, client: Client, db: Database, overlap: str) -> None:
    await register_job("it", note, interval="1h", overlap=overlap, client=client)
    await run_job("it", client=client)
    await next_hour(settings, db)
    assert await outcomes(db) == [PREVIOUS[overlap][0]]


async def test_one_tick_waits_and_fires_when_the_run_has_ended(
    settings: Settings, client: Client, db: Database
) -> None:
    await hourly(settings, client, db, overlap="queue")
    assert [await next_hour(settings, db) for _ in range(3)] == [0, 0, 0]
    assert await outcomes(db) == ["FIRED", "QUEUED", "SKIPPED", "SKIPPED"]
    assert (await Scheduler(db).fire_once()).is_left
    await end_runs(db)
    assert await fire(db) == 1  # though none is due
    assert await outcomes(db) == ["FIRED", "FIRED", "SKIPPED", "SKIPPED"]
    await assert_whole(db)
    assert not (await Scheduler(db).fire_once()).is_left
    await end_runs(db)
    assert await statuses(db) == ["COMPLETED", "COMPLETED"]


async def test_a_worker_fires_the_tick_that_waits_soon_after_the_run(
    quick: Settings, client: Client, db: Database
) -> None:
    await hourly(quick, client, db, overlap="queue")
    await next_hour(quick, db)
    async with running_worker(quick):
        await until(lambda: _completed(db, 2))
    assert await outcomes(db) == ["FIRED", "FIRED"]


async def _completed(db: Database, count: int) -> bool:
    return await statuses(db) == ["COMPLETED"] * count


async def test_a_tick_that_waits_is_given_up_when_its_job_is_disabled(
    settings: Settings, client: Client, db: Database
) -> None:
    await hourly(settings, client, db, overlap="queue")
    await next_hour(settings, db)
    await disable_job("it", client=client)
    await end_runs(db)
    assert await fire(db) == 0
    assert [(one["outcome"], one["reason"]) for one in await ticks(db)][1] == ("SKIPPED", "disabled before its turn")
    await enable_job("it", client=client)
    assert await fire(db) == 0
    assert await next_hour(settings, db) == 1


async def test_a_tick_that_waits_fires_though_its_schedule_was_taken_away(
    settings: Settings, client: Client, db: Database
) -> None:
    await hourly(settings, client, db, overlap="queue")
    await next_hour(settings, db)
    await upsert_registered_job("it", note, overlap="queue", client=client)
    await end_runs(db)
    assert await fire(db) == 1
    assert (await get_registered_job("it", client=client)).next_run_at is None
    await assert_whole(db)
    await drop_wakeups(db)


async def test_a_tick_that_waits_fires_at_once_when_the_policy_is_another(
    settings: Settings, client: Client, db: Database
) -> None:
    await hourly(settings, client, db, overlap="queue")
    await next_hour(settings, db)
    await upsert_registered_job("it", note, interval="1h", overlap="allow", client=client)
    assert await fire(db) == 1
    assert await outcomes(db) == ["FIRED", "FIRED"]
    await drop_wakeups(db)


async def test_two_hundred_ticks_that_wait_keep_nobody_else_waiting_and_are_no_work(
    settings: Settings, client: Client, db: Database
) -> None:
    for n in range(5):
        await register_job(f"long {n}", note, interval="1h", overlap="queue", client=client)
    await register_job("it", note, interval="1h", overlap="queue", client=client)
    scheduler = Scheduler(db)
    for _ in range(2):
        await pass_by(settings, minutes=60)
        while (await scheduler.fire_once(limit=5)).ticks:
            pass
    idle = await scheduler.fire_once(limit=5)
    assert (idle.is_left, idle.is_full, idle.ticks) == (True, False, 0)
    await db.fetch(
        "UPDATE aaiclick_queue.jobs SET registered_job_id = NULL WHERE registered_job_id = "
        "(SELECT id FROM aaiclick_queue.registered_jobs WHERE name = 'it')"
    )
    assert (await scheduler.fire_once(limit=5)).runs == 1
    assert await outcomes(db) == ["FIRED", "FIRED"]
    await drop_wakeups(db)


# Replace.


async def test_a_run_whose_row_somebody_holds_is_replaced_all_the_same(
    settings: Settings, client: Client, db: Database
) -> None:
    await hourly(settings, client, db, overlap="replace")
    await pass_by(settings, minutes=60)
    async with db.transaction() as tx:
        await tx.fetch(HOLD_JOBS)
        fired = await Scheduler(db).fire_once()
        assert (fired.runs, fired.is_left) == (1, True)
        assert (await statuses(db)) == ["PENDING", "PENDING"]
    assert await fire(db) == 0
    assert await statuses(db) == ["CANCELLED", "PENDING"]
    assert not (await Scheduler(db).fire_once()).is_left
    await _cancelled_tasks_end(db)


async def test_a_scheduler_that_died_before_the_cancel_leaves_it_to_the_next_one(
    settings: Settings, client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hourly(settings, client, db, overlap="replace")
    await pass_by(settings, minutes=60)

    async def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(scheduler_module, "cancel_job_in", die)
        with pytest.raises(KeyboardInterrupt):
            await Scheduler(db).fire_once()
    assert await statuses(db) == ["PENDING", "PENDING"]
    assert await fire(db) == 0
    assert await statuses(db) == ["CANCELLED", "PENDING"]
    await assert_whole(db)
    await _cancelled_tasks_end(db)


async def test_what_is_to_be_replaced_is_cancelled_though_the_schedule_was_taken_away_or_disabled(
    settings: Settings, client: Client, db: Database
) -> None:
    for n in range(2):
        await hourly(settings, client, db, overlap="replace")
        await pass_by(settings, minutes=60)
        async with db.transaction() as tx:
            await tx.fetch(HOLD_JOBS)
            await Scheduler(db).fire_once()
        if n:
            await disable_job("it", client=client)
        else:
            await upsert_registered_job("it", note, client=client)
        assert await fire(db) == 0
        assert await statuses(db) == ["CANCELLED", "PENDING"]
        [left] = await db.fetch(LEFT)
        assert tuple(left) == (None, None)
        await _cancelled_tasks_end(db)
        for table in ("registered_jobs", "ticks", "jobs", "gates", "tasks", "ready"):
            await db.fetch(f"DELETE FROM aaiclick_queue.{table}")


async def test_ticks_that_come_together_replace_each_other_but_the_last(
    settings: Settings, client: Client, db: Database
) -> None:
    await hourly(settings, client, db, overlap="replace", misfire="catch_up")
    await pass_by(settings, hours=3)
    assert await fire(db) == 1
    assert await outcomes(db) == ["FIRED", "SKIPPED", "SKIPPED", "FIRED"]
    assert await statuses(db) == ["CANCELLED", "PENDING"]
    await _cancelled_tasks_end(db)


async def _cancelled_tasks_end(db: Database) -> None:
    while await work_once(db):
        pass
    await drop_wakeups(db)
