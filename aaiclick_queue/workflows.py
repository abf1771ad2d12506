"""Reads for people: how jobs do, by their names, over days. Ids grow with time, so a span of days is one of ids.

What is looked at is bounded: the newest 20,000 jobs, 100,000 tasks, 3,000 failures; `is_cut` says that there are
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from .postgres import Database

DAYS_LIMIT = 90
JOBS_LIMIT = 20_000  # 0.1 s
RUNS_LIMIT = 1000  # newest jobs of one name whose tasks are looked at
TASKS_LIMIT = 100_000
FAILURES_LIMIT = 3_000  # each with its task and job: 50 ms
NAMES_LIMIT = 1000
COMMON_LIMIT = 5
MEMORY_LIMIT = 100
MEMORY_DAYS = 7
TEXT_LIMIT = 200

_NODE = "regexp_replace(coalesce(name, entrypoint), '(#\\d+|\\[\\d+\\])$', '')"
_SINCE = "((extract(epoch FROM now() - make_interval(days => $1::int)) * 1000)::bigint << 22)"
_SECONDS = "date_part('epoch', finished_at - started_at)"  # extract counts in numeric, which is slow
_TEXT = f"left(f.error_type || coalesce(': ' || nullif(t.error->>'message', ''), ''), {TEXT_LIMIT})"
_WORKFLOWS = f"""
WITH looked AS MATERIALIZED (
    SELECT name, status, {_SECONDS} AS ran FROM aaiclick_queue.jobs
    WHERE id >= {_SINCE} AND pruned_at IS NULL{{which}} ORDER BY id DESC LIMIT $2
)
SELECT name, count(*) AS total, count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE status = 'FAILED') AS failed, count(*) FILTER (WHERE status = 'CANCELLED') AS cancelled,
       avg(ran) FILTER (WHERE status = 'COMPLETED') AS average_seconds,
       percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ran) FILTER (WHERE status = 'COMPLETED') AS spread,
       (SELECT count(*) FROM looked) AS looked
FROM looked GROUP BY name ORDER BY count(*) DESC, name LIMIT $3
"""
WORKFLOWS = _WORKFLOWS.format(which="")
WORKFLOW = _WORKFLOWS.format(which=" AND name = $4::text")
# By the end of jobs there is no index: of the newest ones, those that ended in time.
JOBS_ENDED = f"""
WITH looked AS MATERIALIZED (
    SELECT id, status, finished_at, {_SECONDS} AS ran FROM aaiclick_queue.jobs WHERE pruned_at IS NULL
    ORDER BY id DESC LIMIT $3
)
SELECT edge.looked, edge.first_at, ended.start, ended.completed, ended.failed, ended.average_seconds
FROM (SELECT count(*) AS looked, to_timestamp((min(id) >> 22) / 1000.0) AS first_at FROM looked) AS edge
LEFT JOIN (
    SELECT to_timestamp(floor(date_part('epoch', finished_at) / $2::float8) * $2::float8) AS start,
           count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
           count(*) FILTER (WHERE status = 'FAILED') AS failed,
           avg(ran) FILTER (WHERE status = 'COMPLETED') AS average_seconds
    FROM looked WHERE finished_at > now() - make_interval(secs => $1::float8) GROUP BY 1) AS ended ON true
"""
# The newest failures by their age; the text of an error is in the task's own row.
_FAILED = """
    SELECT f.task_id, f.queue, f.entrypoint, f.error_type, f.failed_at FROM aaiclick_queue.failures f
    WHERE f.failed_at > now() - make_interval(days => $1::int) ORDER BY f.failed_at DESC LIMIT $2"""
COMMON_FAILURES = f"""
SELECT j.name, {_TEXT} AS text, count(*) AS count
FROM ({_FAILED}) AS f
CROSS JOIN LATERAL (SELECT error, job_id FROM aaiclick_queue.tasks WHERE id = f.task_id OFFSET 0) AS t
JOIN LATERAL (SELECT name FROM aaiclick_queue.jobs WHERE id = t.job_id OFFSET 0) AS j ON true
GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT $3
"""
# $4 the name of a job, or NULL.
_OF_WORKFLOW = f"""
FROM ({_FAILED}) AS f
CROSS JOIN LATERAL (
    SELECT error, job_id, {_NODE} AS node FROM aaiclick_queue.tasks WHERE id = f.task_id OFFSET 0) AS t
