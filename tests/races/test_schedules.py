"""Schedulers that meet each other, and people who change a schedule in the very second it fires: in every order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.firing import Firing, fire_ticks
from aaiclick_queue.flow.register import Registrar, delete, delete_ticks
from aaiclick_queue.flow.scheduler import HOLD_DUE, READ_LOCKED, Scheduler
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import registration
from tests.races.orders import Play, Stage
from tests.schedules.acting import assert_whole, drop_wakeups, fire, note, outcomes, statuses, ticks
from tests.tools import lock_is_waited_for, until

DUE = "UPDATE aaiclick_queue.registered_jobs SET next_run_at = next_run_at - $1::interval"
TABLES = ("registered_jobs", "ticks", "jobs", "gates", "tasks", "ready", "operations")
Change = Callable[[Registrar], Awaitable[Any]]


async def step(db: Database) -> None:
    await Scheduler(db).fire_once()


async def change(db: Database, change: Change) -> None:
    """As somebody does by hand."""
    async with db.transaction() as tx:
        await change(Registrar(tx, (await id_source(tx)).take, by="me", seconds=60))


async def registered(db: Database, *, due: timedelta = timedelta(seconds=1, milliseconds=500), **options: Any) -> None:
    """A schedule of every second that has been due for so long, in a world of its own."""
    for table in TABLES:
        await db.fetch(f"DELETE FROM aaiclick_queue.{table}")
    await drop_wakeups(db)
    new = registration("it", note, {"interval": 1, **options})
    await change(db, lambda registrar: registrar.write(new))
    await db.fetch(DUE, timedelta(seconds=1) + due)


def hourly_too(registrar: Registrar) -> Awaitable[None]:
    return registrar.write(registration("it", note, {"interval": 3600}))


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue", "replace"])
async def test_two_schedulers_fire_each_tick_of_a_schedule_once(stage: Stage, db: Database, overlap: str) -> None:
    async def scene(play: Play) -> None:
        await registered(db, overlap=overlap, misfire="catch_up")
        before = await db.fetchval("SELECT fire_at FROM aaiclick_queue.registered_jobs")
        for done in await play.run(one=step, other=step):
            assert not isinstance(done, BaseException), done
        await step(db)
        written = await ticks(db)
        assert [one["fire_at"] for one in written] == [before + n * timedelta(seconds=1) for n in range(len(written))]
        assert len(written) >= 2
        await assert_whole(db)
        is_open = [one for one in await statuses(db) if one in ("PENDING", "RUNNING")]
        fired = (await outcomes(db)).count("FIRED")
        match overlap:
            case "allow":
                assert fired == len(written) == len(is_open)
            case "replace":
                assert len(is_open) == 1, "two runs at once"
            case _:
                assert len(is_open) == fired == 1, "two runs at once"

    await stage.in_every_order(scene, preemptions=2)
    await _leave(db)


@pytest.mark.parametrize("run_type", ["SCHEDULED", "BACKFILL"])
async def test_a_tick_that_has_a_run_gets_no_second_one(db: Database, run_type: str) -> None:
    await registered(db)
    await step(db)
    [tick, *_] = await db.fetch("SELECT registered_job_id, fire_at FROM aaiclick_queue.ticks WHERE outcome = 'FIRED'")
    made = len(await statuses(db))
    # As somebody would who has read the ticks before that one was there.
    again = (tick["registered_job_id"], tick["fire_at"], None, "FIRED", 0, None, 0.0)
    take = (await id_source(db)).take
    assert await fire_ticks(db, [again], take, seconds=60, run_type=run_type) == 0
    assert len(await statuses(db)) == made
    await assert_whole(db)
    await _leave(db)


async def test_a_tick_that_waits_fires_once_when_two_schedulers_see_the_end_of_the_run(
    stage: Stage, db: Database
) -> None:
    async def scene(play: Play) -> None:
        await registered(db, overlap="queue", interval=3600, due=timedelta(hours=2), misfire="catch_up")
        await fire(db)
        assert await outcomes(db) == ["FIRED", "QUEUED"]
        await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'COMPLETED', finished_at = now()")
        await play.run(one=step, other=step)
        await step(db)
        assert await outcomes(db) == ["FIRED", "FIRED"]
        assert sorted(await statuses(db)) == ["COMPLETED", "PENDING"]
        await assert_whole(db)

    await stage.in_every_order(scene, preemptions=2)
    await _leave(db)


CHANGES: dict[str, Change] = {
    "upsert": hourly_too,
    "same": lambda registrar: registrar.write(registration("it", note, {"interval": 1, "misfire": "catch_up"})),
    "disable": lambda registrar: registrar.turn("it", enabled=False),
}


@pytest.mark.parametrize("by", CHANGES)
async def test_a_schedule_that_is_changed_while_it_fires_fires_each_tick_once(
    stage: Stage, db: Database, by: str
) -> None:
    async def scene(play: Play) -> None:
        await registered(db, misfire="catch_up")
        before = await db.fetchval("SELECT fire_at FROM aaiclick_queue.registered_jobs")
        for done in await play.run(scheduler=step, somebody=lambda db: change(db, CHANGES[by])):
            assert not isinstance(done, BaseException), done
        await assert_whole(db)
        written = [one["fire_at"] for one in await ticks(db)]
        assert written == [before + n * timedelta(seconds=1) for n in range(len(written))]
        [row] = await db.fetch("SELECT enabled, fire_at, next_run_at, interval_seconds FROM "
                               "aaiclick_queue.registered_jobs")  # fmt: skip
        if by == "disable":
            assert (row["enabled"], row["fire_at"], row["next_run_at"]) == (False, None, None)
            assert await fire(db) == 0
        else:
            assert len(written) >= 2 or by == "same"  # what was due has fired, by whom ever
            assert row["interval_seconds"] == (1 if by == "same" else 3600)
            assert row["fire_at"] > max(written, default=before - timedelta(seconds=1))
            await fire(db)
            await assert_whole(db)

    await stage.in_every_order(scene, preemptions=3)
    await _leave(db)


async def test_who_waited_for_the_row_knows_the_run_that_was_made_meanwhile(db: Database) -> None:
    await registered(db, overlap="skip", misfire="catch_up")
    async with db.transaction() as tx:
        held = [row["id"] for row in await tx.fetch(HOLD_DUE, 10, [])]
        [row] = await tx.fetch(READ_LOCKED, held)
        first = dict(row) | {"now": row["next_run_at"]}  # a scheduler that came a second earlier
        assert await Firing(tx, (await id_source(tx)).take, timeout=60).fire([first]) == (1, 1)
        waiting = asyncio.create_task(change(db, hourly_too))
        await until(lambda: lock_is_waited_for(db))
    await waiting
    assert {*(await outcomes(db))[1:]} == {"SKIPPED"}
    assert await statuses(db) == ["PENDING"]
    await _leave(db)


async def test_a_schedule_that_is_deleted_while_it_fires_is_gone_and_its_runs_are_whole(
    stage: Stage, db: Database
) -> None:
    async def forget(db: Database) -> None:
        gone = await delete(db, "it", by="me")
        assert gone is not None
        await delete_ticks(db, gone)

    async def scene(play: Play) -> None:
        await registered(db, misfire="catch_up")
        for done in await play.run(scheduler=step, somebody=forget):
            assert not isinstance(done, BaseException), done
        for table in ("registered_jobs", "ticks"):
            assert await db.fetchval(f"SELECT count(*) FROM aaiclick_queue.{table}") == 0
        jobs = await db.fetchval("SELECT count(*) FROM aaiclick_queue.jobs")
        assert jobs == await db.fetchval("SELECT count(*) FROM aaiclick_queue.ready")
        assert jobs == 0 or jobs >= 2
        assert await fire(db) == 0

    await stage.in_every_order(scene, preemptions=3)
    await _leave(db)


async def test_of_two_that_register_one_name_one_is_first_and_the_other_changes_it(stage: Stage, db: Database) -> None:
    async def scene(play: Play) -> None:
        for table in TABLES:
            await db.fetch(f"DELETE FROM aaiclick_queue.{table}")
        ways = [registration("it", note, {"interval": every}) for every in (60, 3600)]
        done = await play.run(
            one=lambda db: change(db, lambda registrar: registrar.write(ways[0])),
            other=lambda db: change(db, lambda registrar: registrar.write(ways[1])),
        )
        assert done == [None, None]
        [row] = await db.fetch("SELECT interval_seconds, fire_at - anchor_at AS first FROM "
                               "aaiclick_queue.registered_jobs")  # fmt: skip
        assert row["first"] == timedelta(seconds=row["interval_seconds"])

    await stage.in_every_order(scene, preemptions=3)


async def test_two_versions_of_a_code_that_start_at_once_declare_one_after_the_other(
    stage: Stage, db: Database
) -> None:
    def version(*names: str) -> Callable[[Database], Awaitable[None]]:
        async def start(db: Database) -> None:
            async with db.transaction() as tx:
                registrar = Registrar(tx, (await id_source(tx)).take, by="code", seconds=60)
                await registrar.alone()
                for name in names:
                    await registrar.declare(registration(name, note, {"interval": 60}), "shop")
                await registrar.drop_gone("shop", names)

        return start

    async def scene(play: Play) -> None:
        await db.fetch("DELETE FROM aaiclick_queue.registered_jobs")
        await version("old", "new")(db)
        assert await play.run(one=version("old"), other=version("new")) == [None, None]
        found = await db.fetch("SELECT name, enabled, is_gone FROM aaiclick_queue.registered_jobs")
        assert sorted(row["enabled"] for row in found) == [False, True]

    await stage.in_every_order(scene, preemptions=2)


async def _leave(db: Database) -> None:
    for table in TABLES:
        await db.fetch(f"DELETE FROM aaiclick_queue.{table}")
    await drop_wakeups(db)
