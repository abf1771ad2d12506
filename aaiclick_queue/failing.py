"""Failures in groups: what fails in the same way is shown once, with how often, since when and where. Reads and marks.

A fingerprint is of the task, the kind of error and the function that raised it. A group that was acknowledged comes
back when something fails alike after that; one that is muted stays away until its time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .filters import checked
from .flow.wanted import alike
from .limits import whoami
from .postgres import Database

LOOK_LIMIT = 30_000  # failures that one listing looks at, from the newest down: 60 ms
TASKS_SHOWN = 50
JOBS_LIMIT = 100  # newest failures of one group whose jobs are counted
JOBS_LOOKED = 4_000  # of all groups of a listing together: 200 of each of a hundred groups took 0.1 s
COUNT_LIMIT = 10_000
BUCKETS = 24

# Added up by group, queue and part of the time at first: sorted as they are, 50,000 took 0.3 s. What else a group shows
# is that of its newest task. A failure is new where nothing failed like it before the youngest worker alive started.
# date_part and not extract, which counts in numeric: a third of the time.
_GROUPS = f"""
WITH looked AS MATERIALIZED (
    SELECT f.task_id, f.failed_at, f.fingerprint, f.queue FROM aaiclick_queue.failures f
    WHERE {{which}} LIMIT $2
), parts AS MATERIALIZED (
    SELECT fingerprint, queue, slot, count(*) AS n, min(failed_at) AS first_at, max(failed_at) AS last_at,
           max(task_id) AS sample FROM (
        SELECT fingerprint, queue, failed_at, task_id, {BUCKETS - 1} - floor(
                   date_part('epoch', now() - failed_at) / ($1::float8 / {BUCKETS}))::int AS slot
        FROM looked) AS s
    GROUP BY fingerprint, queue, slot
), deployed AS (
    SELECT max(started_at) AS at FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()
), groups AS (
    SELECT fingerprint, sum(n)::bigint AS count, min(first_at) AS first_at, max(last_at) AS last_at,
           (array_agg(DISTINCT queue))[1:10] AS queues, max(sample) AS sample,
           array_agg(slot) FILTER (WHERE slot >= 0) AS slots, array_agg(n) FILTER (WHERE slot >= 0) AS counts
    FROM parts GROUP BY fingerprint
)
SELECT g.fingerprint, f.entrypoint, f.error_type, f.place, left(t.error->>'message', 300) AS message, g.count,
       g.first_at, g.last_at, g.queues, g.sample::text AS sample_task_id, a.acknowledged_at, a.acknowledged_by,
       a.muted_until, a.reason, (SELECT count(*) FROM looked) AS looked,
       coalesce(g.first_at > (SELECT at FROM deployed), false) AND NOT EXISTS (
           SELECT FROM (SELECT failed_at FROM aaiclick_queue.failures f WHERE f.fingerprint >= g.fingerprint
                        AND f.fingerprint <= g.fingerprint
                        ORDER BY f.fingerprint, f.task_id LIMIT 100) AS old
           WHERE old.failed_at <= (SELECT at FROM deployed)) AS is_new, g.slots, g.counts
FROM groups g JOIN aaiclick_queue.failures f ON f.task_id = g.sample
LEFT JOIN aaiclick_queue.tasks t ON t.id = g.sample
LEFT JOIN aaiclick_queue.failure_groups a ON a.fingerprint = g.fingerprint
WHERE {{shown}} ORDER BY g.count DESC, g.last_at DESC LIMIT $3
"""
FAILURE_GROUPS = _GROUPS.format(
    which="f.failed_at >= now() - make_interval(secs => $1::float8) ORDER BY f.failed_at DESC",
    shown="""$4::boolean OR a.fingerprint IS NULL
   OR g.last_at > a.acknowledged_at AND coalesce(a.muted_until <= now(), true)""",
)
FAILURE_GROUP = _GROUPS.format(which=f"{alike('$4::text')} ORDER BY f.fingerprint DESC, f.task_id DESC", shown="true")
JOBS_AFFECTED = f"""
SELECT f.fingerprint, count(DISTINCT t.job_id) AS n FROM unnest($1::text[]) AS wanted(of_group)
CROSS JOIN LATERAL (SELECT fingerprint, task_id FROM aaiclick_queue.failures WHERE {alike("of_group")}
                    ORDER BY fingerprint DESC, task_id DESC LIMIT $2) AS f
CROSS JOIN LATERAL (SELECT job_id FROM aaiclick_queue.tasks WHERE id = f.task_id OFFSET 0) AS t GROUP BY f.fingerprint
"""
COUNT_LOOKED = """
SELECT count(*) FROM (SELECT FROM aaiclick_queue.failures
                      WHERE failed_at >= now() - make_interval(secs => $1::float8) LIMIT $2) AS looked
"""
TASKS_OF_GROUP = f"""
SELECT f.task_id::text AS id, t.name, f.entrypoint, f.queue, f.failed_at, t.attempt, t.job_id::text AS job_id,
       t.worker_id::text AS worker_id, left(t.error->>'message', 300) AS message
FROM (SELECT task_id, entrypoint, queue, failed_at FROM aaiclick_queue.failures WHERE {alike("$1")}
      ORDER BY fingerprint DESC, task_id DESC LIMIT $2) AS f
