"""Clients and settings of the tests of the flow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from aaiclick_queue import Client, Settings, connect
from aaiclick_queue import client as client_module
from aaiclick_queue.portal import portal_loop
from tests.tools import changed, environment


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Client]:
    """A client on the test's database."""
    async with connect(settings=settings) as client:
        yield client


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Settings of a worker that hears of everything soon."""
    return changed(settings, heartbeat_seconds=0.1, poll_max_seconds=0.05, grace_seconds=10)


@pytest.fixture
def as_default(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[None]:
    """The default client is on the test's database."""
    with environment(monkeypatch, settings):
        yield
        asyncio.run_coroutine_threadsafe(_close_default(), portal_loop()).result()


async def _close_default() -> None:
    for _, guard in list(client_module._clients.get(asyncio.get_running_loop(), {}).values()):
        await guard.aclose()
