"""A process that is older or newer than the schema refuses or works, and a migration beside a fleet loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from aaiclick_queue import Settings, Worker, connect, migrate
from aaiclick_queue.errors import SchemaMismatch
from aaiclick_queue.postgres import Database
from tests.cli.running import Program, environment, run
from tests.hostile import rows
from tests.hostile.conftest import good
from tests.tools import changed, place_of, put, put_one, row, running_worker, until

STEPS = ["0001", "0002", "0003", "0004", "0005", "0006"]
LEFT = "SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL"
CLAIMED_ONCE = "SELECT count(*) FROM aaiclick_queue.tasks WHERE status = 'COMPLETED' AND run_epoch = 1"
SET_REVISION = "UPDATE aaiclick_queue.alembic_version SET version_num = $1"
ROUNDS = int(os.environ.get("MIGRATION_ROUNDS", "3"))
PAUSE_SECONDS = 0.2  # between fifty tasks: as many as a busy machine of two cores can run
HOT = ("tasks", "ready", "leases", "delayed", "outbox", "attempts", "events", "workers")
FILES = "SELECT relname, relfilenode FROM pg_class WHERE relnamespace = 'aaiclick_queue'::regnamespace"


@pytest.fixture
def calm(settings: Settings) -> Settings:
    """Settings of a worker that keeps its lease on a busy machine."""
    return changed(settings, lease_seconds=30, poll_max_seconds=0.1, grace_seconds=10)


@pytest.mark.parametrize(("revision", "command"), [("0005", "aaiclick-queue migrate"), ("0099", "upgrade the package")])
async def test_a_program_on_another_schema_refuses_with_the_command_to_run(
    settings: Settings, db: Database, revision: str, command: str
) -> None:
    if revision < migrate.HEAD:
        await migrate.downgrade(settings, revision)
    else:
        await db.fetch(SET_REVISION, revision)
    env = environment(settings)
    said = await asyncio.gather(
        asyncio.to_thread(run, "worker", "-A", "tests.cli.cli_tasks", "--burst", env=env),
        asyncio.to_thread(run, "task", "enqueue", rows.GOOD, env=env),
    )
    for one in said:
        assert one.returncode == 1, one
        assert command in one.stderr.replace("\n", " "), one.stderr
        assert "Traceback" not in one.stderr
    with pytest.raises(SchemaMismatch, match=command):
        async with connect(settings=settings) as client:
            await good.enqueue(client=client)
    assert await db.fetchval(LEFT) == 0
    await db.fetch(SET_REVISION, min(revision, migrate.HEAD))
    await migrate.upgrade(settings)


async def test_a_database_of_a_newer_version_is_not_migrated(settings: Settings, db: Database) -> None:
    await db.fetch(SET_REVISION, "0099")
    for direction in (migrate.upgrade(settings), migrate.downgrade(settings, "0001")):
        with pytest.raises(SchemaMismatch, match="upgrade the package"):
            await direction
    await db.fetch(SET_REVISION, migrate.HEAD)


async def test_a_worker_goes_on_while_the_schema_grows_below_it(calm: Settings, db: Database) -> None:
    async with running_worker(calm):
        for table in ("tasks", "ready", "leases", "workers"):
            await db.fetch(f"ALTER TABLE aaiclick_queue.{table} ADD COLUMN newer text NOT NULL DEFAULT 'x'")
        await db.fetch(SET_REVISION, "0099")
        await put(db, count=20, entrypoint=rows.GOOD)
        await until(lambda: _none_left(db))
    await db.fetch(SET_REVISION, migrate.HEAD)


async def test_a_worker_stops_with_the_command_to_run_when_the_schema_is_taken_back(
    calm: Settings, db: Database
) -> None:
    worker = Worker(calm)
    running = asyncio.create_task(worker.run())
    await until(worker.started.is_set)
    await migrate.downgrade(calm, "0001")
    with pytest.raises(SchemaMismatch, match="run `aaiclick-queue migrate`"):
        async with asyncio.timeout(60):
            await running
    await migrate.upgrade(calm)


async def test_a_task_with_marks_of_a_newer_version_is_left_to_it(calm: Settings, db: Database) -> None:
    task_id = await put_one(db, entrypoint=rows.GOOD)
    await db.fetch("UPDATE aaiclick_queue.ready SET flags = 2048")
    async with running_worker(calm):
        await until(lambda: _is_delayed(db, task_id))
    assert (await row(db, "delayed", task_id))["flags"] == 2048
    [told] = await db.fetch("SELECT error->>'type' AS type FROM aaiclick_queue.attempts WHERE task_id = $1", task_id)
    assert told["type"] == "MadeByNewerVersion"


@pytest.mark.timeout(300)
async def test_migrations_up_and_down_beside_a_working_fleet_lose_and_double_nothing(
    calm: Settings, db: Database
) -> None:
    env = environment(calm, LEASE_SECONDS="30", POLL_MAX_SECONDS="0.1")
    fleet = [Program("worker", "-A", "tests.hostile.conftest", env=env) for _ in range(2)]
    try:
        made = 0
        await until(lambda: _are_at_work(db, len(fleet)))  # one that starts on a schema that is not its own refuses
        async with connect(settings=calm) as client:
            for _ in range(ROUNDS):
                for direction, revision in ((migrate.downgrade, "0005"), (migrate.upgrade, "head")):
                    changing = asyncio.create_task(direction(calm, revision))
                    while not changing.done():
                        made += len(await good.enqueue_many([{"n": n} for n in range(50)], client=client))
                        await asyncio.wait([changing], timeout=PAUSE_SECONDS)
                    await changing
            await until(lambda: _none_left(db), patience=90)
        assert [program.process.poll() for program in fleet] == [None, None], fleet[0].stderr + fleet[1].stderr
    finally:
        for program in fleet:
            program.process.send_signal(signal.SIGTERM)
        for program in fleet:
            program.process.wait(60)
            program.close()
    assert await db.fetchval(CLAIMED_ONCE) == made


async def test_tasks_wait_through_every_revision_down_and_up_again_and_no_table_is_rewritten(
    calm: Settings, db: Database
) -> None:
    await put(db, count=50, entrypoint=rows.GOOD)
    before = await _files(db)
    for revision in reversed(STEPS):
        await migrate.downgrade(calm, revision)
    for revision in (*STEPS[1:], "head"):
        await migrate.upgrade(calm, revision)
    assert {name: number for name, number in (await _files(db)).items() if name in HOT} == {
        name: number for name, number in before.items() if name in HOT
    }
    async with running_worker(calm):
        await until(lambda: _none_left(db))
    assert await db.fetchval(CLAIMED_ONCE) == 50


async def test_migrations_at_once_and_one_that_is_killed_end_at_the_newest_revision(empty_postgres_url: str) -> None:
    settings = Settings.load({}, postgres_url=empty_postgres_url)
    env = environment(settings)
    several = [Program("migrate", env=env) for _ in range(3)]
    async with Database(settings, size=1) as db:
        await until(lambda: _has_begun(db))
        several[0].process.kill()
        codes = [await asyncio.to_thread(program.process.wait, 60) for program in several]
        for program in several:
            program.close()
        assert codes[1:] == [0, 0]
        assert await migrate.current(db) == migrate.HEAD


async def _none_left(db: Database) -> bool:
    return bool(await db.fetchval(LEFT) == 0)


async def _are_at_work(db: Database, n: int) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM aaiclick_queue.workers WHERE status = 'ACTIVE'") == n)


async def _is_delayed(db: Database, task_id: int) -> bool:
    return await place_of(db, task_id) == ["delayed"]


async def _files(db: Database) -> dict[str, int]:
    return {one["relname"]: one["relfilenode"] for one in await db.fetch(FILES)}


async def _has_begun(db: Database) -> bool:
    return bool(await db.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")) or (
        await migrate.current(db) is not None
    )
