"""Tasks and settings of these tests, and a database in which every row that a hostile client can write was written."""

from __future__ import annotations

import asyncpg
import pytest

from aaiclick_queue import Settings, task
from aaiclick_queue.postgres import plain_dsn
from tests.hostile import rows
from tests.tools import changed


@task(entrypoint=rows.GOOD)
async def good(n: int = 0) -> int:
    return n


@task(entrypoint=rows.FAILS, max_attempts=2, retry_delay=0.01)
async def fails() -> None:
    raise ValueError("as it does")


@task(entrypoint=rows.IN_THREAD)
def in_thread(n: int = 0) -> int:
    return n


async def write_rows(url: str) -> dict[str, str]:
    """Write them all; gives what Postgres said of those that it refused."""
    connection = await asyncpg.connect(plain_dsn(url))
    refused: dict[str, str] = {}
    try:
        for number, (name, one) in enumerate(rows.ALL.items()):
            try:
                async with connection.transaction():
                    for statement in rows.statements(one, number):
                        await connection.execute(statement)
            except asyncpg.PostgresError as error:
                refused[name] = f"{error.sqlstate} {error}"
    finally:
        await connection.close()
    return refused


@pytest.fixture
def quick(redis_settings: Settings) -> Settings:
    """Settings of a worker that hears of everything soon, and keeps its lease on a busy machine."""
    return changed(redis_settings, lease_seconds=20, heartbeat_seconds=0.5, poll_max_seconds=0.1, grace_seconds=5)
