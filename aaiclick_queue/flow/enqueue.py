"""Enqueue: writes tasks, their place and the outbox row in the caller's transaction. After: the relay.

Nothing here commits. Workers see the tasks when the caller commits, and never if the caller rolls back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any

import msgspec

from ..errors import QueueFull
from ..ids import IdSource
from ..meters import METERS
from ..schema import Transaction
from .outbox import append_from
from .place import of_key, of_queue, of_task

EXACT_DEPTH = 10_000  # above that `queues.depth`, which the background refreshes, is as good and costs nothing

# One statement for all tasks of one spec. Arrays that are NULL stand for columns nobody set: unnest pads them.
# ON CONFLICT (id): a clash of ids costs a new id, never the caller's transaction.
# `facts` are of the statement and not of the row: a queue without limits pays three looks at nearly empty indexes. What
# no row can need by its arguments is said once: held, delayed and timers are then not even looked for among the rows.
ENQUEUE = f"""
WITH facts AS MATERIALIZED (
    SELECT {of_task("$10::text")} AS by_task, {of_queue("$12::text")} AS by_queue,
           (SELECT q.max_depth FROM aaiclick_queue.queues q
            WHERE q.name = $12::text AND q.max_depth - $22::int < CASE
                WHEN $22::int = 0 THEN NULL
                WHEN q.max_depth > {EXACT_DEPTH} THEN coalesce(q.depth, 0)
                ELSE (SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = $12::text
                                            LIMIT q.max_depth) AS line)
                     + (SELECT count(*) FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = $12::text
                                              LIMIT q.max_depth) AS line) END) AS full_at
), new AS (
    INSERT INTO aaiclick_queue.tasks (id, kwargs, eta, expires_at, correlation_id, metadata, spawn_key, entrypoint,
                                      name, queue, priority, max_attempts, retry, timeout_seconds, parent_id,
                                      concurrency_key, order_by, order_stops, keep, hooks)
    SELECT id, kwargs::jsonb, coalesce(eta, now() + make_interval(secs => countdown)),
           coalesce(expires_at, now() + make_interval(secs => expires_in)), correlation_id, metadata::jsonb, spawn_key,
           $10::text, $11::text, $12::text, $13::int, $14::int, $15::text::jsonb, $16::float8, $17::bigint,
           concurrency_key, order_by, nullif($18::int & 8 = 8, false), $20::text, $21::text::jsonb
    FROM unnest($1::bigint[], $2::text[], $3::float8[], $4::timestamptz[], $5::float8[], $6::timestamptz[],
                $7::text[], $8::text[], $9::text[], $19::text[], $23::text[])
         AS given(id, kwargs, countdown, eta, expires_in, expires_at, correlation_id, metadata, spawn_key,
                  concurrency_key, order_by)
    WHERE (SELECT full_at FROM facts) IS NULL
    ON CONFLICT DO NOTHING RETURNING id, eta, expires_at, concurrency_key, order_by
), placed AS (
    SELECT id, eta, concurrency_key, order_by, eta IS NOT NULL AND eta > now() AS later,
           $18::int | CASE WHEN order_by IS NULL THEN 0 ELSE 4 END AS flags,
           order_by IS NOT NULL OR facts.by_task OR facts.by_queue OR {of_key("concurrency_key")} AS limited
    FROM new CROSS JOIN facts
), ready AS (
    INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, flags)
    SELECT $12::text, -($13::int), id, id, flags FROM placed WHERE NOT later AND NOT limited
    RETURNING queue, rank, order_key, task_id
), held AS (
    INSERT INTO aaiclick_queue.held (queue, rank, order_key, task_id, flags, entrypoint, key, chain)
    SELECT $12::text, CASE WHEN order_by IS NULL THEN -($13::int) ELSE 0 END, id, id, flags,
           CASE WHEN (SELECT by_task FROM facts) THEN $10::text ELSE '' END, coalesce(concurrency_key, ''),
           coalesce(order_by, '') FROM placed WHERE NOT later AND limited AND (
               SELECT by_task OR by_queue OR $19::text[] IS NOT NULL OR $23::text[] IS NOT NULL FROM facts)
    RETURNING queue, rank, order_key, task_id
), delayed AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, flags, queue, reason)
    SELECT id, eta, id, -($13::int), flags, $12::text, 'eta' FROM placed
    WHERE later AND ($3::float8[] IS NOT NULL OR $4::timestamptz[] IS NOT NULL)
), timers AS (
    INSERT INTO aaiclick_queue.timers (task_id, due_at) SELECT id, expires_at FROM new
    WHERE expires_at IS NOT NULL AND ($5::float8[] IS NOT NULL OR $6::timestamptz[] IS NOT NULL)
), told AS (
    {
    append_from(
        "(SELECT queue, rank, order_key, task_id FROM ready UNION ALL"
        " SELECT queue, rank, order_key, task_id FROM held) AS entered"
    )
}
)
SELECT (SELECT array_agg(id) FROM new) AS ids, (SELECT full_at FROM facts) AS full_at,
       told.id AS outbox_id, told.queue, told.rank, told.order_key, told.n, told.task_ids
