"""Reads for people: what happened to the system itself, and who did what to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from .codec import decode_json
from .postgres import Database

LIMIT = 1000
NEWEST = 2**63 - 1
# By the number and not by its text, which `ORDER BY id` alone would mean: that sorted all of 400,000, and 9 before 10.
SYSTEM_EVENTS = """
SELECT e.id::text AS id, e.created_at, e.type, e.made_by AS by, e.data FROM aaiclick_queue.system_events e
WHERE e.id < $1 ORDER BY e.id DESC LIMIT $2
"""
# A walk down the index a type: among a million audit events the last stall is one look away.
SYSTEM_EVENTS_OF = """
SELECT e.id::text AS id, e.created_at, e.type, e.made_by AS by, e.data
FROM (SELECT DISTINCT unnest($3::text[])) AS t(type)
CROSS JOIN LATERAL (
    SELECT s.id, s.created_at, s.type, s.made_by, s.data FROM aaiclick_queue.system_events s
    WHERE s.type = t.type AND s.id < $1 ORDER BY s.id DESC LIMIT $2) AS e
ORDER BY e.id DESC LIMIT $2
"""
AUDIT = "AUDIT"
# From type to type along the index, however many events each has.
EVENT_TYPES = """
WITH RECURSIVE kind AS (
    (SELECT type FROM aaiclick_queue.system_events ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT s.type FROM aaiclick_queue.system_events s WHERE s.type > kind.type ORDER BY s.type LIMIT 1)
    FROM kind WHERE kind.type IS NOT NULL)
SELECT type FROM kind WHERE type IS NOT NULL
"""


class SystemEvent(msgspec.Struct, frozen=True):
    """One event; its id is the cursor for the ones before it."""

    id: str
    created_at: datetime
    type: str
    by: str | None
    data: dict[str, Any]


async def read_system_events(
    db: Database, *, types: Sequence[str] = (), limit: int = 100, before: int | None = None
) -> list[SystemEvent]:
    """Events of these types, or of all, older than `before`; newest first."""
    asked = (NEWEST if before is None else before, min(limit, LIMIT))
    if types:
        rows = await db.fetch(SYSTEM_EVENTS_OF, *asked, list(types))
    else:
        rows = await db.fetch(SYSTEM_EVENTS, *asked)
    return [SystemEvent(**dict(row) | {"data": decode_json(row["data"])}) for row in rows]


async def read_event_types(db: Database) -> list[str]:
    """The types of events that there are."""
    return [row["type"] for row in await db.fetch(EVENT_TYPES)]
