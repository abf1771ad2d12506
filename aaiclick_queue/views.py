"""Reads for people: tasks. Each is bounded, whatever the backlog and the history have grown to.

Rows are frozen structs that encode to JSON as they are; ids are texts, because they exceed 2⁵³.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from .job_nodes import NodeView, read_node
from .lasting import Lasting
from .outcome import Error
from .postgres import Database
from .redaction import hidden_in, secrets_in, shown_json
from .searching import SEARCH_LIMIT, Search, look_through
from .status import Status
from .view_rows import (
    ATTEMPTS,
    BEYOND_ALIKE,
    BEYOND_FAILED,
    BEYOND_IN_JOB,
    BEYOND_SCAN,
    EVENTS,
    FIRST_OF_JOB,
    LISTED,
    LISTED_BY_WORDS,
    SEARCHED,
    SEARCHED_BY_WORDS,
    TASK,
    TASK_EXISTS,
    TASKS_BY_ID,
    TASKS_ENDING_IN,
    kind_of,
)

SCAN_LIMIT = 50_000  # tasks that one listing looks at, from the newest down: 60 ms where none is found
JOB_LIMIT = 100_000  # of one job, or ids alone
HISTORY_LIMIT = 1_000
NEWEST = 2**63 - 1
_APART = (Status.RUNNING, Status.SCHEDULED, Status.PENDING, Status.FAILED)  # they have a table of their own
UNKNOWN = "UNKNOWN"  # the outcome of a run in a worker that has no code for the task


class TaskRow(Lasting, frozen=True):
    """One task in a list."""

    id: str
    status: str | None
    name: str | None
    entrypoint: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    not_before: datetime | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    job_id: str | None = None
    ready_at: datetime | None = None
    read_at: datetime | None = None


class TaskPage(msgspec.Struct, frozen=True):
    """A page of tasks, newest first; `before` is where the next one starts, None when there is none.

    Of a search: `searched` is how many tasks were looked through, `is_cut` whether there are older ones beyond those.
    """

    tasks: list[TaskRow]
    before: str | None
    searched: int | None = None
    is_cut: bool = False


class AttemptView(msgspec.Struct, frozen=True):
    """One run of a task."""

    run_epoch: int
    attempt: int
    outcome: str
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: Error | None
    ready_at: datetime | None = None


class EventView(msgspec.Struct, frozen=True):
    """Something that happened to a task and left no other row."""

    created_at: datetime
    type: str
    run_epoch: int | None
    data: Any


class TaskView(Lasting, frozen=True):
    """Everything about one task."""

    id: str
    status: str | None
    name: str | None
    entrypoint: str
    queue: str
    priority: int
    kwargs: Any
    result: Any
    error: Error | None
    attempt: int
    max_attempts: int | None
    run_epoch: int | None
    lost_count: int | None
    snoozes: int | None
    timeout_seconds: float | None
    retry: Any
    correlation_id: str | None
    metadata: Any
    parent_id: str | None
    created_at: datetime
    eta: datetime | None
    expires_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    ready_at: datetime | None
    claimed_at: datetime | None
    deadline_at: datetime | None
    not_before: datetime | None
    reason: str | None
    dedupe_key: str | None
    concurrency_key: str | None
    order_by: str | None
    keep: str | None
    hooks: Any
    held_at: datetime | None
    stopping: bool
    progress: Any
    checkpoint: Any
    children: list[str]
    read_at: datetime
    attempts: list[AttemptView] = msgspec.field(default_factory=list)
    events: list[EventView] = msgspec.field(default_factory=list)
    job: NodeView | None = None


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks are wanted; an entrypoint may be given without its module."""

    status: Status | None = None
    queue: str | None = None
    entrypoint: str | None = None
    job_id: int | None = None
    fingerprint: str | None = None  # of failures that are alike
    search: str | None = None  # in arguments: text, key=value, or JSON that they contain
    key: str | None = None  # of their concurrency
    correlation_id: str | None = None
    priority: int | None = None
    older_than: float | None = None  # seconds since they were created

    @property
    def is_set(self) -> bool:
        """Whether any task is left out."""
        return any((self.status, self.queue, self.entrypoint, self.search, self.words))

    @property
    def words(self) -> list[str]:
        """The words that few ask for, as one parameter of the statements that know them; none where none is given."""
        names = ("key", "correlation_id", "priority", "older_than")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return [json.dumps(given)] if given else []

    @property
    def which(self) -> list[Any]:
        """What the source has to be told."""
        if self.fingerprint is not None:
            return [f"{self.fingerprint}/{self.job_id or ''}"]
        return [] if self.job_id is None else [self.job_id]

    @property
    def source(self) -> str:
        """Where such tasks are read from."""
        if self.fingerprint is not None:
            return "alike"
        if self.job_id is not None:
            return "job"
        return str(self.status) if self.status in _APART else "newest"


async def list_tasks(
    db: Database,
    wanted: TaskFilter | None = None,
    *,
    limit: int = 50,
    before: int = NEWEST,
    seconds: float | None = None,
) -> TaskPage:
    """Tasks older than `before`, newest first; looks at 50,000 of them at most, a search at 100,000.

    A search ends after `seconds` too, wherever it is; the page tells how far it came and where it goes on.
    """
    wanted = wanted or TaskFilter()
    if wanted.search is not None:
        return await _search(db, wanted, limit=limit, before=before, seconds=seconds)
    tasks = await newest_tasks(db, wanted, limit=limit, before=before)
    if len(tasks) >= limit:
        return TaskPage(tasks, tasks[-1].id)
    beyond = await _beyond(db, wanted, before, SCAN_LIMIT)
    return TaskPage(tasks, None if beyond is None else str(beyond + 1))


