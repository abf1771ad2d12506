"""Registered jobs are written, changed, turned off and on, and deleted; what was due is never lost by that."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, Settings, job
from aaiclick_queue.errors import BadSchedule, BadTask, JobExists, UnknownJob
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import (
    delete_registered_job,
    disable_job,
    enable_job,
    get_registered_job,
    list_registered_jobs,
    next_runs,
    register_job,
    reset_registered_job,
    tick_history,
    upsert_registered_job,
)
from tests.schedules.acting import assert_whole, drop_wakeups, fire, note, outcomes, pass_by, ticks

HOUR = timedelta(hours=1)


async def row(db: Database, name: str = "it") -> dict[str, Any]:
    [found] = await db.fetch("SELECT * FROM aaiclick_queue.registered_jobs WHERE name = $1", name)
    return dict(found)


async def test_all_that_is_registered_is_read_back(client: Client) -> None:
    starts_at, ends_at = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
    made = await register_job(
        "it", note, schedule=["0 8 * * *", "0 20 * * *"], timezone="Europe/Berlin", default_kwargs={"day": "sunday"},
        queue="mail", priority=-5, timeout=7200, max_attempts=7, max_parallel=2, retention=3, misfire="skip",
        misfire_limit=5, overlap="queue", jitter=10, starts_at=starts_at, ends_at=ends_at, description="why",
        client=client,
    )  # fmt: skip
    assert made == await get_registered_job("it", client=client)
    assert (made.entrypoint, made.schedule, made.timezone) == (
        note.entrypoint, ["0 8 * * *", "0 20 * * *"], "Europe/Berlin"
    )  # fmt: skip
    assert (made.default_kwargs, made.queue, made.priority, made.timeout) == ({"day": "sunday"}, "mail", -5, 7200)
    assert (made.max_attempts, made.max_parallel, made.retention) == (7, 2, 3)
    assert (made.misfire, made.misfire_limit, made.overlap, made.jitter) == ("skip", 5, "queue", 10)
    assert (made.starts_at, ends_at, made.description, made.source) == (starts_at, made.ends_at, "why", "api")
    assert made.next_run_at == datetime(2030, 1, 1, 7, tzinfo=UTC)
    assert made.next_runs(2) == [datetime(2030, 1, 1, 7, tzinfo=UTC), datetime(2030, 1, 1, 19, tzinfo=UTC)]


async def test_a_name_is_registered_once(client: Client) -> None:
    await register_job("it", note, interval=60, client=client)
    with pytest.raises(JobExists, match="upsert_registered_job changes it"):
        await register_job("it", note, interval=90, client=client)
    assert (await get_registered_job("it", client=client)).interval == 60


async def test_of_many_that_register_one_name_at_once_one_succeeds(client: Client) -> None:
    made = await asyncio.gather(
        *(register_job("it", note, interval=60 + n, client=client) for n in range(8)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in made) == ["JobExists"] * 7 + ["RegisteredJob"]


async def test_the_list_is_by_name_and_can_leave_out_what_is_disabled(client: Client) -> None:
    for name in ("b", "a", "c"):
        await register_job(name, note, enabled=name != "b", client=client)
    assert [one.name for one in await list_registered_jobs(client=client)] == ["a", "b", "c"]
    assert [one.name for one in await list_registered_jobs(enabled_only=True, client=client)] == ["a", "c"]


# Changes.


async def test_an_upsert_with_the_same_schedule_keeps_its_place_in_time(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, interval="1h", misfire="catch_up", client=client)
    await pass_by(settings, hours=3)
    before = await row(db)
    await upsert_registered_job("it", note, interval="1h", misfire="catch_up", priority=3, client=client)
    after = await row(db)
    assert [after[name] == before[name] for name in ("fire_at", "next_run_at", "anchor_at")] == [True] * 3
    assert await ticks(db) == []
    assert await fire(db) == 3  # what was missed is still fired, by what it is now
    assert {one["priority"] for one in await db.fetch("SELECT priority FROM aaiclick_queue.jobs")} == {3}
    await drop_wakeups(db)


async def test_an_upsert_with_another_schedule_fires_first_what_was_due(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, interval="1h", misfire="catch_up", default_kwargs={"day": "old"}, client=client)
    await pass_by(settings, hours=3)
    await upsert_registered_job("it", note, interval="4h", default_kwargs={"day": "new"}, client=client)
    assert await outcomes(db) == ["FIRED"] * 3  # before anybody has looked
    assert {one["kwargs"] for one in await db.fetch("SELECT kwargs FROM aaiclick_queue.jobs")} == {'{"day": "old"}'}
    last = (await ticks(db))[-1]["fire_at"]
    assert HOUR * 4 < (await row(db))["fire_at"] - last < HOUR * 5  # counted from now
    assert await fire(db) == 0
    await assert_whole(db)
    await drop_wakeups(db)


async def test_an_interval_keeps_its_beat_through_changes_of_all_else(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, interval="1h", client=client)
    first = (await row(db))["fire_at"]
    await pass_by(settings, minutes=50)
    await upsert_registered_job("it", note, interval="1h", timezone="Europe/Berlin", client=client)
    assert (await row(db))["fire_at"] == first
    await disable_job("it", client=client)
    await enable_job("it", client=client)
    assert ((await row(db))["fire_at"] - first) % HOUR == timedelta(0)
    await upsert_registered_job("it", note, interval="2h", client=client)
    assert ((await row(db))["fire_at"] - first) % HOUR != timedelta(0)


async def test_what_was_not_fired_while_disabled_is_not_fired_later(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, interval="1h", misfire="catch_up", client=client)
    assert (await disable_job("it", client=client)).next_run_at is None
    await pass_by(settings, hours=5)
    assert await fire(db) == 0
    enabled = await enable_job("it", client=client)
    assert enabled.next_run_at is not None
    assert datetime.now(UTC) < enabled.next_run_at <= datetime.now(UTC) + HOUR
    assert await fire(db) == 0
    await pass_by(settings, hours=1)
    assert await fire(db) == 1
    assert await disable_job("it", client=client) == await disable_job("it", client=client)
    await drop_wakeups(db)


@pytest.mark.parametrize("by", ["turned off and on", "another zone"])
async def test_a_schedule_that_is_changed_after_time_has_passed_goes_on_from_there(
    settings: Settings, client: Client, db: Database, by: str
) -> None:
    await register_job("it", note, schedule="0 8 * * *", misfire="catch_up", client=client)
    for _ in range(3):
        await pass_by(settings, days=1)
        assert await fire(db) == 1
    if by == "another zone":
        await upsert_registered_job("it", note, schedule="0 8 * * *", timezone="Europe/London", client=client)
    else:
        await disable_job("it", client=client)
        await enable_job("it", client=client)
    for _ in range(3):
        await pass_by(settings, days=1)
        assert await fire(db) == 1
    fires = [one["fire_at"].date() for one in await ticks(db)]
    assert fires == [fires[0] + timedelta(days=n) for n in range(6)]
    await drop_wakeups(db)


async def test_a_deleted_one_is_forgotten_with_its_history_and_its_runs_stay(
    settings: Settings, client: Client, db: Database
) -> None:
    await register_job("it", note, interval="1h", client=client)
    await pass_by(settings, hours=1)
    await fire(db)
    assert await delete_registered_job("it", client=client)
    assert not await delete_registered_job("it", client=client)
    assert await db.fetchval("SELECT count(*) FROM aaiclick_queue.ticks") == 0
    assert await db.fetchval("SELECT count(*) FROM aaiclick_queue.jobs") == 1
    with pytest.raises(UnknownJob, match="no job 'it' is registered"):
        await get_registered_job("it", client=client)
    await register_job("it", note, interval="1h", client=client)
    assert await tick_history("it", client=client) == []
    await drop_wakeups(db)


@pytest.mark.parametrize("act", [enable_job, disable_job, reset_registered_job, get_registered_job, tick_history])
async def test_a_name_that_nobody_registered_is_refused(client: Client, act: Any) -> None:
    with pytest.raises(UnknownJob, match="no job 'nobody' is registered: `aaiclick-queue registered-job list`"):
        await act("nobody", client=client)


async def test_what_no_code_has_declared_cannot_be_given_back(client: Client) -> None:
    await register_job("it", note, interval=60, client=client)
    with pytest.raises(BadSchedule, match="no code has declared 'it'"):
        await reset_registered_job("it", client=client)


async def test_one_that_is_over_or_has_no_schedule_has_no_next_run(client: Client) -> None:
    past = datetime.now(UTC) - HOUR
    over = await register_job("over", note, interval=60, starts_at=past - HOUR, ends_at=past, client=client)
    none = await register_job("none", note, client=client)
    assert (over.next_run_at, none.next_run_at) == (None, None)
    assert (over.next_runs(), none.next_runs()) == ([], [])


# What is refused.

NOW = datetime.now(UTC)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"schedule": "61 * * * *"}, r'minute 61 \(at position 1 of "61 \* \* \* \*"\) is not in 0–59'),
    ({"schedule": ["0 8 * * *", "nonsense"]}, r'"nonsense" has 1 field'),
    ({"schedule": []}, r"give a cron expression as"),
    ({"schedule": "0 8 * * *", "timezone": "Europe/Berlim"}, r"did you mean Europe/Berlin"),
    ({"timezone": "Nowhere"}, r"time zone .Nowhere. is not known"),
    ({"schedule": "0 8 * * *", "interval": 60}, r"either cron expressions or an interval"),
    ({"interval": 0.5}, r"not from 1 second to 366 days"),
    ({"interval": "soon"}, r"is no duration"),
    ({"interval": 60, "starts_at": NOW, "ends_at": NOW}, r"is not after starts_at"),
    ({"interval": 60, "starts_at": datetime(2030, 1, 1)}, r"has no time zone"),  # noqa: DTZ001
    ({"interval": 60, "ends_at": "tomorrow"}, r"give a datetime with a time zone"),
    ({"misfire": "catchup"}, r"did you mean 'catch_up'\?"),
    ({"overlap": "cancel"}, r"give one of allow, skip, queue, replace"),
    ({"misfire_limit": 0}, r"misfire_limit"),
    ({"default_kwargs": {"dey": 1}}, r"default_kwargs has 'dey', and .*note takes day"),
    ({"default_kwargs": [1]}, r"give the arguments by name"),
    ({"shedule": "0 8 * * *"}, r"unknown option 'shedule' of a registered job: did you mean 'schedule'\?"),
    ({"priority": 40_000}, r"priority"),
    ({"jitter": -1}, r"jitter"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options)[:40] for options, _ in BAD])
async def test_what_cannot_work_is_refused_with_what_to_write(
    client: Client, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadTask, match=message):
        await upsert_registered_job("it", note, client=client, **options)
    assert await list_registered_jobs(client=client) == []


@pytest.mark.parametrize(("name", "entrypoint"), [("", note), ("x" * 201, note), ("it", "nowhere"), ("it", 5)])
async def test_a_name_or_a_function_that_cannot_be_is_refused(client: Client, name: str, entrypoint: Any) -> None:
    with pytest.raises(BadSchedule, match=r"name=|entrypoint="):
        await register_job(name, entrypoint, client=client)


def test_arguments_that_a_declared_job_does_not_take_are_refused_where_it_is_declared() -> None:
    with pytest.raises(BadSchedule, match="default_kwargs has 'dey'"):

        @job(schedule="0 8 * * *", default_kwargs={"dey": "monday"})
        def declared(day: str) -> None: ...


def test_a_schedule_can_be_looked_at_before_it_is_registered() -> None:
    after = datetime(2027, 3, 27, 12, tzinfo=UTC)
    assert next_runs("30 2 * * *", timezone="Europe/Berlin", after=after, count=2) == [
        datetime(2027, 3, 28, 1, tzinfo=UTC),
        datetime(2027, 3, 29, 0, 30, tzinfo=UTC),
    ]
    assert next_runs(interval="90m", after=after, count=2) == [after + 1.5 * HOUR, after + 3 * HOUR]
