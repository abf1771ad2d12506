"""What the doctor says of schedules, and registered jobs from code without an event loop."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, JobExists, Settings, backfilling, registered, run_job, sync, task
from aaiclick_queue.doctor import Finding, check
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import disable_job, enable_job, register_job
from aaiclick_queue.testing import Clock, QueueUnderTest

NOT_ONES = {"registration", "inherited", "next_runs"}


@task
async def note(day: str = "monday") -> str:
    return f"{day} is noted"


async def _found(db: Database) -> dict[str, Finding]:
    return {one.name: one for one in await check(db) if not one.ok or one.notice}


@pytest.mark.breaks_invariants
async def test_a_schedule_that_is_late_is_found_with_what_to_do(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("often", note, interval="2m", client=client)
    await Clock(settings).advance(seconds=150)
    assert await _found(db) == {}
    await Clock(settings).advance(seconds=40)
    [found] = (await _found(db)).values()
    assert (found.name, found.count) == ("schedules fire in time", 1)
    assert "start a worker, or `aaiclick-queue background`" in found.fix
    await disable_job("often", client=client)
    assert await _found(db) == {}


@pytest.mark.parametrize("change", ["timezone = 'Mars/Olympus'", "schedule = '{61 * * * *}'"])
async def test_an_enabled_schedule_that_cannot_be_read_is_found(client: Client, db: Database, change: str) -> None:
    await register_job("daily", note, schedule="@daily", client=client)
    before = await db.fetch("SELECT schedule, timezone FROM aaiclick_queue.registered_jobs")
    await db.fetch(f"UPDATE aaiclick_queue.registered_jobs SET {change}")
    assert list(await _found(db)) == ["enabled schedules can be read"]
    await db.fetch(
        "UPDATE aaiclick_queue.registered_jobs SET schedule = $1::text[], timezone = $2::text", *before[0].values()
    )
    assert await _found(db) == {}


async def test_a_schedule_that_stopped_before_its_end_is_found(client: Client, db: Database) -> None:
    await register_job("daily", note, schedule="@daily", client=client)
    await register_job("over", note, schedule="@daily", ends_at=datetime(2026, 1, 1, tzinfo=UTC), client=client)
    await register_job("by name", note, client=client)
    assert await _found(db) == {}
    await db.fetch("UPDATE aaiclick_queue.registered_jobs SET next_run_at = NULL, fire_at = NULL")
    found = await _found(db)
    assert {name: one.count for name, one in found.items()} == {"schedules go on as long as a fire lies ahead": 1}
    await disable_job("daily", client=client)
    await enable_job("daily", client=client)
    assert await _found(db) == {}


async def test_one_that_is_gone_from_the_code_is_a_notice(client: Client, db: Database) -> None:
    await register_job("daily", note, schedule="@daily", enabled=False, client=client)
    await db.fetch("UPDATE aaiclick_queue.registered_jobs SET is_gone = true")
    [found] = (await _found(db)).values()
    assert (found.ok, found.notice, found.detail.endswith(": daily")) == (True, True, True)


@pytest.mark.parametrize("module", [registered, backfilling], ids=lambda module: str(module.__name__))
def test_every_call_has_a_form_for_code_without_a_loop(module: Any) -> None:
    names = {
        name
        for name, one in vars(module).items()
        if inspect.iscoroutinefunction(one) and one.__module__ == module.__name__ and name[0] != "_"
    }
    assert {name for name in names if not name.startswith(("read_", "plan_"))} - set(vars(sync)) == set()


@pytest.mark.usefixtures("as_default")
def test_registered_jobs_are_written_changed_and_forgotten_without_a_loop() -> None:
    made = sync.register_job("daily", note, schedule="@daily")
    assert made.next_run_at is not None
    with pytest.raises(JobExists):
        sync.register_job("daily", note)
    assert sync.disable_job("daily").next_run_at is None
    assert sync.enable_job("daily").enabled
    assert sync.upsert_registered_job("daily", note, interval="1h").interval == 3600
    assert [one.name for one in sync.list_registered_jobs(enabled_only=True)] == ["daily"]
    assert sync.tick_history("daily") == []
    now = datetime.now(UTC)
    assert len(sync.missing_ticks("daily", now - timedelta(hours=3), now)) == 3
    assert sync.delete_registered_job("daily")
    assert not sync.delete_registered_job("daily")


async def test_draining_runs_what_has_come_due(queue: QueueUnderTest, clock: Clock) -> None:
    await register_job("daily", note, schedule="0 8 * * *", timezone="Europe/Berlin")
    assert await queue.drain() == []
    for _ in range(3):
        await clock.advance(days=1)
        [ran] = await queue.drain()
        assert ran.result == "monday is noted"
    assert [tick.status for tick in await registered.tick_history("daily")] == ["COMPLETED"] * 3


async def test_draining_runs_the_tick_that_waited_for_the_run_before_it(queue: QueueUnderTest, clock: Clock) -> None:
    await register_job("daily", note, schedule="@daily", overlap="queue")
    await run_job("daily", {"day": "sunday"})
    await clock.advance(days=1)
    assert sorted(one.result for one in await queue.drain()) == ["monday is noted", "sunday is noted"]
    assert [tick.status for tick in await registered.tick_history("daily")] == ["COMPLETED"]


@pytest.mark.parametrize(("kept", "passed", "found"), [(365, 40, False), (1, 3, True), (None, 40, True)])
async def test_jobs_that_are_kept_for_a_time_of_their_own_are_not_overdue_before(
    queue: QueueUnderTest, clock: Clock, kept: int | None, passed: int, found: bool
) -> None:
    await register_job("kept", note, retention=kept)
    await run_job("kept")
    await queue.drain()
    await clock.advance(days=passed)
    async with Database(queue.settings, size=1) as db:
        assert ("finished jobs are pruned by policy" in await _found(db)) == found
