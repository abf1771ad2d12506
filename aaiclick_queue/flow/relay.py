"""Relay: turns outbox rows into wake-ups on the streams. Before: outbox. After: claim.

A process that has just committed publishes its own rows at once and deletes them afterwards; the relay takes
what is left behind: other clients' rows, rows of callers' transactions, rows of processes that died in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..errors import StreamsDown
from ..meters import METERS
from ..postgres import Database
from ..schema import Transaction
from ..spans import TOLD
from ..streams import Hint, Streams
from .at_ease import AT_EASE
from .enqueue import Told
from .mark import Mark

# Rows of the last 30 ms are left to their writer. SKIP LOCKED: relays share the rows, none waits for another. At ease:
# a row that comes back is one more hint.
TAKE_OUTBOX_ROWS = f"""
DELETE FROM aaiclick_queue.outbox WHERE id = ANY(ARRAY(
    SELECT id FROM aaiclick_queue.outbox
    WHERE id >= $2 AND created_at < clock_timestamp() - make_interval(secs => $3::float8)
    ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) AND {AT_EASE}
RETURNING id, queue, rank, order_key, n, task_ids
"""
ANY_OUTBOX_ROW = "SELECT EXISTS (SELECT FROM aaiclick_queue.outbox WHERE id >= $1)"
ENQUEUED_IN = """
SELECT metadata->'$headers'->>'traceparent' AS parent FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[])
"""
FORGET_OUTBOX_ROWS = f"DELETE FROM aaiclick_queue.outbox WHERE id = ANY($1::bigint[]) AND {AT_EASE}"
BATCH = 500
TRACED = 128  # tasks whose spans a relay is linked to
OWN_ROWS_SECONDS = 0.03
FORGET_SECONDS = 0.005  # until a process deletes the rows that it has published itself
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
            began = time.monotonic()
            try:
                await streams.publish([hint_of(row) for row in rows])
            except StreamsDown:
                METERS.add("outbox_published_total", ("error",), len(rows))
                self._mark.want()  # they stay, and may lie behind the mark now
                raise
            if rows and METERS.on:
                METERS.relayed(len(rows), time.monotonic() - began)
            if rows and TOLD.tracer is not None:
                await _trace(tx, rows, began)
        return len(rows)


async def _trace(tx: Transaction, rows: Sequence[Any], began: float) -> None:
    assert TOLD.tracer is not None
    ids = [task_id for row in rows for task_id in row["task_ids"]][:TRACED]
    parents = [row["parent"] for row in await tx.fetch(ENQUEUED_IN, ids)]
    TOLD.tracer.relayed([row["queue"] for row in rows], parents, began, own=False)


async def publish_own(streams: Streams, told: Sequence[Told]) -> None:
    """Publish what this process has just committed; the rows are its to forget, and whatever fails is the relay's."""
    began = time.monotonic()
    await streams.publish([Hint(row.queue, row.rank, row.order_key, row.n, row.task_ids) for row in told])
    METERS.add("outbox_published_total", ("ok",), len(told))
    if TOLD.tracer is not None:
        TOLD.tracer.relayed([row.queue for row in told], (), began, own=True)


async def forget(tx: Transaction, told: Sequence[Told]) -> None:
    """Delete rows that were published."""
    await tx.fetch(FORGET_OUTBOX_ROWS, [row.outbox_id for row in told])


def hint_of(row: Any) -> Hint:
    """The wake-up of an outbox row."""
    return Hint(row["queue"], row["rank"], row["order_key"], row["n"], tuple(row["task_ids"]))
