"""A Postgres with passwords, its roles made by `migrate roles`, and a login in each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aaiclick_queue import doctor, migrate
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.security.guarded import Guarded
from tests.tools import changed


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as server:
        yield server


@pytest.fixture(scope="module")
def tables(guarded: Guarded) -> Iterator[Settings]:
    """A migrated database with roles, as its owner sees it; to be read and copied."""
    with guarded.new_database("vault") as settings:
        asyncio.run(migrate.upgrade(settings))
        asyncio.run(migrate.make_roles(settings))
        guarded.make_logins("vault")
        yield settings


@pytest.fixture
def owner(guarded: Guarded, tables: Settings, tmp_path: Path) -> Iterator[Settings]:
    """The same, of the test's own; the doctor looks at what is left."""
    assert tables.postgres_url
    with guarded.new_database("vault", template=tables.postgres_url.rpartition("/")[2]) as settings:
        yield changed(settings, log_dir=tmp_path)
        asyncio.run(_invariants_hold(guarded.as_(settings, "read")))


async def _invariants_hold(settings: Settings) -> None:
    async with Database(settings, size=1) as db:
        assert [finding for finding in await doctor.check(db) if not finding.ok] == []
