"""Registered jobs: the catalogue of what runs by the clock, or by its name. From Python; the CLI uses the same.

A registered job is a `@job` or a `@task` by its entrypoint, with arguments, a schedule and what becomes of late and
overlapping ticks. Workers run the scheduler; a change is seen by all of them within a second.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import msgspec

from .client import Client, default_client
from .errors import BadSchedule, UnknownJob
from .fires import Schedule
from .flow import register
from .flow.enqueue import id_source
from .flow.kick import kick_scheduler
from .flow.register import NO_NAME, Registrar, Registration
from .flow.schedule_rows import aware, naive
from .jobs import Job
from .limits import whoami
from .postgres import Database
from .redaction import masked_in, masked_text, shown_json
from .schedule_options import ScheduleOptions
from .sealing import sealed_by_name
from .tasks import Task

T = TypeVar("T")
DAY = 86400.0
NAME_LIMIT = 200

_REGISTERED = """
SELECT r.id, r.name, r.entrypoint, r.default_kwargs, r.schedule, r.interval_seconds, r.anchor_at, r.timezone, r.enabled,
       r.queue, r.priority, r.timeout_seconds, r.max_attempts, r.max_parallel, r.retention_seconds, r.misfire,
       r.misfire_limit, r.overlap, r.jitter_seconds, r.starts_at, r.ends_at, r.description, r.source, r.is_gone,
       r.next_run_at, r.created_at, r.updated_at, r.options, r.declared IS NOT NULL AS is_declared
FROM aaiclick_queue.registered_jobs r
"""
REGISTERED = f"""{_REGISTERED}
WHERE ($1::text IS NULL OR r.name = $1::text) AND (NOT $2::boolean OR r.enabled)
  AND ($3::text IS NULL OR r.name > $3::text) ORDER BY r.name LIMIT $4
"""
NEXT_DUE = f"""{_REGISTERED}
WHERE r.next_run_at IS NOT NULL AND r.enabled ORDER BY r.next_run_at, r.id LIMIT $1
"""
HISTORY = """
SELECT t.fire_at, t.outcome, t.run_type, t.missed, t.reason, t.created_at, t.job_id, j.status, j.started_at,
       j.finished_at, extract(epoch FROM t.created_at - t.due_at)::float8 AS late
