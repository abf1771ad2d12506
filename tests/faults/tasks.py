"""Tasks for workers that are about to have a bad day. Each run leaves a line in a file, whatever becomes of it then."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aaiclick_queue import current, task

RUNS_FILE = "FAULTS_RUNS_FILE"
SEATS = 7


def note(what: str) -> None:
    """Leave a line: what ran, which task, which epoch, where."""
    run = current()
    line = f"{what} {run.id} {run.run_epoch} {os.getpid()}\n"
    file = os.open(os.environ[RUNS_FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@task
async def tick(seconds: float = 0.0) -> int:
    """Take a while."""
    note("tick")
    await asyncio.sleep(seconds)
    return current().run_epoch


@task(queue="narrow", max_attempts=100)
async def sit(seconds: float) -> None:
    """Take one of the seats there are, which only the end of this code or of its process sets free."""
    with _seat("seat", SEATS) as got:
        if got:
            await asyncio.sleep(seconds)


@task(queue="narrow", max_attempts=100)
async def share(seconds: float, rooms: dict[str, int]) -> None:
    """Take a seat in each of these rooms, which have so many."""
    with ExitStack() as held:
        if all(held.enter_context(_seat(room, seats)) for room, seats in rooms.items()):
            await asyncio.sleep(seconds)


@contextmanager
def _seat(room: str, seats: int) -> Iterator[bool]:
    folder = Path(os.environ[RUNS_FILE]).parent
    for number in range(seats):
        with (folder / f"{room}-{number}").open("w") as seat:
            try:
                fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            note(f"{room}-{number}")
            yield True
            return
    note(f"no-{room}")
    yield False


@task
async def block(seconds: float) -> None:
    """Do to the event loop what nobody should, until the test has seen enough."""
    note("block")
    enough = Path(os.environ[RUNS_FILE]).with_name("enough")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not enough.exists():
        time.sleep(0.05)  # noqa: ASYNC251


@task
async def leave_at_once(seconds: float) -> None:
    """End the process without a word."""
    note("leave")
    await asyncio.sleep(seconds)
    os._exit(3)


@task
def be_killed(seconds: float) -> None:
    """End as if memory had run out."""
    note("killed")
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@task
async def pay(seconds: float) -> None:
    """Write once, whatever happens."""
    from sqlalchemy import text

    note("pay")
    async with current().transaction() as session:
        await session.execute(text("INSERT INTO payments (task_id) VALUES (:id)"), {"id": current().id})
        await asyncio.sleep(seconds)


@task
def pay_from_thread(seconds: float) -> None:
    """The same in a thread, through the other driver."""
    from sqlalchemy import text

    note("pay")
    with current().transaction() as session:
        session.execute(text("INSERT INTO payments (task_id) VALUES (:id)"), {"id": current().id})
        time.sleep(seconds)
