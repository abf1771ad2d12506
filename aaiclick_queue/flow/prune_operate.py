"""Prune: figures and samples beyond a week and a day, old events of the system, operations, processes. Part of prune.

Figures that nobody asks for by the minute any more are added up to those of their hour.

Each a page a statement, from the oldest on.
"""

from __future__ import annotations

from ..buckets import RUN_BUCKETS, WAIT_BUCKETS, added
from ..schema import Transaction

ROWS = 5000
_COUNTS = ("completed", "failed", "retried", "lost", "cancelled", "snoozed", "wait_seconds", "run_seconds")
_TOTALS = ", ".join(f"sum({name}) AS {name}" for name in _COUNTS)
_ADDED = ", ".join(f"{name} = f.{name} + excluded.{name}" for name in _COUNTS)
_EACH = "{0} = ARRAY(SELECT a + b FROM unnest(f.{0}, excluded.{0}) AS pair(a, b))"
# A week of 60 pairs of queue and entrypoint is 600,000 rows by the minute, its chart took 0.6 s; by the hour 40,000.
# Whole hours alone, so that a chart by the hour is the same before and after; whoever deletes a minute adds it.
FOLD_FIGURES = f"""
WITH minutes AS (
    DELETE FROM aaiclick_queue.figures WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.figures
        WHERE minute < date_trunc('hour', now()) - interval '7 hours' AND minute <> date_trunc('hour', minute)
        ORDER BY minute LIMIT $1))
    RETURNING minute, queue, entrypoint, {", ".join(_COUNTS)}, waits, runs
), hours AS (
    INSERT INTO aaiclick_queue.figures AS f (minute, queue, entrypoint, {", ".join(_COUNTS)}, waits, runs)
    SELECT date_trunc('hour', minute), queue, entrypoint, {_TOTALS},
           {added("waits", WAIT_BUCKETS)}, {added("runs", RUN_BUCKETS)}
    FROM minutes GROUP BY 1, 2, 3
    ON CONFLICT (minute, queue, entrypoint) DO UPDATE
    SET {_ADDED}, {_EACH.format("waits")}, {_EACH.format("runs")}
)
SELECT count(*) AS n FROM minutes
"""
PRUNE_FIGURES = """
WITH old AS (
    DELETE FROM aaiclick_queue.figures WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.figures WHERE minute < now() - interval '8 days' ORDER BY minute LIMIT $1))
    RETURNING 1)
SELECT count(*) AS n FROM old
"""
PRUNE_SAMPLES = """
WITH old AS (
    DELETE FROM aaiclick_queue.samples WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.samples WHERE minute < now() - interval '8 days' ORDER BY minute LIMIT $1))
    RETURNING 1)
SELECT count(*) AS n FROM old
"""
# By id, which grows with time.
PRUNE_SYSTEM_EVENTS = """
WITH old AS (
    DELETE FROM aaiclick_queue.system_events WHERE ctid = ANY(ARRAY(
        SELECT page.ctid FROM (SELECT ctid, created_at FROM aaiclick_queue.system_events ORDER BY id LIMIT $1) AS page
        WHERE page.created_at < now() - interval '90 days'))
    RETURNING 1)
SELECT count(*) AS n FROM old
"""
PRUNE_OPERATIONS = """
WITH old AS (
    DELETE FROM aaiclick_queue.operations WHERE ctid = ANY(ARRAY(
        SELECT page.ctid FROM (
            SELECT ctid, status, finished_at FROM aaiclick_queue.operations ORDER BY id LIMIT $1) AS page
        WHERE page.status <> 'OPEN' AND page.finished_at < now() - interval '30 days'))
    RETURNING 1)
SELECT count(*) AS n FROM old
"""
PRUNE_ORCHESTRATORS = """
WITH old AS (
    DELETE FROM aaiclick_queue.orchestrators WHERE seen_at < now() - interval '1 hour' RETURNING 1)
SELECT count(*) AS n FROM old
"""
PAGES = (FOLD_FIGURES, PRUNE_FIGURES, PRUNE_SAMPLES, PRUNE_SYSTEM_EVENTS, PRUNE_OPERATIONS)


async def prune_operate(tx: Transaction, *, rows: int = ROWS) -> bool:
    """A page of each; says whether there may be more."""
    await tx.fetch(PRUNE_ORCHESTRATORS)
    is_more = False
    for sql in PAGES:
        [page] = await tx.fetch(sql, rows)
        is_more |= page["n"] >= rows
    return is_more
