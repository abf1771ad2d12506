"""Sentry: one event for a task that failed for good, with what finds it again."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration

from aaiclick_queue import Cancel, Client, Secret, Settings, TaskCancelled, TaskFailed, task
from aaiclick_queue.integrations.sentry import Sentry
from aaiclick_queue.postgres import Database
from tests.tools import put_one, running_worker, until

events: list[Any] = []
log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def _sentry() -> Iterator[None]:
    events.clear()
    with sentry_sdk.isolation_scope():

        def keep(event: Any, hint: Any) -> None:
            events.append(event)

        # Of the integrations only the one that makes events of log lines: the others patch the whole process.
        sentry_sdk.init(
            "http://key@127.0.0.1:9/1",
            before_send=keep,
            default_integrations=False,
            integrations=[LoggingIntegration()],
        )
        yield
        sentry_sdk.get_global_scope().set_client(None)


@task(entrypoint="tests.sentry.fails", max_attempts=3, retry_delay=0)
async def fails() -> None:
    raise ValueError("no luck")


@task(entrypoint="tests.sentry.in_thread", max_attempts=1)
def in_thread() -> None:
    raise KeyError("in a thread")


@task(entrypoint="tests.sentry.slow", max_attempts=1, timeout=0.05)
async def slow() -> None:
    await asyncio.Event().wait()


@task(entrypoint="tests.sentry.cancels")
async def cancels() -> None:
    raise Cancel("on purpose")


@task(entrypoint="tests.sentry.talks")
async def talks() -> None:
    sentry_sdk.capture_message("said by a task")


@task(entrypoint="tests.sentry.dies", max_attempts=1)
async def dies() -> None:
    raise OSError("far away")


async def end(client: Client, failing: Any) -> int:
    handle = await failing.enqueue(client=client)
    with suppress(TaskFailed, TaskCancelled):
        await handle.result(timeout=30)
    task_id: int = handle.id
    return task_id


async def test_a_task_that_failed_for_good_is_one_event(quick: Settings, client: Client) -> None:
    async with running_worker(quick, middleware=[Sentry()]):
        task_id = await end(client, fails)
        await end(client, cancels)
    [event] = events
    assert event["tags"] == {
        "aaiclick_queue.task_id": str(task_id),
        "aaiclick_queue.queue": "default",
        "aaiclick_queue.entrypoint": "tests.sentry.fails",
        "aaiclick_queue.attempt": "3",
    }
    assert event["fingerprint"] == ["{{ default }}", "tests.sentry.fails"]
    assert event["transaction"] == "tests.sentry.fails"
    assert event["contexts"]["aaiclick_queue"]["attempt"] == 3
    [raised] = event["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("ValueError", "no luck")
    assert raised["stacktrace"]["frames"][-1]["function"] == "fails"


async def test_every_attempt_is_told_where_that_is_wanted(quick: Settings, client: Client) -> None:
    async with running_worker(quick, middleware=[Sentry(every_attempt=True)]):
        await end(client, fails)
    assert [event["tags"]["aaiclick_queue.attempt"] for event in events] == ["1", "2", "3"]


async def test_a_thread_a_timeout_and_a_process_of_its_own_are_told_too(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick, middleware=[Sentry()]):
        await end(client, in_thread)
        await end(client, slow)
    handle = await dies.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick, middleware=[Sentry()], modules=(__name__,)):
        with pytest.raises(TaskFailed):
            await handle.result(timeout=30)
    told = [(event["exception"]["values"][-1]["type"], event["fingerprint"][1]) for event in events]
    assert told[0] == ("KeyError", "tests.sentry.in_thread")
    assert told[1] == ("TimedOut", "tests.sentry.slow")
    assert told[2][1] == "tests.sentry.dies"


async def test_what_a_task_sends_itself_carries_its_tags(quick: Settings, client: Client) -> None:
    async with running_worker(quick, middleware=[Sentry()]):
        task_id = await end(client, talks)
    [event] = events
    assert event["message"] == "said by a task"
    assert event["tags"]["aaiclick_queue.task_id"] == str(task_id)


@task(entrypoint="tests.sentry.leaks", max_attempts=1)
async def leaks(code: Annotated[str, Secret()]) -> None:
    held = [code]
    log.info("tries %s", code)  # a breadcrumb of the next event
    log.error("cannot use %s", code)  # an event by itself
    raise ValueError(f"cannot use {held}")


async def test_no_secret_of_a_task_is_in_its_events(
    quick: Settings, client: Client, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="shop")
    planted = secrets.token_hex(8)  # an event has the lines of this file too
    async with running_worker(quick, middleware=[Sentry()]):
        await leaks.enqueue(code=planted, client=client)
        await put_one(db, json.dumps({"code": planted}), entrypoint=leaks.entrypoint)  # nobody has marked it
        await until(lambda: len(events) == 4)
    raised = [event for event in events if "exception" in event]
    assert [event["exception"]["values"][0]["value"] for event in raised] == ["cannot use ['••••']"] * 2
    for event in events:
        assert planted not in str(event)
    assert [crumb["message"] for crumb in raised[0]["breadcrumbs"]["values"]] == ["tries ••••", "cannot use ••••"]
