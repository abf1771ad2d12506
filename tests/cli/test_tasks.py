"""`task list`, `task get`, `task enqueue`, `task cancel`."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from aaiclick_queue import Settings, connect
from aaiclick_queue.cli import enqueueing, tasks
from aaiclick_queue.tasks import enqueue
from aaiclick_queue.views import TaskPage, TaskRow
from tests.cli.conftest import Invoke


def enqueued(invoke: Invoke, *arguments: str) -> str:
    ran = invoke("task", "enqueue", *arguments)
    assert ran.exit_code == 0, ran.output
    assert ran.stderr == ""
    return str(ran.stdout.strip())


def listed(invoke: Invoke, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(invoke("task", "list", "--json", *arguments).stdout)
    return rows


def test_what_was_enqueued_can_be_looked_at_with_every_option_it_was_given(invoke: Invoke) -> None:
    arguments = ["--kwargs", '{"to": "Ada"}', "--queue", "mail", "--priority", "7", "--max-attempts", "2"]
    task_id = enqueued(invoke, "shop.send", *arguments, "--countdown", "60")
    task = json.loads(invoke("task", "get", task_id, "--json").stdout)
    assert task["id"] == task_id
    assert (task["status"], task["entrypoint"], task["queue"]) == ("SCHEDULED", "shop.send", "mail")
    assert (task["kwargs"], task["priority"], task["max_attempts"]) == ({"to": "Ada"}, 7, 2)
    assert task["reason"] == "eta"
    text = invoke("task", "get", task_id).stdout
    assert f"shop.send  {task_id}  SCHEDULED" in text
    assert '{"to":"Ada"}' in text
    assert "due (eta)" in text


def test_tasks_are_listed_newest_first_and_page_by_page(invoke: Invoke) -> None:
    ids = [enqueued(invoke, "shop.send") for _ in range(3)]
    assert [row["id"] for row in listed(invoke)] == ids[::-1]
    first = invoke("task", "list", "--json", "--limit", "2")
    assert [row["id"] for row in json.loads(first.stdout)] == [ids[2], ids[1]]
    assert first.stderr == f"older ones: add --before {ids[1]}\n"
    assert [row["id"] for row in listed(invoke, "--before", ids[1])] == [ids[0]]


def test_a_list_can_be_narrowed_by_status_queue_and_entrypoint(invoke: Invoke) -> None:
    waiting = enqueued(invoke, "shop.send")
    later = enqueued(invoke, "shop.send", "--countdown", "60")
    elsewhere = enqueued(invoke, "shop.report", "--queue", "reports")
    cancelled = enqueued(invoke, "shop.send")
    invoke("task", "cancel", cancelled, "--yes")
    assert [row["id"] for row in listed(invoke, "--status", "queued")] == [elsewhere, waiting]
    assert [row["id"] for row in listed(invoke, "--status", "SCHEDULED")] == [later]
    assert [row["id"] for row in listed(invoke, "--status", "CANCELLED")] == [cancelled]
    assert listed(invoke, "--status", "RUNNING") == []
    assert [row["id"] for row in listed(invoke, "--queue", "reports")] == [elsewhere]
    assert [row["id"] for row in listed(invoke, "--entrypoint", "report")] == [elsewhere]
    assert [row["id"] for row in listed(invoke, "--entrypoint", "shop.report")] == [elsewhere]
    assert listed(invoke, "--entrypoint", "port") == []


def test_the_digits_of_a_log_line_are_enough_to_get_a_task(invoke: Invoke) -> None:
    task_id = enqueued(invoke, "shop.send")
    assert json.loads(invoke("task", "get", task_id[-8:], "--json").stdout)["id"] == task_id
    assert json.loads(invoke("task", "get", f"…{task_id[-8:]}", "--json").stdout)["id"] == task_id
    assert invoke("task", "get", task_id[-5:]).exit_code == 4


def test_a_task_that_is_not_there_ends_with_4(invoke: Invoke) -> None:
    for task_id in ("1234567890123456789", "99999999999999999999", "123456"):
        ran = invoke("task", "get", task_id)
        assert (ran.exit_code, ran.stdout) == (4, "")
        assert ran.stderr.startswith(f"error: there is no task {task_id}")
    assert invoke("task", "cancel", "1234567890123456789", "--yes").exit_code == 4


def test_an_id_that_is_none_is_a_mistake_of_usage(invoke: Invoke) -> None:
    ran = invoke("task", "get", "shop.send")
    assert ran.exit_code == 2
    assert "\nfix: give its digits" in ran.stderr


def test_an_empty_list_says_of_what_there_is_none(invoke: Invoke) -> None:
    assert invoke("task", "list", "--status", "failed").stdout == "no task is FAILED\n"


@pytest.mark.parametrize(("columns", "whole"), [(80, False), (200, True)])
def test_a_narrow_terminal_keeps_what_went_wrong(monkeypatch: pytest.MonkeyPatch, columns: int, whole: bool) -> None:
    moment = datetime.now(UTC)
    row = TaskRow(
        "7527949060557252234", "FAILED", None, "tasks.send", "mail", 0, 1, 1, moment, moment, moment, None, None, None,
        "ValueError", "no such name",
    )  # fmt: skip
    monkeypatch.setattr(tasks, "terminal_width", lambda: columns)
    headers, line = tasks._table(TaskPage([row], None), "no task").splitlines()
    assert ("CREATED" in headers, row.id in line) == (whole, whole)
    assert "…57252234" in line or whole
    assert line.endswith("ValueError: no such name")


def test_cancelling_asks_first_and_says_what_it_did(invoke: Invoke) -> None:
    task_id = enqueued(invoke, "shop.send")
    refused = invoke("task", "cancel", task_id)
    assert refused.exit_code == 2
    assert "fix: add --yes" in refused.stderr
    assert "would cancel" in invoke("task", "cancel", task_id, "--dry-run").stdout
    assert listed(invoke)[0]["status"] == "QUEUED"
    assert invoke("task", "cancel", task_id, "--yes").stdout == f"cancelled {task_id}\n"
    assert listed(invoke)[0]["status"] == "CANCELLED"
    assert "cancelled by hand" in invoke("task", "get", task_id).stdout
    assert invoke("task", "cancel", task_id, "--yes").exit_code == 3


def test_ids_to_cancel_may_come_from_stdin(invoke: Invoke) -> None:
    ids = [enqueued(invoke, "shop.send") for _ in range(2)]
    assert invoke("task", "cancel", "-", stdin="\n".join(ids)).exit_code == 2
    ran = invoke("task", "cancel", "-", "--yes", stdin="\n".join(ids))
    assert ran.stdout.splitlines() == [f"cancelled {task_id}" for task_id in ids]
    assert invoke("task", "cancel", "-", "--yes", stdin="").exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kwargs", "{oops"],
        ["--kwargs", "[1]"],
        ["--priority", "40000"],
        ["--max-attempts", "0"],
        ["--countdown", "-1"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_enqueued_is_refused_and_nothing_is_written(invoke: Invoke, arguments: list[str]) -> None:
    ran = invoke("task", "enqueue", "shop.send", *arguments)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "fix: " in ran.stderr
    assert listed(invoke) == []


def test_a_dry_enqueue_writes_nothing(invoke: Invoke) -> None:
    assert invoke("task", "enqueue", "shop.send", "--dry-run").exit_code == 0
    assert listed(invoke) == []


def test_nothing_that_a_task_is_called_steers_the_terminal(invoke: Invoke, settings: Settings) -> None:
    async def write() -> int:
        async with connect(settings=settings) as client:
            named = await enqueue(
                "shop.\x1b[2Jsend", {"text": "\x1b[31mred"}, name="a\nb\x1b]0;title\x07", client=client
            )
            return named.id

    task_id = asyncio.run(write())
    for shown in (invoke("task", "list").stdout, invoke("task", "get", str(task_id)).stdout):
        assert "\x1b" not in shown
        assert "\x07" not in shown
    assert len(invoke("task", "list").stdout.splitlines()) == 2


async def test_whoever_waits_is_told_what_for(
    settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueueing, "PATIENCE_SECONDS", 0.01)
    async with connect(settings=settings) as client:
        handle = await enqueue("shop.send", queue="mail", client=client)
        waiting = asyncio.create_task(enqueueing._say_why(client, handle.id))
        said = ""
        async with asyncio.timeout(20):
            while "\n" not in said:
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err
        waiting.cancel()
    assert said == "still QUEUED: no worker serves the queue 'mail'\n"
