"""Answers: how a route is declared. It returns a struct; its JSON, its schema and its audit follow from that.

Requests are taken strictly: unknown parameters and fields are refused with the nearest name.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

import msgspec
from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from starlette.responses import Response

from ..redaction import masked_in, masked_text
from .auditing import audit
from .csrf import is_json
from .desk import Desk
from .problems import Problem, nearest
from .roles import SAFE_METHODS, Who, needs

T = TypeVar("T")
NEWEST = 2**63 - 1
RETURNS: dict[Callable[..., Any], Any] = {}  # what endpoints give
_AUDITED_LENGTH = 200
_NAMED = re.compile(r"\{(name|job)\}")  # what people name may have slashes, and %2F is one when a route is looked for
_NO_TEXT = frozenset({"\x00", *map(chr, range(0xD800, 0xE000))})  # what Postgres cannot store


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of rows; the next is asked for with `before`, or with `after` where rows are by name; None: no more."""

    items: list[T]
    before: str | None = None
    after: str | None = None


class Done(msgspec.Struct, frozen=True):
    """Whether the act changed anything, and what there is to say of it."""

    changed: bool
    detail: str


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """A value with a status or headers of its own."""

    value: T
    status: int
    headers: dict[str, str] = {}


def _number(value: Any) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or not 0 < int(text) <= NEWEST:
        raise ValueError(f"{text[:40]!r} is no id: give the digits that a list or an enqueue gave")
    return int(text)


def _storable(value: str) -> str:
    if not _NO_TEXT.isdisjoint(value):
        raise ValueError("a text with a NUL byte or half a character cannot be stored: leave it out")
    return value


def _words(given: list[str]) -> list[str]:
    return [word for text in given for one in text.split(",") if (word := one.strip())]


_DIGITS = {"type": "string", "pattern": "^[0-9]{1,19}$", "examples": ["7123456789012345678"]}
Id = Annotated[int, BeforeValidator(_number), WithJsonSchema(_DIGITS)]
Text = Annotated[str, AfterValidator(_storable)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_storable)]
Words = Annotated[list[str], AfterValidator(_words)]
Limit = Annotated[int, Field(ge=1, le=1000)]


class Asked(BaseModel):
    """The JSON body of a request; a field that is unknown is refused with the nearest name."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            for name in data:
                if name not in known:
                    raise ValueError(f"unknown field {str(name)[:40]!r}: {nearest(str(name), known)}")
        return data

    def given(self) -> dict[str, Any]:
        """The fields that were sent and are not null."""
        return {name: value for name in self.model_fields_set if (value := getattr(self, name)) is not None}

    def audited(self) -> dict[str, Any]:
        """What of it may be written down: arguments of tasks and jobs may be secret."""
        shown = {name: value for name, value in self.given().items() if "kwargs" not in name and name != "metadata"}
        return {name: str(value)[:_AUDITED_LENGTH] for name, value in shown.items()}


def _unmasked(arguments: dict[str, Any]) -> dict[str, Any]:
    if names := masked_in(arguments):
        raise ValueError(masked_text(names))
    return arguments


Kwargs = Annotated[dict[str, Any], AfterValidator(_unmasked)]


class Reasoned(Asked):
    """Why it is done, for whoever asks later."""

    reason: Annotated[Text, Field(max_length=500)] | None = None


class StrictRequest(Request):
    """A request whose JSON is what the standard says: no NaN, no half characters."""

    async def json(self) -> Any:
        """The body as JSON."""
        try:
            return msgspec.json.decode(await self.body())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise json.JSONDecodeError(str(error) or "nested too deeply", "", 0) from error


class StrictRoute(APIRoute):
    """A route that refuses what it does not know."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """The handler behind the checks."""
        handle = super().get_route_handler()
        known = _query_names(self.dependant)

        async def strict(request: Request) -> Response:
            for name, value in request.query_params.multi_items():
                if name not in known:
                    raise Problem(422, f"unknown parameter {name[:40]!r}: {nearest(name, known)}", kind="bad-request")
                _refuse_unstorable(name, value)
            for name, value in request.path_params.items():
                _refuse_unstorable(name, str(value))
            kind = request.headers.get("content-type")
            if self.body_field is not None and kind is not None and not is_json(kind):
                raise Problem(415, f"Content-Type is {kind[:80]!r}: send application/json")
            strictly = StrictRequest(request.scope, request.receive)
            if self.body_field is not None:
                await strictly.body()  # here: FastAPI would take a body that is too large for one that is wrong
            return await handle(strictly)

        return strict


class Api(APIRouter):
    """Routes under /api/v1 whose endpoints return structs."""

    def __init__(self, tag: str, *, prefix: str = "/api/v1") -> None:
        super().__init__(prefix=prefix, tags=[tag], route_class=StrictRoute)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        """Add a route, for readers if it only reads; the type that its endpoint returns is in the document."""
        path = _NAMED.sub(r"{\1:path}", path)
        returns = get_type_hints(endpoint, include_extras=True).get("return")
        changes = not SAFE_METHODS.issuperset(given.get("methods") or ["GET"])
        status = given.get("status_code") or 200
        given |= {"response_model": None, "operation_id": given.get("operation_id") or endpoint.__name__}
        names = inspect.signature(endpoint).parameters
        if changes and not {"who", "desk"} <= names.keys():
            raise TypeError(f"{endpoint.__name__} changes something: it needs `who: Writer` or `Admin`, and `desk`")
        if not changes and "who" not in names:
            given["dependencies"] = [*(given.get("dependencies") or ()), Depends(needs("reader"))]
        answer = _answering(endpoint, action=given["operation_id"], status=status, changes=changes)
        RETURNS[answer] = returns
        super().add_api_route(path, answer, **given)


def audits_itself(endpoint: Callable[..., T]) -> Callable[..., T]:
    """For an endpoint that knows more to write down than its parameters, or that may change nothing."""
    endpoint.audits_itself = True  # type: ignore[attr-defined]
    return endpoint


def encoded(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A struct as it is sent."""
    return Response(msgspec.json.encode(value), status, dict(headers or {}), "application/json")


def _answering(
    endpoint: Callable[..., Awaitable[Any]], *, action: str, status: int, changes: bool
) -> Callable[..., Awaitable[Response]]:
    audits = changes and not getattr(endpoint, "audits_itself", False)

    @functools.wraps(endpoint)
    async def answer(**given: Any) -> Response:
        if audits:
            await audit(given["desk"], given["who"], action, **_told(given))
        value = await endpoint(**given)
        if isinstance(value, Response):
            return value
        if isinstance(value, Answer):
            return encoded(value.value, value.status, value.headers)
        return encoded(value, status)

    return answer


def _told(given: Mapping[str, Any]) -> dict[str, Any]:
    target = {
        name: str(value)[:_AUDITED_LENGTH]
        for name, value in given.items()
        if value is not None and not isinstance(value, Desk | Who | Asked | Request)
    }
    bodies = [value.audited() for value in given.values() if isinstance(value, Asked)]
    return {"target": target, "given": bodies[0] if bodies else {}}


def _query_names(dependant: Any) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*(_query_names(one) for one in dependant.dependencies))


def _refuse_unstorable(name: str, value: str) -> None:
    if not _NO_TEXT.isdisjoint(value) or not _NO_TEXT.isdisjoint(name):
        raise Problem(422, f"{name[:40]!r} has a NUL byte or half a character: leave it out", kind="bad-request")
