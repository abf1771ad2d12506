"""Limits as rows: made, changed and dropped while the fleet works. Before: a person. After: place and admission.

A new limit applies to what is in line and to what runs already: an operation takes its tasks out of line in pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from ..postgres import Database
from ..schema import Transaction
from .operation import make_operation

Scope = Literal["queue", "task", "key", "job"]
Kind = Literal["running", "rate", "fair", "pause"]

# The turn of fair queues starts at an id of now: behind every mark that a worker has kept for that line.
SET_LIMIT = """
INSERT INTO aaiclick_queue.limits (scope, name, kind, per_key, n, seconds, until, made_by, reason, turn)
VALUES ($1::text, $2::text, $3::text, $4::boolean, $5::int, $6::float8, now() + make_interval(secs => $7::float8),
        $8::text, $9::text, aaiclick_queue.new_id())
ON CONFLICT ON CONSTRAINT limits_of_one_kind DO UPDATE
SET n = excluded.n, seconds = excluded.seconds, until = excluded.until, made_by = excluded.made_by,
    reason = excluded.reason
RETURNING id, xmax = 0 AS is_new
"""
# A place in line under fair turns is on its slot: such a slot goes when its task is claimed. One that somebody holds is
# on its way out: waiting for it, this stood behind an application's `replace` for as long as that was open.
DROP_LIMIT = """
WITH dropped AS (
    DELETE FROM aaiclick_queue.limits
    WHERE scope = $1::text AND name = $2::text AND kind = $3::text AND per_key = $4::boolean RETURNING id
), slots AS (
    DELETE FROM aaiclick_queue.slots WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.slots
        WHERE limit_id = ANY(ARRAY(SELECT id FROM dropped)) AND order_key IS NULL FOR UPDATE SKIP LOCKED))
)
SELECT id FROM dropped
"""
NOTE_LIMIT = """
INSERT INTO aaiclick_queue.events (type, data) VALUES ($1::text, $2::text::jsonb)
"""
# While its tasks are taken out of line nobody may claim them: the limit holds from its first moment.
CLOSE_QUEUE = """
INSERT INTO aaiclick_queue.queues (name, paused_at, paused_by, reason)
SELECT $1::text, now(), format('operation %s', $2::bigint), 'a new limit is being applied to the tasks in line'
WHERE EXISTS (SELECT FROM aaiclick_queue.ready WHERE queue = $1::text)
ON CONFLICT (name) DO UPDATE
SET paused_at = now(), paused_by = excluded.paused_by, reason = excluded.reason
WHERE queues.paused_at IS NULL OR queues.paused_by LIKE 'operation %'
"""
# A pause that is over and that nobody has swept away yet must not pass for the new one.
DROP_LAPSED = """
DELETE FROM aaiclick_queue.limits
WHERE scope = $1::text AND name = $2::text AND kind = $3::text AND per_key = $4::boolean AND until <= now()
"""
SET_MAX_DEPTH = """
INSERT INTO aaiclick_queue.queues (name, max_depth) VALUES ($1::text, $2::int)
ON CONFLICT (name) DO UPDATE SET max_depth = excluded.max_depth, depth = NULL, depth_at = NULL
"""
# Not the pauses of jobs: those are shown with their jobs, and end with `resume_job`.
LIMITS = """
SELECT id, scope, name, kind, per_key, n, seconds, until, made_by, reason, created_at, used, stopping FROM (
SELECT m.id, m.scope, m.name, m.kind, m.per_key, m.n, m.seconds, m.until, m.made_by, m.reason, m.created_at,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.slots s WHERE s.limit_id = m.id
                              AND (s.ends_at IS NULL OR s.ends_at > now()) LIMIT 10001) AS taken) AS used,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.slots s WHERE s.limit_id = m.id AND s.stopping > 0
                              LIMIT 10001) AS taken) AS stopping
FROM aaiclick_queue.limits m WHERE m.scope <> 'job' AND (m.until IS NULL OR m.until > now())
UNION ALL
SELECT 0, 'queue', q.name, 'depth', false, q.max_depth, NULL, NULL, NULL, NULL, q.depth_at,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = q.name LIMIT 10001) AS line)
       + (SELECT count(*) FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = q.name LIMIT 10001) AS line), 0
