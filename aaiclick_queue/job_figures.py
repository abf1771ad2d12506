"""Reads for people: how far a job is, and what its tasks took. Progress is one look at the job's gate."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from .errors import UnknownJob
from .job_nodes import of_job
from .postgres import Database
from .status import FINAL

COUNT_LIMIT = 10_000
STATS_LIMIT = 100_000  # tasks of a job that statistics look at: about 0.4 s
STATS_ASKED = 20_000  # by somebody who waits for a page: a fifth of that
NAMES_LIMIT = 200

# The counts are one row by its key, whatever the job has grown to. What runs is looked for among all leases, which are
# as many as there are slots: in line a job's tasks have its id as order_key, but for those under fair turns.
PROGRESS = """
WITH RECURSIVE lines AS (
    (SELECT queue, rank FROM aaiclick_queue.ready ORDER BY queue, rank LIMIT 1)
    UNION ALL
    SELECT following.queue, following.rank FROM lines CROSS JOIN LATERAL (
        SELECT r.queue, r.rank FROM aaiclick_queue.ready r WHERE (r.queue, r.rank) > (lines.queue, lines.rank)
        ORDER BY r.queue, r.rank LIMIT 1) AS following
)
SELECT j.id::text AS job_id, j.name, j.status, j.started_at, j.finished_at, j.paused_at IS NOT NULL AS is_paused,
       coalesce(g.total, 0) AS total, coalesce(g.remaining, 0) AS remaining, coalesce(g.failed, 0) AS failed,
       coalesce(g.skipped, 0) AS skipped, now() AS read_at,
       CASE WHEN g.remaining = 0 THEN 0 ELSE (
           SELECT count(*) FROM (SELECT task_id, order_key, flags FROM aaiclick_queue.leases LIMIT $2) AS l
           WHERE l.order_key = j.id OR (l.flags & 2 = 2 AND EXISTS (
               SELECT FROM aaiclick_queue.tasks t WHERE t.id = l.task_id AND t.job_id = j.id))) END AS running,
       CASE WHEN g.remaining = 0 THEN 0
            WHEN NOT EXISTS (SELECT FROM aaiclick_queue.limits WHERE kind = 'fair') THEN (
           SELECT count(*) FROM (
               SELECT FROM (SELECT queue, rank FROM lines LIMIT 1000) AS line CROSS JOIN LATERAL (
                   SELECT FROM aaiclick_queue.ready r
                   WHERE r.queue = line.queue AND r.rank = line.rank AND r.order_key = j.id LIMIT $2) AS its
               LIMIT $2) AS counted) END AS queued
FROM aaiclick_queue.jobs j LEFT JOIN aaiclick_queue.gates g ON g.id = j.id
WHERE j.id = $1 AND j.pruned_at IS NULL
"""
_NAME = "regexp_replace(coalesce(name, entrypoint), '(#\\d+|\\[\\d+\\])$', '')"
_TOOK = """status, attempt, date_part('epoch', finished_at - started_at) AS ran,
           date_part('epoch', started_at - least(ready_at, started_at)) AS waited"""
_OF_JOB = f"aaiclick_queue.tasks WHERE {of_job('$1')} AND member_gate IS NOT NULL ORDER BY job_id, id"
_SUMMED = """
SELECT name, count(*) AS count, count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE status IN ('FAILED', 'UPSTREAM_FAILED', 'CANCELLED')) AS failed,
       count(*) FILTER (WHERE status = 'SKIPPED') AS skipped, count(*) FILTER (WHERE status IS NULL) AS open,
       percentile_cont(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY waited) AS waits,
       percentile_cont(ARRAY[0.5, 0.95, 1]) WITHIN GROUP (ORDER BY ran) AS runs,
       coalesce(sum(attempt), 0) AS attempts, coalesce(max(attempt), 0) AS most_attempts,
       max(id)::text AS newest_id, (SELECT count(*) FROM looked) AS looked
