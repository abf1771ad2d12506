"""What `server` and `local start` do once their options are known."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI

from .. import __version__
from ..local import database_url, stop_embedded
from ..migrate import require_head
from ..postgres import Database
from ..server import create_app
from ..settings import Settings
from ..tokens import VALID_TOKENS
from .program import FAILED, USAGE, echo, fail
from .server import LOCAL
from .stopping import told_by_signals

PATIENCE_SECONDS = 5


class Web(msgspec.Struct, frozen=True, kw_only=True):
    """Where to serve, to whom, and how it looks."""

    host: str
    port: int
    prefix: str = ""
    env_label: str | None = None
    env_color: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    no_docs: bool = False
    auth: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOCAL

    def app(self, settings: Settings) -> FastAPI:
        """The application as it was asked for."""
        is_open = self.auth == "open-to-everyone" or (self.auth is None and self.is_local)
        app = create_app(
            settings,
            auth="open" if is_open else "tokens",
            prefix=self.prefix,
            allowed_hosts=self.allowed_hosts,
            any_host=self.auth == "open-to-everyone",
            read_only=self.read_only,
            docs=not self.no_docs,
            label=self.env_label,
            colour=self.env_color,
        )
        app.state.watching.is_hosted = False  # our server lets watchers go when it stops
        return app


class Server(uvicorn.Server):
    """A server that leaves signals to us and lets watchers go when it stops."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are told by `told_by_signals`."""
        yield

    def stop(self, now: bool) -> None:
        """Stop taking requests; `now` does not wait for those that are being answered."""
        app: Any = self.config.app
        app.state.watching.end()
        self.should_exit, self.force_exit = True, now


async def serve(settings: Settings, web: Web, *, banner: bool, started: Callable[[str], Any] = lambda _: None) -> int:
    """Serve until told to stop; returns 0."""
    try:
        await check(settings, web)
        with bound(web.host, web.port) as listening:
            app, address = web.app(settings), shown(web, listening)
            config = uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, ws="none", lifespan="on",
                timeout_graceful_shutdown=PATIENCE_SECONDS, h11_max_incomplete_event_size=65536,
            )  # fmt: skip
            server = Server(config)
            if banner:
                echo(_banner(settings, web, address), err=True)
            started(address)
            with told_by_signals(server.stop):
                await server.serve(sockets=[listening])
    finally:
        await asyncio.to_thread(stop_embedded)
    return 0


async def check(settings: Settings, web: Web) -> None:
    """Refuse to be open to others by mistake, and a schema of another version."""
    async with Database(settings, size=1, dsn=await database_url(settings)) as db:
        await require_head(db)
        has_tokens = await db.fetchval(VALID_TOKENS)
    if not web.is_local and web.auth != "open-to-everyone" and not has_tokens:
        fail(
            f"--host {web.host} can be reached by others, and no token has been made",
            "aaiclick-queue token create NAME --role admin; or --auth open-to-everyone if everybody may do everything",
            code=USAGE,
        )


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there; ends the command when it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # For all that it accepts: else the body of an answer waits 40 ms until the client has acknowledged its head.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(f"port {port} of {host} is in use", f"give another one, as --port {port + 1}", code=FAILED)
        fail(f"cannot listen at {host} port {port} ({error.strerror or error})", "give another --host or --port")
    with listening:
        yield listening


def shown(web: Web, listening: socket.socket) -> str:
    """The address for people."""
    name = f"[{web.host}]" if ":" in web.host else web.host
    return f"http://{name}:{listening.getsockname()[1]}{web.prefix}/"


def _banner(settings: Settings, web: Web, address: str) -> str:
    whom = "this machine, no token needed" if web.is_local and web.auth is None else "those who have a token"
    whom = "everybody, for everything" if web.auth == "open-to-everyone" else whom
    lines = {
        "dashboard": address,
        "api": f"{address}api/v1/" + ("" if web.no_docs else "   (openapi.json describes it)"),
        "mcp": f"{address}mcp",
        "open to": whom + (", to look at only" if web.read_only else ""),
        "postgres": settings.postgres_shown,
    }
    facts = (f"   {name:<11} {value}" for name, value in lines.items())
    return "\n".join(["", f" aaiclick-queue {__version__} server", *facts, " Ctrl-C stops it", ""])
