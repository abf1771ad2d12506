"""What is due in a moment is read and decided before it: it fires no sooner for that, and as it is by then."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from aaiclick_queue import Client, Settings
from aaiclick_queue.flow import ahead
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import disable_job, register_job, upsert_registered_job
from tests.schedules.acting import assert_whole, drop_wakeups, note, ticks
from tests.tools import until

SOON = "UPDATE aaiclick_queue.registered_jobs SET next_run_at = clock_timestamp() + interval '1 second'"


@pytest.fixture(autouse=True)
def far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """So far that a test has time for something before the moment comes."""
    monkeypatch.setattr(ahead, "AHEAD_SECONDS", 2.0)
    monkeypatch.setattr("aaiclick_queue.flow.scheduler.AHEAD_SECONDS", 2.0)


async def _fired(scheduler: Scheduler) -> int:
    """Steps up to the moment and past it."""
    runs = 0

    async def some() -> bool:
        nonlocal runs
        done = await scheduler.fire_once()
        runs += done.runs
        return done.ticks > 0

    await until(some)
    return runs


async def test_what_was_decided_ahead_is_not_read_again_and_fires_in_its_time(
    client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("it", "other"):
        await register_job(name, note, schedule="0 8 * * *", client=client)
    await db.fetch(SOON)
    monkeypatch.setattr("aaiclick_queue.flow.scheduler.READ_LOCKED", "SELECT nothing that is there")
    scheduler = Scheduler(db)
    assert (await scheduler.fire_once()).ticks == 0
    assert await _fired(scheduler) == 2
    for name in ("it", "other"):
        [tick] = await ticks(db, name)
        assert tick["created_at"] >= tick["due_at"]
    await assert_whole(db)
    await drop_wakeups(db)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_a_schedule_whose_runs_must_not_overlap_is_decided_when_it_is_due(
    client: Client, db: Database, overlap: str
) -> None:
    await register_job("it", note, schedule="0 8 * * *", overlap=overlap, client=client)
    await db.fetch(SOON)
    scheduler = Scheduler(db)
    await scheduler.fire_once()
    assert scheduler._ahead._known == {}
    assert await _fired(scheduler) == 1
    await drop_wakeups(db)


async def test_a_schedule_that_changes_after_it_was_decided_fires_as_it_is_then(
    quick: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, schedule="0 8 * * *", default_kwargs={"day": "monday"}, client=client)
    await db.fetch(SOON)
    scheduler = Scheduler(db)
    await scheduler.fire_once()
    assert len(scheduler._ahead._known) == 1
    await upsert_registered_job("it", note, schedule="0 8 * * *", default_kwargs={"day": "friday"}, client=client)
    await db.fetch(SOON)
    assert await _fired(scheduler) == 1
    assert await db.fetchval("SELECT kwargs->>'day' FROM aaiclick_queue.jobs") == "friday"
    await drop_wakeups(db)


async def test_a_schedule_disabled_after_it_was_decided_does_not_fire(client: Client, db: Database) -> None:
    await register_job("it", note, schedule="0 8 * * *", client=client)
    await db.fetch(SOON)
    scheduler = Scheduler(db)
    await scheduler.fire_once()
    await disable_job("it", client=client)
    await asyncio.sleep(1.1)  # the moment passes
    assert (await scheduler.fire_once()).runs == 0
    assert await ticks(db) == []


async def test_what_was_decided_long_before_is_decided_again(
    client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register_job("it", note, interval=1, client=client)
    await db.fetch(SOON)
    scheduler = Scheduler(db)
    await scheduler.fire_once()
    monkeypatch.setattr(scheduler._ahead, "_until", 0.0)
    monkeypatch.setattr("aaiclick_queue.flow.scheduler.READ_LOCKED", "SELECT nothing that is there")
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await _fired(scheduler)


async def test_what_was_decided_of_a_row_that_has_changed_since_is_forgotten(client: Client, db: Database) -> None:
    await register_job("it", note, schedule="0 8 * * *", client=client)
    held = "SELECT id, xmin::text AS version, next_run_at FROM aaiclick_queue.registered_jobs"
    for changes in (False, True):
        await db.fetch(SOON)
        [row] = await db.fetch(held)
        known = ahead.Ahead()
        await known.look(db, row["next_run_at"], seconds=1.0)
        if changes:
            await db.fetch("UPDATE aaiclick_queue.registered_jobs SET misfire = misfire")
        decided, others = known.take(await db.fetch(held))
        assert (len(decided), others) == ((0, [row["id"]]) if changes else (1, []))
