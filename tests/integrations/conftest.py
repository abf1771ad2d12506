"""Settings, clients and tasks of the tests of the integrations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from aaiclick_queue import Client, Settings, connect
from tests.tools import changed, declarations_of_its_own


@pytest.fixture(autouse=True)
def _declarations() -> Iterator[None]:
    with declarations_of_its_own():
        yield


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Settings of a worker that hears of everything soon."""
    return changed(settings, heartbeat_seconds=0.1, poll_max_seconds=0.05, grace_seconds=10)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    """A client on the test's database."""
    async with connect(settings=settings) as client:
        yield client
