"""A stage for races, and tasks to race for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.races.orders import Stage
from tests.races.props import Props


@pytest_asyncio.fixture
async def stage(settings: Settings, db: Database) -> AsyncIterator[Stage]:
    stage = Stage(settings, db)
    yield stage
    await stage.close()


@pytest_asyncio.fixture
async def props(db: Database) -> Props:
    props = Props(db)
    await props.prepare()
    return props