CROSS JOIN LATERAL (SELECT name, attempt, job_id, worker_id, error FROM aaiclick_queue.tasks
                    WHERE id = f.task_id OFFSET 0) AS t ORDER BY f.task_id DESC
"""
COUNT_GROUP = """
SELECT count(*) FROM (SELECT FROM aaiclick_queue.failures WHERE fingerprint = $1 LIMIT $2) AS capped
"""
ACKNOWLEDGE = """
INSERT INTO aaiclick_queue.failure_groups (fingerprint, acknowledged_by, muted_until, reason)
SELECT $1::text, $2::text, $3::timestamptz, $4::text
WHERE EXISTS (SELECT FROM aaiclick_queue.failures WHERE fingerprint = $1::text)
ON CONFLICT (fingerprint) DO UPDATE SET acknowledged_at = now(), acknowledged_by = excluded.acknowledged_by,
    muted_until = excluded.muted_until, reason = excluded.reason
RETURNING fingerprint
"""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that failed in the same way. `trend` is how many, in 24 equal parts of the time asked for, oldest first.

    `jobs` is counted over the newest 100, in a listing of many groups over fewer, 4,000 for all together; `is_new`:
    nothing failed like it before the youngest worker started.
    """

    fingerprint: str
    entrypoint: str
    error_type: str
    place: str | None
    message: str | None
    count: int
    first_at: datetime
    last_at: datetime
    queues: list[str]
    sample_task_id: str
    trend: list[int]
    jobs: int
    is_new: bool
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    muted_until: datetime | None
    reason: str | None


class FailurePage(msgspec.Struct, frozen=True):
    """Groups, the largest first. `looked` failures were looked at; `is_cut` when there are more than those."""

    groups: list[FailureGroup]
    looked: int
    is_cut: bool


class FailedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a group."""

    id: str
    name: str | None
    entrypoint: str
    queue: str
    failed_at: datetime
    attempt: int | None
    job_id: str | None
    worker_id: str | None
    message: str | None


class Failure(msgspec.Struct, frozen=True):
    """One group with its newest tasks; `total` is exact up to 10,000."""

    group: FailureGroup
    total: int
    tasks: list[FailedTask]


async def list_failures(
    db: Database, *, hours: float = 24, limit: int = 50, acknowledged: bool = False, jobs: bool = True
) -> FailurePage:
    """What failed in the last hours, in groups; those that were acknowledged or muted only where asked for.

    Without `jobs` none of them are counted.
    """
    seconds = hours * 3600
    rows = await db.fetch(FAILURE_GROUPS, seconds, LOOK_LIMIT, limit + 1, acknowledged)
    looked = rows[0]["looked"] if rows else await db.fetchval(COUNT_LOOKED, seconds, LOOK_LIMIT)
    groups = await _groups(db, rows[:limit], jobs=jobs)
    return FailurePage(groups, looked, len(rows) > limit or looked >= LOOK_LIMIT)


async def get_failure(db: Database, fingerprint: str, *, hours: float = 24) -> Failure | None:
    """One group with its newest 50 tasks; None when nothing that failed so is left."""
    checked({"fingerprint": fingerprint})
    rows = await db.fetch(FAILURE_GROUP, hours * 3600, LOOK_LIMIT, 1, fingerprint)
    if not rows:
        return None
    [group] = await _groups(db, rows)
    tasks = [FailedTask(**dict(row)) for row in await db.fetch(TASKS_OF_GROUP, fingerprint, TASKS_SHOWN)]
    return Failure(group, await db.fetchval(COUNT_GROUP, fingerprint, COUNT_LIMIT), tasks)


async def acknowledge_failure(
    db: Database, fingerprint: str, *, by: str | None = None, reason: str | None = None
) -> bool:
    """Have the group not shown until something fails alike again; False when there is none."""
    return await _acknowledge(db, fingerprint, by, None, reason)


async def mute_failure(
    db: Database, fingerprint: str, until: datetime, *, by: str | None = None, reason: str | None = None
) -> bool:
    """Have the group not shown until then, whatever fails; False when there is none."""
    return await _acknowledge(db, fingerprint, by, until, reason)


async def _acknowledge(
    db: Database, fingerprint: str, by: str | None, until: datetime | None, reason: str | None
) -> bool:
    checked({"fingerprint": fingerprint})
    return bool(await db.fetch(ACKNOWLEDGE, fingerprint, by or whoami(), until, reason))


async def _groups(db: Database, rows: Any, *, jobs: bool = True) -> list[FailureGroup]:
    found = [dict(row) for row in rows]
    each = min(JOBS_LIMIT, JOBS_LOOKED // max(1, len(found)))
    affected = await db.fetch(JOBS_AFFECTED, [row["fingerprint"] for row in found], each) if found and jobs else []
    counts = {row["fingerprint"]: row["n"] for row in affected}
    groups = []
    for row in found:
        del row["looked"]
        trend = [0] * BUCKETS
        for slot, n in zip(row.pop("slots") or (), row.pop("counts") or (), strict=True):
            trend[min(slot, BUCKETS - 1)] += n
        groups.append(FailureGroup(trend=trend, jobs=counts.get(row["fingerprint"], 0), **row))
    return groups