FROM aaiclick_queue.ticks t LEFT JOIN aaiclick_queue.jobs j ON j.id = t.job_id
WHERE t.registered_job_id = $1 AND ($2::timestamp IS NULL OR t.fire_at < $2::timestamp)
ORDER BY t.fire_at DESC LIMIT $3
"""


_SAME = (
    *("id", "name", "entrypoint", "timezone", "enabled", "queue", "priority", "max_attempts", "max_parallel"),
    *("misfire", "misfire_limit", "overlap", "description", "source", "is_declared", "is_gone"),
    *("next_run_at", "created_at", "updated_at"),
)


class RegisteredJob(msgspec.Struct, frozen=True, kw_only=True):
    """One registered job; `next_run_at` is None for one that is disabled, has no schedule, or is over."""

    id: int
    name: str
    entrypoint: str
    default_kwargs: dict[str, Any]
    schedule: list[str]
    interval: float | None
    timezone: str
    enabled: bool
    queue: str | None
    priority: int | None
    timeout: float | None
    max_attempts: int | None
    max_parallel: int | None
    retention: float | None  # days
    misfire: str
    misfire_limit: int
    overlap: str
    jitter: float
    starts_at: datetime | None
    ends_at: datetime | None
    description: str | None
    source: str  # api, code, or edited: declared in code and changed since
    is_declared: bool  # some code has declared it
    is_gone: bool  # the code that declared it does not any more
    next_run_at: datetime | None
    created_at: datetime
    updated_at: datetime
    anchor_at: datetime

    @property
    def is_scheduled(self) -> bool:
        """Whether it runs by itself when it is enabled."""
        return bool(self.schedule) or self.interval is not None

    def next_runs(self, count: int = 3, *, after: datetime | None = None) -> list[datetime]:
        """Its next fires, in UTC, as if it were enabled."""
        if not self.is_scheduled:
            return []
        return list(islice(_fires(self._schedule(), after or datetime.now(UTC)), count))

    def _schedule(self) -> Schedule:
        given = ScheduleOptions(
            schedule=tuple(self.schedule),
            interval=self.interval,
            timezone=self.timezone,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )
        return given.on_clock(self.anchor_at)


class TickView(msgspec.Struct, frozen=True, kw_only=True):
    """One tick of the past: what became of it, the job it made and how that ended."""

    fire_at: datetime
    outcome: str  # FIRED, QUEUED, SKIPPED or MISSED
    run_type: str
    missed: int  # how many others it stands for
    reason: str | None
    late: float | None  # seconds from its moment to its job
    job_id: str | None
    status: str | None  # of the job; None when that was pruned
    started_at: datetime | None
    finished_at: datetime | None


async def register_job(
    name: str,
    entrypoint: str | Job[Any, Any] | Task[Any, Any],
    *,
    client: Client | None = None,
    by: str | None = None,
    **options: Any,
) -> RegisteredJob:
    """Write a new registered job; one of that name is refused with JobExists. `by` is noted as who did it."""
    new = registration(name, entrypoint, options)
    if isinstance(entrypoint, str):
        new = await _sealed(client, new)
    return await _changed(client, name, lambda registrar: registrar.write(new, only_new=True), by=by)


async def upsert_registered_job(
    name: str,
    entrypoint: str | Job[Any, Any] | Task[Any, Any],
    *,
    client: Client | None = None,
    by: str | None = None,
    **options: Any,
) -> RegisteredJob:
    """Write a registered job, or overwrite all of the one with that name."""
    new = registration(name, entrypoint, options)
    if isinstance(entrypoint, str):
        new = await _sealed(client, new)
    return await _changed(client, name, lambda registrar: registrar.write(new), by=by)


async def enable_job(name: str, *, client: Client | None = None, by: str | None = None) -> RegisteredJob:
    """Let it run by its schedule again, from now on."""
    return await _changed(client, name, lambda registrar: registrar.turn(name, enabled=True), by=by)


async def disable_job(name: str, *, client: Client | None = None, by: str | None = None) -> RegisteredJob:
    """Let it not run by its schedule; what runs goes on, and run_job works."""
    return await _changed(client, name, lambda registrar: registrar.turn(name, enabled=False), by=by)


async def reset_registered_job(name: str, *, client: Client | None = None, by: str | None = None) -> RegisteredJob:
    """Give a schedule that was edited back to the code that declared it."""

    async def give_back(registrar: Registrar) -> None:
        if not await registrar.give_back(name):
            raise BadSchedule(f"no code has declared {name!r}: change it with upsert_registered_job")

    return await _changed(client, name, give_back, by=by)


async def get_registered_job(name: str, *, client: Client | None = None) -> RegisteredJob:
    """The registered job of that name; UnknownJob where there is none."""
    return await read_registered_job(await (client or await default_client()).database(), name)


async def read_registered_job(db: Database, name: str) -> RegisteredJob:
    """The same from a database."""
    rows = await db.fetch(REGISTERED, name, False, None, 1)
    if not rows:
        raise UnknownJob(NO_NAME.format(name=name))
    return _view(rows[0], db.settings.redact_names)


async def list_registered_jobs(*, enabled_only: bool = False, client: Client | None = None) -> list[RegisteredJob]:
    """All registered jobs, by name."""
    return await read_registered_jobs(await (client or await default_client()).database(), enabled_only=enabled_only)


async def read_registered_jobs(
    db: Database, *, enabled_only: bool = False, after: str | None = None, limit: int | None = None
) -> list[RegisteredJob]:
    """The same from a database; those behind a name, so many at most."""
    rows = await db.fetch(REGISTERED, None, enabled_only, after, limit)
    return [_view(row, db.settings.redact_names) for row in rows]


async def read_next_due(db: Database, *, limit: int) -> list[RegisteredJob]:
    """Those that run next by the clock, the first one first."""
    return [_view(row, db.settings.redact_names) for row in await db.fetch(NEXT_DUE, limit)]


async def delete_registered_job(name: str, *, client: Client | None = None, by: str | None = None) -> bool:
    """Forget a registered job and its history; its runs stay. False when there was none."""
    db = await (client or await default_client()).database()
    registered_id = await register.delete(db, name, by=by or whoami())
    while registered_id is not None and await register.delete_ticks(db, registered_id):
        pass
    return registered_id is not None


async def tick_history(
    name: str, *, limit: int = 100, before: datetime | None = None, client: Client | None = None
) -> list[TickView]:
    """Its last ticks, the newest first."""
    db = await (client or await default_client()).database()
    return await read_ticks(db, (await read_registered_job(db, name)).id, limit=limit, before=before)


async def read_ticks(
    db: Database, registered_id: int, *, limit: int = 100, before: datetime | None = None
) -> list[TickView]:
    """The same from a database."""
    rows = await db.fetch(HISTORY, registered_id, naive(before), limit)
    return [
        TickView(
            fire_at=aware(row["fire_at"]),
            job_id=None if row["job_id"] is None else str(row["job_id"]),
            **{
                name: row[name]
                for name in ("outcome", "run_type", "missed", "reason", "late", "status", "started_at", "finished_at")
            },
        )
        for row in rows
    ]


def next_runs(  # noqa: PLR0913 - the parts of a schedule
    schedule: str | list[str] | None = None,
    *,
    interval: Any = None,
    timezone: str = "UTC",
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    count: int = 3,
    after: datetime | None = None,
) -> list[datetime]:
    """When a schedule would fire, in UTC, without registering it."""
    options = {
        "schedule": schedule,
        "interval": interval,
        "timezone": timezone,
        "starts_at": starts_at,
        "ends_at": ends_at,
    }
    given, now = ScheduleOptions.given(options), after or datetime.now(UTC)
    return list(islice(_fires(given.on_clock(now), now), count))


def registration(
    name: str, entrypoint: str | Job[Any, Any] | Task[Any, Any], options: Mapping[str, Any]
) -> Registration:
    """A registered job as it was asked for, checked."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LIMIT or "\x00" in name:
        raise BadSchedule(f"name={name!r}: give a text of 1 to {NAME_LIMIT} characters")
    given, more = ScheduleOptions.given(options), dict[str, Any]()
    if names := masked_in(given.default_kwargs):
        raise BadSchedule(f"default_kwargs: {masked_text(names)}")
    if isinstance(entrypoint, Job | Task):
        given.refuse_unknown(entrypoint.entrypoint, entrypoint.signature.parameters, name=name)
        given, more = inherited(entrypoint, given)
        entrypoint = entrypoint.entrypoint
    if not isinstance(entrypoint, str) or "." not in entrypoint.strip("."):
        raise BadSchedule(f"entrypoint={entrypoint!r}: give a job, a task, or the entrypoint of one as module.function")
    return Registration(name, entrypoint, given, more)