FROM aaiclick_queue.queues q WHERE q.max_depth IS NOT NULL) AS l
WHERE $2::text IS NULL OR (scope, name, kind, per_key) > ($2::text, $3::text, $4::text, $5::boolean)
ORDER BY scope, name, kind, per_key LIMIT $1
"""
QUEUE_FULL = """
WITH told AS (
    UPDATE aaiclick_queue.queues SET full_at = now() WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.queues WHERE name = $1::text
        AND (full_at IS NULL OR full_at < now() - interval '1 minute') FOR UPDATE SKIP LOCKED))
    RETURNING name, max_depth
)
INSERT INTO aaiclick_queue.events (type, data)
SELECT 'QUEUE_FULL', jsonb_build_object('queue', name, 'max_depth', max_depth) FROM told
"""


class NewLimit(msgspec.Struct, frozen=True):
    """A limit as it is asked for."""

    scope: Scope
    name: str
    kind: Kind
    n: int = 0
    per_key: bool = False
    seconds: float | None = None
    lasts: float | None = None
    reason: str | None = None


class LimitView(msgspec.Struct, frozen=True):
    """A limit and how much of it is taken; `stopping` of them by runs that were told to stop and have not yet.

    A queue's max_depth is one of kind "depth", without a number of its own.
    """

    id: int
    scope: str
    name: str
    kind: str
    per_key: bool
    n: int
    seconds: float | None
    until: datetime | None
    made_by: str | None
    reason: str | None
    created_at: datetime | None
    used: int
    stopping: int


async def set_limit(db: Database, limit: NewLimit, *, by: str) -> int | None:
    """Make or change a limit; for a new one the number of the operation that applies it to the tasks in line."""
    return next(iter(await change_limits(db, {limit: limit}, by=by)), None)


async def drop_limit(db: Database, limit: NewLimit, *, by: str) -> bool:
    """Take a limit away; False when there was none. What it held gets in line with the next admission."""
    async with db.transaction() as tx:
        return await drop_limit_in(tx, limit, by=by)


async def change_limits(db: Database, wanted: Mapping[NewLimit, NewLimit | None], *, by: str) -> list[int]:
    """Make, change and drop limits, all in one moment; gives the numbers of the operations that apply new ones."""
    operations = []
    async with db.transaction() as tx:
        for key, limit in wanted.items():
            if limit is None:
                await drop_limit_in(tx, key, by=by)
            elif (operation := await set_limit_in(tx, limit, by=by)) is not None:
                operations.append(operation)
    return operations


async def set_limit_in(tx: Transaction, limit: NewLimit, *, by: str) -> int | None:
    """The same as `set_limit`, in the caller's transaction."""
    await tx.fetch(DROP_LAPSED, limit.scope, limit.name, limit.kind, limit.per_key)
    [row] = await tx.fetch(
        SET_LIMIT, limit.scope, limit.name, limit.kind, limit.per_key, limit.n, limit.seconds, limit.lasts, by,
        limit.reason,
    )  # fmt: skip
    await _note(tx, "LIMIT_SET", limit, by)
    if not row["is_new"]:
        return None
    where: dict[str, Any] = {limit.scope if limit.scope != "task" else "entrypoint": limit.name}
    operation = await make_operation(tx, "limit", where, {"limit_id": row["id"]}, by=by)
    if limit.scope == "queue":
        await tx.fetch(CLOSE_QUEUE, limit.name, operation)
    return operation


async def drop_limit_in(tx: Transaction, limit: NewLimit, *, by: str) -> bool:
    """The same as `drop_limit`, in the caller's transaction."""
    if not await tx.fetch(DROP_LIMIT, limit.scope, limit.name, limit.kind, limit.per_key):
        return False
    await _note(tx, "LIMIT_DROPPED", limit, by)
    return True


async def set_max_depth(db: Database, queue: str, max_depth: int | None, *, by: str) -> None:
    """Have enqueue refuse tasks for a queue that is this deep; None for any depth."""
    async with db.transaction() as tx:
        await tx.fetch(SET_MAX_DEPTH, queue, max_depth)
        told = {"queue": queue, "max_depth": max_depth, "by": by}
        await tx.fetch(NOTE_LIMIT, "QUEUE_MAX_DEPTH", msgspec.json.encode(told).decode())


async def list_limits(
    tx: Transaction, *, limit: int = 1000, after: tuple[str, str, str, bool] | None = None
) -> list[LimitView]:
    """Every limit there is, with what is taken of it; those behind a scope, name, kind and whether it is by key."""
    return [LimitView(**dict(row)) for row in await tx.fetch(LIMITS, limit, *(after or (None, None, None, None)))]


async def queue_is_full(tx: Transaction, queue: str) -> None:
    """Note that an enqueue was refused, once a minute at most."""
    await tx.fetch(QUEUE_FULL, queue)


async def _note(tx: Transaction, kind: str, limit: NewLimit, by: str) -> None:
    told = {key: value for key, value in msgspec.structs.asdict(limit).items() if value not in (None, False)}
    await tx.fetch(NOTE_LIMIT, kind, msgspec.json.encode(told | {"by": by}).decode())
