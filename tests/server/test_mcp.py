"""MCP, spoken by the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from aaiclick_queue.server.mcp import TOOLS
from aaiclick_queue.settings import Settings
from tests.server.serving import bearer, token

ACTS = {
    *("cancel_job", "run_job", "register_job", "enable_job", "disable_job", "clear_task", "retry_task", "pause_queue"),
    *("resume_queue", "stop_worker"),
}


@asynccontextmanager
async def session(http: httpx.Client, headers: dict[str, str] | None = None) -> AsyncIterator[ClientSession]:
    url = str(http.base_url).removesuffix("/api/v1/") + "/mcp"
    async with (
        create_mcp_http_client(headers=headers) as client,
        streamable_http_client(url, http_client=client) as streams,
        ClientSession(*streams) as one,
    ):
        await one.initialize()
        yield one


async def call(one: ClientSession, tool: str, /, **arguments: Any) -> Any:
    result: Any = await one.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_client_lists_the_tools_and_uses_them(http: httpx.Client) -> None:
    async with session(http) as one:
        listed = {tool.name: tool for tool in (await one.list_tools()).tools}
        assert list(listed) == list(TOOLS)
        assert listed["get_job"].input_schema["required"] == ["job"]
        assert "reason" in listed["pause_queue"].input_schema["properties"]
        await one.send_ping()
        made = await call(one, "run_job", name="etl", entrypoint="shop.jobs.etl", kwargs={"day": 1})
        found = await call(one, "get_job", job=made["id"])
        assert (found["name"], found["run_type"]) == ("etl", "API")
        assert [job["id"] for job in (await call(one, "list_jobs", status="PENDING", limit=5))["items"]] == [made["id"]]
        [task] = (await call(one, "list_tasks"))["items"]
        assert (await call(one, "explain_task", task_id=task["id"]))["code"]
        assert (await call(one, "pause_queue", name="mail", reason="lunch"))["changed"] is True
        schedule = {"name": "nightly", "entrypoint": "shop.jobs.etl", "schedule": "0 8 * * *"}
        assert (await call(one, "register_job", **schedule))["name"] == "nightly"
        assert (await call(one, "disable_job", name="nightly"))["enabled"] is False
    events = await asyncio.to_thread(lambda: http.get("/events", params={"types": "AUDIT"}).json()["items"])
    actions = {event["data"]["action"] for event in events}
    assert actions == {"run_job", "pause_queue", "register_job", "disable_job"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_what_cannot_be_done_is_said_to_the_model(http: httpx.Client) -> None:
    async with session(http) as one:
        missing: Any = await one.call_tool("get_job", {"job": "nobody"})
        assert missing.is_error
        assert "404" in missing.content[0].text
        wrong: Any = await one.call_tool("list_jobs", {"stauts": "FAILED"})
        assert wrong.is_error
        assert "'status'" in wrong.content[0].text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_reader_is_shown_no_act_and_can_call_none(closed: httpx.Client, settings: Settings) -> None:
    headers = bearer(await asyncio.to_thread(token, settings, "reader"))
    async with session(closed, headers) as one:
        listed = {tool.name for tool in (await one.list_tools()).tools}
        assert listed == set(TOOLS) - ACTS
        with pytest.raises(Exception, match="no tool 'pause_queue' for the role reader"):
            await one.call_tool("pause_queue", {"name": "mail"})


def test_messages_that_are_none_are_refused_and_notifications_taken(http: httpx.Client) -> None:
    post = httpx.Client(base_url=str(http.base_url).removesuffix("/api/v1/"))
    with post:
        assert post.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
        assert post.post("/mcp", content=b"{").json()["error"]["code"] == -32700
        assert post.post("/mcp", json=[1]).json()["error"]["code"] == -32600
        assert post.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "no"}).json()["error"]["code"] == -32601
        assert post.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 3}).json()["error"]
        assert post.get("/mcp").status_code == 405
