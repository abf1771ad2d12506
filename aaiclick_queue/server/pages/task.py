"""Page of one task: where it is and why, its attempts with tracebacks, its log, arguments, result and events."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

from ...clickhouse import ClickHouseAway
from ...log_lines import LogLine
from ...redaction import masked_in
from ...task_logs import LogPage, list_log_attempts, read_last_logs
from ...timelines import Asked, last_line_of_unknown, read_timeline
from ...views import AttemptView, TaskView, find_task_ids, get_task
from .rendering import api, url
from .traces import Part, parts_of
from .trouble import not_found
from .visiting import Visit, Visiting
from .why import explained
from .words import packed

router = APIRouter(include_in_schema=False)
EVENTS = 200
LINES = 500
RETRIED = ("FAILED", "CANCELLED")
NOT_YET = "It has not run yet."
NO_NUMBER = "no task is called {}: the id of one is a number, or the last six digits of it or more"


class Step(msgspec.Struct, frozen=True):
    """One stretch of a task's way: what it did, from when, how long."""

    status: str
    word: str
    at: datetime
    seconds: float | None


class Log(msgspec.Struct, frozen=True):
    """The log of one attempt."""

    lines: list[LogLine]
    after: int
    attempt: int | None
    attempts: list[int]
    path: str
    is_live: bool
    none: str


class Tried(msgspec.Struct, frozen=True):
    """An attempt with its traceback cut into parts."""

    view: AttemptView
    parts: list[Part]
    seconds: float | None


@router.get("/tasks/{task_id}")
async def task(at: Visiting, task_id: str) -> HTMLResponse:
    """One task, by its id or the last digits of it."""
    is_number = task_id.isascii() and task_id.isdigit() and len(task_id) < 20
    ids = await find_task_ids(at.db, task_id) if is_number else []
    found = await get_task(at.db, ids[0]) if len(ids) == 1 else None
    if found is None:
        return await not_found(at, _missing(task_id, ids) if is_number else NO_NUMBER.format(task_id), section="tasks")
    timeline = await read_timeline(at.db, "task", int(found.id), Asked(limit=EVENTS, newest=True))
    attempts = [tried(one) for one in reversed(found.attempts)]
    return await at.show(
        "task.html",
        section="tasks",
        title=found.name or found.entrypoint,
        topics=f"task:{found.id},tasks",
        task=found,
        steps=steps_of(found),
        attempts=attempts,
        events=list(reversed(last_line_of_unknown(timeline.events))),
        why=await explained(at, int(found.id)),
        log=await log_of(at, found, at.number("attempt")),
        command=command_of(found),
        left_out=masked_in(found.kwargs),
        can_retry=found.status in RETRIED,
    )


def _missing(task_id: str, ids: Sequence[int]) -> str:
    if ids:
        return f"more than one task ends with {task_id}: give more digits"
    return f"there is no task {task_id}: it was pruned, or its transaction is not committed"


def tried(one: AttemptView) -> Tried:
    """What a page shows of an attempt."""
    trace = one.error.traceback if one.error else ""
    end = one.finished_at
    seconds = (end - one.started_at).total_seconds() if one.started_at and end else None
    return Tried(one, parts_of(trace) if trace else [], seconds)


def steps_of(task: TaskView) -> list[Step]:
    """The way of the task so far, the last eight steps of it."""
    steps: list[tuple[str, str, datetime]] = [("PENDING", "created", task.created_at)]
    for one in task.attempts:
        ready = one.ready_at or (task.ready_at if one is task.attempts[-1] else None)
        if ready and (not one.started_at or ready <= one.started_at):
            steps.append(("QUEUED", "in line", max(ready, steps[-1][2])))
        if one.started_at:
            steps.append(("RUNNING", f"attempt {one.attempt}", one.started_at))
        if one.finished_at and one.outcome != task.status:
            steps.append((one.outcome, one.outcome.lower(), one.finished_at))
    if task.finished_at and task.status:
        steps.append((task.status, task.status.replace("_", " ").lower(), task.finished_at))
    elif task.status == "QUEUED" and task.ready_at:
        steps.append(("QUEUED", "in line", task.ready_at))
    following = [*(step[2] for step in steps[1:]), None]
    found = [
        Step(status, word, moment, None if after is None else max(0.0, (after - moment).total_seconds()))
        for (status, word, moment), after in zip(steps, following, strict=True)
    ]
    return found if len(found) <= 8 else [found[0], *found[-7:]]


async def log_of(at: Visit, task: TaskView, attempt: int | None) -> Log:
    """The last lines of an attempt; of one that may still say something, with where to ask for more."""
    number, attempts, page = int(task.id), list[int](), LogPage([], 0, True, "none", attempt)
    # What has not run has no lines: a ClickHouse that is away would be waited for in vain.
    settings = at.desk.settings if task.attempts else at.desk.settings.model_copy(update={"clickhouse_url": None})
    none = "This attempt printed and logged nothing, or its log is not kept here." if task.attempts else NOT_YET
    try:
        attempts = [one.attempt for one in await asyncio.to_thread(list_log_attempts, settings, number)]
        page = await asyncio.to_thread(read_last_logs, settings, number, attempt=attempt, limit=LINES)
    except ClickHouseAway as error:
        none = f"Its log cannot be read now: {error}"
    is_live = not task.is_final and (attempt is None or attempt >= task.attempt)
    path = api("tasks/{}/logs", task.id) + (f"?attempt={attempt}" if attempt else "")
    return Log(page.lines, page.after, page.attempt, attempts, path, is_live, none)


def command_of(task: TaskView) -> str:
    """The command that enqueues the same again, but for the arguments that are not shown."""
    words: list[Any] = ["aaiclick-queue", "task", "enqueue", task.entrypoint, "--queue", task.queue]
    shown = task.kwargs
    if hidden := masked_in(shown):
        shown = {name: value for name, value in shown.items() if name not in hidden}
    if shown:
        words += ["--kwargs", packed(shown)]
    return shlex.join(str(word) for word in words)


@router.get("/search")
async def search(at: Visiting) -> RedirectResponse:
    """The task or job of an id, the job of a name, else tasks of that entrypoint."""
    return RedirectResponse(await _target(at), status_code=303)


async def _target(at: Visiting) -> str:
    from ...errors import QueueError
    from ...job_views import find_job
    from ...queue_views import list_queues

    text = at.asked("q").removeprefix("…")
    if text.isascii() and text.isdigit() and len(text) < 20 and len(ids := await find_task_ids(at.db, text)) == 1:
        return url("task", str(ids[0]))  # by its digits it would be looked for again
    try:
        if text:
            return url("job", await find_job(at.db, text))
    except QueueError:
        pass
    if text and await list_queues(at.db, name=text):
        return url("queue", text)
    return url("tasks", search=text) if "=" in text or "{" in text else url("tasks", entrypoint=text)
