"""Never more of a job or a group at work than its cap, at any moment."""

from __future__ import annotations

from aaiclick_queue.postgres import Database

# Counted by leases and not by slots, as the doctor does.
TOO_MANY = """
WITH RECURSIVE inside AS (
    SELECT g.id AS top, g.id, g.max_parallel FROM aaiclick_queue.groups g WHERE g.max_parallel IS NOT NULL
    UNION ALL SELECT inside.top, g.id, inside.max_parallel
    FROM inside JOIN aaiclick_queue.groups g ON g.parent_group_id = inside.id
), capped AS (
    SELECT t.id, inside.top, inside.max_parallel FROM inside JOIN aaiclick_queue.tasks t ON t.group_id = inside.id
    UNION ALL SELECT t.id, j.id, j.max_parallel
    FROM aaiclick_queue.jobs j JOIN aaiclick_queue.tasks t ON t.job_id = j.id WHERE j.max_parallel IS NOT NULL
)
SELECT capped.top, max_parallel, array_agg(capped.id) AS at_work
FROM capped JOIN aaiclick_queue.leases l ON l.task_id = capped.id
GROUP BY capped.top, max_parallel HAVING count(*) > max_parallel
"""


async def assert_not_crowded(db: Database) -> None:
    crowded = [dict(row) for row in await db.fetch(TOO_MANY)]
    assert not crowded, f"more at work than the cap: {crowded}"
