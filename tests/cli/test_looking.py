"""What `task get` and `doctor` tell somebody who wonders why nothing happens."""

from __future__ import annotations

import asyncio
import json

from aaiclick_queue import doctor
from aaiclick_queue.outcome import Error, Later, Released
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import environment, run
from tests.tools import age, claim, end, make_due, place_of, put, put_one, register_worker

UNKNOWN = Later("UNKNOWN", Error("UnknownEntrypoint", "no task is registered as 'tests.nowhere'"), 5.0)


async def try_in_vain(db: Database, times: int) -> int:
    """A task that so many workers had no code for."""
    task_id = await put_one(db)
    for _ in range(times):
        [run] = await claim(db, await register_worker(db))
        assert await end(db, run, UNKNOWN)
        await make_due(db)
        await db.fetch("SELECT 1")
        await move_due(db)
    return task_id


async def move_due(db: Database) -> None:
    from aaiclick_queue.flow.reaper import Reaper

    await Reaper(db).due_once()


async def test_tries_in_workers_without_the_code_are_one_line(db: Database, settings: Settings) -> None:
    task_id = await try_in_vain(db, 7)
    ran = await asyncio.to_thread(run, "task", "get", str(task_id), env=environment(settings))
    assert ran.stdout.count("UNKNOWN") == 1
    assert ran.stdout.count("UnknownEntrypoint") == 1
    assert "tried 7 times since" in ran.stdout
    assert "tried 7 times, unknown entrypoint" in ran.stdout
    whole = await asyncio.to_thread(run, "task", "get", str(task_id), "--json", env=environment(settings))
    assert len(json.loads(whole.stdout)["attempts"]) == 7


async def test_a_single_try_is_told_as_one(db: Database, settings: Settings) -> None:
    task_id = await try_in_vain(db, 1)
    ran = await asyncio.to_thread(run, "task", "get", str(task_id), env=environment(settings))
    assert "tried once, unknown entrypoint" in ran.stdout
    assert "since" not in ran.stdout


async def test_runs_that_were_handed_back_are_counted(db: Database, settings: Settings) -> None:
    task_id = await put_one(db)
    for _ in range(2):
        [one] = await claim(db, await register_worker(db))
        assert await end(db, one, Released())
    await claim(db, await register_worker(db))
    assert await place_of(db, task_id) == ["leases"]
    ran = await asyncio.to_thread(run, "task", "get", str(task_id), env=environment(settings))
    assert "handed back  2 of its runs, at no cost" in ran.stdout
    await age(db, "tasks", "created_at", 2 * 86400)  # attempts of that age may have been pruned: nobody can tell
    ran = await asyncio.to_thread(run, "task", "get", str(task_id), env=environment(settings))
    assert "handed back" not in ran.stdout


async def notices(db: Database) -> list[str]:
    return [finding.detail for finding in await doctor.check(db) if finding.notice]


async def test_work_that_waits_where_no_worker_is_gets_a_notice(db: Database, settings: Settings) -> None:
    await put(db, queue="mail", count=3)
    assert await notices(db) == []  # it may be about to be claimed
    await age(db, "ready", "ready_at", 90)
    [detail] = await notices(db)
    assert detail.endswith("no ACTIVE worker that serves them: mail")
    ran = await asyncio.to_thread(run, "doctor", env=environment(settings))
    assert ran.returncode == 0
    assert "! work waits and no worker is alive: 1, queues with tasks" in ran.stdout
    assert "fix: start a worker with -Q" in ran.stdout


async def test_queues_that_are_paused_or_served_get_no_notice(db: Database, invoke: Invoke) -> None:
    await put(db, queue="mail", count=1)
    await put(db, queue="default", count=1)
    await age(db, "ready", "ready_at", 90)
    await register_worker(db)  # of `default`
    assert [detail.rsplit(": ", 1)[1] for detail in await notices(db)] == ["mail"]
    await asyncio.to_thread(invoke, "queue", "pause", "mail")
    assert await notices(db) == []
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'STOPPING'")
    assert [detail.rsplit(": ", 1)[1] for detail in await notices(db)] == ["default"]


async def test_many_queues_are_named_in_part(db: Database) -> None:
    for number in range(7):
        await put(db, queue=f"q{number}")
    await age(db, "ready", "ready_at", 90)
    [detail] = await notices(db)
    assert detail.endswith(": q0, q1, q2, q3, q4 …")
