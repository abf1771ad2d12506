"""A stage for races, and tasks to race for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import uvloop

from aaiclick_queue.flow.mark import HeadScans
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.races.orders import Stage
from tests.races.props import Props


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that workers have: scenes are thousands of short statements, half of whose cost is a slow loop's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def stage(settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    # Where a scan starts depends on how long the last ones took, and here they wait for their turn: a scene would have
    # other steps each time it is played.
    monkeypatch.setattr(HeadScans, "due", lambda _: True)
    stage = Stage(settings, db)
    yield stage
    await stage.close()


@pytest_asyncio.fixture
async def props(db: Database) -> Props:
    props = Props(db)
    await props.prepare()
    return props
