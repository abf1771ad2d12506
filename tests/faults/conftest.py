"""Servers that a test may stop, and tables that the doctor looks at when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aaiclick_queue import doctor, migrate
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.faults.fleet import Console, console
from tests.servers import OwnPostgres
from tests.wires.redis_server import OwnRedis


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    """A Redis of the test's own."""
    with OwnRedis() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[OwnPostgres]:
    """A migrated Postgres of the test's own; the doctor looks at it in the end."""
    with OwnPostgres() as server:
        settings = Settings.load({}, postgres_url=server.url)
        asyncio.run(migrate.upgrade(settings))
        yield server
        asyncio.run(invariants_hold(settings))


@pytest.fixture
def look(settings: Settings) -> Iterator[Console]:
    """A look at the database of the test."""
    with console(settings.postgres_url or "") as opened:
        yield opened


@pytest.fixture
def own_look(own_postgres: OwnPostgres) -> Iterator[Console]:
    """A look at the Postgres of the test's own."""
    with console(own_postgres.url) as opened:
        yield opened


async def invariants_hold(settings: Settings) -> None:
    """Whether the doctor finds nothing."""
    async with Database(settings, size=1) as db:
        broken = [finding for finding in await doctor.check(db) if not finding.ok]
    assert not broken, f"the doctor found after the test: {broken}"
