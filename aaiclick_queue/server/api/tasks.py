"""Tasks: find them, look into one."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Path, Query
from pydantic import Field

from ...durations import MOST
from ...errors import UnknownTask
from ...job_views import find_job
from ...searching import SEARCH_SECONDS
from ...status import Status
from ...timelines import Asked as Wanted
from ...timelines import Timeline, read_timeline
from ...views import TaskFilter, TaskRow, TaskView, list_tasks
from ...views import get_task as read_task
from ..answers import NEWEST, Api, Id, Limit, Name, Text
from ..desk import AtDesk, Desk
from .jobs import Types

api = Api("tasks")
Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
Search = Annotated[Text, Field(min_length=1, max_length=500)]
Task = Annotated[Id, Path(description="Its id.")]


class TasksFound(msgspec.Struct, frozen=True):
    """A page of tasks, newest first; the next one is asked for with `before`, null when there is none."""

    items: list[TaskRow]
    before: str | None
    searched: int | None = None  # tasks whose arguments were looked through; null where none were asked for


@api.get("/tasks", operation_id="list_tasks")
async def list_all_tasks(
    desk: AtDesk,
    status: Status | None = None,
    queue: Name | None = None,
    entrypoint: Annotated[Name | None, Query(description="With its module or without.")] = None,
    job_id: Annotated[Name | None, Query(description="Id or name of a job.")] = None,
    fingerprint: Annotated[Fingerprint | None, Query(description="Only those that failed alike.")] = None,
    search: Annotated[Search | None, Query(description="In arguments: text, key=value, or JSON.")] = None,
    key: Annotated[Name | None, Query(description="Their concurrency_key.")] = None,
    correlation_id: Name | None = None,
    priority: Annotated[int | None, Query(ge=-32768, le=32767)] = None,
    older_than: Annotated[float | None, Query(ge=0, le=MOST, description="Seconds since they were created.")] = None,
    limit: Limit = 50,
    before: Id | None = None,
) -> TasksFound:
    """Tasks, newest first; filters look at the newest 50,000, a search at up to 100,000, for a second at most.

    A search tells with `searched` how many it came through; `before` leads on, also where nothing was found so far.
    """
    number = None if job_id is None else await find_job(desk.db, job_id)
    page = await list_tasks(
        desk.db,
        TaskFilter(status, queue, entrypoint, number, fingerprint, search, key, correlation_id, priority, older_than),
        limit=limit,
        before=before or NEWEST,
        seconds=SEARCH_SECONDS,
    )
    return TasksFound(page.tasks, page.before, page.searched)


@api.get("/tasks/{task_id}")
async def get_task(task_id: Task, desk: AtDesk) -> TaskView:
    """One task with its attempts and its events, and its place in its job."""
    return await found_task(desk, task_id)


@api.get("/tasks/{task_id}/timeline")
async def task_timeline(
    task_id: Task,
    desk: AtDesk,
    event_types: Types = [],
    limit: Limit = 1000,
    after: Annotated[Name | None, Query(description="`more` of the page before.")] = None,
    newest: bool = False,
) -> Timeline:
    """What happened to a task, oldest first, or with `newest` from the end."""
    await found_task(desk, task_id)
    return await read_timeline(desk.db, "task", task_id, Wanted(tuple(event_types), limit, after, newest))


async def found_task(desk: Desk, task_id: int) -> TaskView:
    """The task; a problem when there is none."""
    found = await read_task(desk.db, task_id)
    if found is None:
        raise UnknownTask(f"no task {task_id}: it was pruned, or its transaction is not committed")
    return found