FROM looked GROUP BY name ORDER BY min(id) LIMIT $3
"""
STATS = f"""
WITH looked AS MATERIALIZED (SELECT id, {_NAME} AS name, {_TOOK} FROM {_OF_JOB} LIMIT $2)
{_SUMMED}"""
# The pattern is asked of those that begin so: of 100,000 tasks it took 0.15 s.
NODE_STATS = f"""
WITH looked AS MATERIALIZED (
    SELECT id, $4::text AS name, {_TOOK}
    FROM (SELECT id, coalesce(name, entrypoint) AS name, entrypoint, status, attempt, ready_at, started_at, finished_at
          FROM {_OF_JOB} LIMIT $5) AS t
    WHERE starts_with(t.name, $4::text) AND {_NAME} = $4::text LIMIT $2
)
{_SUMMED}"""


class JobProgress(msgspec.Struct, frozen=True):
    """How far a job is. `queued` is None where tasks of several keys take turns; both counts are exact to 10,000."""

    job_id: str
    name: str
    status: str
    started_at: datetime | None
    finished_at: datetime | None
    is_paused: bool
    total: int
    remaining: int
    failed: int
    skipped: int
    read_at: datetime
    running: int
    queued: int | None

    @property
    def completed(self) -> int:
        """Tasks that completed."""
        return self.total - self.remaining - self.failed - self.skipped

    @property
    def percent(self) -> float:
        """Tasks that have ended, of all that are known so far."""
        if not self.total:
            return 100.0 if self.status in FINAL else 0.0
        return 100.0 * (self.total - self.remaining) / self.total

    @property
    def elapsed(self) -> timedelta | None:
        """From the start to the end, or until now; None before the start."""
        return None if self.started_at is None else (self.finished_at or self.read_at) - self.started_at

    @property
    def ends_at(self) -> datetime | None:
        """When it will have ended, if it goes on at its mean speed so far; None while nothing can be known of that."""
        done = self.total - self.remaining
        if self.status != "RUNNING" or self.is_paused or self.elapsed is None or not done or not self.remaining:
            return None
        return self.read_at + self.elapsed * (self.remaining / done)


class Spread(msgspec.Struct, frozen=True):
    """Half of them took at most `p50`, all but a twentieth `p95`; in seconds."""

    p50: float
    p95: float
    max: float


class TaskStats(msgspec.Struct, frozen=True):
    """What the tasks of one name took; those of a map and those called again count under one name."""

    name: str
    count: int
    completed: int
    failed: int
    skipped: int
    open: int
    wait: Spread | None
    run: Spread | None
    attempts: int
    most_attempts: int


class NodeStats(TaskStats, frozen=True):
    """The same of one name; `is_cut` where its job has more tasks than were looked at, or more of that name."""

    is_cut: bool
    newest_id: str  # of those looked at


class JobStats(msgspec.Struct, frozen=True):
    """Statistics of a job; `left_out` tasks were not looked at, and of more than 200 names the first are told."""

    job_id: str
    tasks: list[TaskStats]
    looked_at: int
    left_out: int


async def read_progress(db: Database, job_id: int) -> JobProgress:
    """How far the job is, in one statement that reads its gate by key."""
    rows = await db.fetch(PROGRESS, job_id, COUNT_LIMIT)
    if not rows:
        raise UnknownJob(f"no job {job_id}: it was pruned, or its transaction is not committed")
    return JobProgress(**dict(rows[0]))


async def read_stats(db: Database, job_id: int, *, limit: int | None = None) -> JobStats:
    """Per name: how many, and how long they waited and ran; of the first tasks, 100,000 unless told otherwise."""
    total = (await read_progress(db, job_id)).total
    rows = await db.fetch(STATS, job_id, limit or STATS_LIMIT, NAMES_LIMIT)
    looked = rows[0]["looked"] if rows else 0
    return JobStats(str(job_id), [TaskStats(**_stats(row)) for row in rows], looked, max(0, total - looked))


async def read_node_stats(db: Database, job_id: int, name: str, *, limit: int = STATS_ASKED) -> NodeStats | None:
    """What the first tasks of that name took, among the first 100,000 of the job; None where none is called so."""
    total = (await read_progress(db, job_id)).total
    rows = await db.fetch(NODE_STATS, job_id, limit, 1, name, STATS_LIMIT)
    if not rows:
        return None
    is_cut = total > STATS_LIMIT or rows[0]["looked"] >= limit
    return NodeStats(**_stats(rows[0]), is_cut=is_cut, newest_id=rows[0]["newest_id"])


def _stats(row: Any) -> dict[str, Any]:
    values = {name: row[name] for name in TaskStats.__struct_fields__ if name not in ("wait", "run")}
    return values | {"wait": _spread(row["waits"]), "run": _spread(row["runs"])}


def _spread(values: list[float] | None) -> Spread | None:
    return None if values is None or values[0] is None else Spread(*values)
