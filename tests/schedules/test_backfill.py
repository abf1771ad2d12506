"""A backfill makes a run for each tick of a range that has none, in the order of time, and no tick twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, current, task
from aaiclick_queue.backfilling import backfill, missing_ticks
from aaiclick_queue.errors import BadSchedule, BadTask, UnknownJob
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.operations import Operation
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import delete_registered_job, register_job, tick_history
from tests.tools import claim, register_worker, rows

START = datetime(2026, 3, 27, tzinfo=UTC)
END = datetime(2026, 4, 1, tzinfo=UTC)
# 02:30 does not exist on 29 March 2026 in Berlin.
FIRES = [
    datetime(2026, 3, 27, 1, 30, tzinfo=UTC),
    datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
    datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    datetime(2026, 3, 31, 0, 30, tzinfo=UTC),
]


@task
async def fetch_day() -> str:
    day: str = current().metadata["fire_at"]
    return day


async def _register(client: Client, **options: Any) -> None:
    await register_job("nightly", fetch_day, schedule="30 2 * * *", timezone="Europe/Berlin", client=client, **options)


async def test_each_tick_of_the_range_gets_one_run_and_a_second_backfill_finds_none(
    db: Database, client: Client
) -> None:
    await _register(client, jitter=3600, overlap="skip")
    assert await missing_ticks("nightly", START, END, client=client) == FIRES
    seen: list[Operation] = []
    done = await backfill("nightly", START, END, client=client, progress=seen.append)
    assert (done.status, done.done, done.total) == ("DONE", 5, 5)
    assert seen
    jobs = sorted(await rows(db, "jobs"), key=lambda one: one["id"])
    assert [(one["run_type"], one["status"]) for one in jobs] == [("BACKFILL", "PENDING")] * 5
    ticks = await tick_history("nightly", client=client)
    assert [one.fire_at for one in reversed(ticks)] == FIRES
    assert {one.late for one in ticks} == {None}
    again = await backfill("nightly", START, END, client=client)
    assert (again.status, again.done, again.total) == ("DONE", 0, 0)
    assert not await missing_ticks("nightly", START, END, client=client)
    runs = await claim(db, await register_worker(db), 10)
    assert [run.metadata for run in runs] == [
        f'{{"fire_at": "{fire.isoformat().removesuffix("+00:00")}.000000Z"}}' for fire in FIRES
    ]


async def test_ticks_that_were_missed_or_skipped_are_filled_in_and_those_that_wait_are_not(
    db: Database, client: Client
) -> None:
    await _register(client)
    registered = await db.fetchval("SELECT id FROM aaiclick_queue.registered_jobs")
    for fire, outcome in zip(FIRES, ("MISSED", "SKIPPED", "QUEUED"), strict=False):
        await db.fetch(
            "INSERT INTO aaiclick_queue.ticks (registered_job_id, fire_at, outcome) VALUES ($1, $2, $3::text)",
            registered,
            fire.replace(tzinfo=None),
            outcome,
        )
    assert await missing_ticks("nightly", START, END, client=client) == [*FIRES[:2], *FIRES[3:]]
    assert (await backfill("nightly", START, END, client=client)).done == 4
    outcomes = [one.outcome for one in await tick_history("nightly", client=client)]
    assert outcomes == ["FIRED", "FIRED", "QUEUED", "FIRED", "FIRED"]
    await db.fetch("DELETE FROM aaiclick_queue.ticks WHERE outcome = 'QUEUED'")


async def test_no_more_runs_are_open_than_may_be_and_workers_go_on_with_it(db: Database, client: Client) -> None:
    await _register(client)
    made: list[int] = []

    def stop(operation: Operation) -> None:
        made.append(operation.done)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await backfill("nightly", START, END, max_running=2, client=client, progress=stop)
    assert made == [2]
    worked = await work_once(db)
    assert worked is not None
    assert (worked.status, worked.taken, worked.pause > 0) == ("OPEN", 0, True)
    worker = await register_worker(db)
    for count in (2, 2, 1):
        runs = await claim(db, worker, 10)
        assert len(runs) == count
        await db.fetch(
            "UPDATE aaiclick_queue.jobs SET status = 'CANCELLED' WHERE id = ANY($1)", [r.job_id for r in runs]
        )
        await work_once(db)
    assert await db.fetchval("SELECT status FROM aaiclick_queue.operations") == "DONE"


async def test_what_cannot_be_filled_in_is_refused(db: Database, client: Client) -> None:
    with pytest.raises(UnknownJob, match="no job 'nightly' is registered"):
        await backfill("nightly", START, END, client=client)
    await register_job("by hand", fetch_day, client=client)
    with pytest.raises(BadSchedule, match="has no schedule"):
        await backfill("by hand", START, END, client=client)
    await _register(client)
    with pytest.raises(BadSchedule, match="not after its start"):
        await backfill("nightly", END, START, client=client)
    with pytest.raises(BadTask, match="no time zone"):
        await backfill("nightly", START.replace(tzinfo=None), END, client=client)
    with pytest.raises(BadSchedule, match="max_running=0"):
        await backfill("nightly", START, END, max_running=0, client=client)
    now = datetime.now(UTC)
    assert not await missing_ticks("nightly", now + timedelta(days=1), now + timedelta(days=9), client=client)


async def test_an_operation_whose_registered_job_is_gone_fails_and_says_so(db: Database, client: Client) -> None:
    await _register(client)

    def stop(_: Operation) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await backfill("nightly", START, END, max_running=1, client=client, progress=stop)
    assert await delete_registered_job("nightly", client=client)
    worked = await work_once(db)
    assert worked is not None
    assert worked.status == "FAILED"
    assert "deleted" in await db.fetchval("SELECT error FROM aaiclick_queue.operations")