LEFT JOIN LATERAL (SELECT name FROM aaiclick_queue.jobs WHERE id = t.job_id OFFSET 0) AS j ON true
WHERE ($4::text IS NULL OR j.name = $4::text)"""
FAILURE_TEXTS = f"""
SELECT {_TEXT} AS text, count(*) AS count, max(f.failed_at) AS last_at, min(f.failed_at) AS first_at,
       array_agg(DISTINCT f.entrypoint) AS entrypoints, sum(count(*)) OVER () AS total
{_OF_WORKFLOW} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $3
"""
FAILURES_BY_NODE = f"""
SELECT j.name AS workflow, t.node, {_TEXT} AS text, count(*) AS count
{_OF_WORKFLOW} AND j.name IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT $3
"""
FAILURES_LOOKED = f"SELECT count(*) AS n FROM ({_FAILED}) AS f"
FAILURES_BY_PLACE = f"""
SELECT f.queue, f.entrypoint, count(*) AS count FROM ({_FAILED}) AS f GROUP BY f.queue, f.entrypoint
"""
NODES = f"""
WITH run AS MATERIALIZED (
    SELECT id FROM aaiclick_queue.jobs WHERE name = $2::text AND id >= {_SINCE} AND pruned_at IS NULL
    ORDER BY id DESC LIMIT $3
), looked AS MATERIALIZED (
    SELECT t.node, t.status, t.attempt, t.ran FROM run CROSS JOIN LATERAL (
        SELECT {_NODE} AS node, status, attempt,
               {_SECONDS} AS ran
        FROM aaiclick_queue.tasks WHERE job_id = run.id AND member_gate IS NOT NULL ORDER BY job_id, id LIMIT $4) AS t
    LIMIT $4
)
SELECT node AS name, count(*) AS executions, count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE status = 'FAILED') AS failed, avg(ran) AS average_seconds,
       coalesce(sum(greatest(attempt - 1, 0)), 0) AS total_retries,
       (SELECT count(*) FROM looked) AS looked, (SELECT count(*) FROM run) AS runs
FROM looked WHERE status IS NOT NULL GROUP BY node ORDER BY node LIMIT $5
"""
LAST_ENDED = f"""
SELECT j.id::text AS id, j.name, j.status, j.started_at, j.finished_at, {_SECONDS} AS seconds,
       left(coalesce(j.error->>'message', j.error->>'type'), {TEXT_LIMIT}) AS error
FROM (SELECT id, name, status, started_at, finished_at, error FROM aaiclick_queue.jobs
      WHERE pruned_at IS NULL ORDER BY id DESC LIMIT $1) AS j
