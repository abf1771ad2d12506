"""Problems: every answer that is an error, as application/problem+json with what, why and how to fix."""

from __future__ import annotations

import difflib
import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .. import errors
from ..clickhouse import ClickHouseAway
from ..flow.dedupe import sqlstate

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
KIND = "urn:aaiclick-queue:problem:"
RETRY_SECONDS = 5
# Whoever asks may be anybody, for without Postgres no token can be looked up: no address, user or folder is told.
NOT_NOW = "the server cannot use its Postgres now: try again soon; its log and `aaiclick-queue doctor` there say why"
_STATUS: dict[type[Exception], int] = {
    errors.PostgresUnavailable: 503,
    errors.SchemaMismatch: 503,
    errors.SettingsError: 503,
    ClickHouseAway: 503,
    errors.MissingExtra: 501,
    errors.UnknownTask: 404,
    errors.UnknownJob: 404,
    errors.UnknownOperation: 404,
    errors.ResultExpired: 404,
    errors.PayloadTooLarge: 413,
    errors.BadTask: 422,
    errors.ArgumentsDoNotFit: 422,
    errors.QueueFull: 429,
    errors.QueueError: 409,
}
_FIXES = {
    404: "check the address; the paths are listed in /api/v1/openapi.json",
    405: "use another method; the header Allow names those there are",
}


class ProblemView(msgspec.Struct, frozen=True, omit_defaults=True, rename={"kind": "type"}):
    """What went wrong (RFC 9457). `detail` says what, why and how to fix; `errors` names each field that is wrong."""

    kind: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[FieldError] = []


class FieldError(msgspec.Struct, frozen=True):
    """One field of a request that cannot be taken."""

    field: str
    problem: str


class Problem(Exception):
    """An answer that is an error, raised from wherever that is known."""

    def __init__(
        self, status: int, detail: str, *, kind: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind or _slug(HTTPStatus(status).phrase)
        self.headers = dict(headers or {})
        self.errors: list[FieldError] = []


def nearest(word: str, known: Iterable[str]) -> str:
    """What was meant by a word that is unknown, as the end of a sentence."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(known)}" if known else "none is taken here"


def answer(request: Request, problem: Problem) -> Response:
    """The problem as it is sent."""
    view = ProblemView(
        KIND + problem.kind,
        HTTPStatus(problem.status).phrase,
        problem.status,
        str(problem),
        request.scope.get("root_path", "") + _route_path(request),
        problem.errors,
    )
    return Response(msgspec.json.encode(view), problem.status, problem.headers, MEDIA_TYPE)


def of_error(error: Exception) -> Problem:
    """The problem that an exception of ours, or of what was sent, stands for."""
    if isinstance(error, Problem):
        return error
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else None
            return Problem(status, _told(error), kind=_slug(type(error).__name__), headers=headers)
    if (state := sqlstate(error)) and state[:2] in ("22", "23", "54"):
        return Problem(422, f"Postgres refused a value ({str(error).splitlines()[0]}): correct it", kind="bad-value")
    if isinstance(error, UnicodeEncodeError | OverflowError | RecursionError):
        why = type(error).__name__
        return Problem(422, f"a value cannot be stored ({why}): send plain, finite JSON", kind="bad-value")
    number = secrets.token_hex(6)
    log.error("request failed, error %s", number, exc_info=error)
    return Problem(500, f"an error of the server, not yours; its log has it as {number}: report it with that number")


def install(app: FastAPI) -> None:
    """Have every error of the application answered as a problem."""

    async def named(request: Request, error: Exception) -> Response:
        return answer(request, of_error(error))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = f"{str(error.detail).lower()} ({request.method} {_route_path(request)})"
        fix = _FIXES.get(error.status_code)
        problem = Problem(error.status_code, f"{detail}: {fix}" if fix else detail, headers=error.headers)
        return answer(request, problem)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(request, _invalid(error))

    app.add_exception_handler(Problem, named)
    app.add_exception_handler(errors.QueueError, named)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)


def _told(error: Exception) -> str:
    if not isinstance(error, errors.PostgresUnavailable | errors.SettingsError):
        return str(error)
    log.warning("%s", error)
    return NOT_NOW


def _invalid(error: RequestValidationError) -> Problem:
    found = [FieldError(_field(one["loc"], one["type"]), _said(one)) for one in error.errors()[:20]]
    problem = Problem(422, "; ".join(f"{one.field}: {one.problem}" for one in found[:5]), kind="bad-request")
    problem.errors = found
    return problem


def _said(one: Mapping[str, Any]) -> str:
    said = str(one["msg"]).removeprefix("Value error, ")
    if one["type"] == "json_invalid":
        return f"no JSON ({one.get('ctx', {}).get('error', said)}): send one JSON object"
    return said[:1].lower() + said[1:]


def _field(loc: Iterable[Any], kind: str) -> str:
    where, *path = [str(part) for part in loc]
    return where if kind == "json_invalid" else ".".join(path) or where  # of what is no JSON it is the byte


def _slug(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|\s+", "-", name).lower()


def _route_path(request: Request) -> str:
    path = str(request.scope["path"])
    root = str(request.scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path
