"""A real server on a free port, in a thread of the test."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app
from aaiclick_queue.settings import Settings
from aaiclick_queue.tokens import create_token

API = "/api/v1"
LONGEST = 20.0


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The application behind a real uvicorn; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(LONGEST)
            assert not thread.is_alive(), "the server did not stop"


@contextmanager
def served(settings: Settings, **options: Any) -> Iterator[httpx.Client]:
    """A client of a server of its own; open to this machine unless said otherwise."""
    app = create_app(settings, **{"auth": "open", **options})
    with running(app) as address, httpx.Client(base_url=address + API, timeout=LONGEST) as client:
        yield client


def token(settings: Settings, role: str, **more: Any) -> str:
    """A new token."""

    async def make() -> str:
        async with Database(settings, size=1) as db:
            return (await create_token(db, f"a {role}", role, **more)).token

    return asyncio.run(make())


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def rows(settings: Settings, sql: str, *args: Any) -> list[Any]:
    """What the database of the test says."""

    async def read() -> list[Any]:
        async with Database(settings, size=1) as db:
            return [dict(row) for row in await db.fetch(sql, *args)]

    return asyncio.run(read())


def until(condition: Any, *, seconds: float = LONGEST) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)
