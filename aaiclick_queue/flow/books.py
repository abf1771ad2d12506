"""Books: what the loops of this process do, written where everybody can read it, and the errors they raised.

Ages are written, not times: the clock of a host may be off the database's.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence

import msgspec

from ..postgres import Database
from ..schema import Transaction
from .loop import Loop
from .noting import note

WRITE_ORCHESTRATOR = """
INSERT INTO aaiclick_queue.orchestrators (id, pid, hostname, version, loops)
VALUES ($1, $2, $3, $4, $5::text::jsonb)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), loops = excluded.loops
"""
DROP_ORCHESTRATOR = "DELETE FROM aaiclick_queue.orchestrators WHERE id = $1"
TELL_SECONDS = 60.0  # between two events of one loop
ERROR = "ORCHESTRATOR_ERROR"


class Books:
    """The row of this process."""

    def __init__(self, process_id: int, loops: Sequence[Loop], *, version: str) -> None:
        self._id = process_id
        self._version = version
        self._loops = loops
        self._told_at: dict[str, float] = {}

    async def write_once(self, db: Database) -> int:
        """Write the row, and an event for each loop that has raised, one a minute; returns how many."""
        now = time.monotonic()
        counts = {loop.name: loop.counts.shown(now) for loop in self._loops}
        shown = msgspec.json.encode(counts).decode().replace("\\u0000", "")
        await db.fetch(WRITE_ORCHESTRATOR, self._id, os.getpid(), socket.gethostname(), self._version, shown)
        told = 0
        for loop in self._loops:
            if loop.counts.untold is None or now - self._told_at.get(loop.name, -TELL_SECONDS) < TELL_SECONDS:
                continue
            data = {"loop": loop.name, "error": loop.counts.untold, "hostname": socket.gethostname()}
            await note(db, ERROR, by=str(self._id), data=data)
            loop.counts.untold, self._told_at[loop.name] = None, now
            told += 1
        return told

    async def close(self, tx: Transaction) -> None:
        """The process ends in order: its row goes."""
        await tx.fetch(DROP_ORCHESTRATOR, self._id)
