"""Where the application lives: mounted in another one, under a prefix, as a command, all on one machine."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from fastapi import FastAPI

from aaiclick_queue.server import create_app
from aaiclick_queue.settings import Settings
from tests.cli.running import command, environment
from tests.server.serving import API, bearer, running, token, until


@asynccontextmanager
async def closing(app: FastAPI) -> AsyncIterator[None]:
    """What an application does that closes connections when it stops."""
    yield
    await app.state.opening.close()


def test_it_can_be_mounted_in_another_application(settings: Settings) -> None:
    mounted = create_app(settings, auth="open")
    own = FastAPI(lifespan=lambda _: closing(mounted))
    own.mount("/queue", mounted)
    with running(own) as address, httpx.Client(base_url=f"{address}/queue{API}") as http:
        made = http.post("/tasks", json={"entrypoint": "a.b"})
        assert http.get(f"/tasks/{made.json()['id']}").status_code == 200
        assert http.get("/nothing").json()["instance"] == f"/queue{API}/nothing"
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_queues"}}
        called = httpx.post(f"{address}/queue/mcp", json=message).json()["result"]
        assert called["isError"] is False


@pytest.mark.parametrize("strips", [True, False])
def test_it_works_under_a_prefix_whether_or_not_the_proxy_takes_it_away(settings: Settings, strips: bool) -> None:
    given, below = token(settings, "reader"), "" if strips else "/q"
    app = create_app(settings, prefix="/q/", auth="tokens")
    with running(app) as address, httpx.Client(base_url=address + below) as http:
        assert http.get(f"{API}/jobs", headers=bearer(given)).status_code == 200
        assert 'action="/q/login"' in http.get("/login").text
        answer = http.post("/login", data={"token": given})
        assert answer.headers["location"] == "/q/"
        assert "path=/q/" in answer.headers["set-cookie"].lower()
        assert http.get(f"{API}/openapi.json", headers=bearer(given)).json()["servers"] == [{"url": "/q"}]
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_queues"}}
        assert http.post("/mcp", json=message, headers=bearer(given)).json()["result"]["isError"] is False


def test_a_server_without_a_document_has_none(settings: Settings) -> None:
    with running(create_app(settings, auth="open", docs=False)) as address:
        assert httpx.get(f"{address}{API}/openapi.json").status_code == 404
        assert httpx.get(f"{address}/docs").status_code == 404
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert len(httpx.post(f"{address}/mcp", json=message).json()["result"]["tools"]) > 15


@contextmanager
def started(settings: Settings, folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, with the address that it tells."""
    output = (folder / "output").open("w+")
    process = subprocess.Popen(
        command(*arguments), env=environment(settings), stderr=output, stdout=output, text=True, cwd=folder
    )

    def told() -> str:
        return (folder / "output").read_text()

    try:
        until(lambda: process.poll() is not None or re.search(r"dashboard +http", told()))
        assert process.poll() is None, told()
        found = re.search(r"dashboard +(http\S+)", told())
        assert found
        until(lambda: _answers(found[1]))
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        output.close()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}livez").status_code == 200
    except httpx.HTTPError:
        return False


def test_the_command_serves_until_sigterm_and_says_where(settings: Settings, tmp_path: Path) -> None:
    with started(settings, tmp_path, "server", "--port", "0", "--prefix", "/q") as (process, address):
        assert address.endswith("/q/")
        assert httpx.get(f"{address}api/v1/whoami").json()["name"] == "local"
        with httpx.stream("GET", f"{address}api/v1/stream", params={"topics": "queues"}) as listening:
            assert listening.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def test_a_port_in_use_is_told_without_a_traceback(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            command("server", "--port", port), env=environment(settings), capture_output=True, text=True, timeout=60
        )
    assert ran.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_other_machines_are_not_let_in_before_there_is_a_token(settings: Settings, tmp_path: Path) -> None:
    ran = subprocess.run(
        command("server", "--host", "0.0.0.0", "--port", "0"),
        env=environment(settings), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "no token has been made" in ran.stderr
    made = subprocess.run(
        command("token", "create", "me", "--role", "admin", "--expires", "1h"),
        env=environment(settings), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    with started(settings, tmp_path, "server", "--host", "0.0.0.0", "--port", "0") as (_, told):
        address = told.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{address}api/v1/jobs").status_code == 401
        assert httpx.get(f"{address}api/v1/jobs", headers=bearer(made.stdout.strip())).status_code == 200


def test_tokens_are_made_listed_and_revoked(settings: Settings) -> None:
    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("token", *arguments), env=environment(settings), capture_output=True, text=True, timeout=60
        )

    made = json.loads(ran("create", "ci", "--role", "writer", "--json").stdout)
    assert made["token"].startswith("aaq_")
    [listed] = json.loads(ran("list", "--json").stdout)
    assert (listed["name"], listed["role"], listed["revoked_at"]) == ("ci", "writer", None)
    assert made["token"] not in ran("list").stdout
    assert "would revoke" in ran("revoke", made["id"], "--dry-run").stdout
    assert ran("revoke", made["id"], "--yes").returncode == 0
    assert json.loads(ran("list", "--json").stdout)[0]["revoked_at"]
    assert ran("revoke", "999", "--yes").returncode == 4


def test_everything_on_one_machine_starts_works_and_ends_together(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "local_tasks.py").write_text(
        "from aaiclick_queue import task\n\n\n@task\nasync def add(a: int, b: int) -> int:\n    return a + b\n"
    )
    with started(settings, tmp_path, "local", "start", "-A", "local_tasks", "--port", "0") as (process, address):
        api = f"{address}api/v1"
        made = httpx.post(f"{api}/tasks", json={"entrypoint": "local_tasks.add", "kwargs": {"a": 1, "b": 2}}).json()
        until(lambda: httpx.get(f"{api}/tasks/{made['id']}").json()["status"] == "COMPLETED")
        assert httpx.get(f"{api}/tasks/{made['id']}").json()["result"] == 3
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        gone, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, gone


def test_without_modules_the_loops_run_beside_the_server(settings: Settings, tmp_path: Path) -> None:
    with started(settings, tmp_path, "local", "start", "--port", "0") as (process, address):
        until(lambda: httpx.get(f"{address}api/v1/outbox").status_code == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
