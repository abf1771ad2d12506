"""The first page: is it healthy, does it keep up, what failed, what is next."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...failing import list_failures
from ...job_views import JobFilter, read_jobs
from ...queue_views import counted_ago, read_worker_totals
from ...registered import read_next_due
from ...status import JobStatus
from .jobs import progress_bar
from .keeping import kept
from .outbox import COUNT_LIMIT, OUTBOX
from .queues import SHOWN, QueueRow, queue_rows
from .trends import components, throughput
from .visiting import Visit, Visiting
from .waking import look_at_redis

router = APIRouter(include_in_schema=False)
JOBS = 8
SCHEDULES = 6


@router.get("/")
async def overview(at: Visiting) -> HTMLResponse:
    """Everything in one look."""
    hours = at.hours()
    charts = kept(at, ("throughput", hours), lambda: throughput(at.db, hours))
    rows = await queue_rows(at)
    rows, is_cut = rows[:SHOWN], len(rows) > SHOWN
    going = [one.view for one in rows if not one.view.paused_at]  # of a paused queue nothing could start
    workers = await read_worker_totals(at.db)
    [outbox] = await at.db.fetch(OUTBOX, COUNT_LIMIT + 1)
    jobs = [
        one
        for status in (JobStatus.RUNNING, JobStatus.PENDING)
        for one in (await read_jobs(at.db, JobFilter(status=status), limit=JOBS)).jobs
    ][:JOBS]
    return await at.show(
        "overview.html",
        section="overview",
        title="Overview",
        topics="queues,tasks,jobs,workers,failures,alarms",
        hours=hours,
        waiting=sum(one.ready for one in going),
        waiting_is_more=is_cut or any(one.ready_is_more for one in going),
        counted_ago=counted_ago(going),
        running=sum(one.view.running for one in rows),
        oldest=max((one.oldest_seconds or 0 for one in going), default=0),
        outbox=outbox["oldest"],
        workers=workers,
        queues=_by_need(rows)[:8],
        first_queues=SHOWN if is_cut else None,
        jobs=[(one, progress_bar(one)) for one in jobs],
        schedules=await read_next_due(at.db, limit=SCHEDULES),
        failures=(await list_failures(at.db, hours=24, limit=6, jobs=False)).groups,
        components=await _components(at, [one.view.name for one in rows]),
        **await charts,
    )


def _by_need(rows: list[QueueRow]) -> list[QueueRow]:
    return sorted(rows, key=lambda one: (not one.is_unserved, not one.is_late, -(one.view.oldest_seconds or 0)))


async def _components(at: Visit, queues: list[str]) -> list[dict[str, Any]]:
    """What everything stands on, each with a word on how it is."""
    began = time.monotonic()
    await at.db.fetchval("SELECT 1")
    took = (time.monotonic() - began) * 1000
    redis = await look_at_redis(at, queues)
    return [
        {"name": "Postgres", "is_well": True, "word": f"{took:.1f} ms"},
        {"name": "Redis", "is_well": redis.is_well, "word": redis.word},
        *await components(at.db),
    ]
