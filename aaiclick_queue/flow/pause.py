"""Pause: an operator holds a queue back. Before: a person. After: the claim, which looks at the row.

Tasks stay where they are in line; what runs goes on.
"""

from __future__ import annotations

from ..schema import Transaction

# One that an operation has closed for a moment is taken over: the operation's end must not open it.
PAUSE_QUEUE = """
WITH paused AS (
    INSERT INTO aaiclick_queue.queues (name, paused_at, paused_by, reason)
    VALUES ($1::text, now(), $2::text, $3::text)
    ON CONFLICT (name) DO UPDATE SET paused_at = now(), paused_by = excluded.paused_by, reason = excluded.reason
    WHERE queues.paused_at IS NULL OR queues.paused_by LIKE 'operation %'
    RETURNING name
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'QUEUE_PAUSED', jsonb_strip_nulls(jsonb_build_object('queue', name, 'by', $2::text, 'reason', $3::text))
    FROM paused
)
SELECT name FROM paused
"""
# A queue to which a new limit is being applied stays closed until that is done, whoever paused it besides: opened now,
# more tasks of its line would start than the limit allows.
RESUME_QUEUE = """
WITH resumed AS (
    UPDATE aaiclick_queue.queues q
    SET paused_at = CASE WHEN applying.id IS NOT NULL THEN q.paused_at END,
        paused_by = CASE WHEN applying.id IS NOT NULL THEN format('operation %s', applying.id) END,
        reason = CASE WHEN applying.id IS NOT NULL THEN 'a new limit is being applied to the tasks in line' END
    FROM (SELECT (SELECT o.id FROM aaiclick_queue.operations o WHERE o.status = 'OPEN' AND o.kind = 'limit'
                  AND o.filter->>'queue' = $1::text ORDER BY o.id DESC LIMIT 1) AS id) AS applying
    WHERE q.name = $1::text AND q.paused_at IS NOT NULL
    RETURNING q.name
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'QUEUE_RESUMED', jsonb_build_object('queue', name, 'by', $2::text) FROM resumed
)
SELECT name FROM resumed
"""


async def pause_queue(tx: Transaction, name: str, *, by: str, reason: str | None) -> bool:
    """Have nobody claim from the queue; False when it was paused already."""
    return bool(await tx.fetch(PAUSE_QUEUE, name, by, reason))


async def resume_queue(tx: Transaction, name: str, *, by: str) -> bool:
    """Have it claimed from again; False when it was not paused."""
    return bool(await tx.fetch(RESUME_QUEUE, name, by))
