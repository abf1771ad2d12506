"""Register: writes and changes registered jobs. After: the scheduler.

A row keeps its place in time as long as its schedule is the same: what was missed meanwhile is still the scheduler's.
What is due when somebody changes the schedule fires first, by the old one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from ..errors import JobExists, UnknownJob
from ..schedule_options import ScheduleOptions
from ..schema import Transaction
from .enqueue import TakeIds
from .firing import DUE_COLUMNS, Firing
from .schedule_rows import aware, naive

Source = Literal["api", "code", "edited"]

_GIVEN = """entrypoint, schedule, interval_seconds, timezone, anchor_at, starts_at, ends_at, default_kwargs, enabled,
    queue, priority, timeout_seconds, max_attempts, max_parallel, retention_seconds, misfire, misfire_limit, overlap,
    jitter_seconds, description, options, fire_at, next_run_at, source, declared_in, declared, is_gone"""
HOLD_NAMED = "SELECT id FROM aaiclick_queue.registered_jobs WHERE name = $1::text FOR UPDATE"
# A schedule's own clock is ahead of the database's by as much as a test has let time pass, and by nothing else.
READ_NAMED = f"""
SELECT {DUE_COLUMNS}, r.enabled, r.source, r.declared, r.declared_in, r.is_gone,
       coalesce(r.fire_at - r.next_run_at AT TIME ZONE 'UTC', (
           SELECT t.fire_at - t.due_at AT TIME ZONE 'UTC' FROM aaiclick_queue.ticks t
           WHERE t.registered_job_id = r.id AND t.run_type = 'SCHEDULED' AND t.due_at IS NOT NULL
           ORDER BY t.fire_at DESC LIMIT 1), '0 s') AS ahead
