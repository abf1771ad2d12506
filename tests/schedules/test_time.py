"""What time does to schedules: the testing kit lets it pass, jobs are kept for a while, and ticks are forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aaiclick_queue import Client, job, task
from aaiclick_queue.flow.prune import Policy, Pruner
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.outcome import Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import get_registered_job, register_job, tick_history
from aaiclick_queue.starting import run_job
from aaiclick_queue.testing import Clock, QueueUnderTest
from tests.planned import resolve
from tests.tools import claim, count, end, register_worker


@task
async def measure(day: str) -> str:
    return day


@job
def report(day: str = "today") -> Any:
    return measure(day)


async def test_a_test_lets_days_pass_and_drains_what_they_bring(queue: QueueUnderTest, clock: Clock) -> None:
    await register_job("report", report, schedule="0 6 * * *")
    for _ in range(3):
        await clock.advance(days=1)
        await queue.drain()
    ticks = await tick_history("report")
    assert [(one.outcome, one.status) for one in ticks] == [("FIRED", "COMPLETED")] * 3
    assert {one.fire_at.hour for one in ticks} == {6}
    assert len({one.fire_at.date() for one in ticks}) == 3


async def test_jobs_are_kept_as_long_as_their_own_retention_says(db: Database, client: Client, settings: Any) -> None:
    await register_job("short", report, retention=1, client=client)
    await register_job("long", report, retention=400, client=client)
    await register_job("as all", report, client=client)
    for name in ("short", "long", "as all"):
        await run_job(name, client=client)
    await run_job("short", client=client, retention=timedelta(days=30))
    worker = await register_worker(db)
    while runs := await claim(db, worker, 10):
        for run in runs:
            await end(db, run, Succeeded(None))
        await resolve(db)
    clock = Clock(settings)
    kept = []
    for days in (2, 25, 40, 400):
        await clock.advance(days=days)
        pruner = Pruner(db, Policy(completed_seconds=20 * 86400.0, failed_seconds=20 * 86400.0))
        while await count(db, "jobs") and await pruner.prune_once() < 1:
            pass
        kept.append(sorted(row["name"] for row in await db.fetch("SELECT name FROM aaiclick_queue.jobs")))
    assert kept == [["as all", "long", "short"], ["long", "short"], ["long"], []]
    for table in ("outbox", "workers"):  # nobody looked after them all the while
        await db.fetch(f"DELETE FROM aaiclick_queue.{table}")


async def test_old_ticks_are_forgotten_and_one_that_waits_is_not(db: Database, client: Client) -> None:
    await register_job("often", report, interval=60, client=client)
    registered = (await get_registered_job("often", client=client)).id
    await db.fetch(
        """
        INSERT INTO aaiclick_queue.ticks (registered_job_id, fire_at, created_at, outcome)
        SELECT $1::bigint, now() - make_interval(days => n), now() - make_interval(days => n),
               CASE WHEN n = 9 THEN 'QUEUED' ELSE 'MISSED' END FROM generate_series(1, 9) AS n
        """,
        registered,
    )
    pruner = Pruner(db, Policy(completed_seconds=86400.0, failed_seconds=5 * 86400.0))
    await pruner.prune_once()
    left = await db.fetch(
        "SELECT extract(day FROM now() - created_at)::int AS age FROM aaiclick_queue.ticks ORDER BY 1"
    )
    assert [row["age"] for row in left] == [1, 2, 3, 4, 9]
    await Pruner(db, Policy()).prune_once()
    assert await count(db, "ticks") == 5
    assert (await Scheduler(db).fire_once()).ticks == 0
