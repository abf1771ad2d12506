"""Every error is a problem that says what, why and how to fix; and nothing that is sent makes us fail."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from aaiclick_queue.server import health
from aaiclick_queue.server.shell import BODY_LIMIT
from aaiclick_queue.settings import Settings
from aaiclick_queue.streams import Streams
from tests.server.serving import API, rows, served

KEYS = {"type", "title", "status", "detail", "instance"}


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body.keys() >= KEYS
    assert body["status"] == status
    return body


def test_paths_methods_and_parameters_that_are_unknown_are_problems(http: httpx.Client) -> None:
    problem(http.get("/nothing"), 404)
    assert http.post("/workers").headers["allow"] == "GET"
    problem(http.post("/workers"), 405)
    assert "'limit'" in problem(http.get("/jobs", params={"limt": 3}), 422)["detail"]
    assert "'priority'" in problem(http.post("/tasks", json={"entrypoint": "a.b", "prioritty": 1}), 422)["detail"]
    found = problem(http.get("/jobs", params={"limit": 1001, "status": "DONE"}), 422)
    assert {one["field"] for one in found["errors"]} == {"limit", "status"}
    problem(http.get("/tasks/seven"), 422)
    problem(http.get("/tasks/99999999999999999999"), 422)
    assert problem(http.get("/jobs/nobody"), 404)["instance"] == f"{API}/jobs/nobody"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[1]", 422),
        (b'{"entrypoint": "a.b", "kwargs": {"x": NaN}}', 422),
        (b'{"entrypoint": "a.b", "kwargs": {"x": "\\ud800"}}', 422),
        (b'{"entrypoint": "a.b\\u0000"}', 422),
        (b'{"entrypoint": "a.b", "kwargs": {"x": "\\u0000"}}', 422),
        (b'{"entrypoint": "a.b", "priority": 99999999999999999999999}', 422),
        (b'{"entrypoint": "a.b", "kwargs": {"x": ' + b"9" * 400 + b"}}", None),
        (b'{"entrypoint": "a.b", "kwargs": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", 422),
        (b'{"entrypoint": "a.b", "countdown": 1e308}', 422),
        (b'{"entrypoint": "a.b", "eta": "0001-01-01T00:00:00Z"}', None),
        (b'{"entrypoint": "a.b", "eta": "2027-01-01T00:00:00"}', 422),
        (b"\xff\xfe", 422),
    ],
)
def test_bodies_that_cannot_be_meant_are_refused(http: httpx.Client, content: bytes, status: int | None) -> None:
    answer = http.post("/tasks", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500, answer.text
    if status is not None:
        problem(answer, status)


def test_what_is_no_json_is_415_and_too_much_is_413(http: httpx.Client) -> None:
    for kind in ("text/plain", "application/xml", "multipart/form-data; boundary=x"):
        problem(http.post("/tasks", content=b"{}", headers={"Content-Type": kind}), 415)
    problem(http.post("/tasks", content=b" " * (BODY_LIMIT + 1), headers={"Content-Type": "application/json"}), 413)

    def chunks() -> Any:
        for _ in range(BODY_LIMIT // 65536 + 2):
            yield b" " * 65536

    problem(http.post("/tasks", content=chunks(), headers={"Content-Type": "application/json"}), 413)


def test_odd_bytes_in_paths_and_queries_are_no_error_of_ours(http: httpx.Client) -> None:
    base = str(http.base_url)
    for path in ("jobs/%00", "jobs/%ff", "queues/%ED%A0%80", "jobs?like=%00", "jobs?%00=1", "jobs?before=-1",
                 "queues/%25/scale", "jobs?like=%25_%5C", "tasks?entrypoint=%F0%9F%98%80"):  # fmt: skip
        assert httpx.get(base + path).status_code < 500, path


def test_an_error_of_ours_tells_nothing_but_a_number_that_the_log_has(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with served(settings) as http:
        rows(settings, "ALTER TABLE aaiclick_queue.outbox RENAME TO hidden")
        try:
            found = problem(http.get("/outbox"), 500)
        finally:
            rows(settings, "ALTER TABLE aaiclick_queue.hidden RENAME TO outbox")
    assert "outbox" not in found["detail"]
    number = found["detail"].partition("has it as ")[2].partition(":")[0]
    assert number in caplog.text


def test_without_postgres_answers_are_503_and_liveness_is_not_asked(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    away = settings.model_copy(update={"postgres_url": f"postgresql://postgres@127.0.0.1:{port}/nowhere"})
    with served(away) as http:
        answer = http.get("/jobs")
        assert answer.headers["retry-after"] == "5"
        problem(answer, 503)
        root = str(http.base_url).removesuffix(API + "/")
        assert httpx.get(f"{root}/livez").status_code == 200
        ready = httpx.get(f"{root}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")


def test_a_ready_server_says_so(http: httpx.Client) -> None:
    root = str(http.base_url).removesuffix(API + "/")
    for path in ("/livez", "/readyz", "/startupz"):
        assert httpx.get(root + path).json()["status"] == "ok"
    for path in ("/healthz", f"{API}/health"):  # nobody works here
        health = httpx.get(root + path)
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert health.json()["degraded"] == ["relay", "scheduler", "reaper", "workers"]


def test_many_probes_at_once_ask_redis_once(redis_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pings = []

    async def counted(self: Streams) -> None:
        pings.append(self)

    monkeypatch.setattr(Streams, "ping", counted)
    monkeypatch.setattr(health, "KEPT_SECONDS", 60.0)
    with served(redis_settings) as http:
        root = str(http.base_url).removesuffix(API + "/")
        for path in ("/readyz", "/healthz", "/startupz", f"{API}/health"):
            parts = {part["name"]: part for part in httpx.get(root + path).json()["components"]}
            assert parts["redis"] == {"name": "redis", "ok": True, "detail": "answers"}
    assert len(pings) == 1


def test_what_is_malformed_is_told_of_the_body(http: httpx.Client) -> None:
    answer = http.post("/tasks", content="{bad", headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("body: no JSON (")
