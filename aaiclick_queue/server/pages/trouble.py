"""Pages of trouble: what is not there, who is not signed in, and a store that cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import asyncpg
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from ... import __version__
from ...errors import PostgresUnavailable, QueueError, SchemaMismatch
from .. import problems
from ..problems import Problem
from .rendering import enter, render, url
from .visiting import Visit

RETRY_SECONDS = 5
DOWN = (PostgresUnavailable, SchemaMismatch, OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)
LATE = (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError)
NO_PAGES = ("/api/", "/static/", "/metrics", "/livez", "/readyz", "/startupz", "/healthz")
Handler = Callable[[Request, Exception], Awaitable[Response]]


async def not_found(at: Visit, words: str, *, section: str = "") -> HTMLResponse:
    """The page for an address that leads to nothing."""
    return await at.show("not_found.html", section=section, title="Not found", status=404, words=words)


def install(app: FastAPI) -> None:
    """Have the errors of pages told as pages; those of the API stay problems."""

    async def tell(request: Request, error: Exception) -> Response:
        if is_page(request):
            return as_page(request, error)
        return problems.answer(request, problems.of_error(error))

    for kind in (Problem, QueueError, OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError):
        app.add_exception_handler(kind, tell)
    refused: Handler = app.exception_handlers[HTTPException]  # type: ignore[assignment]

    async def missing(request: Request, error: Exception) -> Response:
        return as_page(request, error) if is_page(request) else await refused(request, error)

    app.add_exception_handler(HTTPException, missing)


def is_page(request: Request) -> bool:
    """Whether a person looks, with a browser, at an address that is no program's."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return (
        not path.startswith(NO_PAGES) and "text/html" in request.headers.get("accept", "")
    ) or "x-region" in request.headers


def as_page(request: Request, error: Exception) -> Response:
    """The page that an error is told on."""
    enter(request)
    if took_too_long(error):
        return lone(request, "too_long.html", status=503, error=_tried(request, error)["error"])
    if isinstance(error, DOWN):
        return lone(request, "store_down.html", status=503, **_tried(request, error))
    if isinstance(error, HTTPException):
        return lone(request, "trouble.html", status=error.status_code, name="Not found", words="There is nothing here.")
    problem = problems.of_error(error)
    status = problem.status
    if status == 401:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{url('login')}?next={quote(path, safe='/?=&')}", status_code=303)
    name = {404: "Not found", 403: "Not allowed"}.get(status, "That did not work")
    return lone(request, "trouble.html", status=status, name=name, words=str(problem))


def took_too_long(error: Exception) -> bool:
    """Whether Postgres is there and only one statement got no answer in time."""
    cause = error.__cause__
    if not isinstance(error, PostgresUnavailable) or cause is None:
        return False
    return isinstance(cause, LATE) or (isinstance(cause, TimeoutError) and str(error).startswith("Postgres did not"))


def lone(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """A page without the frame, which needs no database."""
    state = request.app.state
    shell = {"version": __version__, "label": state.label, "colour": state.colour or "red", "seconds": RETRY_SECONDS}
    response = render(request, template, {**shell, **values}, status=status)
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


def _tried(request: Request, error: Exception) -> dict[str, str]:
    """Where Postgres was looked for: told on this machine alone, for others could not say who they are without it."""
    if not request.app.state.guard.is_open:
        return {"tried": "", "error": problems.NOT_NOW}
    return {"tried": request.app.state.opening.shown, "error": str(error) or type(error).__name__}
