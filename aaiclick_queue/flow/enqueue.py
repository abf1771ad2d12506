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

from ..ids import IdSource
from ..schema import Transaction
from .outbox import append_from

KEYED = 1  # flag: the task holds a dedupe key, so whoever ends it frees that key

# One statement for all tasks of one spec. Arrays that are NULL stand for columns nobody set: unnest pads them.
# ON CONFLICT (id): a clash of ids costs a new id, never the caller's transaction.
ENQUEUE = f"""
WITH new AS (
    INSERT INTO aaiclick_queue.tasks (id, kwargs, eta, expires_at, correlation_id, metadata, spawn_key, entrypoint,
                                      name, queue, priority, max_attempts, retry, timeout_seconds, parent_id)
    SELECT id, kwargs::jsonb, coalesce(eta, now() + make_interval(secs => countdown)),
           coalesce(expires_at, now() + make_interval(secs => expires_in)), correlation_id, metadata::jsonb, spawn_key,
           $10::text, $11::text, $12::text, $13::int, $14::int, $15::text::jsonb, $16::float8, $17::bigint
    FROM unnest($1::bigint[], $2::text[], $3::float8[], $4::timestamptz[], $5::float8[], $6::timestamptz[],
                $7::text[], $8::text[], $9::text[])
         AS given(id, kwargs, countdown, eta, expires_in, expires_at, correlation_id, metadata, spawn_key)
    ON CONFLICT DO NOTHING RETURNING id, eta, expires_at
), ready AS (
    INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, flags)
    SELECT $12::text, -($13::int), id, id, $18::int FROM new WHERE eta IS NULL OR eta <= now()
    RETURNING queue, rank, order_key, task_id
), delayed AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, flags, queue, reason)
    SELECT id, eta, id, -($13::int), $18::int, $12::text, 'eta' FROM new WHERE eta > now()
), timers AS (
    INSERT INTO aaiclick_queue.timers (task_id, due_at) SELECT id, expires_at FROM new WHERE expires_at IS NOT NULL
), told AS (
    {append_from("ready")}
)
SELECT (SELECT array_agg(id) FROM new) AS ids, told.id AS outbox_id, told.queue, told.rank, told.order_key, told.n,
       told.task_ids
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


class NewTask(msgspec.Struct):
    """One task to be written."""

    kwargs: str
    countdown: float | None = None
    eta: datetime | None = None
    expires: float | datetime | None = None
    correlation_id: str | None = None
    metadata: str | None = None
    spawn_key: str | None = None


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


async def insert_tasks(tx: Transaction, spec: Spec, tasks: Sequence[NewTask], ids: Sequence[int]) -> Written:
    """One insert with the ids given; ids that were taken are missing from the answer."""
    expires = [task.expires for task in tasks]
    rows = await tx.fetch(
        ENQUEUE,
        list(ids),
        [task.kwargs for task in tasks],
        _column(task.countdown for task in tasks),
        _column(task.eta for task in tasks),
        _column(value if isinstance(value, float | int) else None for value in expires),
        _column(value if isinstance(value, datetime) else None for value in expires),
        _column(task.correlation_id for task in tasks),
        _column(task.metadata for task in tasks),
        _column(task.spawn_key for task in tasks),
        spec.entrypoint,
        spec.name,
        spec.queue,
        spec.priority,
        spec.max_attempts,
        spec.retry,
        spec.timeout,
        spec.parent_id,
        spec.flags,
    )
    told = [
        Told(row["outbox_id"], row["queue"], row["rank"], row["order_key"], row["n"], tuple(row["task_ids"]))
        for row in rows
        if row["outbox_id"] is not None
    ]
    return Written(list(rows[0]["ids"] or ()), told)


async def id_source(tx: Transaction) -> IdSource:
    """A source of ids for this process, on the database's clock."""
    began = time.monotonic()
    [row] = await tx.fetch(NODE)
    middle = (began + time.monotonic()) / 2
    return IdSource(row["node"], row["clock"] - middle)


def _column(values: Any) -> list[Any] | None:
    column = list(values)
    return column if any(value is not None for value in column) else None
