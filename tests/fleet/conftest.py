"""A look at the database of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aaiclick_queue.settings import Settings
from tests.faults.fleet import Console, console


@pytest.fixture
def look(settings: Settings) -> Iterator[Console]:
    with console(settings.postgres_url or "") as opened:
        yield opened
