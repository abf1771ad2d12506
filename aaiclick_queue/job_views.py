"""Reads for people: jobs, and the tasks of one. Each is bounded, whatever the job and the history have grown to.

Before: a job that was written. After: job_figures.py (how far it is), job_graphs.py (its nodes), timelines.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .errors import BadTask, UnknownJob
from .lasting import Lasting
from .outcome import Error
from .postgres import Database
from .redaction import hidden_in, secrets_in, shown_json
from .status import JobStatus

SCAN_LIMIT = 100_000  # jobs that one listing looks at, from the newest down
OFFSET_LIMIT = 10_000
NEWEST = 2**63 - 1

_ROW = """j.id::text AS id, j.name, j.status, j.run_type, j.priority, j.created_at, j.started_at, j.finished_at,
       j.deadline_at, j.paused_at, j.paused_by, j.reason, coalesce(g.total, 0) AS total,
       coalesce(g.remaining, 0) AS remaining, coalesce(g.failed, 0) AS failed, coalesce(g.skipped, 0) AS skipped,
       j.error->>'type' AS error_type, left(j.error->>'message', 300) AS error_message, now() AS read_at"""
_JOBS = f"""
SELECT {_ROW}
FROM (SELECT id, name, status, run_type, priority, created_at, started_at, finished_at, deadline_at, paused_at,
             paused_by, reason, error
      FROM aaiclick_queue.jobs WHERE id < $1 AND pruned_at IS NULL {{only}} ORDER BY id DESC LIMIT $2) AS j
LEFT JOIN aaiclick_queue.gates g ON g.id = j.id
WHERE ($3::text IS NULL OR j.status = $3) AND ($4::text IS NULL OR j.name LIKE $4)
  AND ($7::text IS NULL OR j.run_type = $7)
ORDER BY j.id DESC OFFSET $5 LIMIT $6
"""
NEWEST_JOBS = _JOBS.format(only="")
OPEN_JOBS = _JOBS.format(only="AND status IN ('PENDING', 'RUNNING')")
REGISTERED_JOBS = _JOBS.format(only="AND registered_job_id = $8")
NAMED_JOBS = _JOBS.format(only="AND name = $8::text")
_COUNT = """
SELECT count(*) FROM (SELECT name, status FROM aaiclick_queue.jobs WHERE pruned_at IS NULL {only}
                      ORDER BY id DESC LIMIT $1) AS j
WHERE ($2::text IS NULL OR j.status = $2) AND ($3::text IS NULL OR j.name LIKE $3)
"""
COUNT_JOBS = _COUNT.format(only="")
COUNT_OPEN_JOBS = _COUNT.format(only="AND status IN ('PENDING', 'RUNNING')")
BEYOND_SCAN = "SELECT id FROM aaiclick_queue.jobs WHERE id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1"
JOB = f"""
SELECT {_ROW}, j.entrypoint, j.kwargs, j.returns, j.error, j.hooks, j.metadata, j.correlation_id, j.submitted_by,
       j.max_parallel, j.fail_fast, j.failing_at, r.name AS registered
