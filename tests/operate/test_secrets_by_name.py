"""Secrets of a task that is known by its name alone: by HTTP, by the command line, in a schedule."""

from __future__ import annotations

import asyncio
import html
import json
import re
from typing import Annotated, Any

import msgspec
import pytest

from aaiclick_queue import Client, Secret, current, task
from aaiclick_queue.errors import BadSchedule
from aaiclick_queue.postgres import Database
from aaiclick_queue.redaction import SIGN
from aaiclick_queue.registered import get_registered_job, register_job, upsert_registered_job
from aaiclick_queue.sealing import sealed_by_name
from aaiclick_queue.settings import Settings
from aaiclick_queue.tasks import enqueue as client_enqueue
from aaiclick_queue.tasks import registry
from tests.cli.conftest import Invoke
from tests.server.serving import served
from tests.tools import changed, running_worker, until

got: list[Any] = []


class Smtp(msgspec.Struct):
    host: str
    pin: Annotated[str, Secret()]


@task(entrypoint="tests.by_name.pay", max_attempts=1)
async def pay(card: Annotated[str, Secret()], to: str, smtp: Smtp | None = None) -> None:
    got.append((card, to, smtp))
    print("paying with", card)  # noqa: T201 - it is kept in the log of the run
    await current().progress(0.5, message=f"with {card}")
    raise ValueError(f"refused {card} {smtp.pin if smtp else ''}")


async def test_what_a_task_marks_is_secret_though_it_comes_by_its_name_alone(
    db: Database, quick: Settings, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    given = {"card": "hunter2-card", "to": "ada", "smtp": {"host": "a", "pin": "hunter2-pin"}}
    settings = changed(quick, log_dir=tmp_path)
    async with running_worker(settings):
        pass  # it has told what is secret, and that stays for a while
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(registry, pay.entrypoint)  # as in a server, which imports no code
        shown = await asyncio.to_thread(_plant, settings, invoke, given)
    async with running_worker(settings):
        await until(lambda: _ended(db, 3))
    shown += await asyncio.to_thread(_look, settings)
    assert got == [("hunter2-card", "ada", Smtp("a", "hunter2-pin"))] * 3
    assert "hunter2" not in shown
    assert f"refused {SIGN}" in shown
    assert f"paying with {SIGN}" in shown


async def test_marks_that_are_there_are_kept_and_a_name_is_looked_for_as_a_whole(db: Database, quick: Settings) -> None:
    async with running_worker(quick):
        marked = {"card": {"$secret": "a"}, "to": {"$secret": "b"}, "smtp": None}
        assert await sealed_by_name(db, pay.entrypoint, marked) == marked
        assert await sealed_by_name(db, pay.entrypoint, {"card": 1}) == {"card": {"$secret": 1}}
        assert await sealed_by_name(db, "tests.by_name", {"card": 1}) == {"card": 1}


def test_the_sign_that_is_shown_cannot_be_written_back_as_the_secret(
    db: Database, quick: Settings, invoke: Invoke
) -> None:
    secret = {"to": "ada", "smtp": {"password": "hunter2"}, "token": "hunter2"}
    with served(quick) as http:
        body = {"entrypoint": "shop.pay", "interval": "1d", "default_kwargs": secret}
        assert http.put("/schedules/nightly", json=body).status_code == 200
        shown = http.get("/schedules/nightly").json()["default_kwargs"]
        assert shown == {"to": "ada", "smtp": {"password": SIGN}, "token": SIGN}
        refused = [
            http.put("/schedules/nightly", json=body | {"default_kwargs": shown}),
            http.post("/schedules", json=body | {"name": "other", "default_kwargs": shown}),
            http.post("/schedules/nightly/run", json={"kwargs": {"token": SIGN}}),
            http.post("/tasks", json={"entrypoint": "shop.pay", "kwargs": {"all": [{"token": SIGN}]}}),
            http.post("/jobs", json={"entrypoint": "shop.pay", "kwargs": shown}),
        ]
        assert [one.status_code for one in refused] == [422] * len(refused)
        assert "smtp, token" in refused[0].json()["detail"]
        assert all("give the secret itself, or leave it out" in one.json()["detail"] for one in refused)
        call = {"name": "register_job", "arguments": body | {"name": "other", "default_kwargs": shown}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        assert http.post("/mcp", json=asked).json()["result"]["isError"]
        assert http.get("/tasks").json()["items"] == http.get("/jobs").json()["items"] == []
    given = json.dumps(shown)
    for words in (("task", "enqueue"), ("run-job",), ("register-job",)):
        ran = invoke(*words, "shop.pay", "--kwargs", given)
        assert ran.exit_code == 2, ran.output
        assert "leave the argument out" in ran.output


async def test_a_schedule_read_in_python_cannot_be_written_back_with_its_sign(client: Client) -> None:
    await register_job("nightly", "shop.pay", default_kwargs={"token": "hunter2"}, client=client)
    shown = (await get_registered_job("nightly", client=client)).default_kwargs
    with pytest.raises(BadSchedule, match="give the secret itself"):
        await upsert_registered_job("nightly", "shop.pay", default_kwargs=shown, client=client)


async def test_the_command_to_copy_leaves_secrets_out_and_says_so(quick: Settings, client: Client) -> None:
    handle = await client_enqueue("shop.pay", {"to": "ada", "token": "hunter2"}, client=client)

    def look() -> str:
        with served(quick) as http:
            return http.get(f"{str(http.base_url).removesuffix('/api/v1/')}/tasks/{handle.id}").text

    page = await asyncio.to_thread(look)
    [command] = re.findall(r'data-copy="(aaiclick-queue task enqueue [^"]*)"', page)
    assert html.unescape(command).endswith("""--kwargs '{"to": "ada"}'""")
    assert "without token: secrets are not shown" in page


def _plant(settings: Settings, invoke: Invoke, given: dict[str, Any]) -> str:
    with served(settings) as http:
        made = [
            http.post("/tasks", json={"entrypoint": pay.entrypoint, "kwargs": given}),
            http.post("/jobs", json={"entrypoint": pay.entrypoint, "kwargs": given}),
            http.post(
                "/schedules",
                json={"name": "nightly", "entrypoint": pay.entrypoint, "interval": "1d", "default_kwargs": given},
            ),
        ]
    ran = invoke("task", "enqueue", pay.entrypoint, "--kwargs", json.dumps(given))
    assert ran.exit_code == 0, ran.output
    assert [one.status_code for one in made] == [201, 201, 201], [one.text for one in made]
    return "".join(one.text for one in made)


def _look(settings: Settings) -> str:
    with served(settings) as http:
        found = http.get("/tasks").json()["items"]
        paths = ["/tasks", "/jobs", "/schedules", "/schedules/nightly", "/failures", "/events", "/tasks?search=ada"]
        for one in found:
            paths += [f"/tasks/{one['id']}", f"/tasks/{one['id']}/timeline", f"/tasks/{one['id']}/logs"]
            paths += [f"/tasks/{one['id']}/explain"]
        paths += [f"/jobs/{one['id']}{more}" for one in http.get("/jobs").json()["items"] for more in ("", "/graph")]
        return "".join(http.get(path).text for path in paths)


async def _ended(db: Database, count: int) -> bool:
    found = await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NOT NULL")
    return bool(found >= count)