async def _search(db: Database, wanted: TaskFilter, *, limit: int, before: int, seconds: float | None) -> TaskPage:
    search, statements = Search.of(wanted.search or ""), SEARCHED_BY_WORDS if wanted.words else SEARCHED
    statement = statements[wanted.source, kind_of(wanted.status)]
    which = wanted.which[0] if wanted.which else None
    asked = [before, SEARCH_LIMIT, wanted.status, wanted.queue, wanted.entrypoint, limit, which, wanted.words]
    looked = await look_through(db, statement, search, asked, seconds=seconds)
    rows = await db.fetch(TASKS_BY_ID, NEWEST, 1, None, None, None, limit, looked.ids) if looked.ids else []
    tasks = [TaskRow(**dict(row)) for row in rows]
    goes_on = None if looked.before is None else str(looked.before)
    return TaskPage(tasks, goes_on, looked.searched, goes_on is not None)


async def newest_tasks(db: Database, wanted: TaskFilter, *, limit: int, before: int = NEWEST) -> list[TaskRow]:
    """One page alone, for those who do not turn it: where the next one would start is not looked for."""
    asked = [before, SCAN_LIMIT, wanted.status, wanted.queue, wanted.entrypoint, limit, *wanted.which]
    place = wanted.source, kind_of(wanted.status)
    if wanted.words:
        which = () if wanted.which else (None,)
        rows = await db.fetch(LISTED_BY_WORDS[place], *asked, *which, *wanted.words)
    else:
        rows = await db.fetch(LISTED[place], *asked)
    return [TaskRow(**dict(row)) for row in rows]


async def _beyond(db: Database, wanted: TaskFilter, before: int, looked: int) -> int | None:
    """The first task that was not looked at."""
    number: int | None = None
    if wanted.source == "alike":
        number = await db.fetchval(BEYOND_ALIKE, before, looked, *wanted.which)
    elif wanted.source == "job":
        number = await db.fetchval(BEYOND_IN_JOB, before, looked, wanted.job_id)
    elif wanted.source == "FAILED":
        number = await db.fetchval(BEYOND_FAILED, before, looked)
    elif wanted.is_set and wanted.source not in ("RUNNING", "SCHEDULED"):
        number = await db.fetchval(BEYOND_SCAN, before, looked)
    return number


async def tasks_of_job(
    db: Database, job_id: int, *, status: Status | None = None, limit: int = 1000, after: int = 0
) -> list[TaskRow]:
    """Tasks of a job in the order of their ids, those behind `after`; looks at 100,000 of them at most."""
    rows = await db.fetch(FIRST_OF_JOB[kind_of(status)], after, JOB_LIMIT, status, None, None, limit, job_id)
    return [TaskRow(**dict(row)) for row in rows]


async def get_task(db: Database, task_id: int) -> TaskView | None:
    """One task with its attempts, the last one included, and its events; None when there is none."""
    rows = await db.fetch(TASK, task_id)
    if not rows:
        return None
    values, names = dict(rows[0]), db.settings.redact_names
    secrets = secrets_in(values["kwargs"], names)
    for column in ("kwargs", "result", "retry", "hooks", "metadata", "progress", "checkpoint"):
        values[column] = shown_json(values[column], names)
    for column in ("result", "metadata", "progress", "checkpoint"):
        values[column] = hidden_in(values[column], secrets)
    values["error"] = _error(values["error"], secrets)
    view = TaskView(**values)
    attempts = [
        AttemptView(**dict(row) | {"error": _error(row["error"], secrets)})
        for row in await db.fetch(ATTEMPTS, task_id, HISTORY_LIMIT)
    ]
    attempts = [*reversed(attempts), *_last_attempt(view)]
    events = [
        EventView(**dict(row) | {"data": hidden_in(shown_json(row["data"], names), secrets)})
        for row in await db.fetch(EVENTS, task_id, HISTORY_LIMIT)
    ]
    node = await read_node(db, task_id, status=view.status)
    return msgspec.structs.replace(view, attempts=attempts, events=list(reversed(events)), job=node)


async def find_task_ids(db: Database, text: str) -> list[int]:
    """The task of that id, or the newer ones (two at most) whose ids end in these six digits or more."""
    number = int(text)
    if number > NEWEST:
        return []
    exact = await db.fetch(TASK_EXISTS, number)
    if exact or len(text) < 6 or len(text) > 18:
        return [row["id"] for row in exact]
    return [row["id"] for row in await db.fetch(TASKS_ENDING_IN, number, 10 ** len(text), JOB_LIMIT)]


def tried(tries: Sequence[AttemptView]) -> str:
    """How often a worker without its code had the task."""
    return "tried once" if len(tries) == 1 else f"tried {len(tries):,} times"


def handed_back(task: TaskView) -> int:
    """Runs that a worker gave back unfinished: they are claims that left no row. 0 where rows may be gone by age."""
    recent = datetime.now(task.created_at.tzinfo) - task.created_at < timedelta(days=1)
    if not recent or len(task.attempts) >= HISTORY_LIMIT:
        return 0
    return max(0, (task.run_epoch or 0) - len({attempt.run_epoch for attempt in task.attempts}))


def _last_attempt(task: TaskView) -> Sequence[AttemptView]:
    """The run that `attempts` does not have: the one that ended the task, or the one that is going on."""
    epoch = task.run_epoch or 0
    if task.claimed_at:
        return [AttemptView(epoch, task.attempt, "RUNNING", task.worker_id, task.claimed_at, None, None)]
    if task.finished_at and task.started_at and task.status:
        return [
            AttemptView(epoch, task.attempt, task.status, task.worker_id, task.started_at, task.finished_at, task.error)
        ]
    return []


def _error(text: str | None, secrets: Sequence[str]) -> Error | None:
    return None if text is None else Error.read(text).without(secrets)
