"""Tasks of the fleets in these tests; each run leaves a line in a file."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from aaiclick_queue import current, task

RUNS_FILE = "FLEET_RUNS_FILE"


def _note() -> None:
    run = current()
    file = os.open(os.environ[RUNS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{run.id} {run.run_epoch} {os.getpid()} {os.environ.get('FLEET_WORD', '-')}\n".encode())
    finally:
        os.close(file)


@task
async def tick(seconds: float = 0.0) -> None:
    _note()
    await asyncio.sleep(seconds)


@task(queue="slow")
async def wait_for(path: str) -> None:
    """Run until the file is there."""
    _note()
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)


@task(queue="slow", max_attempts=1)
async def chatter(path: str) -> None:
    """Print all the time until the file is there."""
    _note()
    while not Path(path).exists():  # noqa: ASYNC240
        print("x" * 200, flush=True)  # noqa: T201 - on purpose
        await asyncio.sleep(0.002)


@task
def shout(megabytes: int) -> None:
    """Print more than any buffer holds."""
    for _ in range(megabytes * 1024):
        print("s" * 1023)  # noqa: T201 - on purpose


@task(queue="stuck")
async def hog(seconds: float) -> None:
    """Block the event loop, the first time."""
    _note()
    if current().run_epoch == 1:
        time.sleep(seconds)  # noqa: ASYNC251 - on purpose
