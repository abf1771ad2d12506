"""What must not take a worker, a waiter or a task down with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from aaiclick_queue import Client, Settings, TaskFailed, current, handle, task
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.mark import HeadScans
from aaiclick_queue.outcome import Error
from aaiclick_queue.postgres import Database
from aaiclick_queue.pulse import Pulse
from tests.tools import Proxy, changed, count, place_of, put_one, row, rows, running_worker, until

CANCEL_STATEMENTS = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE $1
"""


class Panic(BaseException):
    """What some native extensions raise: no Exception, no CancelledError."""


@task(entrypoint="test_resilience.panics", max_attempts=1)
async def panics() -> None:
    raise Panic("out of cheese")


@task(entrypoint="test_resilience.panics_in_thread", max_attempts=1)
def panics_in_thread() -> None:
    raise Panic("out of cheese")


@task(entrypoint="test_resilience.fine")
async def fine(n: int = 0) -> int:
    return n


@task(entrypoint="test_resilience.spawns", retry_delay=0.01)
async def spawns() -> int:
    me = current()
    if me.attempt == 1:
        real = me._write_child

        async def broken(*_: object) -> int:
            raise PostgresUnavailable("the wire was cut")

        me._write_child = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(PostgresUnavailable):
            await me.enqueue(fine, 7)
        me._write_child = real  # type: ignore[method-assign]
        await me.enqueue(fine, 7)
        raise ValueError("and once more")
    return (await me.enqueue(fine, 7)).id


@task(entrypoint="test_resilience.opens_twice")
async def opens_twice() -> str:
    services = current()._services
    dsn, services.dsn = services.dsn, "postgresql://nobody@127.0.0.1:1/nowhere"
    with pytest.raises(OSError, match=r"."):
        async with current().transaction(driver="asyncpg"):
            raise AssertionError("it cannot have been opened")
    services.dsn = dsn
    async with current().transaction(driver="asyncpg") as connection:
        await connection.execute("SELECT 1")
        current().result("opened")
    return "dropped"


@task(entrypoint="test_resilience.enqueues")
async def enqueues(n: int) -> int:
    return (await fine.enqueue(n)).id


@task(entrypoint="test_resilience.delays")
def delays(n: int) -> int:
    return fine.delay(n).id


@task(entrypoint="test_resilience.lingers")
async def lingers() -> int:
    await asyncio.sleep(0.8)
    return os.getpid()


async def test_a_worker_outlives_a_claim_that_was_cancelled(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick) as worker, db.transaction() as blocker:
        await blocker.fetch("LOCK TABLE aaiclick_queue.ready IN ACCESS EXCLUSIVE MODE")
        await until(lambda: db.fetchval(CANCEL_STATEMENTS, "%DELETE FROM aaiclick_queue.ready%"))
        await blocker.raw.execute("COMMIT")
        await blocker.raw.execute("BEGIN")
        assert await (await fine.enqueue(3, client=client)).result(30) == 3
        assert (await rows(db, "workers"))[0]["status"] == "ACTIVE"
        assert worker.worker_id == (await rows(db, "workers"))[0]["id"]


async def test_outcomes_wait_for_a_flush_that_was_cancelled(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick), db.transaction() as blocker:
        one = await lingers.enqueue(client=client)
        await until(lambda: count(db, "leases"))
        await blocker.fetch("SELECT 1 FROM aaiclick_queue.tasks WHERE id = $1 FOR UPDATE", one.id)
        await until(lambda: db.fetchval(CANCEL_STATEMENTS, "%UPDATE aaiclick_queue.tasks%"))
        await blocker.raw.execute("COMMIT")
        await blocker.raw.execute("BEGIN")
        assert await one.result(30) == os.getpid()


@pytest.mark.parametrize("bad", [panics, panics_in_thread])
async def test_whatever_a_task_raises_its_slot_is_free_again(quick: Settings, client: Client, bad: object) -> None:
    async with running_worker(quick, slots=1, threads=1) as worker:
        one = await bad.enqueue(client=client)  # type: ignore[attr-defined]
        with pytest.raises(TaskFailed, match="out of cheese"):
            await one.result(30)
        assert await (await fine.enqueue(1, client=client)).result(30) == 1
        await until(lambda: not worker.slots.held and not worker.slots.busy)


