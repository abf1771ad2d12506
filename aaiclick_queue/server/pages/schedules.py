"""Pages of schedules: what runs by the clock, when next in the reader's zone, and what became of the last runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from ...errors import BadSchedule, QueueError
from ...registered import RegisteredJob, TickView, read_registered_job, read_registered_jobs, read_ticks
from ..drawing.charts import strip
from .crons import in_words
from .trouble import not_found
from .visiting import Visit, Visiting

router = APIRouter(include_in_schema=False)
STRIP = 20
SHOWN = 50  # a row takes a millisecond to draw
COLOURS = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled", "RUNNING": "running"}
LAST_TICKS = """
SELECT s.id, t.fire_at, t.outcome, t.reason, t.missed, t.job_id, j.status, j.started_at, j.finished_at
FROM unnest($1::bigint[]) AS s(id) CROSS JOIN LATERAL (
    SELECT fire_at, outcome, reason, missed, job_id FROM aaiclick_queue.ticks
    WHERE registered_job_id = s.id ORDER BY fire_at DESC LIMIT $2) AS t
LEFT JOIN aaiclick_queue.jobs j ON j.id = t.job_id
ORDER BY s.id, t.fire_at DESC
"""


def state_of(one: RegisteredJob) -> str:
    """One word on whether it runs by itself."""
    if one.is_gone:
        return "GONE"
    if not one.enabled:
        return "DISABLED"
    if not one.is_scheduled:
        return "–"
    return "ENABLED" if one.next_run_at is not None else "OVER"


def runs_of(one: RegisteredJob, count: int) -> list[Any]:
    """The next fires; none where this version cannot read the schedule."""
    try:
        return one.next_runs(count)
    except BadSchedule:
        return []


def strip_of(name: str, ticks: list[Any]) -> Markup | None:
    """The last runs as bars as high as they took long."""
    if not ticks:
        return None
    took = [_seconds(tick) for tick in ticks]
    longest = max((one for one in took if one), default=1.0) or 1.0
    bars = []
    for tick, seconds in zip(reversed(ticks), reversed(took), strict=True):
        kind = COLOURS.get(tick["status"] or "", "pending") if tick["outcome"] == "FIRED" else tick["outcome"].lower()
        word = (tick["status"] or tick["outcome"]).lower()
        bars.append((kind, (seconds or 0) / longest, f"{tick['fire_at']:%d %b %H:%M}: {word}"))
    good = sum(tick["status"] == "COMPLETED" for tick in ticks)
    return strip(bars, label=f"{name}: {good} of the last {len(ticks)} runs completed")


def _seconds(tick: Any) -> float | None:
    if tick["started_at"] is None or tick["finished_at"] is None:
        return None
    return float((tick["finished_at"] - tick["started_at"]).total_seconds())


async def schedule_rows(at: Visit, found: list[RegisteredJob]) -> list[dict[str, Any]]:
    """Schedules with their next fires and their last runs."""
    ticks: dict[int, list[Any]] = {}
    for row in await at.db.fetch(LAST_TICKS, [one.id for one in found], STRIP) if found else ():
        ticks.setdefault(row["id"], []).append(row)
    return [
        {
            "view": one,
            "state": state_of(one),
            "words": in_words(one.schedule) if one.schedule else "",
            "next": runs_of(one, 3) if one.enabled else [],
            "strip": strip_of(one.name, ticks.get(one.id, [])),
            "last": next(iter(ticks.get(one.id, [])), None),
        }
        for one in found
    ]


@router.get("/schedules")
async def schedules(at: Visiting) -> HTMLResponse:
    """Registered jobs, by name."""
    after = at.asked("after")
    found = await read_registered_jobs(at.db, after=after or None, limit=SHOWN + 1)
    return await at.show(
        "schedules.html",
        section="schedules",
        title="Schedules",
        topics="schedules,jobs",
        rows=await schedule_rows(at, found[:SHOWN]),
        is_first=not after,
        more=found[SHOWN - 1].name if len(found) > SHOWN else None,
    )


@router.get("/schedules/{name:path}")
async def schedule(at: Visiting, name: str) -> HTMLResponse:
    """One registered job with its fires and its history."""
    try:
        found = await read_registered_job(at.db, name)
    except QueueError as error:
        return await not_found(at, str(error), section="schedules")
    ticks: list[TickView] = await read_ticks(at.db, found.id, limit=50)
    return await at.show(
        "schedule.html",
        section="schedules",
        title=found.name,
        topics="schedules,jobs",
        row=(await schedule_rows(at, [found]))[0],
        fires=runs_of(found, 10),
        ticks=ticks,
    )
