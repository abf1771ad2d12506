"""A server that is open to this machine, and one that wants tokens."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from aaiclick_queue.settings import Settings
from tests.server.serving import served


@pytest.fixture
def http(settings: Settings) -> Iterator[httpx.Client]:
    with served(settings) as client:
        yield client


@pytest.fixture
def closed(settings: Settings) -> Iterator[httpx.Client]:
    with served(settings, auth="tokens") as client:
        yield client
