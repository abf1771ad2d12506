"""What somebody who means harm would try: each of these once worked, or could have."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import httpx
import pytest

from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.logs import PrettyLines
from aaiclick_queue.server import desk as desks
from aaiclick_queue.server import watching
from aaiclick_queue.server.desk import Opening
from aaiclick_queue.settings import Settings
from tests.server.serving import API, bearer, rows, served, token, until
from tests.tools import changed


def root_of(client: httpx.Client) -> str:
    """The address without the path of the API."""
    return str(client.base_url).removesuffix(API + "/")


@pytest.mark.parametrize("origin", ["http://[", "http://a:99999", "http://[::1", "//", "http://\u00ff"])
def test_an_origin_that_is_no_address_is_another_site(http: httpx.Client, origin: str) -> None:
    headers = {"Origin": origin.encode("latin-1")}
    assert http.post("/queues/mail/pause", headers=headers).status_code == 403  # type: ignore[arg-type]
    assert httpx.post(f"{root_of(http)}/logout", headers=headers).status_code == 403  # type: ignore[arg-type]


def test_no_setting_shows_a_password(settings: Settings) -> None:
    with_password = changed(
        settings, clickhouse_url="clickhouse://u:hunter2@127.0.0.1:1/db", redis_url="redis://:hunter2@127.0.0.1:1/0"
    )
    with served(with_password) as http:
        answer = http.get("/config")
    assert "AAICLICK_QUEUE_CLICKHOUSE_URL" in answer.text
    assert "hunter2" not in answer.text


def test_the_audit_is_for_admins(closed: httpx.Client, settings: Settings) -> None:
    reader, writer, admin = (bearer(token(settings, role)) for role in ("reader", "writer", "admin"))
    assert closed.get("/events", headers=reader).json()["items"] == []
    closed.put("/queues/mail/limits", json={"running": 3}, headers=admin)
    rows(settings, "INSERT INTO aaiclick_queue.system_events (type, data) VALUES ('OTHER', '{}')")
    for who in (reader, writer):
        assert {one["type"] for one in closed.get("/events", headers=who).json()["items"]} == {"OTHER"}
        refused = closed.get("/events", params={"types": ["OTHER", "AUDIT"]}, headers=who)
        assert refused.status_code == 403
        assert closed.get("/events", params={"types": "OTHER"}, headers=who).json()["items"]
    found = closed.get("/events", headers=admin).json()["items"]
    assert {one["type"] for one in found} == {"AUDIT", "OTHER"}


def test_whoever_has_no_token_is_not_told_where_postgres_is(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    away = changed(settings, postgres_url=f"postgresql://inner_user@127.0.0.1:{port}/inner_db")
    with served(away, auth="tokens") as http:
        problem = http.get("/jobs", headers=bearer("aaq_any"))
        page = httpx.get(f"{root_of(http)}/jobs", headers=bearer("aaq_any") | {"Accept": "text/html"})
    assert (problem.status_code, page.status_code) == (503, 503)
    for said in (problem.text, page.text):
        assert "inner_" not in said
        assert str(port) not in said
    with served(away) as http:  # whoever is on this machine could ask it anyway
        assert "inner_db" in httpx.get(f"{root_of(http)}/jobs", headers={"Accept": "text/html"}).text


def test_no_path_makes_a_line_of_its_own_in_the_access_log(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "aaiclick_queue.access")
    http.get("/x%0a00:00:00%20!%20forged%1b[2J/metrics")
    until(lambda: [one for one in caplog.records if one.name == "aaiclick_queue.access"])
    [line] = [PrettyLines(colour=False).format(one) for one in caplog.records if one.name == "aaiclick_queue.access"]
    assert line.isprintable()


async def test_postgres_itself_gives_up_what_a_request_takes_too_long_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desks, "STATEMENT_SECONDS", 0.1)
    opening = Opening(changed(settings, lease_seconds=600), None)
    try:
        db = (await opening.desk()).db
        with pytest.raises(PostgresUnavailable, match="statement timeout"):
            async with asyncio.timeout(20):
                await db.fetch("SELECT pg_sleep(60)")
        assert await db.fetchval("SELECT 1") == 1
        async with AsyncExitStack() as held:
            for _ in range(desks.READERS):
                await held.enter_async_context(db.connection())
            with pytest.raises(PostgresUnavailable, match="every connection was in use"):
                await db.fetchval("SELECT 1")
        assert await db.fetchval("SELECT 1") == 1
    finally:
        await opening.close()


def test_a_stream_ends_now_and_then_so_that_a_revoked_token_hears_no_more(
    closed: httpx.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "HOSTED_SECONDS", 0.2)
    reader = bearer(token(settings, "reader"))
    with closed.stream("GET", "/stream", params={"topics": "queues"}, headers=reader) as stream:
        rows(settings, "UPDATE aaiclick_queue.tokens SET revoked_at = now()")
        assert b"hello" in b"".join(stream.iter_raw())  # to its end
    assert closed.get("/stream", params={"topics": "queues"}, headers=reader).status_code == 401
