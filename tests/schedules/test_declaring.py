"""Schedules that code declares: who owns the row, edited, given back, gone, and back again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, Settings, job
from aaiclick_queue.declaring import declare_schedules
from aaiclick_queue.jobs import known_jobs
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import (
    RegisteredJob,
    disable_job,
    enable_job,
    get_registered_job,
    list_registered_jobs,
    register_job,
    reset_registered_job,
    upsert_registered_job,
)
from tests.schedules.acting import drop_wakeups, fire, note, outcomes, pass_by
from tests.tools import declarations_of_its_own, running_worker

Declare = Callable[..., None]
EVENTS = "SELECT type FROM aaiclick_queue.events WHERE type LIKE 'SCHEDULE%' ORDER BY 1"


@pytest.fixture
def code() -> Iterator[Declare]:
    """The code as it is now: each call replaces what it declares."""
    before = {name: [*jobs] for name, jobs in known_jobs.items()}

    def declares(*names: str, **options: Any) -> None:
        known_jobs.clear()
        for name in names:
            given = {"schedule": "0 8 * * *"} | options

            @job(name, entrypoint=f"shop.jobs.{name}", **given)
            def body(day: str = "monday") -> Any:
                return note(day)

    with declarations_of_its_own():
        known_jobs.clear()
        yield declares
    known_jobs.clear()
    known_jobs.update(before)


async def start(db: Database, *modules: str) -> None:
    """As a worker of these modules does."""
    await declare_schedules(db, modules or ("shop",))


async def found(client: Client, name: str = "daily") -> RegisteredJob:
    return await get_registered_job(name, client=client)


async def test_a_worker_that_starts_writes_down_what_its_code_declares(
    quick: Settings, client: Client, code: Declare
) -> None:
    code("daily", queue="mail", priority=3, retention=2, timezone="Europe/Berlin")
    async with running_worker(quick, modules=("shop",)):
        daily = await found(client)
    assert (daily.source, daily.queue, daily.priority, daily.retention) == ("code", "mail", 3, 2)
    assert (daily.schedule, daily.timezone, daily.entrypoint) == (["0 8 * * *"], "Europe/Berlin", "shop.jobs.daily")


async def test_a_start_with_the_same_code_changes_nothing(db: Database, client: Client, code: Declare) -> None:
    code("daily", metadata={"team": "mail"}, default_kwargs={"day": "friday"}, interval=None)
    await start(db)
    before = await found(client)
    await start(db)
    assert await found(client) == before
    assert [row["type"] for row in await db.fetch(EVENTS)] == ["SCHEDULE_REGISTERED"]


async def test_code_that_changes_changes_its_row_and_fires_first_what_was_due(
    settings: Settings, db: Database, client: Client, code: Declare
) -> None:
    code("daily", schedule=None, interval="1h", misfire="catch_up")
    await start(db)
    await pass_by(settings, hours=2)
    code("daily", schedule=None, interval="3h", misfire="catch_up")
    await start(db)
    assert (await found(client)).interval == 10800
    assert await outcomes(db, "daily") == ["FIRED", "FIRED"]
    await drop_wakeups(db)


async def test_what_was_edited_is_left_alone_until_it_is_given_back(
    db: Database, client: Client, code: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    code("daily")
    await start(db)
    await upsert_registered_job("daily", note, schedule="0 9 * * *", client=client)
    assert (await found(client)).source == "edited"
    await start(db)
    assert not caplog.records  # the code is what it was
    code("daily", schedule="0 10 * * *")
    with caplog.at_level(logging.WARNING):
        await start(db)
    assert (await found(client)).schedule == ["0 9 * * *"]
    [told] = caplog.records
    assert told.message.startswith("schedule daily was edited: what the code says now is not used; `aaiclick-queue reg")
    back = await reset_registered_job("daily", client=client)
    assert (back.source, back.schedule, back.entrypoint) == ("code", ["0 10 * * *"], "shop.jobs.daily")
    code("daily", schedule="0 11 * * *")
    await start(db)
    assert (await found(client)).schedule == ["0 11 * * *"]


async def test_one_that_was_disabled_by_hand_stays_so(db: Database, client: Client, code: Declare) -> None:
    code("daily")
    await start(db)
    await disable_job("daily", client=client)
    code("daily", schedule="0 10 * * *")
    await start(db)
    assert ((await found(client)).enabled, (await found(client)).source) == (False, "edited")
    assert (await reset_registered_job("daily", client=client)).enabled


async def test_one_that_is_gone_is_disabled_and_comes_back_with_its_code(
    settings: Settings, db: Database, client: Client, code: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    code("daily", "other")
    await start(db)
    code("other")
    with caplog.at_level(logging.WARNING):
        await start(db)
        await start(db)
    assert [one.message for one in caplog.records] == ["schedule daily is gone from the code, and disabled"]
    gone = await found(client)
    assert (gone.enabled, gone.is_gone, gone.source, gone.next_run_at) == (False, True, "code", None)
    assert (await found(client, "other")).enabled
    await pass_by(settings, days=3)
    await fire(db)
    assert await outcomes(db, "daily") == []
    code("daily", "other")
    await start(db)
    back = await found(client)
    assert (back.enabled, back.is_gone) == (True, False)
    assert back.next_run_at is not None
    await drop_wakeups(db)


async def test_one_that_is_gone_and_was_enabled_by_hand_is_its_editors(
    db: Database, client: Client, code: Declare
) -> None:
    code("daily", "other")
    await start(db)
    code("other")
    await start(db)
    await enable_job("daily", client=client)
    await start(db)
    daily = await found(client)
    assert (daily.enabled, daily.is_gone, daily.source) == (True, False, "edited")


async def test_code_with_no_schedules_left_disables_them_and_a_worker_without_modules_nothing(
    db: Database, client: Client, code: Declare
) -> None:
    code("daily")
    await start(db)
    code()
    await declare_schedules(db, ())
    assert (await found(client)).enabled
    await start(db)
    assert not (await found(client)).enabled


async def test_two_applications_leave_each_others_schedules_alone(db: Database, client: Client, code: Declare) -> None:
    code("daily")
    await start(db, "shop", "mail")
    code("weekly")
    await start(db, "stock")
    code("daily")
    await start(db, "mail", "shop")  # the same ones
    assert [(one.name, one.enabled) for one in await list_registered_jobs(client=client)] == [
        ("daily", True),
        ("weekly", True),
    ]


async def test_one_that_was_registered_by_hand_before_is_not_the_codes(
    db: Database, client: Client, code: Declare
) -> None:
    await register_job("daily", note, interval=60, client=client)
    code("daily")
    await start(db)
    kept = await found(client)
    assert (kept.source, kept.interval) == ("api", 60)
    code()
    await start(db)
    assert (await found(client)).enabled
    assert (await reset_registered_job("daily", client=client)).schedule == ["0 8 * * *"]


async def test_many_workers_that_start_at_once_write_it_once(db: Database, client: Client, code: Declare) -> None:
    code("daily", "weekly", "monthly")
    async with asyncio.timeout(20):
        await asyncio.gather(*(start(db) for _ in range(8)))
    assert len(await list_registered_jobs(client=client)) == 3
    assert [row["type"] for row in await db.fetch(EVENTS)] == ["SCHEDULE_REGISTERED"] * 3


async def test_of_two_jobs_with_one_name_the_first_has_the_schedule(
    db: Database, client: Client, code: Declare, caplog: pytest.LogCaptureFixture
) -> None:
    code("daily")

    @job("daily", entrypoint="stock.jobs.daily", interval=timedelta(hours=1))
    def other() -> None: ...

    await start(db)
    assert (await found(client)).entrypoint == "shop.jobs.daily"
    assert "schedule daily is declared twice: that of stock.jobs.daily is not used" in caplog.text
