"""MCP: the routes of the API as tools, over stateless Streamable HTTP (JSON-RPC 2.0 in one POST).

A tool is a route: its schema is taken from the OpenAPI document, and a call is a request of the same person to that
route. So roles, checks, the audit and errors are those of HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from .answers import encoded
from .roles import Reader, Who, needed_role

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
TOOLS = (
    *("list_jobs", "get_job", "job_stats", "cancel_job", "run_job", "list_registered_jobs", "register_job"),
    *("enable_job", "disable_job", "list_tasks", "get_task", "clear_task", "retry_task", "task_logs", "explain_task"),
    *("list_queues", "pause_queue", "resume_queue", "list_workers", "stop_worker", "list_failures"),
)
PARSE_ERROR, BAD_REQUEST, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
_PASSED_ON = frozenset(
    {b"host", b"authorization", b"cookie", b"origin", b"sec-fetch-site", b"traceparent", b"tracestate"}
)
_ENDS = ("cancel_job", "clear_task", "stop_worker")


class Tool(msgspec.Struct, frozen=True):
    """One route as a tool: which parameter goes where."""

    name: str
    description: str
    method: str
    path: str
    in_path: frozenset[str]
    in_query: frozenset[str]
    schema: dict[str, Any]
    route: Any

    def shown(self) -> dict[str, Any]:
        """The tool as clients see it."""
        reads = self.method == "GET"
        hints = {"readOnlyHint": reads, "destructiveHint": self.name in _ENDS, "openWorldHint": False}
        return {"name": self.name, "description": self.description, "inputSchema": self.schema, "annotations": hints}


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def install(app: FastAPI) -> None:
    """Answer MCP under /mcp."""
    tools: dict[str, Tool] = {}

    async def mcp(request: Request, who: Reader) -> Response:
        """One message of a client."""
        if not tools:
            tools.update(_tools(app))
        number: Any = None
        try:
            message = _message(await request.body())
            number = message.get("id")
            if number is None:
                return Response(status_code=202)
            result = await _answer(request, who, tools, message)
        except _Refused as refused:
            error = {"code": refused.code, "message": str(refused)}
            return encoded({"jsonrpc": "2.0", "id": number, "error": error}, 400 if number is None else 200)
        return encoded({"jsonrpc": "2.0", "id": number, "result": result})

    for path in ("/mcp", "/api/v1/mcp"):
        app.router.add_api_route(path, mcp, methods=["POST"], include_in_schema=False, response_model=None)


async def _answer(request: Request, who: Who, tools: Mapping[str, Tool], message: Mapping[str, Any]) -> Any:
    given = message.get("params") or {}
    if not isinstance(given, dict):
        raise _Refused(BAD_PARAMS, "params is no object")
    match message["method"]:
        case "initialize":
            asked = given.get("protocolVersion")
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "aaiclick-queue", "version": __version__},
                "instructions": "Jobs, tasks, queues and workers of a task queue. Ids are texts.",
            }
        case "ping":
            return {}
        case "tools/list":
            return {"tools": [tool.shown() for tool in tools.values() if _may(who, tool)]}
        case "tools/call":
            tool = tools.get(str(given.get("name")))
            if tool is None or not _may(who, tool):
                raise _Refused(BAD_PARAMS, f"no tool {given.get('name')!r} for the role {who.role}")
            return await _call(request, tool, given.get("arguments") or {})
        case method:
            raise _Refused(NO_METHOD, f"no method {method!r}: initialize, ping, tools/list, tools/call")


async def _call(request: Request, tool: Tool, arguments: Any) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise _Refused(BAD_PARAMS, "arguments is no object")
    path, left = tool.path, dict(arguments)
    for name in tool.in_path:
        if name not in left:
            raise _Refused(BAD_PARAMS, f"{tool.name} needs {name}")
        path = path.replace(f"{{{name}}}", quote(str(left.pop(name)), safe=""))
    query = {name: _text(left.pop(name)) for name in tool.in_query & left.keys() if left[name] is not None}
    if tool.method == "GET" and left:
        query |= {name: _text(value) for name, value in left.items()}  # refused there, with the nearest name
    body = msgspec.json.encode(left) if tool.method != "GET" and left else b""
    status, said = await _request(request, tool.method, path, urlencode(query, doseq=True), body)
    return _result(status, said)


def _result(status: int, said: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(said) if said else {}
    if status >= 400:
        return {"content": [{"type": "text", "text": f"{status}: {value.get('detail', '')}"}], "isError": True}
    structured = value if isinstance(value, dict) else {"items": value}
    text = msgspec.json.encode(value).decode()
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}


async def _request(request: Request, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
    """A request of the same person to another of our routes."""
    root = str(request.scope.get("root_path", ""))
    headers = [(name, value) for name, value in request.scope["headers"] if name in _PASSED_ON]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    kept = {name: request.scope.get(name) for name in ("asgi", "http_version", "scheme", "client", "server")}
    scope = {
        **kept, "type": "http", "method": method, "path": root + unquote(path), "raw_path": (root + path).encode(),
        "root_path": root, "query_string": query.encode(), "headers": headers,
    }  # fmt: skip
    said: dict[str, Any] = {"status": 500, "body": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said["status"] = message["status"]
        elif message["type"] == "http.response.body":
            said["body"] += message.get("body", b"")

    await request.app(scope, receive, send)
    return said["status"], said["body"]


def _tools(app: FastAPI) -> dict[str, Tool]:
    document = app.openapi()
    routes = {route.operation_id: route for route in app.routes if isinstance(route, APIRoute)}
    found = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = operation.get("operationId")
            if name in TOOLS:
                found[name] = _tool(name, method.upper(), path, operation, document, routes[name])
    return {name: found[name] for name in TOOLS if name in found}


def _tool(  # noqa: PLR0913, PLR0917 - one value a fact
    name: str, method: str, path: str, operation: Mapping[str, Any], document: Mapping[str, Any], route: Any
) -> Tool:
    properties: dict[str, Any] = {}
    required: list[str] = []
    places: dict[str, set[str]] = {"path": set(), "query": set(), "header": set()}
    for one in operation.get("parameters", ()):
        places[one["in"]].add(one["name"])
        if one["in"] == "header":
            continue
        properties[one["name"]] = _inlined(one["schema"], document) | (
            {"description": one["description"]} if "description" in one else {}
        )
        required += [one["name"]] if one.get("required") else []
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    body = _object(_inlined(content, document)) if content else {}
    properties |= body.get("properties", {})
    required += body.get("required", [])
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    in_path, in_query = frozenset(places["path"]), frozenset(places["query"])
    return Tool(name, operation.get("description", ""), method, path, in_path, in_query, schema, route)


def _object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object of a body that may be left out."""
    return next((one for one in schema.get("anyOf", ()) if one.get("type") == "object"), schema)


def _inlined(schema: Any, document: Mapping[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(one, document) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    return {name: _inlined(value, document) for name, value in schema.items()}


def _may(who: Who, tool: Tool) -> bool:
    role = needed_role(tool.route)
    return role is not None and who.may(role)


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused(PARSE_ERROR, f"no JSON ({error})") from error
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise _Refused(BAD_REQUEST, "no JSON-RPC 2.0 request")
    if not isinstance(message.get("id"), str | int | None) or not isinstance(message.get("method"), str):
        raise _Refused(BAD_REQUEST, "no JSON-RPC 2.0 request: it needs a method, and an id that is text or a number")
    return message


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
