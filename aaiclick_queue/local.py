"""Which Postgres: the one of the settings, or the embedded one, started and migrated on first use."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from .embedded import Embedded, start
from .migrate import HEAD, current, upgrade
from .postgres import Database
from .settings import Settings

_lock = threading.Lock()
_servers: dict[tuple[int, Path], Embedded] = {}


async def database_url(settings: Settings) -> str:
    """The URL to connect to. The embedded server is brought to this version's schema; a given one is left alone."""
    if settings.postgres_url:
        return settings.postgres_url
    server = await asyncio.to_thread(_shared, settings.home)
    async with Database(settings, size=1, dsn=server.dsn) as db:
        revision = await current(db)
    if revision is None or revision < HEAD:
        await upgrade(settings, dsn=server.dsn)
    return server.dsn


def stop_embedded() -> None:
    """Leave every embedded server that this process uses."""
    with _lock:
        while _servers:
            _servers.popitem()[1].stop()


def _shared(home: Path) -> Embedded:
    with _lock:
        key = (os.getpid(), home.absolute())
        if key not in _servers:
            _servers[key] = start(home)
        return _servers[key]
