"""`queue purge|move`, `task cancel --where`, `task move|retry|priority|unblock`, `operation list|get|cancel`."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import psycopg
import pytest

from aaiclick_queue.flow.operation import make_operation
from aaiclick_queue.postgres import Database, plain_dsn
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.cli.running import environment, program, worker
from tests.cli.test_tasks import enqueued, listed


def operations(invoke: Invoke) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoke("operation", "list", "--json").stdout)
    return found


def test_a_purge_says_how_many_asks_and_does_it(invoke: Invoke) -> None:
    for _ in range(2):
        enqueued(invoke, "shop.send", "--queue", "mail")
    enqueued(invoke, "shop.send", "--queue", "mail", "--countdown", "60")
    kept = enqueued(invoke, "shop.send", "--queue", "other")
    dry = invoke("queue", "purge", "mail", "--dry-run").stdout
    assert dry == "would purge 3 tasks (1 SCHEDULED, 2 QUEUED) with queue=mail\n"
    refused = invoke("queue", "purge", "mail")
    assert refused.exit_code == 2
    assert "fix: add --yes" in refused.stderr
    assert operations(invoke) == []
    assert invoke("queue", "purge", "mail", "--yes").stdout == "purged 3 tasks (operation 1)\n"
    assert [row["id"] for row in listed(invoke, "--status", "QUEUED")] == [kept]
    assert len(listed(invoke, "--status", "CANCELLED")) == 3
    assert invoke("queue", "purge", "mail", "--yes").exit_code == 3


def test_a_filter_narrows_what_is_purged_and_moved(invoke: Invoke) -> None:
    send = enqueued(invoke, "shop.send", "--queue", "mail")
    report = enqueued(invoke, "shop.report", "--queue", "mail", "--priority", "5")
    moved = invoke("queue", "move", "mail", "--to", "slow", "--where", "priority=5", "--yes")
    assert moved.stdout == "moved to slow: 1 task (operation 1)\n"
    assert [row["id"] for row in listed(invoke, "--queue", "slow")] == [report]
    assert invoke("queue", "purge", "mail", "--where", "entrypoint=report", "--yes").exit_code == 3
    assert invoke("queue", "purge", "mail", "--where", "entrypoint=send", "--yes").exit_code == 0
    assert [row["id"] for row in listed(invoke, "--status", "CANCELLED")] == [send]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("queu=mail", "did you mean 'queue'?"),
        ("mail", "write it as --where 'queue=mail'"),
        ("queue=", "write it as --where 'queue=mail'"),
        ("priority=high", "write it as --where 'priority=5'"),
        ("older_than=soon", "write 90s, 30m, 1h30m or 2d"),
        ("queue='mail", "write it as --where 'queue=mail'"),
        ("queue=a queue=b", "give each once"),
        ("status=COMPLETED", "here it can be PENDING, SCHEDULED, QUEUED, RUNNING"),
    ],
)
def test_a_filter_that_cannot_be_read_is_a_mistake_of_usage(invoke: Invoke, text: str, fix: str) -> None:
    ran = invoke("task", "cancel", "--where", text, "--yes")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert fix in ran.stderr
    assert operations(invoke) == []


@pytest.mark.parametrize("command", [["cancel"], ["retry"], ["move", "--to", "slow"]], ids=" ".join)
def test_ids_or_a_filter_are_needed_and_not_both(invoke: Invoke, command: list[str]) -> None:
    assert invoke("task", *command, "--yes").exit_code == 2
    assert invoke("task", *command, "123456", "--where", "queue=mail", "--yes").exit_code == 2


def test_waiting_tasks_are_cancelled_by_filter(invoke: Invoke) -> None:
    ids = [enqueued(invoke, "shop.send", "--queue", "mail") for _ in range(2)]
    later = enqueued(invoke, "shop.send", "--queue", "mail", "--countdown", "60")
    ran = invoke("task", "cancel", "--where", "queue=mail entrypoint=send status=QUEUED", "--yes")
    assert ran.stdout == "cancelled 2 tasks (operation 1)\n"
    assert [row["id"] for row in listed(invoke, "--status", "CANCELLED")] == ids[::-1]
    assert [row["id"] for row in listed(invoke, "--status", "SCHEDULED")] == [later]
    assert "cancelled by hand" in invoke("task", "get", ids[0]).stdout


def test_tasks_are_moved_by_id_and_get_another_priority(invoke: Invoke) -> None:
    first, second = (enqueued(invoke, "shop.send") for _ in range(2))
    later = enqueued(invoke, "shop.send", "--countdown", "60")
    assert "would move to slow" in invoke("task", "move", first, "--to", "slow", "--dry-run").stdout
    ran = invoke("task", "move", first, later, "--to", "slow", "--yes")
    assert ran.stdout.splitlines() == [f"{first} is in slow now", f"{later} is in slow now"]
    assert invoke("task", "move", first, "--to", "slow", "--yes").exit_code == 3
    assert [row["id"] for row in listed(invoke, "--queue", "slow")] == [later, first]
    by_filter = invoke("task", "move", "--where", "queue=slow status=SCHEDULED", "--to", "default", "--yes")
    assert by_filter.stdout == "moved to default: 1 task (operation 1)\n"
    ran = invoke("task", "priority", "7", "--where", "queue=default", "--yes")
    assert ran.stdout == "set priority 7 for 2 tasks (operation 2)\n"
    assert [row["priority"] for row in listed(invoke, "--queue", "default")] == [7, 7]
    assert second in [row["id"] for row in listed(invoke, "--queue", "default")]
    assert invoke("task", "priority", "7", "--yes").exit_code == 2
    assert invoke("task", "priority", "70000", "--everything", "--yes").exit_code == 2


def test_ended_tasks_are_retried_by_id_and_by_filter(invoke: Invoke) -> None:
    first, second = (enqueued(invoke, "shop.send", "--queue", "mail") for _ in range(2))
    invoke("task", "cancel", first, second, "--yes")
    assert invoke("task", "retry", first).exit_code == 2
    assert invoke("task", "retry", first, "--dry-run").stdout == f"would retry {first}\n"
    assert invoke("task", "retry", first, "--yes").stdout == f"{first} is in line again\n"
    again = invoke("task", "retry", first, "--yes")
    assert (again.exit_code, again.stdout) == (3, "")
    assert "neither FAILED nor CANCELLED" in again.stderr
    assert invoke("task", "retry", "--where", "queue=mail", "--yes").exit_code == 3  # FAILED ones, unless told
    ran = invoke("task", "retry", "--where", "status=cancelled queue=mail", "--yes")
    assert ran.stdout == "put back in line: 1 task (operation 1)\n"
    assert [row["id"] for row in listed(invoke, "--status", "QUEUED")] == [second, first]
    assert "put back in line by" in invoke("task", "get", second).stdout


def test_ids_to_retry_may_come_from_stdin(invoke: Invoke) -> None:
    ids = [enqueued(invoke, "shop.send") for _ in range(2)]
    invoke("task", "cancel", *ids, "--yes")
    assert invoke("task", "retry", "-", stdin="\n".join(ids)).exit_code == 2
    assert len(invoke("task", "retry", "-", "--yes", stdin="\n".join(ids)).stdout.splitlines()) == 2


def test_unblocking_what_stops_nothing_matches_nothing(invoke: Invoke) -> None:
    task_id = enqueued(invoke, "shop.send")
    assert invoke("task", "unblock", task_id, "--dry-run").exit_code == 0
    ran = invoke("task", "unblock", task_id)
    assert ran.exit_code == 3
    assert "stops no order" in ran.stderr


def test_operations_are_listed_looked_at_and_cancelled(invoke: Invoke, settings: Settings) -> None:
    assert invoke("operation", "list").stdout == "no operation has been made\n"
    enqueued(invoke, "shop.send", "--queue", "mail")
    invoke("queue", "move", "mail", "--to", "slow", "--yes")

    async def make() -> int:
        async with Database(settings, size=1) as db:
            return await make_operation(db, "cancel", {"queue": "slow", "older_than": 90}, {}, by="ada", total=1)

    number = asyncio.run(make())
    rows = invoke("operation", "list").stdout.splitlines()
    assert rows[0].split() == ["ID", "STATUS", "KIND", "DONE", "MADE", "ENDED", "BY", "WHICH"]
    assert rows[1].split()[-3:] == ["ada", "queue=slow", "older_than=90s"]
    assert "queue → slow  1 of 1" in rows[2]
    assert "operation 2  OPEN" in invoke("operation", "get", str(number)).stdout
    assert json.loads(invoke("operation", "get", "1", "--json").stdout)["status"] == "DONE"
    assert "would cancel operation 2" in invoke("operation", "cancel", "2", "--dry-run").stdout
    assert invoke("operation", "cancel", "2").exit_code == 2
    assert invoke("operation", "cancel", "2", "--yes").stdout == "cancelled operation 2: 0 of 1 done\n"
    assert invoke("operation", "cancel", "2", "--yes").exit_code == 3
    for command in ("get", "cancel"):
        ran = invoke("operation", command, "77")
        assert ran.exit_code == 4
        assert "there is no operation 77" in ran.stderr


def test_an_operation_that_applies_a_limit_is_not_cancelled(invoke: Invoke, settings: Settings) -> None:
    async def make() -> None:
        async with Database(settings, size=1) as db:
            await make_operation(db, "limit", {"queue": "mail"}, {"limit_id": 1}, by="ada")

    asyncio.run(make())
    ran = invoke("operation", "cancel", "1", "--yes")
    assert ran.exit_code == 1
    assert "take the limit away instead" in ran.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_command_leaves_its_operation_to_the_workers(
    invoke: Invoke, settings: Settings, sent: signal.Signals
) -> None:
    ids = [enqueued(invoke, "shop.send", "--queue", "mail") for _ in range(3)]
    assert settings.postgres_url
    with psycopg.connect(plain_dsn(settings.postgres_url)) as holder:
        holder.execute("SELECT 1 FROM aaiclick_queue.ready WHERE task_id = %s FOR UPDATE", [int(ids[0])])
        with program("queue", "purge", "mail", "--yes", env=environment(settings)) as purging:
            purging.wait_for(lambda: len(listed(invoke, "--status", "CANCELLED")) == 2)
            purging.process.send_signal(sent)
            if sent == signal.SIGKILL:
                assert purging.ends() == -sent
            else:
                assert purging.ends() == 128 + sent
                said = "operation 1 stays open, workers go on with it: aaiclick-queue operation list"
                assert purging.stderr.strip() == said
    assert operations(invoke)[0]["status"] == "OPEN"
    with worker(settings, "-Q", "elsewhere") as goes_on:
        goes_on.wait_for(lambda: operations(invoke)[0]["status"] == "DONE")
    assert len(listed(invoke, "--status", "CANCELLED")) == 3
