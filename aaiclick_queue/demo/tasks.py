"""The tasks of the demo. `aaiclick-queue worker -A aaiclick_queue.demo.tasks -Q '*'` runs them anywhere."""

from __future__ import annotations

import asyncio
import time

from ..context import current
from ..tasks import task

IMPORT_SECONDS = 1.0


@task
async def greet(name: str) -> str:
    """Say hello; for a first `aaiclick-queue task enqueue`."""
    return f"hello {name}"


@task(queue="mail")
async def send_mail(to: str) -> str:
    """Quick, as most tasks are."""
    return f"sent to {to}"


@task(queue="mail", max_attempts=5, retry_delay=0.3)
async def send_through_bad_line(to: str) -> str:
    """Fails once or twice, then gets through."""
    if current().attempt <= 1 + len(to) % 2:
        raise ConnectionError("the mail server hung up")
    return f"sent to {to}"


@task(queue="reports")
def build_report(number: int) -> int:
    """A plain `def` runs in a thread."""
    time.sleep(0.05)
    return number * 2


@task(queue="reports", max_attempts=2, retry_delay=0.2)
async def divide(a: float, b: float) -> float:
    """Fails for good when b is 0."""
    return a / b


@task(queue="imports")
async def import_file(number: int) -> int:
    """Long enough for its worker to die meanwhile."""
    await asyncio.sleep(IMPORT_SECONDS)
    return number
