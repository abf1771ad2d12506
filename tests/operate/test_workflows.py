"""How jobs do by their names, and what they fail of."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from aaiclick_queue import workflows
from aaiclick_queue.postgres import Database
from aaiclick_queue.workflows import (
    read_failure_texts,
    read_jobs_ended,
    read_memory,
    read_workflow_nodes,
    read_workflows,
)
from tests.dag.hands import FAILS, Hands, settle
from tests.planned import Job


async def ended(db: Database, name: str, *, fails: bool = False, seconds: float = 2.0) -> int:
    """A job of two tasks of one name that is over."""
    job = Job(name=name)
    first, other = job.task(name="load", max_attempts=1), job.task(name="load#1", max_attempts=1)
    job_id = (await job.submit(db)).id
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(*job.of([first]))
    await (hands.end(*job.of([other]), outcome=FAILS) if fails else hands.end(*job.of([other])))
    await settle(db)
    await db.fetch(
        "UPDATE aaiclick_queue.jobs SET started_at = finished_at - make_interval(secs => $2) WHERE id = $1",
        job_id,
        seconds,
    )
    await db.fetch(
        """UPDATE aaiclick_queue.tasks SET started_at = finished_at - interval '1 s', attempt = 3
        WHERE job_id = $1 AND status IS NOT NULL""",
        job_id,
    )
    return job_id


async def test_jobs_are_told_by_name(db: Database) -> None:
    for seconds in (1.0, 3.0):
        await ended(db, "etl", seconds=seconds)
    await ended(db, "etl", fails=True)
    await ended(db, "mail")
    found = await read_workflows(db, days=7)
    assert not found.is_cut
    etl, mail = found.items
    assert (etl.name, etl.total, etl.completed, etl.failed, etl.cancelled) == ("etl", 3, 2, 1, 0)
    assert etl.success_rate == pytest.approx(2 / 3)
    assert (etl.average_seconds, etl.p50_seconds) == (2.0, 2.0)
    assert etl.p95_seconds == pytest.approx(2.9)
    [common] = etl.common_failures
    assert common.count == 1
    assert common.text
    assert (mail.name, mail.success_rate, mail.common_failures) == ("mail", 1.0, [])


async def test_only_the_newest_jobs_are_looked_at_and_that_is_said(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "JOBS_LIMIT", 2)
    for _ in range(3):
        await ended(db, "etl")
    found = await read_workflows(db, days=7)
    assert (found.items[0].total, found.is_cut) == (2, True)


async def test_tasks_are_told_by_the_name_they_have_in_jobs_of_a_name(db: Database) -> None:
    await ended(db, "etl")
    await ended(db, "etl", fails=True)
    await ended(db, "mail")
    found = await read_workflow_nodes(db, "etl", days=7)
    [load] = found.items
    assert (load.name, load.executions, load.completed, load.failed) == ("load", 4, 3, 1)
    assert (load.success_rate, load.average_seconds, load.total_retries) == (0.75, 1.0, 8)
    assert (await read_workflow_nodes(db, "nothing", days=7)).items == []


async def test_what_is_before_the_jobs_that_were_looked_at_is_not_known(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(db, "etl", seconds=4.0)
    now: datetime = await db.fetchval("SELECT date_trunc('hour', now())")
    starts = [now - timedelta(hours=1), now]
    assert sum(one.completed or 0 for one in await read_jobs_ended(db, starts, timedelta(hours=1))) == 1
    monkeypatch.setattr(workflows, "JOBS_LIMIT", 1)
    before, _ = await read_jobs_ended(db, starts, timedelta(hours=1))
    assert (before.completed, before.failed) == (None, None)


async def test_failures_are_counted_by_their_text(db: Database) -> None:
    for name in ("etl", "mail"):
        await ended(db, name, fails=True)
    await db.fetch(
        """UPDATE aaiclick_queue.tasks SET error = jsonb_set(error, '{message}', to_jsonb(repeat('x', 500)))
        WHERE status = 'FAILED'"""
    )
    found = await read_failure_texts(db, days=7, limit=5)
    [kind] = found.items
    assert (kind.count, len(kind.text), found.total, found.is_cut) == (2, 200, 2, False)
    assert (await read_failure_texts(db, days=7, limit=1)).total == 2


async def test_the_memory_has_the_last_ends_and_where_failures_come_from(db: Database) -> None:
    good, bad = await ended(db, "etl"), await ended(db, "etl", fails=True)
    found = await read_memory(db)
    assert [job.id for job in found.completed] == [str(good)]
    assert [(job.id, job.seconds) for job in found.failed] == [(str(bad), 2.0)]
    assert list(found.failures_by_queue.values()) == [1]
    assert sum(found.failures_by_entrypoint.values()) == 1
    assert found.success_rate == {"etl": 0.5}
    assert found.average_seconds == {"etl": 2.0}
    assert not found.is_cut
