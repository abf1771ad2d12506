"""Pages by number: the tenth comes after the ninth, and no page leaves one out."""

from __future__ import annotations

from aaiclick_queue.postgres import Database
from aaiclick_queue.server.api.system import OUTBOX
from aaiclick_queue.system_events import read_system_events
from aaiclick_queue.tokens import create_token, list_tokens

MANY = 12
EVENTS = "INSERT INTO aaiclick_queue.system_events (type) SELECT 'STALL' FROM generate_series(1, $1::int)"
WAKE_UPS = """
INSERT INTO aaiclick_queue.outbox (id, queue, rank, order_key, n, task_ids) OVERRIDING SYSTEM VALUE
SELECT i, 'default', 0, i, 1, '{}' FROM generate_series(1, $1::int) AS i
"""


async def test_events_of_the_system_come_newest_first_and_page_by_page(db: Database) -> None:
    await db.fetch(EVENTS, MANY)
    first = await read_system_events(db, limit=5)
    pages = first + await read_system_events(db, limit=MANY, before=int(first[-1].id))
    numbers = [int(event.id) for event in pages]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == MANY


async def test_tokens_come_newest_first(db: Database) -> None:
    for n in range(MANY):
        await create_token(db, f"of {n}", role="reader", by="anna")
    assert [token.name for token in await list_tokens(db, limit=3)] == ["of 11", "of 10", "of 9"]


async def test_wake_ups_come_oldest_first(db: Database) -> None:
    await db.fetch(WAKE_UPS, MANY)
    assert [row["id"] for row in await db.fetch(OUTBOX, 7, 4)] == ["8", "9", "10", "11"]
    await db.fetch("DELETE FROM aaiclick_queue.outbox")