FROM aaiclick_queue.registered_jobs r WHERE r.id = $1
"""
NOW = "SELECT clock_timestamp() AS now"
# One code at a time: two versions of it would each hold a row that the other one drops.
DECLARE_ALONE = "SELECT pg_advisory_xact_lock(hashtext('aaiclick_queue.schedules'))"
INSERT = f"""
WITH made AS (
    INSERT INTO aaiclick_queue.registered_jobs (name, {_GIVEN})
    SELECT $1::text, {_GIVEN} FROM jsonb_populate_record(NULL::aaiclick_queue.registered_jobs, $2::text::jsonb)
    ON CONFLICT (name) DO NOTHING RETURNING id, name
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'SCHEDULE_REGISTERED', jsonb_build_object('name', name, 'by', $3::text) FROM made
)
SELECT id FROM made
"""
# What the JSON does not name stays as it is. A tick that waits for a run belongs to the schedule as it was.
UPDATE = f"""
WITH changed AS (
    UPDATE aaiclick_queue.registered_jobs r
    SET ({_GIVEN}, queued_fire_at, updated_at) = (
        SELECT {_GIVEN}, CASE WHEN enabled THEN r.queued_fire_at END, now()
        FROM jsonb_populate_record(r, $2::text::jsonb))
    WHERE r.id = $1 RETURNING r.id, r.name, r.enabled
), given_up AS (
    UPDATE aaiclick_queue.ticks t SET outcome = 'SKIPPED', reason = 'disabled before its turn'
    FROM changed WHERE t.registered_job_id = changed.id AND t.outcome = 'QUEUED' AND NOT changed.enabled
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT $3::text, jsonb_build_object('name', name, 'by', $4::text) FROM changed
)
SELECT id FROM changed
"""
DELETE_TICKS = """
DELETE FROM aaiclick_queue.ticks WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM aaiclick_queue.ticks WHERE registered_job_id = $1 LIMIT $2))
RETURNING 1
"""
DELETE = """
WITH gone AS (
    DELETE FROM aaiclick_queue.registered_jobs WHERE name = $1::text RETURNING id, name
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'SCHEDULE_DELETED', jsonb_build_object('name', name, 'by', $2::text) FROM gone
)
SELECT id FROM gone
"""
GONE_FROM_CODE = """
SELECT name FROM aaiclick_queue.registered_jobs
WHERE source = 'code' AND NOT is_gone AND declared_in = $1::text AND name <> ALL($2::text[])
"""
NO_NAME = "no job {name!r} is registered: `aaiclick-queue registered-job list` shows those that are"


class Registration(msgspec.Struct, frozen=True):
    """A registered job to be written."""

    name: str
    entrypoint: str
    given: ScheduleOptions
    options: dict[str, Any] = {}  # what else its runs take over: fail_fast, hooks, metadata

    def columns(self) -> dict[str, Any]:
        """Its columns as JSON has them, without those that depend on the moment."""
        given = self.given
        return {
            "entrypoint": self.entrypoint,
            "schedule": list(given.schedule),
            "interval_seconds": given.interval,
            "timezone": given.timezone,
            "starts_at": _text(given.starts_at),
            "ends_at": _text(given.ends_at),
            "default_kwargs": given.default_kwargs,
            "enabled": given.enabled,
            "queue": given.queue,
            "priority": given.priority,
            "timeout_seconds": given.timeout,
            "max_attempts": given.max_attempts,
            "max_parallel": given.max_parallel,
            "retention_seconds": given.retention,
            "misfire": given.misfire,
            "misfire_limit": given.misfire_limit,
            "overlap": given.overlap,
            "jitter_seconds": given.jitter,
            "description": given.description,
            "options": self.options or None,
        }


class Registrar:
    """Writes registered jobs in one transaction; `seconds` is the time of a job that names none."""

    def __init__(self, tx: Transaction, take: TakeIds, *, by: str, seconds: float) -> None:
        self._tx = tx
        self._take = take
        self._by = by
        self._seconds = seconds

    async def write(self, new: Registration, *, only_new: bool = False) -> None:
        """Insert it, or overwrite all of the one with its name."""
        row = await self._row(new.name)
        while row is None:
            columns = new.columns() | await self._moments(None, new.given) | {"source": "api", "is_gone": False}
            if await self._tx.fetch(INSERT, new.name, json.dumps(columns), self._by):
                return
            row = await self._row(new.name)
        if only_new:
            raise JobExists(f"a job {new.name!r} is registered already: upsert_registered_job changes it")
        await self._change(row, new.columns(), new.given, source="api" if row["source"] == "api" else "edited")

    async def turn(self, name: str, *, enabled: bool) -> bool:
        """Enable or disable it; whether that changed anything. From now on: what was not fired meanwhile is not."""
        row = await self._row(name)
        if row is None:
            raise UnknownJob(NO_NAME.format(name=name))
        if row["enabled"] == enabled:
            return False
        given = given_of(row, enabled=enabled)
        columns = {"enabled": enabled, "is_gone": False} | await self._moments(row, given)
        columns["source"] = "api" if row["source"] == "api" else "edited"
        await self._update(row, columns, "SCHEDULE_ENABLED" if enabled else "SCHEDULE_DISABLED")
        return True

    async def alone(self) -> None:
        """Until the end of the transaction nobody else declares."""
        await self._tx.fetch(DECLARE_ALONE)

    async def declare(self, new: Registration, declared_in: str) -> Literal["written", "same", "edited"]:
        """What the code says: it owns its row until somebody edits it."""
        row, declared = await self._row(new.name), new.columns()
        owned = {"source": "code", "declared": declared, "declared_in": declared_in, "is_gone": False}
        while row is None:
            columns = declared | await self._moments(None, new.given) | owned
            if await self._tx.fetch(INSERT, new.name, json.dumps(columns), self._by):
                return "written"
            row = await self._row(new.name)
        same = row["declared"] is not None and json.loads(row["declared"]) == declared
        if row["source"] != "code":
            if not same or row["declared_in"] != declared_in:
                kept = {"declared": declared, "declared_in": declared_in}
                await self._update(row, kept, "SCHEDULE_DECLARED")
            return "same" if same else "edited"
        if same and not row["is_gone"] and row["declared_in"] == declared_in:
            return "same"
        await self._change(row, declared | owned, new.given, source="code")
        return "written"

    async def give_back(self, name: str) -> bool:
        """As the code that declared it says, from now on; False for one that no code has declared."""
        row = await self._row(name)
        if row is None:
            raise UnknownJob(NO_NAME.format(name=name))
        if row["declared"] is None:
            return False
        declared = json.loads(row["declared"])
        given = given_of(_as_row(declared), enabled=declared["enabled"])
        await self._change(row, declared | {"is_gone": False}, given, source="code")
        return True

    async def drop_gone(self, declared_in: str, names: Sequence[str]) -> list[str]:
        """Disable what the same code declared before and does not any more."""
        rows = await self._tx.fetch(GONE_FROM_CODE, declared_in, list(names))
        dropped: list[str] = []
        for name in (one["name"] for one in rows):
            row = await self._row(name)
            if row is None or row["source"] != "code":
                continue  # somebody has edited it meanwhile
            columns = {"enabled": False, "is_gone": True, "fire_at": None, "next_run_at": None}
            await self._update(row, columns, "SCHEDULE_GONE")
            dropped.append(name)
        return dropped

    async def _row(self, name: str) -> Any:
        held = await self._tx.fetch(HOLD_NAMED, name)
        if not held:
            return None
        [row] = await self._tx.fetch(READ_NAMED, held[0]["id"])
        return row

    async def _change(self, row: Any, columns: dict[str, Any], given: ScheduleOptions, *, source: Source) -> None:
        moments: dict[str, Any] = {}
        if _timing(given) != _timing(given_of(row, enabled=row["enabled"])):
            if row["next_run_at"] is not None and row["next_run_at"] <= row["now"]:
                await Firing(self._tx, self._take, timeout=self._seconds).fire([row])
            moments = await self._moments(row, given)
        await self._update(row, columns | moments | {"source": source}, "SCHEDULE_CHANGED")

    async def _update(self, row: Any, columns: dict[str, Any], event: str) -> None:
        await self._tx.fetch(UPDATE, row["id"], json.dumps(columns), event, self._by)

    async def _moments(self, row: Any, given: ScheduleOptions) -> dict[str, Any]:
        """When it fires next, counted from now; an interval keeps its beat if it is the same."""
        clock = row or (await self._tx.fetch(NOW))[0]
        ahead = timedelta(0) if row is None else row["ahead"]
        now = clock["now"] + ahead
        keeps = row is not None and row["interval_seconds"] == given.interval and given.interval is not None
        anchor = given.starts_at or (aware(row["anchor_at"]) if keeps else now)
        next_fire = given.on_clock(anchor).after(now) if given.enabled and given.is_scheduled else None
        zoned = None if next_fire is None else (next_fire - ahead).isoformat()
        return {"anchor_at": _text(anchor), "fire_at": _text(next_fire), "next_run_at": zoned}


async def delete(tx: Transaction, name: str, *, by: str) -> int | None:
    """Forget a registered job; its id, None if there was none. Its runs stay, its ticks go with `delete_ticks`."""
    rows = await tx.fetch(DELETE, name, by)
    return rows[0]["id"] if rows else None


async def delete_ticks(tx: Transaction, registered_id: int, *, limit: int = 10_000) -> bool:
    """A page of the history of one that is gone; whether there may be more."""
    return len(await tx.fetch(DELETE_TICKS, registered_id, limit)) >= limit


def given_of(row: Any, *, enabled: bool) -> ScheduleOptions:
    """The timing that a row has."""
    return ScheduleOptions(
        schedule=tuple(row["schedule"]),
        interval=row["interval_seconds"],
        timezone=row["timezone"],
        enabled=enabled,
        starts_at=aware(row["starts_at"]),
        ends_at=aware(row["ends_at"]),
    )


def _as_row(declared: dict[str, Any]) -> dict[str, Any]:
    times = {name: declared[name] and datetime.fromisoformat(declared[name]) for name in ("starts_at", "ends_at")}
    return declared | times


def _timing(given: ScheduleOptions) -> tuple[Any, ...]:
    return given.schedule, given.interval, given.timezone, given.enabled, given.starts_at, given.ends_at


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else naive(moment).isoformat()
