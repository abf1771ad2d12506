"""Reads for people: what is wrong at this moment, as the background's detection sees it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .codec import decode_json
from .postgres import Database

LIMIT = 1000
ALARMS = """
SELECT kind, what, since, seen_at, extract(epoch FROM now() - since)::float8 AS seconds, data
FROM aaiclick_queue.alarms ORDER BY since DESC, kind, what LIMIT $1
"""


class Alarm(msgspec.Struct, frozen=True):
    """Something that has been wrong since then; `what` is a queue, a job's, a task's or a worker's id."""

    kind: str  # stall, zombie, stuck, backpressure, clock_skew, without_workers, lost_worker
    what: str
    since: datetime
    seen_at: datetime
    seconds: float
    text: str
    data: dict[str, Any]


async def read_alarms(db: Database, *, limit: int = LIMIT) -> list[Alarm]:
    """What is wrong now, the newest first."""
    alarms = []
    for row in await db.fetch(ALARMS, min(limit, LIMIT)):
        data = decode_json(row["data"])
        alarms.append(Alarm(**dict(row) | {"data": data, "text": str(data.get("text", ""))}))
    return alarms
