"""Schedules by hand: time that passes, schedulers that take steps, runs that start and end; the law of ticks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aaiclick_queue import Settings, task
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.testing.ageing import Clock
from tests.dag.hands import Hands

TICKS = """
SELECT t.fire_at, t.outcome, t.missed, t.reason, t.job_id, t.due_at, t.created_at
FROM aaiclick_queue.ticks t JOIN aaiclick_queue.registered_jobs r ON r.id = t.registered_job_id
WHERE r.name = $1 ORDER BY t.fire_at
"""
# A tick that fired without a job, a job without a tick that fired, two ticks of one job, a tick left in the line.
BROKEN = """
SELECT 'tick without a job' AS what, t.fire_at::text AS which FROM aaiclick_queue.ticks t
WHERE t.outcome = 'FIRED' AND NOT EXISTS (SELECT FROM aaiclick_queue.jobs j WHERE j.id = t.job_id)
UNION ALL
SELECT 'job without a tick', j.id::text FROM aaiclick_queue.jobs j
WHERE j.run_type = 'SCHEDULED' AND NOT EXISTS (
    SELECT FROM aaiclick_queue.ticks t WHERE t.job_id = j.id AND t.outcome = 'FIRED')
UNION ALL
SELECT 'ticks of one job', job_id::text FROM aaiclick_queue.ticks WHERE job_id IS NOT NULL
GROUP BY job_id HAVING count(*) > 1
UNION ALL
SELECT 'job without its task', j.id::text FROM aaiclick_queue.jobs j
WHERE j.run_type = 'SCHEDULED' AND (SELECT count(*) FROM aaiclick_queue.tasks t WHERE t.job_id = j.id) <> 1
UNION ALL
SELECT 'tick that waits for nobody', t.fire_at::text FROM aaiclick_queue.ticks t
WHERE t.outcome = 'QUEUED' AND NOT EXISTS (
    SELECT FROM aaiclick_queue.registered_jobs r WHERE r.id = t.registered_job_id AND r.queued_fire_at = t.fire_at)
"""


@task
async def note(day: str = "monday") -> str:
    return f"{day} is noted"


async def fire(db: Database, scheduler: Scheduler | None = None) -> int:
    """Steps until nothing is due; how many runs that made."""
    scheduler, runs = scheduler or Scheduler(db), 0
    while True:
        fired = await scheduler.fire_once()
        runs += fired.runs
        if not fired.ticks:
            return runs


async def pass_by(settings: Settings, **units: float) -> None:
    """Let time pass."""
    await Clock(settings).advance(timedelta(**units))


async def ticks(db: Database, name: str = "it") -> list[dict[str, Any]]:
    """The ticks of a schedule, the oldest first."""
    return [dict(row) for row in await db.fetch(TICKS, name)]


async def outcomes(db: Database, name: str = "it") -> list[str]:
    """What became of them."""
    return [one["outcome"] for one in await ticks(db, name)]


async def statuses(db: Database) -> list[str]:
    """Those of all jobs, the oldest first."""
    return [row["status"] for row in await db.fetch("SELECT status FROM aaiclick_queue.jobs ORDER BY id")]


async def end_runs(db: Database) -> None:
    """All runs that there are end well."""
    await (await Hands.register(db)).run()


async def assert_whole(db: Database) -> None:
    """Each tick that fired has its job, and each job its tick."""
    assert [tuple(row) for row in await db.fetch(BROKEN)] == []


async def drop_wakeups(db: Database) -> None:
    """As a relay does: no one listens here. Workers have lived on while time passed."""
    await db.fetch("DELETE FROM aaiclick_queue.outbox")
    await db.fetch("UPDATE aaiclick_queue.workers SET lease_expires_at = now() + interval '1 minute'")
