"""Runs of the past, from Python: one for each tick of a range that has none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from .client import Client, default_client
from .errors import BadSchedule, UnknownJob
from .flow import backfill as pages
from .flow.firing import DUE_COLUMNS
from .flow.operation import make_operation
from .flow.register import NO_NAME
from .limits import whoami
from .operations import Operation, Progress, work_to_end
from .postgres import Database
from .spec import CHECKS

NAMED = f"SELECT {DUE_COLUMNS} FROM aaiclick_queue.registered_jobs r WHERE r.name = $1::text"
MOST_COUNTED = 10_000


async def backfill(  # noqa: PLR0913 - one value a fact
    name: str,
    start: datetime,
    end: datetime,
    *,
    max_running: int | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
) -> Operation:
    """A run for each tick from `start` on and before `end` that has none; not beyond now.

    Written down as an operation and worked to its end here, beside workers, which go on with it if this stops. At most
    `max_running` of its runs are open at once. Overlap and jitter of the schedule do not apply.
    """
    db = await (client or await default_client()).database()
    operation_id = await plan_backfill(db, name, start, end, max_running=max_running)
    return await work_to_end(db, operation_id, progress=progress)


async def plan_backfill(  # noqa: PLR0913 - one value a fact
    db: Database, name: str, start: datetime, end: datetime, *, max_running: int | None = None, by: str | None = None
) -> int:
    """Write the operation down that makes the runs; from now on it happens, whoever works on it."""
    row, start, end = await _range(db, name, start, end)
    if max_running is not None and (isinstance(max_running, bool) or not 1 <= max_running <= 1_000_000):
        raise BadSchedule(f"max_running={max_running!r}: give a whole number from 1 on")
    found = await pages.missing(db, row, start, end, limit=MOST_COUNTED)
    arguments = {"start": start.isoformat(), "end": end.isoformat(), "max_running": max_running}
    where = {"registered": str(row["id"]), "name": name}
    total = len(found) if len(found) < MOST_COUNTED else None
    return await make_operation(db, "backfill", where, arguments, by=by or whoami(), total=total)


async def missing_ticks(
    name: str, start: datetime, end: datetime, *, limit: int = 1000, client: Client | None = None
) -> list[datetime]:
    """The first ticks that a backfill of the range would run."""
    db = await (client or await default_client()).database()
    row, start, end = await _range(db, name, start, end)
    return await pages.missing(db, row, start, end, limit=limit)


async def _range(db: Database, name: str, start: datetime, end: datetime) -> tuple[Any, datetime, datetime]:
    start, end = (CHECKS["eta"](what, moment) for what, moment in (("start", start), ("end", end)))
    if end <= start:
        raise BadSchedule(f"the range ends at {end}, and that is not after its start, {start}")
    rows = await db.fetch(NAMED, name)
    if not rows:
        raise UnknownJob(NO_NAME.format(name=name))
    if not rows[0]["schedule"] and rows[0]["interval_seconds"] is None:
        raise BadSchedule(f"{name!r} has no schedule, so it has no ticks: start it with run_job")
    return rows[0], start, min(end, datetime.now(UTC))
