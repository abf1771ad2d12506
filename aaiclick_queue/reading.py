"""Looking at jobs and tasks from Python: `get_job`, `list_jobs`, `timeline` and others. Nothing here changes anything.

A job is named by its id, its handle or its name, which means the newest of that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from .client import Client, default_client
from .errors import BadTask, UnknownTask
from .job_figures import JobProgress, JobStats, read_progress, read_stats
from .job_views import NEWEST, OFFSET_LIMIT, JobFilter, JobRow, JobView, find_job, read_job, read_jobs
from .job_views import count_jobs as count_read
from .postgres import Database
from .status import JobStatus, Status
from .timelines import Asked, Of, Timeline, read_timeline
from .views import TaskRow, TaskView, tasks_of_job
from .views import get_task as read_task

KIND_OF = """
SELECT CASE WHEN EXISTS (SELECT FROM aaiclick_queue.tasks WHERE id = $1) THEN 'task'
            WHEN EXISTS (SELECT FROM aaiclick_queue.jobs WHERE id = $1 AND pruned_at IS NULL) THEN 'job' END
"""


async def get_job(job: Any, *, client: Client | None = None) -> JobView:
    """One job with all that is known of it but its tasks; raises UnknownJob."""
    return await read_job(await _database(client), _named(job))


async def list_jobs(  # noqa: PLR0913 - one parameter a wish
    status: JobStatus | str | None = None,
    name_like: str | None = None,
    *,
    limit: int = 50,
    offset: int = 0,
    before: int | str | None = None,
    client: Client | None = None,
) -> list[JobRow]:
    """Jobs, newest first: of that status, with that in their names (or a whole name with % or *).

    Page on by `before`, the id of the last one; filters look at the newest 100,000 that are left.
    """
    wanted = JobFilter(_status(status, JobStatus), name_like)
    _check(limit=(limit, 1, 10_000), offset=(offset, 0, OFFSET_LIMIT))
    start = NEWEST if before is None else _number(before)
    return (await read_jobs(await _database(client), wanted, limit=limit, offset=offset, before=start)).jobs


async def count_jobs(
    status: JobStatus | str | None = None, name_like: str | None = None, *, client: Client | None = None
) -> int:
    """How many jobs there are of that kind, of the newest 100,000."""
    return await count_read(await _database(client), JobFilter(_status(status, JobStatus), name_like))


async def get_tasks_for_job(
    job: Any,
    *,
    status: Status | str | None = None,
    limit: int = 1000,
    after: int | str | None = None,
    client: Client | None = None,
) -> list[TaskRow]:
    """Tasks of a job in the order in which they were made; page on by `after`, the id of the last one."""
    _check(limit=(limit, 1, 100_000))
    db = await _database(client)
    start = 0 if after is None else _number(after)
    number = await find_job(db, _named(job))
    return await tasks_of_job(db, number, status=_status(status, Status), limit=limit, after=start)


async def get_task(task: Any, *, client: Client | None = None) -> TaskView:
    """One task with its attempts and its events, and its place in its job; raises UnknownTask."""
    number = _number(task)
    found = await read_task(await _database(client), number)
    if found is None:
        raise UnknownTask(f"no task {number}: its transaction is not committed, or it was pruned")
    return found


async def job_progress(job: Any, *, client: Client | None = None) -> JobProgress:
    """How far a job is and when it may end: one look at its gate, however large it is."""
    db = await _database(client)
    return await read_progress(db, await find_job(db, _named(job)))


async def job_stats(job: Any, *, client: Client | None = None) -> JobStats:
    """What the tasks of a job took, by name: waits, runs, attempts; of the first 100,000 tasks."""
    db = await _database(client)
    return await read_stats(db, await find_job(db, _named(job)))


async def timeline(  # noqa: PLR0913 - one parameter a wish
    of: Any,
    *,
    types: Iterable[str] = (),
    limit: int = 1000,
    after: str | None = None,
    newest: bool = False,
    client: Client | None = None,
) -> Timeline:
    """What happened to a job or a task, oldest first: a page of events, and with the first page a summary.

    `of` is an id, a handle, or the name of a job; `after` is `more` of the page before, `newest` begins at the end.
    """
    db = await _database(client)
    asked = Asked((types,) if isinstance(types, str) else tuple(types), limit, after, newest)
    kind, number = await _meant(db, of)
    return await read_timeline(db, kind, number, asked)


async def _meant(db: Database, of: Any) -> tuple[Of, int]:
    named = _named(of)
    text = str(named)
    if text.isascii() and text.isdigit() and int(text) <= NEWEST:
        kind = await db.fetchval(KIND_OF, int(text))
        if kind is not None:
            return cast("Of", kind), int(text)
        if isinstance(named, int):
            raise UnknownTask(f"no task or job {named}: its transaction is not committed, or it was pruned")
    return "job", await find_job(db, named)


def _named(one: Any) -> int | str:
    """An id or a name, also of a handle or of something that was read here."""
    named = getattr(one, "id", one)
    if isinstance(named, bool) or not isinstance(named, int | str):
        raise BadTask(f"{one!r} is neither a job nor a task: give an id, a handle or a job's name")
    return named


def _number(one: Any) -> int:
    named = _named(one)
    if isinstance(named, str) and not (named.isascii() and named.isdigit()):
        raise BadTask(f"{one!r} is no id: give the whole number that an enqueue gave, or its text")
    if not 0 < int(named) <= NEWEST:
        raise BadTask(f"{one!r} is no id: give the whole number that an enqueue gave, or its text")
    return int(named)


def _status(status: Any, kind: Any) -> Any:
    try:
        return None if status is None else kind(str(status).upper())
    except ValueError as error:
        raise BadTask(f"status={status!r}: there are {', '.join(kind)}") from error


def _check(**given: tuple[int, int, int]) -> None:
    for name, (value, least, most) in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadTask(f"{name}={value!r}: give a whole number from {least:,} to {most:,}")


async def _database(client: Client | None) -> Database:
    return await (client or await default_client()).database()
