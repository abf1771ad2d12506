"""Figures: throughput, workflows, failures by their texts, what the loops do, alarms and events of the system."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import Path, Query

from ... import workflows as reads
from ...alarms import Alarm, read_alarms
from ...figures import (
    EntrypointFigures,
    QueueFigures,
    QueueSample,
    Throughput,
    read_entrypoint_figures,
    read_queue_figures,
    read_queue_history,
    read_throughput,
    step_of,
)
from ...orchestrator import Activity, LoopView, Orchestrator, read_activity, read_orchestrator
from ...system_events import AUDIT, SystemEvent, read_event_types, read_system_events
from ..answers import Api, Id, Limit, Name, Page, Words
from ..desk import AtDesk, Desk
from ..problems import Problem
from ..roles import Reader
from .queues import Queue

api = Api("figures")
Hours = Annotated[int, Query(ge=1, le=168)]
Days = Annotated[int, Query(ge=1, le=90)]
Types = Annotated[Words, Query(max_length=50, description="Only events of these types; several times, or with commas.")]
Workflow = Annotated[Name | None, Query(description="Only jobs of this name.")]


class LoopStats(msgspec.Struct, frozen=True):
    """What the loops have done since their processes started, summed and each."""

    is_running: bool
    started_at: datetime
    uptime_seconds: float
    cycles_completed: int
    last_cycle_at: datetime | None
    tasks_dispatched: int
    results_processed: int
    errors: int
    last_error: str | None
    last_error_at: datetime | None
    loops: list[LoopView]


class ThroughputView(Throughput, frozen=True, kw_only=True):
    """The same with the jobs that ended then; null for a time before the newest 20,000 jobs."""

    jobs_completed: int | None
    jobs_failed: int | None
    average_job_seconds: float | None


@api.get("/orchestrator/status")
async def orchestrator_status(desk: AtDesk) -> Orchestrator:
    """The background loops, summed and each; 503 when no process runs them."""
    return await _loops(desk)


@api.get("/orchestrator/stats")
async def orchestrator_stats(desk: AtDesk) -> LoopStats:
    """What the loops have done, summed and each; 503 when no process runs them."""
    found = await _loops(desk)
    return LoopStats(**{name: getattr(found, name) for name in LoopStats.__struct_fields__})


@api.get("/orchestrator/activity")
async def orchestrator_activity(desk: AtDesk) -> list[Activity]:
    """What each loop did last; 503 when no process runs them."""
    await _loops(desk)
    return await read_activity(desk.db)


@api.get("/orchestrator/memory")
async def orchestrator_memory(desk: AtDesk) -> reads.Memory:
    """The last hundred jobs that completed and that failed, and where failures come from."""
    return await reads.read_memory(desk.db)


@api.get("/metrics/workflows")
async def metrics_workflows(desk: AtDesk, days: Days = 7, workflow_id: Workflow = None) -> reads.Workflows:
    """Jobs by name: how many, how they ended, how long they took; `workflow_id` is the name of one."""
    return await reads.read_workflows(desk.db, days=days, name=workflow_id)


@api.get("/metrics/workflows/{name}/nodes")
async def metrics_workflow_nodes(name: Annotated[Name, Path()], desk: AtDesk, days: Days = 7) -> reads.WorkflowNodes:
    """The tasks of the jobs of a name, by their names."""
    return await reads.read_workflow_nodes(desk.db, name, days=days)


@api.get("/metrics/failures")
async def metrics_failures(
    desk: AtDesk, days: Days = 7, limit: Limit = 20, workflow_id: Workflow = None
) -> reads.Failures:
    """The commonest errors of the newest 3,000 failures, and by job name and task; `workflow_id` is a job's name."""
    return await reads.read_failure_texts(desk.db, days=days, limit=limit, name=workflow_id)


@api.get("/metrics/throughput")
async def metrics_throughput(desk: AtDesk, hours: Hours = 24) -> list[ThroughputView]:
    """What runs and jobs came to, by the minute, with how long runs waited and took on average; by the hour where more
    than six are asked for.
    """
    found = await read_throughput(desk.db, hours=hours)
    jobs = await reads.read_jobs_ended(desk.db, [one.start for one in found], step_of(hours))
    return [
        ThroughputView(
            **msgspec.structs.asdict(one),
            jobs_completed=ended.completed,
            jobs_failed=ended.failed,
            average_job_seconds=ended.average_seconds,
        )
        for one, ended in zip(found, jobs, strict=True)
    ]


@api.get("/metrics/queues")
async def metrics_queues(desk: AtDesk, minutes: Annotated[int, Query(ge=5, le=1440)] = 60) -> dict[str, QueueFigures]:
    """Rates, waits, runs and time to drain, by queue."""
    return await read_queue_figures(desk.db, minutes=minutes)


@api.get("/metrics/entrypoints")
async def metrics_entrypoints(desk: AtDesk, hours: Hours = 24, queue: Name | None = None) -> list[EntrypointFigures]:
    """What the runs of each entrypoint came to."""
    return await read_entrypoint_figures(desk.db, hours=hours, queue=queue)


@api.get("/queues/{name}/history")
async def queue_history(name: Queue, desk: AtDesk, hours: Hours = 24) -> list[QueueSample]:
    """A queue over time."""
    return await read_queue_history(desk.db, name, hours=hours)


@api.get("/alarms")
async def list_alarms(desk: AtDesk, limit: Limit = 100) -> list[Alarm]:
    """What is wrong now, the newest first."""
    return await read_alarms(desk.db, limit=limit)


@api.get("/events")
async def list_events(
    desk: AtDesk, who: Reader, types: Types = [], limit: Limit = 100, before: Id | None = None
) -> Page[SystemEvent]:
    """What happened to the system itself, and, for admins, who did what to it (type AUDIT)."""
    if not who.may("admin"):
        if AUDIT in types:
            raise Problem(403, f"{who.name} has the role {who.role}, and the audit is for admins: leave AUDIT out")
        types = types or [one for one in await read_event_types(desk.db) if one != AUDIT]
        if not types:
            return Page([])
    found = await read_system_events(desk.db, types=types, limit=limit, before=before)
    return Page(found, found[-1].id if len(found) >= limit else None)


async def _loops(desk: Desk) -> Orchestrator:
    found = await read_orchestrator(desk.db)
    if found is None or not found.is_running:
        raise Problem(
            503,
            "no process runs the background loops: start a worker, or `aaiclick-queue background`",
            kind="no-background",
            headers={"Retry-After": "10"},
        )
    return found
