"""Who may do what: roles, tokens, sessions, other sites, other hosts, and what every answer carries."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.requests import Request

from aaiclick_queue.server import create_app
from aaiclick_queue.server.guard import COOKIE, FAILURES, network_of
from aaiclick_queue.server.roles import SAFE_METHODS, Who, needed_role
from aaiclick_queue.settings import Settings
from tests.server.serving import API, bearer, rows, served, token

FOR_ANYBODY = {"/livez", "/readyz", "/startupz", "/healthz", "/api/v1/health", "/login", "/logout"}
ROLE_BY_TOOL = {"/mcp", "/api/v1/mcp"}  # each tool is a route that names its own


def routes() -> Iterator[tuple[str, str, str | None]]:
    """Every method and path there is, with the role that it needs."""
    for route in create_app(Settings.load({})).routes:
        path, methods = getattr(route, "path_format", None), getattr(route, "methods", None) or {"GET"}
        assert path is not None, f"{route} is no route that this test can look at"
        for method in methods:
            yield method, path, needed_role(route)


def test_every_route_names_the_role_that_it_needs_and_no_change_is_for_readers() -> None:
    for method, path, role in routes():
        if path in FOR_ANYBODY or path.startswith("/static"):
            assert role is None, f"{method} {path}"
        elif method in SAFE_METHODS or path in ROLE_BY_TOOL:
            assert role is not None, f"{method} {path} is for anybody"
        else:
            assert role in ("writer", "admin"), f"{method} {path} changes something and is for {role}"


def test_limits_tokens_purging_and_pruning_are_for_admins() -> None:
    admin = {(method, path) for method, path, role in routes() if role == "admin"}
    wanted = {
        ("GET", "/api/v1/tokens"), ("POST", "/api/v1/tokens"), ("DELETE", "/api/v1/tokens/{token_id}"),
        ("PUT", "/api/v1/limits"), ("DELETE", "/api/v1/limits/{limit_id}"), ("PUT", "/api/v1/queues/{name}/limits"),
        ("POST", "/api/v1/queues/{name}/purge"), ("POST", "/api/v1/prune"), ("GET", "/api/v1/config"),
    }  # fmt: skip
    assert admin == wanted


def test_without_a_token_and_with_a_readers_nothing_can_be_changed(closed: httpx.Client, settings: Settings) -> None:
    reader = bearer(token(settings, "reader"))
    root = str(closed.base_url).removesuffix(API + "/")
    for method, path, role in routes():
        if role is None:
            continue
        url = root + re.sub(r"\{\w+\}", "7", path)
        assert closed.request(method, url, json={}).status_code == 401, f"{method} {path}"
        if role != "reader":
            assert closed.request(method, url, json={}, headers=reader).status_code == 403, f"{method} {path}"
    assert rows(settings, "SELECT id FROM aaiclick_queue.system_events WHERE type = 'AUDIT'") == []
    assert closed.get("/jobs").status_code == 401
    assert closed.get("/jobs", headers=reader).status_code == 200


def test_roles_are_enforced(closed: httpx.Client, settings: Settings) -> None:
    writer, admin = bearer(token(settings, "writer")), bearer(token(settings, "admin"))
    assert closed.post("/queues/mail/pause", headers=writer).status_code == 200
    refused = closed.put("/queues/mail/limits", json={"running": 3}, headers=writer)
    assert (refused.status_code, refused.json()["title"]) == (403, "Forbidden")
    assert "needs admin" in refused.json()["detail"]
    assert closed.put("/queues/mail/limits", json={"running": 3}, headers=admin).status_code == 200
    assert closed.get("/whoami", headers=writer).json() == {"name": "a writer", "role": "writer", "how": "token"}


def test_a_writer_cancels_by_filter_what_an_admin_purges(closed: httpx.Client, settings: Settings) -> None:
    writer = bearer(token(settings, "writer"))
    assert closed.post("/queues/mail/purge", headers=writer).status_code == 403
    assert closed.post("/bulk/cancel", json={"where": {"queue": "mail"}}, headers=writer).status_code == 202


def test_a_token_is_kept_as_a_digest_used_at_and_ended_by_revoking(closed: httpx.Client, settings: Settings) -> None:
    admin = bearer(token(settings, "admin"))
    made = closed.post("/tokens", json={"name": "ci", "role": "reader", "expires_seconds": 60}, headers=admin).json()
    assert re.fullmatch(r"aaq_[A-Za-z0-9_-]{43}", made["token"])
    [kept] = rows(settings, "SELECT t::text AS row, used_at FROM aaiclick_queue.tokens t WHERE name = 'ci'")
    assert made["token"] not in kept["row"]
    assert kept["used_at"] is None
    assert closed.get("/jobs", headers=bearer(made["token"])).status_code == 200
    [first] = rows(settings, "SELECT used_at FROM aaiclick_queue.tokens WHERE name = 'ci'")
    assert closed.get("/jobs", headers=bearer(made["token"])).status_code == 200
    [second] = rows(settings, "SELECT used_at FROM aaiclick_queue.tokens WHERE name = 'ci'")
    assert first["used_at"] == second["used_at"] is not None
    listed = closed.get("/tokens", headers=admin).json()["items"]
    assert "token" not in listed[0]
    assert closed.delete(f"/tokens/{made['id']}", headers=admin).json()["revoked_at"]
    assert closed.get("/jobs", headers=bearer(made["token"])).status_code == 401


def test_a_token_that_is_over_opens_nothing(closed: httpx.Client, settings: Settings) -> None:
    short = token(settings, "reader", lasts=3600)
    assert closed.get("/jobs", headers=bearer(short)).status_code == 200
    rows(settings, "UPDATE aaiclick_queue.tokens SET expires_at = now() - interval '1 second'")
    assert closed.get("/jobs", headers=bearer(short)).status_code == 401


def test_a_session_begins_with_a_token_and_ends_with_it(closed: httpx.Client, settings: Settings) -> None:
    root = str(closed.base_url).removesuffix(API + "/")
    given = token(settings, "writer")
    with httpx.Client(base_url=root) as browser:
        assert "password" in browser.get("/login").text
        wrong = browser.post("/login", data={"token": "aaq_wrong"})
        assert (wrong.status_code, "unknown, revoked or over" in wrong.text) == (401, True)
        answer = browser.post("/login", data={"token": given})
        cookie = answer.headers["set-cookie"].lower()
        assert answer.status_code == 303
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie
        assert given not in cookie
        assert browser.get(f"{API}/whoami").json()["how"] == "session"
        same = {"Sec-Fetch-Site": "same-origin"}
        assert browser.post(f"{API}/queues/mail/pause", headers=same).status_code == 200
        assert browser.post(f"{API}/queues/mail/resume", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        forged = browser.cookies[COOKIE].replace(".", ".9", 1)
        assert httpx.get(f"{root}{API}/jobs", cookies={COOKIE: forged}).status_code == 401
        rows(settings, "UPDATE aaiclick_queue.tokens SET revoked_at = now()")
        assert browser.get(f"{API}/whoami").status_code == 401
        assert browser.post("/logout").headers["location"] == "/login"
        assert COOKIE not in browser.cookies


def test_signing_out_ends_the_session_on_the_server_and_both_are_written_down(
    closed: httpx.Client, settings: Settings
) -> None:
    root = str(closed.base_url).removesuffix(API + "/")
    given = token(settings, "writer")
    with httpx.Client(base_url=root) as browser, httpx.Client(base_url=root) as other:
        browser.post("/login", data={"token": given})
        kept = {COOKIE: browser.cookies[COOKIE]}
        time.sleep(1.1)  # a session of another second is another session
        other.post("/login", data={"token": given})
        assert httpx.get(f"{root}{API}/jobs", cookies=kept).status_code == 200
        assert browser.post("/logout").status_code == 303
        assert httpx.get(f"{root}{API}/jobs", cookies=kept).status_code == 401
        assert other.get(f"{API}/jobs").status_code == 200
        assert httpx.post(f"{root}/logout", cookies=kept).status_code == 303
    told = rows(
        settings,
        "SELECT made_by, data->>'action' AS action FROM aaiclick_queue.system_events WHERE type = 'AUDIT' ORDER BY id",
    )
    assert [(one["made_by"], one["action"]) for one in told] == [
        ("a writer", action) for action in ("sign_in", "sign_in", "sign_out")
    ]


def test_a_session_cookie_is_secure_behind_https(settings: Settings) -> None:
    with served(settings, auth="tokens") as http:
        root = str(http.base_url).removesuffix(API + "/")
        answer = httpx.post(
            f"{root}/login", json={"token": token(settings, "reader")}, headers={"X-Forwarded-Proto": "https"}
        )
        assert "secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 200),
    ],
)
def test_another_site_cannot_have_a_browser_change_anything(
    http: httpx.Client, headers: dict[str, str], status: int
) -> None:
    assert http.post("/queues/mail/pause", headers=headers).status_code == status


def test_our_own_origin_may_and_a_bearer_token_needs_none(settings: Settings, http: httpx.Client) -> None:
    host = f"http://{http.base_url.host}:{http.base_url.port}"
    assert http.post("/queues/mail/pause", headers={"Origin": host}).status_code == 200
    with served(settings, auth="tokens") as closed:
        headers = bearer(token(settings, "writer")) | {"Origin": "http://elsewhere.example"}
        assert closed.post("/queues/mail/resume", headers=headers).status_code == 200


def test_an_open_server_answers_to_its_own_names_alone(settings: Settings) -> None:
    with served(settings, allowed_hosts=["queue.internal"]) as http:
        for host, status in (
            ("localhost:8787", 200), ("127.0.0.1", 200), ("[::1]:8787", 200), ("queue.internal", 200),
            ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ):  # fmt: skip
            assert http.get("/jobs", headers={"Host": host}).status_code == status, host
        assert http.get("/jobs", headers={"X-Forwarded-For": "10.0.0.7"}).status_code == 403


def test_wrong_tokens_are_counted_and_right_ones_still_let_in(closed: httpx.Client, settings: Settings) -> None:
    good, other = token(settings, "reader"), token(settings, "reader")
    assert closed.get("/jobs", headers=bearer(good)).status_code == 200
    for _ in range(FAILURES):
        assert closed.get("/jobs", headers=bearer("aaq_wrong")).status_code == 401
    refused = closed.get("/jobs", headers=bearer("aaq_wrong"))
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 61
    assert closed.get("/jobs", headers=bearer(other)).status_code == 429
    assert closed.get("/jobs", headers=bearer(good)).status_code == 200


def test_a_burst_of_wrong_tokens_passes_no_more_than_one_by_one(closed: httpx.Client) -> None:
    headers = [bearer(f"aaq_wrong{n}") for n in range(60)]
    with ThreadPoolExecutor(60) as many:
        answers = list(many.map(lambda one: httpx.get(f"{closed.base_url}jobs", headers=one).status_code, headers))
    assert {*answers} == {401, 429}
    assert answers.count(401) <= FAILURES


def test_one_token_that_many_send_at_once_is_let_in(closed: httpx.Client, settings: Settings) -> None:
    header = bearer(token(settings, "reader"))
    with ThreadPoolExecutor(30) as many:
        answers = list(many.map(lambda _: httpx.get(f"{closed.base_url}jobs", headers=header).status_code, range(30)))
    assert {*answers} == {200}


def test_wrong_tokens_are_counted_for_an_address_and_for_a_network_of_ipv6() -> None:
    assert network_of("10.0.0.7") == network_of("::ffff:10.0.0.7") == "10.0.0.7"
    assert network_of("2001:db8:1:2::7") == network_of("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert network_of("2001:db8:1:3::7") != network_of("2001:db8:1:2::7")
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert (network_of(""), network_of("a socket")) == ("", "a socket")


def test_a_read_only_server_lets_nobody_change_anything(settings: Settings) -> None:
    with served(settings, read_only=True) as http:
        assert http.get("/whoami").json()["role"] == "reader"
        assert http.post("/queues/mail/pause").status_code == 403


def test_a_function_of_the_applications_own_says_who_asks(settings: Settings) -> None:
    async def mine(request: Request) -> Who | None:
        name = request.headers.get("x-user")
        return Who(name, "writer") if name else None

    with served(settings, auth=mine) as http:
        assert http.get("/jobs").status_code == 401
        assert http.post("/queues/mail/pause", headers={"X-User": "ada"}).status_code == 200
        [event] = rows(settings, "SELECT made_by, data ->> 'how' AS how FROM aaiclick_queue.system_events")
        assert event == {"made_by": "ada", "how": "own"}


def test_every_answer_carries_the_headers_that_keep_browsers_safe(http: httpx.Client) -> None:
    for path in ("/jobs", "/nothing", "/livez", "/jobs?limit=0"):
        headers = http.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cache-control"] == "no-store"


def test_the_access_log_has_no_queries(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "aaiclick_queue.access")
    http.get("/jobs", params={"name": "hunter2"})
    end = time.monotonic() + 5
    while not caplog.messages and time.monotonic() < end:
        time.sleep(0.01)
    assert any(message.startswith("GET /api/v1/jobs 200") for message in caplog.messages)
    assert "hunter2" not in caplog.text


def test_the_routes_are_those_of_fastapi(settings: Settings) -> None:
    app: Any = create_app(settings)
    assert sum(isinstance(route, APIRoute) for route in app.routes) > 80