FROM (SELECT 1) AS one LEFT JOIN told ON true
"""


WRITTEN_BEFORE = "SELECT id FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[]) AND entrypoint = $2::text"

NODE = """
SELECT nextval('aaiclick_queue.node_ids')::int AS node, extract(epoch FROM clock_timestamp())::float8 AS clock
"""

TakeIds = Callable[[int], list[int]]


class Spec(msgspec.Struct, frozen=True):
    """What tasks of one statement share."""

    entrypoint: str
    queue: str
    priority: int = 0
    name: str | None = None
    max_attempts: int | None = None
    retry: str | None = None
    timeout: float | None = None
    parent_id: int | None = None
    flags: int = 0
    keep: str | None = None
    hooks: str | None = None


class NewTask(msgspec.Struct, gc=False):  # a job may have a million of them, and none holds what holds it
    """One task to be written."""

    kwargs: str
    countdown: float | None = None
    eta: datetime | None = None
    expires: float | datetime | None = None
    correlation_id: str | None = None
    metadata: str | None = None
    spawn_key: str | None = None
    concurrency_key: str | None = None
    order_by: str | None = None


class Told(msgspec.Struct, frozen=True):
    """An outbox row that was written: enough to wake workers without reading it back."""

    outbox_id: int
    queue: str
    rank: int
    order_key: int
    n: int
    task_ids: tuple[int, ...]


class Written(msgspec.Struct):
    """What an enqueue wrote: the ids in the order given, and the wake-ups it caused."""

    ids: list[int]
    told: list[Told]


async def enqueue(tx: Transaction, spec: Spec, tasks: Sequence[NewTask], take_ids: TakeIds) -> Written:
    """Insert tasks; workers see them when the caller commits."""
    ids = take_ids(len(tasks))
    written = await insert_tasks(tx, spec, tasks, ids)
    renewed = await insert_again(tx, spec, tasks, ids=ids, missing=set(ids) - set(written.ids), take_ids=take_ids)
    return Written(renewed.ids, [*written.told, *renewed.told])


async def insert_again(  # noqa: PLR0913 - the rest of one insert
    tx: Transaction,
    spec: Spec,
    tasks: Sequence[NewTask],
    *,
    ids: list[int],
    missing: AbstractSet[int],
    take_ids: TakeIds,
) -> Written:
    """New numbers for ids that another process with the same node id had drawn; returns all ids."""
    if not missing:
        return Written(ids, [])
    at = [position for position, task_id in enumerate(ids) if task_id in missing]
    again = await enqueue(tx, spec, [tasks[position] for position in at], take_ids)
    new_ids = dict(zip(at, again.ids, strict=True))
    return Written([new_ids.get(position, task_id) for position, task_id in enumerate(ids)], again.told)


async def written_before(tx: Transaction, spec: Spec, ids: AbstractSet[int]) -> set[int]:
    """Those of the ids that an earlier try of the same insert had written before its answer was lost."""
    return {row["id"] for row in await tx.fetch(WRITTEN_BEFORE, list(ids), spec.entrypoint)}


async def insert_tasks(
    tx: Transaction, spec: Spec, tasks: Sequence[NewTask], ids: Sequence[int], *, room_for: int | None = None
) -> Written:
    """One insert with the ids given; ids that were taken are missing from the answer.

    `room_for` so many the queue must have room, or QueueFull is raised and nothing written; a task's children are let
    in anyway.
    """
    needed = 0 if spec.parent_id is not None else len(tasks) if room_for is None else room_for
    expires = column([task.expires for task in tasks])
    began = time.monotonic()
    rows = await tx.fetch(
        ENQUEUE,
        list(ids),
        [task.kwargs for task in tasks],
        column([task.countdown for task in tasks]),
        column([task.eta for task in tasks]),
        column([value if isinstance(value, float | int) else None for value in expires]) if expires else None,
        column([value if isinstance(value, datetime) else None for value in expires]) if expires else None,
        column([task.correlation_id for task in tasks]),
        column([task.metadata for task in tasks]),
        column([task.spawn_key for task in tasks]),
        spec.entrypoint,
        spec.name,
        spec.queue,
        spec.priority,
        spec.max_attempts,
        spec.retry,
        spec.timeout,
        spec.parent_id,
        spec.flags,
        column([task.concurrency_key for task in tasks]),
        spec.keep,
        spec.hooks,
        needed,
        column([task.order_by for task in tasks]),
    )
    if rows[0]["full_at"] is not None:
        raise QueueFull(spec.queue, rows[0]["full_at"], needed)
    ids_written = list(rows[0]["ids"] or ())
    if METERS.on:
        METERS.statement("enqueue", time.monotonic() - began)
        METERS.created(spec.queue, spec.entrypoint, len(ids_written))
    return Written(ids_written, told_by(rows))


async def id_source(tx: Transaction) -> IdSource:
    """A source of ids for this process, on the database's clock."""
    began = time.monotonic()
    [row] = await tx.fetch(NODE)
    middle = (began + time.monotonic()) / 2
    return IdSource(row["node"], row["clock"] - middle)


def told_by(rows: Sequence[Any]) -> list[Told]:
    """The outbox rows that a statement answers with."""
    return [
        Told(row["outbox_id"], row["queue"], row["rank"], row["order_key"], row["n"], tuple(row["task_ids"]))
        for row in rows
        if row["outbox_id"] is not None
    ]


def column(values: list[Any]) -> list[Any] | None:
    """The values of a column, or None where nobody set one."""
    return None if values.count(None) == len(values) else values
