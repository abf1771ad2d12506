"""`workers stacks`: asks a worker through its row, and waits for the answer where somebody can see that it waits."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from .program import NOTHING_MATCHED, UNREACHABLE, echo, fail

if TYPE_CHECKING:
    from ..postgres import Database
    from ..queue_views import WorkerView

LOOK_SECONDS = 0.2


async def ask_worker(db: Database, worker: WorkerView, seconds: float) -> str:
    """The stacks of a worker, as it tells them with its next heartbeat; ends the command when it does not."""
    from ..stacks import READ_STACKS, ask_for_stacks

    what = f"worker {worker.id} ({worker.hostname} pid {worker.pid})"
    if not await ask_for_stacks(db, int(worker.id)):
        fail(f"{what} is {worker.status}: it cannot answer", "aaiclick-queue workers list", code=NOTHING_MATCHED)
    waiting, began = Waiting(what), time.monotonic()
    try:
        while True:
            rows = await db.fetch(READ_STACKS, int(worker.id))
            if rows and rows[0]["stacks_at"] is not None:
                return str(rows[0]["stacks"])
            if not rows or rows[0]["status"] not in ("ACTIVE", "STOPPING"):
                status = rows[0]["status"] if rows else "forgotten"
                waiting.over()
                fail(f"{what} is {status} now: it ended without an answer", "aaiclick-queue workers list")
            if time.monotonic() - began > seconds:
                waiting.over()
                fail(
                    f"{what} did not answer within {seconds:g} s; its last heartbeat was "
                    f"{rows[0]['heartbeat_seconds']:.0f} s ago",
                    f"kill -USR1 {worker.pid} on {worker.hostname}, and read its stderr",
                    code=UNREACHABLE,
                )
            waiting.tell(rows[0]["heartbeat_seconds"])
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        waiting.over()


class Waiting:
    """One line on stderr; on a terminal it counts."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._live = sys.stderr.isatty()
        self._told = False

    def tell(self, heartbeat_seconds: float) -> None:
        """Still no answer."""
        text = f"asked {self._what}: it answers with its next heartbeat"
        if self._live:
            echo_raw(f"\r{text}, the last was {heartbeat_seconds:.0f} s ago \x1b[K")
        elif not self._told:
            echo(text, err=True)
        self._told = True

    def over(self) -> None:
        """Take the line away."""
        if self._live and self._told:
            echo_raw("\r\x1b[K")
        self._told = False


def echo_raw(text: str) -> None:
    """To the terminal, as it is."""
    sys.stderr.write(text)
    sys.stderr.flush()