WHERE j.status = $2::text ORDER BY j.id DESC LIMIT $3
"""


class FailureText(msgspec.Struct, frozen=True):
    """An error as tasks failed with it, 200 characters of it, and how often."""

    text: str
    count: int


class FailureKind(msgspec.Struct, frozen=True):
    """An error, when it came up first and last, and where."""

    text: str
    count: int
    first_at: datetime
    last_at: datetime
    entrypoints: list[str]


class JobsEnded(msgspec.Struct, frozen=True):
    """How jobs ended in some time, and what the completed ones took; None for a time before the newest 20,000 jobs."""

    completed: int | None = 0
    failed: int | None = 0
    average_seconds: float | None = None


class NodeFailure(msgspec.Struct, frozen=True):
    """An error of one task of the jobs of one name, and how often."""

    workflow: str
    node: str
    text: str
    count: int


class Failures(msgspec.Struct, frozen=True):
    """The commonest errors of tasks that are FAILED; and by the names of jobs and of tasks in them."""

    days: int
    items: list[FailureKind]
    by_node: list[NodeFailure]
    total: int  # failures that were counted
    is_cut: bool


class Workflow(msgspec.Struct, frozen=True):
    """The jobs of one name; seconds are those of completed ones, the rate is of all that ended well or failed."""

    name: str
    total: int
    completed: int
    failed: int
    cancelled: int
    success_rate: float | None
    average_seconds: float | None
    p50_seconds: float | None
    p95_seconds: float | None
    common_failures: list[FailureText]


class Workflows(msgspec.Struct, frozen=True):
    """By name, the most frequent first."""

    days: int
    items: list[Workflow]
    is_cut: bool


class WorkflowNode(msgspec.Struct, frozen=True):
    """The tasks of one name in jobs of one name."""

    name: str
    executions: int
    completed: int
    failed: int
    success_rate: float | None
    average_seconds: float | None
    total_retries: int


class WorkflowNodes(msgspec.Struct, frozen=True):
    """The tasks of jobs of one name; `is_cut`: only of the newest 1,000 jobs, or 100,000 tasks."""

    name: str
    days: int
    items: list[WorkflowNode]
    is_cut: bool


class EndedJob(msgspec.Struct, frozen=True):
    """A job that is over."""

    id: str
    name: str
    status: str
    started_at: datetime | None
    finished_at: datetime | None
    seconds: float | None
    error: str | None


class Memory(msgspec.Struct, frozen=True):
    """The last hundred of each end, and where failures come from; counts and rates are of the last seven days."""

    completed: list[EndedJob]
    failed: list[EndedJob]
    failures_by_entrypoint: dict[str, int]
    failures_by_queue: dict[str, int]
    average_seconds: dict[str, float]
    success_rate: dict[str, float]
    is_cut: bool


async def read_workflows(db: Database, *, days: int, name: str | None = None) -> Workflows:
    """Jobs by name that were made in the last days, newest 20,000; of one name if that is given."""
    days = _days(days)
    if name is None:
        rows = await db.fetch(WORKFLOWS, days, JOBS_LIMIT, NAMES_LIMIT)
    else:
        rows = await db.fetch(WORKFLOW, days, JOBS_LIMIT, NAMES_LIMIT, name)
    common: dict[str, list[FailureText]] = {}
    for row in await db.fetch(COMMON_FAILURES, days, FAILURES_LIMIT, FAILURES_LIMIT):
        texts = common.setdefault(row["name"], [])
        if len(texts) < COMMON_LIMIT:
            texts.append(FailureText(row["text"], row["count"]))
    items = []
    for row in rows:
        values = dict(row)
        values.pop("looked")
        p50, p95 = values.pop("spread") or (None, None)
        rate = _rate(row)
        texts = common.get(row["name"], [])
        items.append(Workflow(**values, success_rate=rate, p50_seconds=p50, p95_seconds=p95, common_failures=texts))
    return Workflows(days, items, bool(rows) and rows[0]["looked"] >= JOBS_LIMIT)


async def read_workflow_nodes(db: Database, name: str, *, days: int) -> WorkflowNodes:
    """Tasks by name in the jobs of that name that were made in the last days."""
    days = _days(days)
    rows = await db.fetch(NODES, days, name, RUNS_LIMIT, TASKS_LIMIT, NAMES_LIMIT)
    items = []
    for row in rows:
        values = {field: row[field] for field in WorkflowNode.__struct_fields__ if field != "success_rate"}
        items.append(WorkflowNode(**values, success_rate=_rate(row)))
    cut = bool(rows) and (rows[0]["looked"] >= TASKS_LIMIT or rows[0]["runs"] >= RUNS_LIMIT)
    return WorkflowNodes(name, days, items, cut)


async def read_jobs_ended(db: Database, starts: Sequence[datetime], step: timedelta) -> list[JobsEnded]:
    """How jobs ended in each of these steps of time up to now, of the newest 20,000 jobs."""
    seconds = step.total_seconds()
    rows = await db.fetch(JOBS_ENDED, seconds * (len(starts) + 1), seconds, JOBS_LIMIT)
    ended = {row["start"]: JobsEnded(row["completed"], row["failed"], row["average_seconds"]) for row in rows}
    known_at = rows[0]["first_at"] if rows[0]["looked"] >= JOBS_LIMIT else None
    nothing, unknown = JobsEnded(), JobsEnded(None, None)
    return [unknown if known_at is not None and start < known_at else ended.get(start, nothing) for start in starts]


async def read_failure_texts(db: Database, *, days: int, limit: int = 20, name: str | None = None) -> Failures:
    """The commonest errors of the newest 3,000 tasks that failed in the last days and are FAILED still.

    With a name, those of the tasks of jobs of that name.
    """
    days, limit = _days(days), max(1, min(limit, 1000))
    rows = await db.fetch(FAILURE_TEXTS, days, FAILURES_LIMIT, limit, name)
    nodes = await db.fetch(FAILURES_BY_NODE, days, FAILURES_LIMIT, limit, name)
    looked: int = await db.fetchval(FAILURES_LOOKED, days, FAILURES_LIMIT)
    items = [FailureKind(**{field: row[field] for field in FailureKind.__struct_fields__}) for row in rows]
    total = int(rows[0]["total"]) if rows else 0
    by_node = [NodeFailure(**dict(row)) for row in nodes]
    return Failures(days, items, by_node, total, looked >= FAILURES_LIMIT)


async def read_memory(db: Database) -> Memory:
    """What ended last and how it usually ends."""
    completed, failed = [
        [EndedJob(**dict(row)) for row in await db.fetch(LAST_ENDED, JOBS_LIMIT, status, MEMORY_LIMIT)]
        for status in ("COMPLETED", "FAILED")
    ]
    entrypoints: dict[str, int] = {}
    queues: dict[str, int] = {}
    for row in await db.fetch(FAILURES_BY_PLACE, MEMORY_DAYS, FAILURES_LIMIT):
        for counts, key in ((entrypoints, row["entrypoint"]), (queues, row["queue"])):
            counts[key] = counts.get(key, 0) + row["count"]
    flows = await read_workflows(db, days=MEMORY_DAYS)
    return Memory(
        completed=completed,
        failed=failed,
        failures_by_entrypoint=_most_first(entrypoints),
        failures_by_queue=_most_first(queues),
        average_seconds={one.name: one.average_seconds for one in flows.items if one.average_seconds is not None},
        success_rate={one.name: one.success_rate for one in flows.items if one.success_rate is not None},
        is_cut=flows.is_cut or sum(queues.values()) >= FAILURES_LIMIT,
    )


def _days(days: int) -> int:
    return max(1, min(days, DAYS_LIMIT))


def _rate(row: Any) -> float | None:
    ended = row["completed"] + row["failed"]
    return row["completed"] / ended if ended else None


def _most_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))
