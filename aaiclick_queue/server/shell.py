"""The shell around every route: who may call us by which name, how much may be sent, what every answer carries."""

from __future__ import annotations

import logging
import time
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..report import one_line
from . import problems
from .guard import Guard, address_of
from .problems import Problem

access = logging.getLogger("aaiclick_queue.access")

BODY_LIMIT = 4 << 20
PATH_WIDTH = 500  # of a path in the access log
QUIET = ("/livez", "/readyz", "/startupz", "/healthz", "/metrics")
CSP = (
    "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'; "
    "img-src 'self' data:"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Shell:
    """ASGI middleware; the outermost that is ours, so that no error leaves it as anything but a problem."""

    def __init__(self, app: ASGIApp, *, of: FastAPI) -> None:
        self._app = app
        self._of = of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not scope.get("root_path", "").endswith(self._of.state.prefix):
            scope["root_path"] = scope.get("root_path", "") + self._of.state.prefix
        request, said = Request(scope, receive), _Said(send, scope)
        try:
            guard: Guard = self._of.state.guard
            guard.check_host(request)
            await self._app(scope, _Bounded(request, receive), said)
        except Exception as error:
            if said.status:
                raise
            await problems.answer(request, problems.of_error(error))(scope, receive, said)
        finally:
            said.log(request)


class _Bounded:
    """What is sent to us, up to a size."""

    def __init__(self, request: Request, receive: Receive) -> None:
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > BODY_LIMIT):
            raise _too_large()
        self._receive = receive
        self._left = BODY_LIMIT

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _too_large()
        return message


class _Said:
    """What we send, with the headers of every answer."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self._began = time.perf_counter()
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await self._send(message)

    def log(self, request: Request) -> None:
        """One line, without the query: that could hold what nobody should read."""
        path: Any = self._scope["path"]
        if path.removeprefix(self._scope.get("root_path", "")) in QUIET:
            return
        took = (time.perf_counter() - self._began) * 1000
        access.info(
            "%s %s %s %d ms",
            *(one_line(request.method), one_line(path, PATH_WIDTH), self.status or "gone", took),
            extra={"address": address_of(request)},
        )


def _too_large() -> Problem:
    return Problem(413, f"more than {BODY_LIMIT:,} bytes were sent: send less, or in several requests")