def inherited(
    function: Job[Any, Any] | Task[Any, Any], given: ScheduleOptions
) -> tuple[ScheduleOptions, dict[str, Any]]:
    """What the function's own options say where nothing is given: the scheduler does not import it."""
    defaults, more = function.defaults, dict[str, Any]()
    found: dict[str, Any] = {"queue": defaults.queue, "priority": defaults.priority}
    if isinstance(function, Job):
        own = function.defaults
        found |= {"timeout": own.timeout, "max_parallel": own.max_parallel, "retention": own.retention}
        hooks = own.hooks()
        more = {"fail_fast": own.fail_fast, "metadata": own.metadata, "hooks": hooks and json.loads(hooks)}
    given = msgspec.structs.replace(given, default_kwargs=function.signature.sealed(given.default_kwargs))
    unset = {name: value for name, value in found.items() if getattr(given, name) is None}
    return msgspec.structs.replace(given, **unset), {name: value for name, value in more.items() if value}


async def _sealed(client: Client | None, new: Registration) -> Registration:
    db = await (client or await default_client()).database()
    kwargs = await sealed_by_name(db, new.entrypoint, new.given.default_kwargs)
    return msgspec.structs.replace(new, given=msgspec.structs.replace(new.given, default_kwargs=kwargs))


async def _changed(
    client: Client | None, name: str, change: Callable[[Registrar], Awaitable[Any]], *, by: str | None
) -> RegisteredJob:
    client = client or await default_client()
    db = await client.database()
    async with db.transaction() as tx:
        take = (await id_source(tx)).take
        await change(Registrar(tx, take, by=by or whoami(), seconds=client.settings.job_timeout_seconds))
    kick_scheduler()
    return await get_registered_job(name, client=client)


def _fires(schedule: Schedule, moment: datetime) -> Any:
    while (fire := schedule.after(moment)) is not None:
        yield fire
        moment = fire


def _view(row: Any, names: str | None) -> RegisteredJob:
    return RegisteredJob(
        default_kwargs=shown_json(row["default_kwargs"], names),
        schedule=list(row["schedule"]),
        interval=row["interval_seconds"],
        timeout=row["timeout_seconds"],
        jitter=row["jitter_seconds"],
        retention=None if row["retention_seconds"] is None else row["retention_seconds"] / DAY,
        starts_at=aware(row["starts_at"]),
        ends_at=aware(row["ends_at"]),
        anchor_at=aware(row["anchor_at"]),
        **{name: row[name] for name in _SAME},
    )
