"""`/metrics` of the server, and the count of the requests that it answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Response

from ..exposition import CONTENT_TYPE
from ..meters import METERS
from .desk import AtDesk
from .metrics import server_metrics
from .roles import Reader

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
async def metrics(desk: AtDesk, who: Reader) -> Response:  # noqa: ARG001 - only that they may
    """The state of the system and this process' own counts, for Prometheus."""
    return Response(await server_metrics(desk.db), media_type=CONTENT_TYPE)


class Counted:
    """ASGI middleware: every request counted by its route, never by its path."""

    def __init__(self, app: ASGIApp, *, of: FastAPI) -> None:
        self._app = app
        self._of = of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on, and count what comes back."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not METERS.on:
            METERS.turn_on()
        began, told = time.monotonic(), [500, 0.0]

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                told[:] = [message["status"], time.monotonic() - began]
            await send(message)

        try:
            await self._app(scope, receive, counting)
        finally:
            METERS.requested(self._route(scope), scope["method"], int(told[0]), told[1] or time.monotonic() - began)

    def _route(self, scope: Scope) -> str:
        if (route := scope.get("route")) is not None:
            return str(getattr(route, "path_format", route.path))
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # a plain route does not say which it is
        return path if any(getattr(one, "path", None) == path for one in self._of.routes) else "(none)"
