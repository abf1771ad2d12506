"""Samples: the line of every queue, once a minute, by the process that holds the loops. After: charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..schema import Transaction
from .lines import QUEUES_LIMIT, exact_ready

CREATED_LIMIT = 100_000
IS_SAMPLED = """
SELECT EXISTS (SELECT FROM aaiclick_queue.samples WHERE minute = date_trunc('minute', now())) AS is_sampled
"""
# Ids grow with time, so a minute is a part of the primary key: the last one that is over.
CREATED_IN_MINUTE = f"""
WITH bounds AS (
    SELECT (extract(epoch FROM date_trunc('minute', now())) * 1000)::bigint AS until
), new AS MATERIALIZED (
    SELECT id, queue FROM aaiclick_queue.tasks
    WHERE id >= (SELECT (until - 60000) << 22 FROM bounds) AND id < (SELECT until << 22 FROM bounds)
    ORDER BY id LIMIT {CREATED_LIMIT}
)
SELECT queue, count(*) AS n, (SELECT count(*) FROM new) AS seen,
       (SELECT (max(id) >> 22) - until + 60000 FROM new, bounds GROUP BY until)::float8 / 1000 AS seconds
FROM new GROUP BY queue
"""
WRITE_SAMPLES = """
INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held, created, oldest_seconds)
SELECT date_trunc('minute', now()), run.queue, run.ready, run.running, run.delayed, run.held, run.created, run.oldest
FROM unnest($1::text[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::int[], $7::float8[])
     AS run(queue, ready, running, delayed, held, created, oldest)
ON CONFLICT DO NOTHING RETURNING queue
"""


async def sample_once(tx: Transaction, queues: Sequence[Any]) -> int:
    """Write what `queues`, the rows of a look, show, unless this minute has its samples; returns how many."""
    [look] = await tx.fetch(IS_SAMPLED)
    if look["is_sampled"]:
        return 0
    created = _scaled(await tx.fetch(CREATED_IN_MINUTE))
    known = {row["name"]: row for row in queues}
    names = sorted({*known, *created})[:QUEUES_LIMIT]
    rows = [_sample(known.get(name)) for name in names]
    columns = [[row[at] for row in rows] for at in range(5)]
    *counts, oldest = columns
    return len(await tx.fetch(WRITE_SAMPLES, names, *counts, [created.get(name, 0) for name in names], oldest))


def _sample(row: Any) -> tuple[int, int, int, int, float | None]:
    if row is None:
        return 0, 0, 0, 0, None
    ready = exact_ready(row)
    held, delayed = row["held"], row["delayed"]
    return row["ready"] if ready is None else ready, row["running"], delayed, held, row["oldest_seconds"]


def _scaled(rows: Sequence[Any]) -> dict[str, int]:
    """Counts by queue; where only a part of the minute was looked at, what the whole comes to at that speed."""
    if not rows or rows[0]["seen"] < CREATED_LIMIT:
        return {row["queue"]: row["n"] for row in rows}
    factor = 60.0 / max(0.001, rows[0]["seconds"])
    return {row["queue"]: round(row["n"] * factor) for row in rows}
