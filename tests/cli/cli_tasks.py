"""Tasks that the worker processes of these tests run."""

from __future__ import annotations

import asyncio
import logging
import time

from aaiclick_queue import Snooze, current, task

log = logging.getLogger("shop")


@task
async def add(a: int, b: int) -> int:
    return a + b


@task(max_attempts=2, retry_delay=0)
async def fail(message: str = "no luck") -> None:
    raise ValueError(message)


@task
async def talk() -> None:
    print("printed by a task")  # noqa: T201 - on purpose
    log.info("logged by a task", extra={"order": 7})


@task
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task
def block(seconds: float) -> None:
    time.sleep(seconds)


@task
async def hog(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - on purpose


@task
async def snooze_once() -> str:
    if await current().load_checkpoint() is None:
        await current().checkpoint({"snoozed": True})
        raise Snooze(0.05, "not yet")
    return "done"
