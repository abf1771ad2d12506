"""The ASGI application: the API, the pages, and what both stand on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from .. import __version__
from ..client import Client
from ..settings import Settings
from ..tracing import flush_traces
from . import health, mcp, metrics_route, openapi, problems
from .api import ROUTES, sessions
from .desk import Opening
from .guard import Auth, Guard, Rules
from .metrics_route import Counted
from .pages import add_pages
from .shell import Shell
from .watching import Watching

DESCRIPTION = "Everything the command line can do. Ids are texts; lists are pages, the next one by `before` or `after`."


def create_app(  # noqa: PLR0913 - one value a fact
    settings: Settings | None = None,
    *,
    client: Client | None = None,
    auth: Auth = "tokens",
    prefix: str = "",
    allowed_hosts: Sequence[str] = (),
    any_host: bool = False,
    read_only: bool = False,
    docs: bool = True,
    label: str | None = None,
    colour: str | None = None,
) -> FastAPI:
    """An application of its own, or one to be mounted in yours: `app.mount("/queue", create_app())`.

    `auth` is "tokens", "open" (whoever reaches it from this machine is admin), or a function of yours that gives Who.
    """
    opening = Opening(settings, client)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            app.state.watching.end()
            await opening.close()
            await asyncio.to_thread(flush_traces)

    app = FastAPI(
        title="aaiclick-queue",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # Newer ones of FastAPI trace by themselves, whatever our switch says, with what was searched for in the span.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.opening = opening
    app.state.guard = Guard(Rules(auth, tuple(allowed_hosts), any_host, read_only), opening)
    app.state.watching, app.state.prefix = Watching(), prefix.rstrip("/")
    app.state.pinged = health.Pinged()
    app.state.label, app.state.colour = label, colour
    app.router.routes.extend([*ROUTES, *metrics_route.router.routes, *health.ROUTES, *sessions.ROUTES])
    problems.install(app)
    openapi.install(app, has_document=docs)
    mcp.install(app)
    add_pages(app)
    app.add_middleware(Counted, of=app)
    app.add_middleware(Shell, of=app)
    return app
