"""Relay: turns outbox rows into wake-ups on the streams. Before: outbox. After: claim.

A process that has just committed publishes its own rows at once and deletes them afterwards; the relay takes
what is left behind: other clients' rows, rows of callers' transactions, rows of processes that died in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import StreamsDown
from ..postgres import Database
from ..schema import Transaction
from ..streams import Hint, Streams
from .enqueue import Told
from .mark import Mark

# Rows of the last 30 ms are left to their writer. SKIP LOCKED: relays share the rows, none waits for another.
TAKE_OUTBOX_ROWS = """
DELETE FROM aaiclick_queue.outbox WHERE id = ANY(ARRAY(
    SELECT id FROM aaiclick_queue.outbox
    WHERE id >= $2 AND created_at < clock_timestamp() - make_interval(secs => $3::float8)
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING id, queue, rank, order_key, n, task_ids
"""
ANY_OUTBOX_ROW = "SELECT EXISTS (SELECT FROM aaiclick_queue.outbox WHERE id >= $1)"
FORGET_OUTBOX_ROWS = "DELETE FROM aaiclick_queue.outbox WHERE id = ANY($1::bigint[])"
BATCH = 500
OWN_ROWS_SECONDS = 0.03
STALE_SECONDS = 5.0  # a hint that old is worth less than the rescan, which has seen its task


class Relay:
    """Relays the outbox; without Redis, or while it is away, stale rows are dropped unread."""

    def __init__(self, db: Database, streams: Streams | None) -> None:
        self._db = db
        self._streams = streams
        self._mark = Mark(0)

    async def relay_once(self, limit: int = BATCH, *, older: float = OWN_ROWS_SECONDS) -> int:
        """Publish and delete up to `limit` outbox rows of at least this age; returns how many."""
        if self._streams is None:
            return await self._take(self._db, limit, older=STALE_SECONDS)
        if not await self._db.fetchval(ANY_OUTBOX_ROW, self._mark.begin()):
            self._mark.end([], full=False)
            return 0  # one look instead of a transaction: the outbox is empty most of the time
        try:
            async with self._db.transaction() as tx:
                # Published before the commit: a crash in between sends a hint twice, never none.
                return await self._take(tx, limit, older=older, streams=self._streams)
        except StreamsDown:
            await self._take(self._db, limit, older=STALE_SECONDS)
            raise

    async def _take(self, tx: Transaction, limit: int, *, older: float, streams: Streams | None = None) -> int:
        rows = await tx.fetch(TAKE_OUTBOX_ROWS, limit, self._mark.begin(), older)
        self._mark.end([row["id"] for row in rows], full=len(rows) >= limit)
        if streams is not None:
            try:
                await streams.publish([hint_of(row) for row in rows])
            except StreamsDown:
                self._mark.want()  # they stay, and may lie behind the mark now
                raise
        return len(rows)


async def publish_own(db: Database, streams: Streams, told: Sequence[Told]) -> None:
    """Publish what this process has just committed, then forget the rows; whatever fails is left to the relay."""
    await streams.publish([Hint(row.queue, row.rank, row.order_key, row.n, row.task_ids) for row in told])
    await db.fetch(FORGET_OUTBOX_ROWS, [row.outbox_id for row in told])


def hint_of(row: Any) -> Hint:
    """The wake-up of an outbox row."""
    return Hint(row["queue"], row["rank"], row["order_key"], row["n"], tuple(row["task_ids"]))
