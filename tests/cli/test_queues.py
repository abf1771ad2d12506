"""`queue list`, `queue pause`, `queue resume`, and what they read."""

from __future__ import annotations

import asyncio
import json
import re

from aaiclick_queue import connect
from aaiclick_queue.flow.lines import COUNT_LIMIT, count_long_lines
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import list_queues
from aaiclick_queue.settings import Settings
from aaiclick_queue.tasks import enqueue
from tests.cli.cli_tasks import add
from tests.cli.conftest import Invoke


async def test_a_queue_counts_what_is_ready_and_delayed_and_tells_the_oldest_of_any_priority(
    db: Database, settings: Settings
) -> None:
    async with connect(settings=settings) as client:
        low = await enqueue("shop.a", queue="mail", priority=-5, client=client)
        for priority in (0, 3, 9):
            await enqueue("shop.a", queue="mail", priority=priority, client=client)
        await enqueue("shop.a", queue="mail", countdown=60, client=client)
        await enqueue("shop.a", queue="other", client=client)
    await db.fetch(
        "UPDATE aaiclick_queue.ready SET ready_at = now() - interval '90 s' WHERE task_id = $1",
        low.id,
    )
    mail, other = await list_queues(db)
    assert (mail.name, mail.ready, mail.delayed, mail.running, mail.workers) == ("mail", 4, 1, 0, 0)
    assert mail.oldest_seconds is not None
    assert 90 <= mail.oldest_seconds < 150
    assert (other.name, other.ready, other.delayed) == ("other", 1, 0)


async def test_a_long_line_is_counted_up_to_a_limit(db: Database, settings: Settings) -> None:
    async with connect(settings=settings) as client:
        await add.enqueue_many([{"a": 1, "b": n} for n in range(COUNT_LIMIT + 5)], client=client)
    [view] = await list_queues(db)
    assert (view.ready, view.ready_is_more) == (COUNT_LIMIT, True)


def test_a_long_line_is_shown_with_a_plus(invoke: Invoke, settings: Settings) -> None:
    async def fill() -> None:
        async with connect(settings=settings) as client:
            await add.enqueue_many([{"a": 1, "b": n} for n in range(COUNT_LIMIT + 5)], client=client)

    asyncio.run(fill())
    header, row = invoke("queue", "list").stdout.splitlines()
    assert header.split() == ["QUEUE", "READY", "OLDEST", "HELD", "DELAYED", "RUNNING", "WORKERS", "STATE"]
    assert row.split()[:2] == ["default", "10,000+"]
    assert row.endswith("no worker serves it")

    async def count() -> None:
        async with Database(settings, size=1) as db:
            await count_long_lines(db)

    asyncio.run(count())
    row = invoke("queue", "list").stdout.splitlines()[1]
    assert re.match(r"default +~10,005, [\d.]+ m?s ago ", row), row


def test_a_pause_names_who_and_why_until_it_is_resumed(invoke: Invoke) -> None:
    invoke("task", "enqueue", "shop.add", "--queue", "mail")
    assert invoke("queue", "pause", "mail", "--dry-run").stdout == "would pause mail: 1 ready\n"
    assert json.loads(invoke("queue", "list", "--json").stdout)[0]["paused_at"] is None
    assert invoke("queue", "pause", "mail", "--reason", "the provider is down").stdout == "paused mail: 1 ready\n"
    assert invoke("queue", "pause", "mail").stdout == "mail was paused already\n"
    [view] = json.loads(invoke("queue", "list", "--json").stdout)
    assert view["paused_at"] is not None
    assert view["reason"] == "the provider is down"
    assert "@" in view["paused_by"]
    assert "PAUSED by" in invoke("queue", "list").stdout
    assert invoke("queue", "resume", "mail").stdout == "resumed mail: 1 ready\n"
    assert json.loads(invoke("queue", "list", "--json").stdout)[0]["paused_at"] is None


def test_resuming_what_is_not_paused_matches_nothing(invoke: Invoke) -> None:
    assert invoke("queue", "resume", "mail").exit_code == 3


def test_pausing_a_queue_that_nobody_knows_is_done_with_a_word_of_doubt(invoke: Invoke) -> None:
    ran = invoke("queue", "pause", "mial")
    assert ran.exit_code == 0
    assert "no task, worker or pause has named the queue 'mial'" in ran.stderr


def test_what_is_no_name_is_not_paused(invoke: Invoke) -> None:
    for name in ("", "x" * 201):
        ran = invoke("queue", "pause", name)
        assert ran.exit_code == 2
        assert "is no queue" in ran.stderr
        assert "fix: give its name" in ran.stderr
    assert "paused" not in invoke("queue", "list").output
