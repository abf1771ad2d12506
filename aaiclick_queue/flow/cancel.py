"""Cancel: takes tasks out of whatever place they are in. Before: a person, `replace`, or an expiry. After: relay.

One statement a place, in the order waiting, held, delayed, ready, leases, each SKIP LOCKED, and round again for what
was neither got nor found final: one statement over several places has one snapshot and misses a task that moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import TasksBusy
from ..outcome import Error
from ..postgres import Database
from ..schema import Transaction
from .place import in_line
from .settle import SETTLE

_TAKE = """
WITH taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM unnest($1::bigint[]) AS wanted(id) JOIN aaiclick_queue.tasks t ON t.id = wanted.id
        JOIN aaiclick_queue.{place} p ON p.task_id = t.id {by_key} FOR UPDATE OF p SKIP LOCKED))
    RETURNING {columns}, {worker_id} AS worker_id, {ready_at} AS ready_at,
              {started_at} AS started_at, '{kind}' AS kind, $2::text AS error, NULL::float8 AS seconds,
              NULL::text AS retry, {stops} AS stops
), {settle}
SELECT task_id, run_epoch FROM taken
"""
_MOVED = "task_id, run_epoch, attempt, lost_count, snoozes, flags, queue, rank, order_key"
_NOT_STARTED = {"worker_id": "NULL::bigint", "started_at": "NULL::timestamptz", "stops": "false"}
_NOT_READY = {"columns": _MOVED, "by_key": "", "ready_at": "NULL::timestamptz", **_NOT_STARTED}
_PLACES = {
    # One that waits at a gate has nowhere been yet.
    "waiting": _NOT_READY
    | {
        "columns": """task_id, run_epoch, 0 AS attempt, 0 AS lost_count, 0 AS snoozes, flags, '' AS queue, 0 AS rank,
              0 AS order_key""",
        "by_key": "AND p.gate_id = t.wait_gate",
    },
    "held": _NOT_READY,
    "delayed": _NOT_READY,
    "ready": _NOT_READY | {"by_key": f"AND {in_line('p', 't')}", "ready_at": "ready_at"},
    # Its code may run on until its worker has heard of it: a slot that it holds stays taken until then.
    "leases": {
        "columns": _MOVED,
        "by_key": "",
        "worker_id": "worker_id",
        "ready_at": "ready_at",
        "started_at": "claimed_at",
        "stops": "true",
    },
}


def take_from(place: str, kind: str) -> str:
    """A statement that takes those of the tasks $1 that are in this place and settles them as `kind`, error $2."""
    return _TAKE.format(place=place, kind=kind, settle=SETTLE, **_PLACES[place])


TAKE_AT_GATE = take_from("waiting", "CANCELLED")
TAKE_HELD = take_from("held", "CANCELLED")
TAKE_DELAYED = take_from("delayed", "CANCELLED")
TAKE_READY = take_from("ready", "CANCELLED")
TAKE_LEASED = take_from("leases", "CANCELLED")
TAKE_WAITING = (TAKE_AT_GATE, TAKE_HELD, TAKE_DELAYED, TAKE_READY)
FINAL = "SELECT id FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[]) AND status IS NOT NULL"
KNOWN = "SELECT id FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[])"
PASSES = 40
BY_HAND = Error("Cancelled", "cancelled by hand")


async def take_waiting(tx: Transaction, ids: Sequence[int], *, error: Error) -> set[int]:
    """End as CANCELLED those of the tasks that wait for their time or their turn; running ones are left alone."""
    taken: set[int] = set()
    for statement in TAKE_WAITING:
        taken.update(row["task_id"] for row in await tx.fetch(statement, list(ids), error.text()))
    return taken


async def cancel(db: Database, ids: Sequence[int], *, error: Error = BY_HAND) -> set[int]:
    """End tasks as CANCELLED wherever they are; returns those that were not final before.

    A running one loses its lease at once; its worker learns it with the next heartbeat and stops the run.
    """
    open_ids, cancelled = {row["id"] for row in await db.fetch(KNOWN, list(ids))}, set[int]()
    for attempt in range(PASSES):
        # There and back, so that nobody who moves in our step is missed every time.
        for statement in (*TAKE_WAITING, TAKE_LEASED)[:: -1 if attempt % 2 else 1]:
            if open_ids:
                got = {row["task_id"] for row in await db.fetch(statement, sorted(open_ids), error.text())}
                cancelled |= got
                open_ids -= got
        if open_ids:
            open_ids -= {row["id"] for row in await db.fetch(FINAL, sorted(open_ids))}
        if not open_ids:
            break
        await asyncio.sleep(0.002 * min(attempt + 1, 10))
    if open_ids:
        raise TasksBusy(sorted(open_ids))
    return cancelled
