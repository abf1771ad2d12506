"""What schedules leave: jobs that are kept for a time of their own, and ticks that nobody will look at again."""

from __future__ import annotations

from ..schema import Transaction

# One look for each time that is in use: they are few. A failure that stops a strict order stays, as everywhere.
OVERDUE = """
WITH RECURSIVE periods AS (
    (SELECT retention_seconds AS seconds FROM aaiclick_queue.jobs
     WHERE retention_seconds IS NOT NULL AND pruned_at IS NULL ORDER BY retention_seconds LIMIT 1)
    UNION ALL
    SELECT (SELECT j.retention_seconds FROM aaiclick_queue.jobs j
            WHERE j.retention_seconds > periods.seconds AND j.retention_seconds IS NOT NULL AND j.pruned_at IS NULL
            ORDER BY j.retention_seconds LIMIT 1)
    FROM periods WHERE periods.seconds IS NOT NULL
)
SELECT old.id FROM periods CROSS JOIN LATERAL (
    SELECT j.id FROM aaiclick_queue.jobs j
    WHERE j.retention_seconds = periods.seconds AND j.retention_seconds IS NOT NULL AND j.pruned_at IS NULL
      AND j.finished_at < now() - make_interval(secs => periods.seconds)
      AND (SELECT g.remaining FROM aaiclick_queue.gates g WHERE g.id = j.id) = 0
      AND j.id NOT IN (
          SELECT t.job_id FROM aaiclick_queue.slots s JOIN aaiclick_queue.tasks t ON t.id = s.task_id
          WHERE s.limit_id = 0 AND s.stopping = 0 AND t.order_stops AND t.job_id IS NOT NULL)
    ORDER BY j.finished_at LIMIT $1) AS old
LIMIT $1
"""
# SKIP LOCKED, and what is locked is looked at again: a job that somebody clears at this moment stays.
MARK = """
UPDATE aaiclick_queue.jobs SET pruned_at = now() WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM aaiclick_queue.jobs WHERE id = ANY($1::bigint[]) AND pruned_at IS NULL
      AND status IN ('COMPLETED', 'FAILED', 'CANCELLED') FOR UPDATE SKIP LOCKED))
RETURNING id
"""
PRUNE_TICKS = """
DELETE FROM aaiclick_queue.ticks WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM aaiclick_queue.ticks WHERE created_at < now() - make_interval(secs => $1::float8)
      AND outcome <> 'QUEUED' ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING 1
"""
ROWS = 1000


async def mark_overdue(tx: Transaction, *, rows: int = ROWS) -> int:
    """Mark jobs whose own time is over; how many."""
    overdue = [row["id"] for row in await tx.fetch(OVERDUE, rows)]
    return len(await tx.fetch(MARK, overdue)) if overdue else 0


async def prune_ticks(tx: Transaction, seconds: float | None, *, rows: int = ROWS) -> bool:
    """Take a page of old ticks away; whether there may be more. None: they are kept for ever."""
    return seconds is not None and len(await tx.fetch(PRUNE_TICKS, seconds, rows)) >= rows
