"""Jobs: find them, look into one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query

from ...errors import BadTask, UnknownTask
from ...job_figures import (
    STATS_ASKED,
    STATS_LIMIT,
    JobProgress,
    JobStats,
    read_progress,
    read_stats,
)
from ...job_graphs import LOOK_ASKED, JobGraph, read_graph
from ...job_outputs import Outputs, read_outputs, read_result
from ...job_progress import CurrentTask, NodeProgress, read_current_tasks, read_node_progress
from ...job_views import JobFilter, JobRow, JobView, find_job, read_job, read_jobs
from ...registered import read_registered_job
from ...status import JobStatus, Status
from ...timelines import TASKS_ASKED, TASKS_LIMIT, Event, Timeline, read_events_of_name, read_timeline
from ...timelines import Asked as Wanted
from ...views import TaskFilter, TaskRow, list_tasks
from ..answers import NEWEST, Api, Id, Limit, Name, Page, Words
from ..desk import AtDesk

api = Api("jobs")
Job = Annotated[Name, Path(description="Its id, or its name for the newest of that name.", examples=["etl"])]
Node = Annotated[Name, Path(description="Name of a task in the job.")]
Types = Annotated[Words, Query(description="Only these types of events; several times, or with commas.")]


class Progress(msgspec.Struct, frozen=True):
    """How far a job is; of what runs, the twenty tasks that have run for the longest."""

    progress: JobProgress
    completed: int
    percent: float
    elapsed_seconds: float | None
    ends_at: datetime | None
    current_tasks: list[CurrentTask]


class JobResult(msgspec.Struct, frozen=True):
    """What a job gave; `has_result` is false while it has not, and where it would be of too many tasks."""

    has_result: bool
    result: Any
    tasks: Outputs


@api.get("/jobs")
async def list_jobs(
    desk: AtDesk,
    status: JobStatus | None = None,
    name: Annotated[Name | None, Query(description="Only jobs of exactly this name.")] = None,
    like: Annotated[
        Name | None, Query(description="Only jobs with this in their names; with * the whole name.")
    ] = None,
    run_type: Annotated[Name | None, Query(description="MANUAL, API, SCHEDULED, BACKFILL …")] = None,
    registered: Annotated[Name | None, Query(description="Only runs of this registered job.")] = None,
    limit: Limit = 50,
    before: Id | None = None,
) -> Page[JobRow]:
    """Jobs, newest first; filters look at the newest 100,000."""
    if sum(one is not None for one in (name, like, registered)) > 1:
        raise BadTask("of name, like and registered more than one is given: give one of them")
    number = None if registered is None else (await read_registered_job(desk.db, registered)).id
    wanted = JobFilter(status, like, number, name, run_type)
    page = await read_jobs(desk.db, wanted, limit=limit, before=before or NEWEST)
    return Page(page.jobs, page.before)


@api.get("/jobs/{job}")
async def get_job(job: Job, desk: AtDesk) -> JobView:
    """One job with all that is known of it but its tasks."""
    return await read_job(desk.db, job)


@api.get("/jobs/{job}/progress")
async def job_progress(job: Job, desk: AtDesk) -> Progress:
    """How far a job is, when it may end, and what runs: one look at its gate and at the leases, however large it is."""
    number = await find_job(desk.db, job)
    found, running = await read_progress(desk.db, number), await read_current_tasks(desk.db, number)
    elapsed: timedelta | None = found.elapsed
    seconds = None if elapsed is None else elapsed.total_seconds()
    return Progress(found, found.completed, found.percent, seconds, found.ends_at, running)


@api.get("/jobs/{job}/timeline")
async def job_timeline(
    job: Job,
    desk: AtDesk,
    event_types: Types = [],
    limit: Limit = 1000,
    after: Annotated[Name | None, Query(description="`more` of the page before.")] = None,
    newest: bool = False,
    tasks: Annotated[int | None, Query(ge=1, le=TASKS_LIMIT, description="Of its first so many tasks.")] = None,
) -> Timeline:
    """What happened to a job, oldest first, or with `newest` from the end; the first page has a summary.

    Of its first 3,000 tasks unless more are asked for, with `event_types` of 100,000; `tasks_left_out` counts the
    others.
    """
    number = await find_job(desk.db, job)
    looked = tasks or (TASKS_LIMIT if event_types else TASKS_ASKED)  # who asks for failures means those of all tasks
    wanted = Wanted(tuple(event_types), limit, after, newest, tasks=looked)
    return await read_timeline(desk.db, "job", number, wanted)


@api.get("/jobs/{job}/graph")
async def job_graph(job: Job, desk: AtDesk) -> JobGraph:
    """Its nodes and edges; tasks that are alike stand as one where they are many, made of the first 20,000."""
    found = await read_progress(desk.db, await find_job(desk.db, job))
    any_failed = bool(found.failed or found.skipped)
    return await read_graph(desk.db, int(found.job_id), total=found.total, any_failed=any_failed, looked=LOOK_ASKED)


@api.get("/jobs/{job}/stats")
async def job_stats(
    job: Job,
    desk: AtDesk,
    tasks: Annotated[int, Query(ge=1, le=STATS_LIMIT, description="Of its first so many tasks.")] = STATS_ASKED,
) -> JobStats:
    """What its tasks took, by name: waits, runs, attempts; of the first 20,000 tasks unless more are asked for."""
    return await read_stats(desk.db, await find_job(desk.db, job), limit=tasks)


@api.get("/jobs/{job}/outputs")
async def job_outputs(job: Job, desk: AtDesk) -> JobResult:
    """What the job gave, and its tasks by their names: the first thousand, 16 MB at most."""
    found = await read_progress(desk.db, await find_job(desk.db, job))
    has_result, result = await read_result(desk.db, int(found.job_id), at_most=10_000)
    return JobResult(has_result, result, await read_outputs(desk.db, int(found.job_id), completed=found.completed))


@api.get("/jobs/{job}/tasks")
async def job_tasks(
    job: Job,
    desk: AtDesk,
    status: Status | None = None,
    entrypoint: Name | None = None,
    limit: Limit = 100,
    before: Id | None = None,
) -> Page[TaskRow]:
    """Tasks of a job, newest first."""
    wanted = TaskFilter(status, None, entrypoint, await find_job(desk.db, job))
    page = await list_tasks(desk.db, wanted, limit=limit, before=before or NEWEST)
    return Page(page.tasks, page.before)


@api.get("/jobs/{job}/nodes/{name}/progress")
async def node_progress(job: Job, name: Node, desk: AtDesk) -> NodeProgress:
    """The first 20,000 tasks of one name in a job: how many, how they ended, how long they waited and ran.

    And of the newest of them its status, attempt, progress and checkpoint.
    """
    number = await find_job(desk.db, job)
    found = await read_node_progress(desk.db, number, name)
    if found is None:
        raise UnknownTask(f"no task of job {number} is called {name!r}: /jobs/{number}/stats names them")
    return found


@api.get("/jobs/{job}/nodes/{name}/timeline")
async def node_timeline(job: Job, name: Node, desk: AtDesk, limit: Limit = 100) -> list[Event]:
    """What happened to the tasks of one name in a job, oldest first; of the first 20 such tasks."""
    return await read_events_of_name(desk.db, await find_job(desk.db, job), name, limit=limit)
