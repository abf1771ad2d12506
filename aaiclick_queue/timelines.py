"""Timelines: what happened to a job or a task and when, from event rows and from the rows that changes left.

Reading alone: `timeline_rows.py` finds the moments, `event_words.py` tells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec

from .errors import BadTask
from .event_words import TYPES, level_of, sentence
from .postgres import Database
from .redaction import shown_json
from .timeline_rows import (
    ATTEMPTS_OF_PAGE,
    COUNTED_MOMENTS,
    FIRST_MOMENTS,
    GROUPS_ABOVE,
    JOB_OF_TASK,
    LAST_MOMENTS,
    LAST_NOTED_OF_JOB,
    NAMES,
    OPENED_BY,
    TASKS_NAMED,
    TASKS_OF_JOB,
    TASKS_OF_PAGE,
    TASKS_WITH_RETRIES,
)

TASKS_LIMIT = 100_000  # tasks of a job that one look takes in
ATTEMPTS_LIMIT = 20_000
PAGE_LIMIT = 10_000
TASKS_ASKED = 3_000  # by somebody who waits for a page
WHOLE_LIMIT = 5_000  # tasks of a job that its last events are found among: 40 ms; of 100,000 it was 0.7 s
NAMED_LIMIT = 20
NAMES_SHOWN = 20
Of = Literal["job", "task"]


class Event(msgspec.Struct, frozen=True):
    """One thing that happened. `level` is SUCCESS, FAILURE, WARNING or INFO; `name` is that of the task."""

    at: datetime
    type: str
    level: str
    message: str
    job_id: str | None
    task_id: str | None
    name: str | None
    run_epoch: int | None
    data: dict[str, Any]


class Summary(msgspec.Struct, frozen=True):
    """The whole timeline in figures; `with_retries` names twenty tasks at most."""

    events: int
    counts: dict[str, int]
    first: datetime | None
    last: datetime | None
    with_retries: list[str]

    @property
    def duration(self) -> timedelta | None:
        """From the first event to the last."""
        return None if self.first is None or self.last is None else self.last - self.first


class Timeline(msgspec.Struct, frozen=True):
    """A page of events, oldest first. `more` is where the next page begins (or, from the end, the one before).

    `summary` is of the whole and comes with the first page. Of a job, tasks beyond the first 100,000, or as many as
    were asked for, are left out: what has an event of its own, so retries and acts, is told of those too.
    """

    events: list[Event]
    more: str | None
    summary: Summary | None
    tasks_left_out: int = 0


class Asked(msgspec.Struct, frozen=True):
    """Which part of a timeline is wanted: of these types, `limit` events behind the mark, or the last ones."""

    types: tuple[str, ...] = ()
    limit: int = 1000
    after: str | None = None
    newest: bool = False
    summed: bool = True  # whether the first page brings the summary, which goes through the whole
    tasks: int | None = None  # of a job that are looked at, the first ones; None: 100,000

    def __post_init__(self) -> None:
        if unknown := [kind for kind in self.types if kind not in TYPES]:
            raise BadTask(f"{unknown[0]!r} is no type of event: there are {', '.join(TYPES)}")
        if not 1 <= self.limit <= PAGE_LIMIT:
            raise BadTask(f"limit={self.limit!r}: give 1 to {PAGE_LIMIT:,} events")


class _Mark(NamedTuple):
    at: datetime
    rank: int
    task_id: int
    run_epoch: int

    def __str__(self) -> str:
        return f"{self.at.isoformat()}/{self.rank}/{self.task_id}/{self.run_epoch}"

    @classmethod
    def read(cls, text: str) -> _Mark:
        try:
            at, rank, task_id, run_epoch = text.split("/")
            return cls(datetime.fromisoformat(at), int(rank), int(task_id), int(run_epoch))
        except ValueError as error:
            raise BadTask(f"after={text!r} is no mark: give `more` of the page before") from error


async def read_timeline(db: Database, of: Of, number: int, asked: Asked) -> Timeline:
    """A page of the timeline of a job or a task."""
    looked = TASKS_LIMIT if asked.tasks is None else asked.tasks
    given = [number, looked, ATTEMPTS_LIMIT, list(asked.types) or None]
    mark = _Mark.read(asked.after) if asked.after else None
    statement = (LAST_MOMENTS if asked.newest else FIRST_MOMENTS)[of]
    rows = await db.fetch(statement, *given, *(mark or (None,) * 4), asked.limit)
    more = str(_Mark(*(rows[-1][name] for name in _Mark._fields))) if len(rows) >= asked.limit else None
    teller = _Teller(db, number if of == "job" else await db.fetchval(JOB_OF_TASK, number))
    await teller.load(rows)
    events = [teller.tell(row) for row in rows]
    summary = await _summary(db, of, number, given) if mark is None and asked.summed else None
    total = await db.fetchval(TASKS_OF_JOB, number) if of == "job" else 0
    left_out = max(0, (total or 0) - looked)
    return Timeline(events[::-1] if asked.newest else events, more, summary, left_out)


async def read_last_events(db: Database, job_id: int, *, total: int, limit: int) -> list[Event]:
    """The last things that happened to a job, newest first.

    Of one with more than 5,000 tasks: what has an event of its own, so the job's, failures, retries and acts.
    """
    if total <= WHOLE_LIMIT:
        page = await read_timeline(db, "job", job_id, Asked(limit=limit, newest=True, summed=False))
        return page.events[::-1]
    rows = await db.fetch(LAST_NOTED_OF_JOB, job_id, limit)
    teller = _Teller(db, job_id)
    await teller.load(rows)
    return [teller.tell(row) for row in rows]


async def read_events_of_name(db: Database, job_id: int, name: str, *, limit: int) -> list[Event]:
    """What happened to the first 20 tasks of that name in a job, oldest first."""
    found: list[Event] = []
    for row in await db.fetch(TASKS_NAMED, job_id, name, TASKS_LIMIT, NAMED_LIMIT):
        page = await read_timeline(db, "task", row["id"], Asked(limit=limit, summed=False))
        found += page.events
    return sorted(found, key=lambda event: event.at)[:limit]


async def _summary(db: Database, of: Of, number: int, given: Sequence[Any]) -> Summary:
    # One that has ended without a moment, as only another client writes it, has none to be counted by.
    rows = [row for row in await db.fetch(COUNTED_MOMENTS[of], *given) if row["first"] is not None]
    counts = {row["kind"]: row["n"] for row in sorted(rows, key=lambda row: (row["first"], row["kind"]))}
    retried = await db.fetch(TASKS_WITH_RETRIES[of], number, NAMES_SHOWN)
    return Summary(
        sum(counts.values()),
        counts,
        min((row["first"] for row in rows), default=None),
        max((row["last"] for row in rows), default=None),
        [row["name"] for row in retried],
    )


class _Teller:
    """Reads what the events of one page are about, and tells them."""

    def __init__(self, db: Database, job_id: int | None) -> None:
        self._db = db
        self._job_id = job_id
        self._tasks: dict[int, Any] = {}
        self._attempts: dict[tuple[int, int], Any] = {}
        self._names: dict[int, str] = {}
        self._opened: dict[int, tuple[list[int], int]] = {}  # task → some of what it waited for, and how many

    async def load(self, rows: Sequence[Any]) -> None:
        """Whatever the page names."""
        ids = sorted({row["task_id"] for row in rows} - {0})
        self._tasks = {row["id"]: row for row in await self._db.fetch(TASKS_OF_PAGE, ids)} if ids else {}
        earlier = {(row["task_id"], row["run_epoch"]) for row in rows if self._is_earlier(row)}
        if earlier:
            found = await self._db.fetch(ATTEMPTS_OF_PAGE, *map(list, zip(*sorted(earlier), strict=True)))
            self._attempts = {(row["task_id"], row["run_epoch"]): row for row in found}
        ready = {row["task_id"] for row in rows if row["kind"] == "TASK_READY"} & self._tasks.keys()
        if self._job_id is not None and ready:
            await self._load_openers([self._tasks[task_id] for task_id in ready])

    def _is_earlier(self, row: Any) -> bool:
        task = self._tasks.get(row["task_id"])
        return task is not None and row["run_epoch"] > 0 and row["run_epoch"] != task["run_epoch"]

    async def _load_openers(self, tasks: Sequence[Any]) -> None:
        at_gates = [task for task in tasks if task["wait_gate"] is not None]
        groups = {task["group_id"] for task in at_gates if task["group_id"] is not None}
        above: dict[int, list[int]] = {}
        for row in await self._db.fetch(GROUPS_ABOVE, list(groups)) if groups else []:
            above.setdefault(row["start"], []).append(row["id"])
        waited = {task["id"]: [task["id"], *above.get(task["group_id"], ())] for task in at_gates}
        wanted = list({number for numbers in waited.values() for number in numbers})
        rows = await self._db.fetch(OPENED_BY, self._job_id, wanted) if wanted else []
        openers = {row["next_id"]: row for row in rows}
        for task_id, numbers in waited.items():
            its = [openers[number] for number in numbers if number in openers]
            first = [number for row in its for number in row["first"]][:5]
            self._opened[task_id] = first, sum(row["n"] for row in its)
        parents = {task["parent_id"] for task in tasks if task["parent_id"] is not None}
        named = parents | {number for first, _ in self._opened.values() for number in first}
        rows = await self._db.fetch(NAMES, list(named)) if named else []
        self._names = {row["id"]: row["name"] for row in rows}

    def tell(self, row: Any) -> Event:
        """One event."""
        kind, task = row["kind"], self._tasks.get(row["task_id"])
        data = dict(shown_json(row["data"], self._db.settings.redact_names) or {}) | self._data(row, task)
        return Event(
            at=row["at"],
            type=kind,
            level=level_of(kind),
            message=sentence(kind, data),
            job_id=None if self._job_id is None else str(self._job_id),
            task_id=str(row["task_id"]) if row["task_id"] else None,
            name=None if task is None else task["name"] or task["entrypoint"],
            run_epoch=row["run_epoch"] or None,
            data=data,
        )

    def _data(self, row: Any, task: Any) -> dict[str, Any]:
        """What the rows say of it; what an event row says itself is there already."""
        if task is None:
            return {}
        run = self._attempts.get((row["task_id"], row["run_epoch"]), task)
        found: dict[str, Any] = {}
        match row["kind"]:
            case "TASK_READY":
                found = self._ready(task)
            case "TASK_QUEUED":
                found = {"queue": task["queue"]}
            case "TASK_RUNNING":
                found = {"attempt": run["attempt"], "worker_id": run["worker_id"] and str(run["worker_id"])}
            case "TASK_COMPLETED":
                found = {"attempt": run["attempt"], "duration": _seconds(run)}
            case "TASK_FAILED":
                error = f"{run['error_type']}: {run['error_message'] or ''}".rstrip(": ") if run["error_type"] else None
                will_retry = run is not task and run["outcome"] == "RETRYING"
                found = {"attempt": run["attempt"], "error": error, "duration": _seconds(run), "will_retry": will_retry}
        return {name: value for name, value in found.items() if value is not None}

    def _ready(self, task: Any) -> dict[str, Any]:
        first, count = self._opened.get(task["id"], ([], 0))
        names = [self._names[number] for number in first if number in self._names]
        if self._job_id is None:
            return {}
        return {"previous": names, "previous_count": count, "added_by": self._names.get(task["parent_id"])}


def _seconds(run: Mapping[str, Any]) -> float | None:
    if run["started_at"] is None or run["finished_at"] is None:
        return None
    return float((run["finished_at"] - run["started_at"]).total_seconds())


def last_line_of_unknown(events: Iterable[Event]) -> list[Event]:
    """Tries in workers that have no code for a task, one behind the other, as one event that counts them."""
    told: list[Event] = []
    tries = 0
    for event in events:
        same = bool(told) and event.type == told[-1].type == "TASK_UNKNOWN" and event.task_id == told[-1].task_id
        tries = tries + 1 if same else 1
        if same:
            told.pop()
        if event.type == "TASK_UNKNOWN":
            times = "once" if tries == 1 else f"{tries:,} times"
            event = msgspec.structs.replace(event, message=f"tried {times}, unknown entrypoint")  # noqa: PLW2901
        told.append(event)
    return told
