"""Schedulers that break: at their commit, on a schedule they cannot read, before far too many ticks."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from aaiclick_queue import Client, Settings, connect
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow import firing
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import register_job, tick_history, upsert_registered_job
from tests.schedules.acting import assert_whole, drop_wakeups, fire, note, outcomes, pass_by, ticks
from tests.tools import Proxy, changed, until

ROW = "SELECT fire_at, next_run_at AT TIME ZONE 'UTC' AS due FROM aaiclick_queue.registered_jobs WHERE name = $1"
IS_FREE = "SELECT id FROM aaiclick_queue.registered_jobs FOR UPDATE SKIP LOCKED"
UNREADABLE = "UPDATE aaiclick_queue.registered_jobs SET timezone = $2 WHERE name = $1"


@pytest.mark.parametrize("words", [b"COMMIT;", b"SET fire_at = given.fire_at"])
@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_step_whose_wire_broke_fires_each_tick_once(
    settings: Settings, client: Client, db: Database, words: bytes, *, carried_out: bool
) -> None:
    await register_job("it", note, interval="1h", misfire="catch_up", client=client)
    await pass_by(settings, hours=3)
    assert settings.postgres_url
    async with (
        Proxy(settings.postgres_url) as proxy,
        Database(changed(settings, postgres_url=proxy.url), size=1) as wired,
    ):
        scheduler = Scheduler(wired)
        proxy.break_at(words, carried_out=carried_out)
        with pytest.raises(PostgresUnavailable):
            await scheduler.fire_once()
        await until(lambda: db.fetch(IS_FREE))
        assert len(await ticks(db)) == (3 if carried_out and words == b"COMMIT;" else 0)
        await fire(wired, scheduler)
    assert await outcomes(db) == ["FIRED"] * 3
    await assert_whole(db)
    await drop_wakeups(db)


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_change_whose_wire_broke_fires_what_was_due_once(
    settings: Settings, client: Client, db: Database, *, carried_out: bool
) -> None:
    await register_job("it", note, interval="1h", misfire="catch_up", client=client)
    await pass_by(settings, hours=3)
    assert settings.postgres_url
    async with (
        Proxy(settings.postgres_url) as proxy,
        connect(settings=changed(settings, postgres_url=proxy.url)) as wired,
    ):
        proxy.break_at(b"COMMIT;", carried_out=carried_out)
        with pytest.raises(PostgresUnavailable):
            await upsert_registered_job("it", note, interval="2h", client=wired)
        await until(lambda: db.fetch(IS_FREE))
        await upsert_registered_job("it", note, interval="2h", client=wired)
    assert await fire(db) == 0
    assert await outcomes(db) == ["FIRED"] * 3
    await assert_whole(db)
    await drop_wakeups(db)


async def test_a_schedule_that_cannot_be_read_here_keeps_nobody_waiting_and_loses_nothing(
    settings: Settings, client: Client, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("it", "other"):
        await register_job(name, note, interval="1h", misfire="catch_up", client=client)
    await pass_by(settings, hours=2)
    await db.fetch(UNREADABLE, "it", "Mars/Olympus")
    await db.fetch("UPDATE aaiclick_queue.registered_jobs SET interval_seconds = NULL, schedule = '{0 * * * *}' "
                   "WHERE name = 'it'")  # fmt: skip
    before = await db.fetch(ROW, "it")
    scheduler = Scheduler(db)
    with caplog.at_level(logging.ERROR):
        assert await fire(db, scheduler) == 2
        done = await scheduler.fire_once()
    assert done.next_due is not None
    assert done.next_due > 60, "it does not look at it again and again"
    assert len([one for one in caplog.records if "schedule it cannot be read" in one.message]) == 1
    assert await db.fetch(ROW, "it") == before
    await db.fetch(UNREADABLE, "it", "Europe/Berlin")
    assert await fire(db) in (1, 2, 3)  # another one, that can; full hours of the calendar
    [row] = await db.fetch(ROW, "it")
    assert (row["fire_at"].minute, row["fire_at"].second) == (0, 0)
    assert (row["fire_at"] - row["due"]) == timedelta(hours=2), "its clock is what it was"
    await assert_whole(db)
    await drop_wakeups(db)


async def test_a_schedule_that_cannot_be_read_can_be_overwritten(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, schedule="0 * * * *", client=client)
    await pass_by(settings, hours=2)
    await db.fetch(UNREADABLE, "it", "Mars/Olympus")
    await upsert_registered_job("it", note, interval="1h", client=client)
    await pass_by(settings, hours=1)
    assert await fire(db) == 1
    await drop_wakeups(db)


async def test_far_too_many_ticks_are_fired_in_steps(
    settings: Settings, client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await register_job(name, note, interval="1m", misfire="catch_up", client=client)
    await pass_by(settings, hours=1)
    monkeypatch.setattr(firing, "TICKS_AT_A_TIME", 50)
    scheduler = Scheduler(db)
    steps = [await scheduler.fire_once() for _ in range(4)]
    assert [(one.runs, one.is_full) for one in steps] == [(60, True), (60, True), (60, False), (0, False)]
    await assert_whole(db)
    await drop_wakeups(db)


async def test_the_lateness_of_a_tick_is_measured_from_its_moment(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, interval="1h", misfire="catch_up", client=client)
    await pass_by(settings, minutes=60, seconds=30)
    await fire(db)
    [tick] = await tick_history("it", client=client)
    assert tick.late is not None
    assert 30 <= tick.late < 60
    await drop_wakeups(db)
