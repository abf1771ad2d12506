"""Secrets of a task that is known by its name alone: by HTTP, by the command line, in a schedule."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import msgspec
import pytest

from aaiclick_queue import Secret, current, task
from aaiclick_queue.postgres import Database
from aaiclick_queue.redaction import SIGN
from aaiclick_queue.sealing import sealed_by_name
from aaiclick_queue.settings import Settings
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