FROM aaiclick_queue.jobs j LEFT JOIN aaiclick_queue.gates g ON g.id = j.id
LEFT JOIN aaiclick_queue.registered_jobs r ON r.id = j.registered_job_id WHERE j.id = $1 AND j.pruned_at IS NULL
"""
JOB_EXISTS = "SELECT id FROM aaiclick_queue.jobs WHERE id = $1 AND pruned_at IS NULL"
NEWEST_NAMED = "SELECT id FROM aaiclick_queue.jobs WHERE name = $1 AND pruned_at IS NULL ORDER BY id DESC LIMIT 1"
JOBS_ENDING_IN = """
SELECT id FROM (SELECT id FROM aaiclick_queue.jobs WHERE pruned_at IS NULL ORDER BY id DESC LIMIT $3) AS j
WHERE id % $2 = $1 LIMIT 2
"""


class JobRow(Lasting, frozen=True, kw_only=True):
    """One job in a list. Its counts are those of its tasks; `failed` are all that did not complete when they should."""

    id: str
    name: str
    status: str
    run_type: str
    priority: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    reason: str | None
    total: int
    remaining: int
    failed: int
    skipped: int
    error_type: str | None
    error_message: str | None
    read_at: datetime

    @property
    def ready_at(self) -> datetime:
        """A job could start when it was written."""
        return self.created_at

    @property
    def completed(self) -> int:
        """Tasks that completed."""
        return self.total - self.remaining - self.failed - self.skipped


class JobView(JobRow, frozen=True, kw_only=True):
    """Everything about one job but its tasks. `returns` is what its body returned, naming tasks by their ids.

    `registered` is the name of the registered job that it is a run of, while that is there.
    """

    entrypoint: str | None
    kwargs: Any
    returns: Any
    error: Error | None
    hooks: Any
    metadata: Any
    correlation_id: str | None
    submitted_by: str | None
    max_parallel: int | None
    fail_fast: bool
    failing_at: datetime | None
    registered: str | None


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs, newest first; `before` is where the next one starts, None when there is none."""

    jobs: list[JobRow]
    before: str | None


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs are wanted. `like` is a part of the name, or the whole of it with % or * for any text."""

    status: JobStatus | None = None
    like: str | None = None
    registered_id: int | None = None  # only runs of this registered job
    name: str | None = None  # the whole of it, for which there is an index
    run_type: str | None = None

    @property
    def pattern(self) -> str | None:
        """The same for LIKE: an underscore in a name is an underscore."""
        if self.like is None:
            return None
        literal = self.like.replace("\\", "\\\\").replace("_", "\\_")
        return literal.replace("*", "%") if set("%*") & set(literal) else f"%{literal}%"

    @property
    def is_open(self) -> bool:
        """Whether only jobs are meant that have not ended: those have an index."""
        return self.status is not None and not self.status.is_final


async def read_jobs(
    db: Database, wanted: JobFilter | None = None, *, limit: int = 50, offset: int = 0, before: int = NEWEST
) -> JobPage:
    """Jobs older than `before`, newest first; looks at 100,000 of them at most."""
    wanted = wanted or JobFilter()
    given = (before, SCAN_LIMIT, wanted.status, wanted.pattern, offset, limit, wanted.run_type)
    if wanted.registered_id is not None:
        rows = await db.fetch(REGISTERED_JOBS, *given, wanted.registered_id)
    elif wanted.name is not None:
        rows = await db.fetch(NAMED_JOBS, *given, wanted.name)
    else:
        rows = await db.fetch(OPEN_JOBS if wanted.is_open else NEWEST_JOBS, *given)
    jobs = [JobRow(**dict(row)) for row in rows]
    if len(jobs) >= limit:
        return JobPage(jobs, jobs[-1].id)
    beyond = None
    if wanted.pattern or wanted.run_type or (wanted.status and not wanted.is_open):
        beyond = await db.fetchval(BEYOND_SCAN, before, SCAN_LIMIT)
    return JobPage(jobs, None if beyond is None else str(beyond + 1))


async def count_jobs(db: Database, wanted: JobFilter | None = None) -> int:
    """How many of the newest 100,000 jobs, or of those that have not ended, are meant."""
    wanted = wanted or JobFilter()
    statement = COUNT_OPEN_JOBS if wanted.is_open else COUNT_JOBS
    return int(await db.fetchval(statement, SCAN_LIMIT, wanted.status, wanted.pattern))


async def read_job(db: Database, job: int | str) -> JobView:
    """One job by its id, or the newest of that name."""
    rows = await db.fetch(JOB, await find_job(db, job))
    if not rows:
        raise UnknownJob(f"no job {job}: it was pruned meanwhile")
    values = dict(rows[0])
    secrets = secrets_in(values["kwargs"], db.settings.redact_names)
    for column in ("kwargs", "returns", "hooks", "metadata"):
        values[column] = shown_json(values[column], db.settings.redact_names)
    for column in ("returns", "metadata", "error_message"):
        values[column] = hidden_in(values[column], secrets)
    values["error"] = None if values["error"] is None else Error.read(values["error"]).without(secrets)
    return JobView(**values)


async def find_job(db: Database, job: int | str) -> int:
    """The id of the job that is meant: by its id, by its name (the newest), or by the last digits of an id."""
    if isinstance(job, bool) or not isinstance(job, int | str) or job == "":
        raise BadTask(f"{job!r} is no job: give its id or its name")
    digits = str(job).removeprefix("…")
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 19 else NEWEST + 1
    found = await db.fetch(JOB_EXISTS, number) if number <= NEWEST else []
    if not found and isinstance(job, str):
        found = await db.fetch(NEWEST_NAMED, job)
        if not found and number <= NEWEST and 6 <= len(digits) <= 18:
            found = await db.fetch(JOBS_ENDING_IN, number, 10 ** len(digits), SCAN_LIMIT)
    if not found:
        raise UnknownJob(f"no job {job!r}: `aaiclick-queue job list` shows those there are")
    if len(found) > 1:
        raise UnknownJob(f"several jobs end in {digits} ({found[0]['id']}, {found[1]['id']} …): give more digits")
    job_id: int = found[0]["id"]
    return job_id
