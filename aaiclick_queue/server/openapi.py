"""The OpenAPI document: FastAPI's, with the schemas of the structs that routes return, and problems for all errors."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse

from .answers import RETURNS, Answer
from .problems import MEDIA_TYPE, ProblemView
from .roles import Reader

REF = "#/components/schemas/{name}"
PATH = "/api/v1/openapi.json"


def install(app: FastAPI, *, has_document: bool) -> None:
    """Have the application say what its routes take and give, to those who may read."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    async def openapi(_: Reader) -> JSONResponse:
        return JSONResponse(document())

    app.openapi = document  # type: ignore[method-assign]
    if has_document:
        app.router.add_api_route(PATH, openapi, include_in_schema=False)


def _document(app: FastAPI) -> dict[str, Any]:
    returned = _returned(app)
    found = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=_shown(app), tags=app.openapi_tags
    )
    kinds = {name: kind for name, kind in returned.items() if kind is not None}
    schemas, components = msgspec.json.schema_components([*kinds.values(), ProblemView], ref_template=REF)
    by_name = dict(zip(kinds, schemas, strict=False))
    problem = {"description": "Why it was refused", "content": {MEDIA_TYPE: {"schema": schemas[-1]}}}
    for path in found["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            responses.pop("422", None)
            schema = by_name.get(operation.get("operationId"))
            for status in [one for one in responses if one[0] == "2" and schema is not None]:
                responses[status]["content"] = {"application/json": {"schema": schema}}
            responses["default"] = problem
    every = found.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        every.pop(unused, None)
    every |= components
    found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{"token": []}, {}]
    found["servers"] = [{"url": app.state.prefix or "/"}]
    return found


def _shown(app: FastAPI) -> list[Any]:
    return [route for route in app.routes if getattr(route, "include_in_schema", False)]


def _returned(app: FastAPI) -> dict[str, Any]:
    """The types that routes return, by operation."""
    return {
        route.operation_id: _plain(RETURNS[route.endpoint])
        for route in app.routes
        if isinstance(route, APIRoute) and route.endpoint in RETURNS and route.operation_id
    }


def _plain(kind: Any) -> Any:
    if getattr(kind, "__origin__", None) is Answer:
        kind = kind.__args__[0]
    is_response = isinstance(kind, type) and kind.__module__.startswith("starlette")
    return None if is_response or kind is type(None) else kind
