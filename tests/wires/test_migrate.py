"""Migrations on a database that is in use."""

from __future__ import annotations

import asyncio

import pytest

from aaiclick_queue import migrate
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.tools import claim, put, register_worker

PLACES = "SELECT (SELECT count(*) FROM aaiclick_queue.ready) AS ready, (SELECT count(*) FROM aaiclick_queue.tasks) AS n"


async def test_a_migration_lets_a_long_transaction_end_and_then_goes_on(settings: Settings, db: Database) -> None:
    await migrate.downgrade(settings, "0001")
    async with db.transaction() as tx:
        await tx.fetch("SELECT id FROM aaiclick_queue.tasks")  # its lock is in the way of any change of the table
        upgrading = asyncio.create_task(migrate.upgrade(settings))
        done, _ = await asyncio.wait([upgrading], timeout=2.5)
        assert not done
        # Nobody queues up behind the waiting change for longer than its lock_timeout.
        async with asyncio.timeout(10):
            await db.fetch("SELECT id FROM aaiclick_queue.tasks")
    await upgrading
    assert await migrate.current(db) == migrate.HEAD


@pytest.mark.parametrize("place", ["held", "ready"])
async def test_going_back_a_version_keeps_the_tasks_that_wait(settings: Settings, db: Database, place: str) -> None:
    if place == "held":
        await db.fetch(
            "INSERT INTO aaiclick_queue.limits (scope, name, kind, n) VALUES ('queue', 'default', 'running', 1)"
        )
    await put(db, count=3)
    assert await db.fetchval(f"SELECT count(*) FROM aaiclick_queue.{place}") == 3
    await migrate.downgrade(settings, "0001")
    [row] = await db.fetch(PLACES)
    assert (row["ready"], row["n"]) == (3, 3)
    await migrate.upgrade(settings)


async def test_going_back_a_version_opens_a_queue_that_an_operation_had_closed(
    settings: Settings, db: Database
) -> None:
    await put(db)
    await set_limit(db, NewLimit("queue", "default", "running", 1), by="a test")
    worker_id = await register_worker(db)
    assert not await claim(db, worker_id)
    await migrate.downgrade(settings, "0001")
    paused = await db.fetchval("SELECT count(*) FROM aaiclick_queue.queues WHERE paused_at IS NOT NULL")
    await migrate.upgrade(settings)
    assert paused == 0
