"""Pages of jobs: the list with how far each is; and one job as graph, timeline and table of one selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from ...errors import QueueError
from ...job_figures import JobProgress, read_progress, read_stats
from ...job_graphs import LOOK_ASKED, GraphNode, JobGraph, read_graph
from ...job_views import NEWEST, JobFilter, JobRow, JobView, read_job, read_jobs
from ...status import JobStatus
from ...timelines import WHOLE_LIMIT, read_last_events
from ...views import TaskRow, get_task, tasks_of_job
from ..drawing.charts import state_bar
from ..drawing.gantt import Lane, Segment, busy_share, critical_path, draw_gantt
from ..drawing.graphs import draw_graph
from ..drawing.thinning import thinned
from .medians import read_medians
from .rendering import url
from .task import steps_of
from .trouble import not_found
from .visiting import Visit, Visiting
from .why import explained
from .words import kept

router = APIRouter(include_in_schema=False)
ROWS = 50
TRIGGERS = {"MANUAL": "manual", "SCHEDULED": "schedule", "API": "api", "BACKFILL": "backfill"}
OPEN, ENDED_BADLY = ("PENDING", "RUNNING"), ("FAILED", "CANCELLED")
# An act on many jobs: path, what it is called, what is said when it has begun, whether it destroys; and to which jobs.
ACTS = (
    (("retry", "Retry from failure", "Retry begun", False), ENDED_BADLY),
    (("pause", "Pause", "Pause begun", False), OPEN),
    (("resume", "Resume", "Resume begun", False), OPEN),
    (("cancel", "Cancel", "Cancel begun", True), OPEN),
)
# A page of 200 rows and as many lanes took 55 ms to draw, of 100 half of that.
LANES = 100
TASKS_SHOWN = 100
EVENTS = 15
STATS_LOOKED = 5_000  # tasks, a quarter of a millisecond a hundred
ATTEMPTS_OF_TASKS = """
SELECT task_id, outcome, attempt, ready_at, started_at, finished_at FROM aaiclick_queue.attempts
WHERE task_id = ANY($1::bigint[]) ORDER BY task_id, run_epoch LIMIT 2000
"""


def progress_bar(job: JobRow | JobProgress) -> Markup:
    """How far a job is."""
    counts = [
        ("completed", job.completed),
        ("skipped", job.skipped),
        ("failed", job.failed),
        ("pending", job.remaining),
    ]
    label = f"{job.total - job.remaining:,} of {job.total:,} tasks ended"
    return state_bar(counts, label=label)


@router.get("/jobs")
async def jobs(at: Visiting) -> HTMLResponse:
    """Jobs, newest first."""
    asked = {name: at.asked(name) for name in ("status", "like", "run_type")}
    asked["status"] = asked["status"] if asked["status"] in JobStatus.__members__ else ""
    where = kept(asked)
    wanted = msgspec.convert(where, JobFilter, strict=False)
    before = at.number("before") or NEWEST
    page = await read_jobs(at.db, wanted, limit=ROWS, before=before)
    return await at.show(
        "jobs.html",
        section="jobs",
        title="Jobs",
        topics="jobs",
        asked=asked,
        where=where,
        acts=[one for one, statuses in ACTS if not asked["status"] or asked["status"] in statuses],
        triggers=TRIGGERS,
        rows=[(one, progress_bar(one)) for one in page.jobs],
        medians=await read_medians(at.db, {one.name for one in page.jobs}),
        before=page.before,
        is_first=before == NEWEST,
        tabs=[status.value for status in JobStatus],
    )


class Drawn(msgspec.Struct, frozen=True):
    """The pictures of a job and what they leave out."""

    graph: Markup | None
    gantt: Markup | None
    note: str
    path: list[str]
    share: float


@router.get("/jobs/{job:path}")
async def job(at: Visiting, job: str) -> HTMLResponse:
    """One job, by its id, its name (the newest) or the last digits of its id."""
    try:
        found = await read_job(at.db, job)
        progress = await read_progress(at.db, int(found.id))
    except QueueError as error:
        return await not_found(at, str(error), section="jobs")
    number = int(found.id)
    after = at.number("after") or 0
    rows = await tasks_of_job(at.db, number, limit=TASKS_SHOWN + 1, after=after)
    graph = await read_graph(at.db, number, total=found.total, any_failed=found.failed > 0, looked=LOOK_ASKED)
    stats = await read_stats(at.db, number, limit=STATS_LOOKED)
    drawn = await draw(at, found, graph, rows[:LANES])
    return await at.show(
        "job.html",
        section="jobs",
        title=found.name,
        topics=f"job:{found.id},jobs",
        job=found,
        progress=progress,
        bar=progress_bar(progress),
        drawn=drawn,
        rows=rows[:TASKS_SHOWN],
        more=rows[TASKS_SHOWN - 1].id if len(rows) > TASKS_SHOWN else None,
        failed=graph.failed,
        events=await read_last_events(at.db, number, total=found.total, limit=EVENTS),
        is_noted_only=found.total > WHOLE_LIMIT,
        stats=stats,
        picked=await brief_of(at, found.id),
        is_open=found.status in OPEN,
        median=(await read_medians(at.db, {found.name})).get(found.name),
        trigger=TRIGGERS.get(found.run_type, found.run_type.lower()),
    )


async def brief_of(at: Visit, job_id: str) -> dict[str, Any] | None:
    """What the panel beside the graph tells: the task of this job that the address names."""
    number = at.number("task")
    task = await get_task(at.db, number) if number else None
    if task is None or task.job is None or task.job.job_id != job_id:
        return None
    return {"task": task, "steps": steps_of(task), "why": await explained(at, int(task.id))}


async def draw(at: Visit, job: JobView, graph: JobGraph, rows: Sequence[TaskRow]) -> Drawn:
    """The graph and the timeline, with the critical path on both."""
    thin = thinned(graph.nodes, graph.edges)
    now = job.read_at
    ends = {node.id: node.finished_at or now for node in thin.nodes if node.started_at}
    starts = {node.id: node.started_at for node in thin.nodes if node.started_at}
    path = critical_path(ends, thin.edges, starts=starts)
    names = {node.id: node.name for node in thin.nodes}
    again = [int(row.id) for row in rows if row.attempt > 1]
    tried: dict[str, list[Any]] = {}
    for one in await at.db.fetch(ATTEMPTS_OF_TASKS, again) if again else ():
        tried.setdefault(str(one["task_id"]), []).append(one)
    lanes = [lane for row in rows if (lane := lane_of(row, tried.get(row.id, ()))).segments]

    def leads_to(node: GraphNode) -> str:
        return url("task", node.id) if node.kind == "task" else url("tasks", job_id=job.id)

    return Drawn(
        draw_graph(thin, leads_to, label=f"Graph of {job.name}", critical=path) if thin.nodes else None,
        draw_gantt(lanes, lambda lane: url("task", lane.id), now=now, critical=path) if lanes else None,
        left_out(thin.note, graph.left_out),
        [names[node] for node in path],
        busy_share(path, starts, ends),
    )


def left_out(note: str, count: int) -> str:
    """The note of a drawing, with how many tasks it was not made of."""
    return "; ".join(part for part in (note, f"{count:,} more tasks were not looked at" if count else "") if part)


def lane_of(row: TaskRow, tried: Sequence[Mapping[str, Any]]) -> Lane:
    """Waiting for others, standing in line and running, each attempt for itself."""
    parts: list[Segment] = []
    first = min((one["ready_at"] for one in tried if one["ready_at"]), default=row.ready_at)
    if first is not None and first > row.created_at:
        parts.append(Segment("wait", row.created_at, first))
    for one in tried:
        if one["ready_at"] and one["started_at"] and one["started_at"] > one["ready_at"]:
            parts.append(Segment("queue", one["ready_at"], one["started_at"]))
        if one["started_at"]:
            note = f"attempt {one['attempt']} {one['outcome'].lower()}"
            parts.append(Segment("retry", one["started_at"], one["finished_at"], note))
    if row.ready_at and (row.started_at or not row.finished_at):
        parts.append(Segment("queue", row.ready_at, row.started_at))
    if row.started_at:
        parts.append(Segment("run", row.started_at, row.finished_at, f"attempt {row.attempt}"))
    if not parts and not row.finished_at:
        parts.append(Segment("wait", row.created_at, None, row.reason or ""))
    status = (row.status or "pending").lower()
    return Lane(row.id, row.name or row.entrypoint.rpartition(".")[2], status, parts)
