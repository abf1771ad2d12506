"""Stalls: jobs that are open, and of which nothing is on its way: they would never end. Each with the reason.

A job's tasks run, stand in line, wait for their time or their turn, or wait at gates; while all that is open waits at
gates, an end that nobody has counted yet has to be on its way there. Read in one snapshot, right while a fleet works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .checks import WAITS_AT_GATE
from .flow.place import IS_ON_ITS_WAY
from .schema import Transaction

MOST_JOBS = 1000
MOST_TASKS = 200_000  # of all jobs that are looked at together: those that have more are looked at when asked for

# $1 the jobs to look at, NULL for the newest open ones.
STALLED = f"""
WITH newest AS (
    SELECT j.id, g.total, sum(g.total) OVER (ORDER BY j.id DESC) AS so_far
    FROM (SELECT id FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING')
          AND id = ANY(coalesce($1::bigint[], ARRAY[id])) ORDER BY id DESC LIMIT {MOST_JOBS}) AS j
    JOIN aaiclick_queue.gates g ON g.id = j.id AND ($1::bigint[] IS NOT NULL OR g.total <= {MOST_TASKS})
), coming AS MATERIALIZED (
    SELECT DISTINCT g.job_id FROM aaiclick_queue.arrivals a JOIN aaiclick_queue.gates g ON g.id = a.gate_id
), stalled AS MATERIALIZED (
    SELECT newest.id FROM newest
    WHERE ($1::bigint[] IS NOT NULL OR newest.so_far <= {MOST_TASKS})
      AND newest.id NOT IN (SELECT job_id FROM coming)
      AND NOT EXISTS (SELECT FROM aaiclick_queue.operations o WHERE o.status = 'OPEN'
                      AND o.filter->>'job' = newest.id::text)
      AND NOT EXISTS (SELECT FROM aaiclick_queue.tasks t WHERE t.job_id = newest.id AND t.status IS NULL
                      AND {IS_ON_ITS_WAY})
)
SELECT j.id, j.name, g.remaining, lost.name AS lost, lost.id AS lost_id, unopened.name AS unopened, unopened.state,
       waits.name AS waits, waits.id AS waits_id, waits.remaining AS missing
FROM stalled JOIN aaiclick_queue.jobs j ON j.id = stalled.id JOIN aaiclick_queue.gates g ON g.id = j.id
LEFT JOIN LATERAL (
    SELECT t.id, t.name FROM aaiclick_queue.tasks t
    WHERE t.job_id = j.id AND t.status IS NULL AND NOT {WAITS_AT_GATE} ORDER BY t.id LIMIT 1) AS lost ON true
LEFT JOIN LATERAL (
    SELECT t.name, at.state FROM aaiclick_queue.gates at JOIN aaiclick_queue.waiting w ON w.gate_id = at.id
    JOIN aaiclick_queue.tasks t ON t.id = w.task_id
    WHERE at.job_id = j.id AND at.state <> 'WAITING' ORDER BY w.task_id LIMIT 1) AS unopened ON true
LEFT JOIN LATERAL (
    SELECT t.id, t.name, at.remaining FROM aaiclick_queue.gates at JOIN aaiclick_queue.waiting w ON w.gate_id = at.id
    JOIN aaiclick_queue.tasks t ON t.id = w.task_id
    WHERE at.job_id = j.id AND at.state = 'WAITING' ORDER BY w.task_id LIMIT 1) AS waits ON true
ORDER BY j.id DESC
"""


class Stall(msgspec.Struct, frozen=True):
    """A job that nothing will go on with, and why."""

    job_id: int
    name: str
    open: int
    reason: str


async def stalled_jobs(tx: Transaction, job_ids: Sequence[int] | None = None) -> list[Stall]:
    """Those of the jobs that stall; without ids, of the newest open ones, up to 200,000 tasks of theirs together."""
    rows = await tx.fetch(STALLED, None if job_ids is None else list(job_ids))
    return [Stall(row["id"], row["name"], row["remaining"], _reason(row)) for row in rows]


def _reason(row: Any) -> str:
    if row["lost"] is not None:
        return f"task {row['lost']!r} ({row['lost_id']}) is open and in no place"
    if row["unopened"] is not None:
        return f"task {row['unopened']!r} waits at a gate that was decided, {row['state']}, and nobody looks at it"
    if row["waits"] is not None:
        missing = "one more end" if row["missing"] == 1 else f"{row['missing']} more ends"
        gate = f"a gate that nothing will open: it counts on {missing}, and none is on its way"
        return f"task {row['waits']!r} ({row['waits_id']}) waits at {gate}"
    if row["remaining"] == 0:
        return "all its tasks have ended, and nobody has ended the job"
    return f"its gate counts {row['remaining']} open tasks, and there are none"
