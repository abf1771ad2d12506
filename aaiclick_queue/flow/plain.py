"""Plain: the everyday enqueue, a transaction of our own and tasks that have nothing but arguments. After: the relay.

Beside flow/enqueue.py, which can do all of it: this one writes a third quicker, or nothing at all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..meters import METERS
from ..schema import Transaction
from .enqueue import NewTask, Spec, Written, column, told_by
from .outbox import append_one
from .place import of_queue, of_task

# A clash of ids is an error here, so it is for nobody else's transaction. To look for one row by row (ON CONFLICT) and
# to read back what was written took Postgres 12 µs a task instead of 8. Limits or a greatest depth: nothing is written.
ENQUEUE_PLAIN = f"""
WITH facts AS MATERIALIZED (
    SELECT NOT {of_task("$5::text")} AND NOT {of_queue("$7::text")} AND NOT EXISTS (
        SELECT FROM aaiclick_queue.queues q WHERE q.name = $7::text AND q.max_depth IS NOT NULL) AS free
), new AS (
    INSERT INTO aaiclick_queue.tasks (id, kwargs, correlation_id, metadata, entrypoint, name, queue, priority,
                                      max_attempts, retry, timeout_seconds, keep, hooks)
    SELECT id, kwargs::jsonb, correlation_id, metadata::jsonb, $5::text, $6::text, $7::text, $8::int, $9::int,
           $10::text::jsonb, $11::float8, $13::text, $14::text::jsonb
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS given(id, kwargs, correlation_id, metadata)
    WHERE (SELECT free FROM facts)
), ready AS (
    INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, flags)
    SELECT $7::text, -($8::int), id, id, $12::int FROM unnest($1::bigint[]) AS given(id) WHERE (SELECT free FROM facts)
), told AS (
    {append_one("$7::text", "-($8::int)", "$1::bigint[]", "facts WHERE free")}
)
SELECT id AS outbox_id, queue, rank, order_key, n, task_ids FROM told
"""


def is_plain(spec: Spec, tasks: Sequence[NewTask]) -> bool:
    """Whether nothing but arguments, headers and what the spec says is to be written: no time, key or parent."""
    return spec.parent_id is None and not any(
        task.countdown is not None
        or task.eta is not None
        or task.expires is not None
        or task.spawn_key is not None
        or task.concurrency_key is not None
        or task.order_by is not None
        for task in tasks
    )


async def insert_plain(tx: Transaction, spec: Spec, tasks: Sequence[NewTask], ids: list[int]) -> Written | None:
    """All of them in line, or None and nothing is written: a limit or a greatest depth has to be asked first.

    Raises asyncpg's UniqueViolationError when an id is taken.
    """
    began = time.monotonic()
    rows = await tx.fetch(
        ENQUEUE_PLAIN,
        ids,
        [task.kwargs for task in tasks],
        column([task.correlation_id for task in tasks]),
        column([task.metadata for task in tasks]),
        spec.entrypoint,
        spec.name,
        spec.queue,
        spec.priority,
        spec.max_attempts,
        spec.retry,
        spec.timeout,
        spec.flags,
        spec.keep,
        spec.hooks,
    )
    if not rows:
        return None
    if METERS.on:
        METERS.statement("enqueue", time.monotonic() - began)
        METERS.created(spec.queue, spec.entrypoint, len(ids))
    return Written(ids, told_by(rows))
