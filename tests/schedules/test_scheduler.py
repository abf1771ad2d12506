"""Registered jobs fire: once a tick, in one commit with what comes next, by their rules for lateness and overlap."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from aaiclick_queue import Client, Settings, job, task
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import (
    get_registered_job,
    register_job,
    tick_history,
)
from aaiclick_queue.testing.ageing import Clock
from tests.tools import rows, running_worker, until

DAILY = {"schedule": "0 8 * * *", "timezone": "Europe/Berlin"}


@task
async def note(day: str = "monday") -> str:
    return f"{day} is noted"


@job
def noted(day: str = "tuesday") -> Any:
    return note(day)


async def _fire(db: Database) -> int:
    """Steps until nothing is due; how many runs that made."""
    scheduler, runs = Scheduler(db), 0
    while True:
        fired = await scheduler.fire_once()
        runs += fired.runs
        if not fired.ticks:
            return runs


async def test_a_tick_makes_a_job_that_a_worker_runs(quick: Settings, client: Client, db: Database) -> None:
    made = await register_job(
        "every second", noted, interval=1, default_kwargs={"day": "sunday"}, priority=3, client=client
    )
    assert made.next_run_at is not None
    async with running_worker(quick):
        await until(lambda: _completed(db, 3))
    jobs = await rows(db, "jobs")
    assert {(one["name"], one["run_type"], one["priority"]) for one in jobs} == {("every second", "SCHEDULED", 3)}
    ticks = await tick_history("every second", client=client)
    assert all(one.outcome == "FIRED" for one in ticks)
    fires = [one.fire_at for one in ticks]
    assert {earlier - later for earlier, later in itertools.pairwise(fires)} == {timedelta(seconds=1)}


async def _completed(db: Database, count: int) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM aaiclick_queue.jobs WHERE status = 'COMPLETED'") >= count)


async def test_time_that_passes_fires_each_tick_of_the_calendar_once(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("daily", note, **DAILY, misfire="catch_up", client=client)
    clock, now = Clock(settings), datetime.now(UTC)
    for _ in range(10):
        await clock.advance(hours=24)
        await _fire(db)
    ticks = await tick_history("daily", client=client)
    expected = (await get_registered_job("daily", client=client)).next_runs(10, after=now)
    assert sorted(one.fire_at for one in ticks) == expected
    await db.fetch("DELETE FROM aaiclick_queue.outbox")
