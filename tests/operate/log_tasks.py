"""Tasks that print and log, imported by workers and their children as users' modules are."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

from aaiclick_queue import Retry, Secret, current, task

log = logging.getLogger("shop.mail")


@task
async def tell_secret(password: Annotated[str, Secret()]) -> None:
    """Says what it should not."""
    print("the password is", password)
    log.warning("logged %s", password)


@task
async def talk(name: str = "ada") -> None:
    """Says something in every way."""
    print("hello", name)
    log.warning("careful\nwith %s", name)
    print("to stderr", file=sys.stderr)
    try:
        raise ZeroDivisionError("no way")
    except ZeroDivisionError:
        log.exception("it broke")
    await asyncio.sleep(0)
    print("no newline", end="")


@task
async def own_name(name: str) -> None:
    """Says its name again and again, while others do the same."""
    for number in range(20):
        print(f"{name} {number}")
        log.warning("%s %d", name, number)
        await asyncio.sleep(0)


@task
def in_thread(name: str) -> None:
    """The same from a thread."""
    for number in range(20):
        print(f"{name} {number}")
        time.sleep(0)


@task
def many(lines: int, width: int = 8) -> None:
    """Prints numbered lines."""
    for number in range(lines):
        print(f"{number:0{width}d}")


@task
async def quiet() -> None:
    """Says nothing."""


@task(max_attempts=3)
async def third_time() -> None:
    """Ends well in its third attempt."""
    print("attempt", current().attempt)
    if current().attempt < 3:
        raise Retry(0)


@task(isolation="process")
def killed() -> None:
    """Dies after its last word."""
    print("first word")
    log.warning("last word")
    os.kill(os.getpid(), signal.SIGKILL)


@task(isolation="process")
async def apart(lines: int) -> None:
    """Talks in a process of its own."""
    for number in range(lines):
        print("apart", number)


@task
async def until_told(file: str) -> None:
    """Goes on until the file is there."""
    print("began")
    while not Path(file).exists():
        await asyncio.sleep(0.02)
    print("told")
