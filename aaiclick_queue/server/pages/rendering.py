"""Rendering: templates with everything escaped, whole or only the regions that a page asks for anew."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from .words import FILTERS, GLOBALS

_prefix: ContextVar[str] = ContextVar("prefix", default="")
REGION_HEADER = "x-region"
PATHS = {
    "overview": "/", "queues": "/queues", "queue": "/queues/{}", "jobs": "/jobs", "job": "/jobs/{}",
    "tasks": "/tasks", "task": "/tasks/{}", "workers": "/workers", "worker": "/workers/{}", "schedules": "/schedules",
    "schedule": "/schedules/{}", "failures": "/failures", "failure": "/failures/{}", "limits": "/limits",
    "outbox": "/outbox", "operations": "/operations", "audit": "/audit", "search": "/search",
    "login": "/login", "logout": "/logout", "static": "/static/{}",
}  # fmt: skip


def enter(request: Request) -> None:
    """Addresses are made for the prefix of this request from now on."""
    _prefix.set(request.scope.get("root_path", "").rstrip("/"))


def url(name: str, *parts: object, **query: Any) -> str:
    """The address of a page, under the prefix that the application is served at."""
    path = PATHS[name].format(*(quote(str(part), safe="") for part in parts))
    asked = {word: value for word, value in query.items() if value not in (None, "")}
    return f"{_prefix.get()}{path}{'?' + urlencode(asked) if asked else ''}"


def api(path: str, *parts: object) -> str:
    """The address of an act."""
    return f"{_prefix.get()}/api/v1/" + path.format(*(quote(str(part), safe="") for part in parts))


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("aaiclick_queue.server", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= FILTERS
    found.globals |= {**GLOBALS, "url": url, "api": api, "now": lambda: datetime.now(UTC)}
    found.globals["ui"] = found.get_template("parts.html").module
    return found


_cached: list[Environment] = []


def environment() -> Environment:
    """The templates, read when the first page is asked for."""
    if not _cached:
        _cached.append(_environment())
    return _cached[0]


def render(request: Request, template: str, values: dict[str, Any], *, status: int = 200) -> HTMLResponse:
    """A page, or those of its regions that the header names."""
    enter(request)
    found = environment().get_template(template)
    wanted = request.headers.get(REGION_HEADER)
    if wanted is None:
        text = found.render(values)
    else:
        context = found.new_context(values)
        names = [name for name in wanted.split(",") if name in found.blocks]
        text = "".join("".join(found.blocks[name](context)) for name in names)
    headers = {"Cache-Control": "no-store", "Vary": "X-Region", "X-Now": datetime.now(UTC).isoformat()}
    return HTMLResponse(text, status_code=status, headers=headers)