async def test_a_child_whose_first_write_failed_is_written_once(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        child = await (await spawns.enqueue(client=client)).result(30)
    assert [found["id"] for found in await rows(db, "tasks") if found["parent_id"]] == [child]


async def test_a_block_that_could_not_be_opened_can_be_opened_again(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        assert await (await opens_twice.enqueue(client=client)).result(30) == "opened"


async def test_a_result_is_waited_for_through_a_look_that_was_cancelled(
    quick: Settings, client: Client, db: Database
) -> None:
    one = await fine.enqueue(5, client=client)
    waiting = asyncio.create_task(one.result(30))
    async with db.transaction() as blocker:
        await blocker.fetch("LOCK TABLE aaiclick_queue.tasks IN ACCESS EXCLUSIVE MODE")
        await until(lambda: db.fetchval(CANCEL_STATEMENTS, "%FROM aaiclick_queue.tasks WHERE id = wanted.id%"))
    async with running_worker(quick):
        assert await waiting == 5


async def test_a_handle_is_asked_from_another_thread_over_its_own_loop(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        one = await fine.enqueue(9, client=client)
        assert await asyncio.to_thread(one.get, 30) == 9
        assert await asyncio.to_thread(one.ready)
        assert await (await fine.enqueue(10, client=client)).result(30) == 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals a process handles")
async def test_a_process_of_its_own_leaves_signals_to_its_worker(quick: Settings, client: Client, db: Database) -> None:
    one = await lingers.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick):
        child = await until(_alone)
        await until(lambda: _handles_sigterm(child))
        os.kill(child, signal.SIGTERM)
        assert await one.result(30) == child


def _alone() -> int | None:
    for child in psutil.Process().children():
        if "aaiclick_queue.child" in child.cmdline():
            return child.pid
    return None


def _handles_sigterm(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))


@pytest.mark.parametrize("one", [enqueues, delays])
async def test_a_task_that_enqueues_talks_to_the_queue_of_its_worker(
    quick: Settings, client: Client, one: object
) -> None:
    async with running_worker(quick):
        child = await (await one.enqueue(6, client=client)).result(30)  # type: ignore[attr-defined]
        assert await handle(child, client=client).result(30) == 6


async def test_a_run_whose_child_cannot_import_is_left_to_others_with_the_reason(
    quick: Settings, client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fine.function, "__module__", "there.is.no.such.module")
    one = await fine.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick):
        await until(lambda: count(db, "delayed"))
    place = await row(db, "delayed", one.id)
    assert (place["attempt"], place["lost_count"]) == (0, 2)
    [attempt] = await rows(db, "attempts")
    assert attempt["outcome"] == "UNKNOWN"
    assert "No module named 'there'" in attempt["error"]


def test_a_beat_waits_no_longer_than_the_lease_has_left(settings: Settings) -> None:
    pulse = Pulse(changed(settings, lease_seconds=30), "", None)  # type: ignore[arg-type]
    assert pulse._patience(pulse._renewed) == 10
    assert pulse._patience(pulse._renewed + 25) == pytest.approx(4)  # a second before the database gives it up
    assert pulse._patience(pulse._renewed + 29) == pytest.approx(0.1)


async def test_a_worker_cut_off_from_postgres_stops_its_runs_and_takes_tasks_again_later(
    settings: Settings, client: Client, db: Database
) -> None:
    assert settings.postgres_url
    async with Proxy(settings.postgres_url) as proxy:
        cut_off = changed(settings, postgres_url=proxy.url, lease_seconds=3, grace_seconds=0)
        async with running_worker(cut_off, background=False) as worker:
            proxy.freeze()
            await until(lambda: worker._fenced, patience=30)
            proxy.thaw()
            assert await (await fine.enqueue(4, client=client)).result(30) == 4


def test_one_slow_scan_is_not_taken_for_a_long_one() -> None:
    scans = HeadScans()
    scans.done(0.001, rows=0, short=True)
    scans.done(2.5, rows=0, short=True)
    assert scans.due()


async def test_a_task_that_moves_while_it_expires_keeps_its_timer(settings: Settings, db: Database) -> None:
    from aaiclick_queue.flow.reaper import Reaper

    task_id = await put_one(db, task={"expires": 0.0})
    async with db.transaction() as mover:
        await mover.fetch("SELECT 1 FROM aaiclick_queue.ready FOR UPDATE")
        assert (await Reaper(db).reap_once()).expired == 0
    assert (await Reaper(db).reap_once()).expired == 1
    assert await place_of(db, task_id) == ["CANCELLED"]
    assert Error("Expired").type in (await row(db, "tasks", task_id))["error"]
