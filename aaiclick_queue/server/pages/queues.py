"""Pages of queues: all of them with depth, age, rates and who serves them; and one with its day."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from ...figures import QueueFigures, read_queue_figures
from ...flow.limits import LimitView
from ...flow.limits import list_limits as read_limits
from ...flow.lines import COUNTED
from ...queue_views import QueueView, list_queues, list_workers
from ...views import TaskFilter, newest_tasks
from ..drawing.charts import sparkline, state_bar
from .keeping import Kept, kept
from .limits import limit_fields
from .rendering import REGION_HEADER
from .trends import queue_trends
from .trouble import not_found
from .visiting import Visit, Visiting

router = APIRouter(include_in_schema=False)
SHOWN = 200
WORKERS_SHOWN = 100  # of one queue


class QueueRow(msgspec.Struct, frozen=True):
    """A queue as a page shows it: where its tasks stand, and how fast they come and go."""

    view: QueueView
    bar: Markup
    limits: list[LimitView]
    figures: QueueFigures | None = None
    spark: Markup | None = None
    objective: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether the oldest waits longer than it should."""
        return self.objective is not None and (self.view.oldest_seconds or 0) > self.objective

    @property
    def is_unserved(self) -> bool:
        """Whether work waits and nobody takes it."""
        return bool(self.view.ready) and not self.view.workers and not self.view.paused_at

    @property
    def why_never(self) -> str | None:
        """Why what waits will not be gone, as things are; None where it will."""
        if self.view.paused_at:
            return "paused"
        if not self.view.workers:
            return "no worker takes it"
        if self.figures is None or not self.figures.done_per_minute:
            return "nothing has ended lately"
        return "more comes in than ends" if self.figures.drain_seconds is None else None

    @property
    def drain_seconds(self) -> float | None:
        """When what waits is gone at the rate of the last minutes; None for never."""
        return self.figures.drain_seconds if self.figures and self.why_never is None else None


OBJECTIVES = """
SELECT name, objective_seconds FROM aaiclick_queue.queues WHERE objective_seconds IS NOT NULL ORDER BY name LIMIT 1000
"""


async def queue_rows(at: Visit, name: str | None = None) -> list[QueueRow]:
    """Queues with all that is known of them, by name: the first 200, and one more where there are others."""
    figures = _figures(at)  # on their way while the queues are counted
    return await _rows_of(at, await list_queues(at.db, limit=SHOWN + 1, name=name, counted=COUNTED), figures)


def _figures(at: Visit) -> Kept[dict[str, QueueFigures]]:
    return kept(at, ("queues",), lambda: read_queue_figures(at.db))


async def _rows_of(at: Visit, views: list[QueueView], on_their_way: Kept[dict[str, QueueFigures]]) -> list[QueueRow]:
    limits = [one for one in await read_limits(at.db) if one.scope == "queue"]
    objectives = {row["name"]: row["objective_seconds"] for row in await at.db.fetch(OBJECTIVES)}
    figures = await on_their_way
    return [
        QueueRow(
            view,
            bar_of(view),
            [one for one in limits if one.name == view.name],
            figures.get(view.name),
            spark_of(view.name, figures.get(view.name)),
            objectives.get(view.name),
        )
        for view in views
    ]


def spark_of(name: str, figures: QueueFigures | None) -> Markup | None:
    """The last hour as a line."""
    return sparkline(figures.spark, label=f"{name}: done, minute by minute") if figures else None


def bar_of(view: QueueView) -> Markup:
    """Where the tasks of a queue stand."""
    counts = [("running", view.running), ("ready", view.ready), ("delayed", view.delayed), ("held", view.held),
              ("waiting", view.waiting)]  # fmt: skip
    told = ", ".join(f"{count:,} {kind}" for kind, count in counts if count) or "empty"
    return state_bar(counts, label=f"{view.name}: {told}")


@router.get("/queues")
async def queues(at: Visiting) -> HTMLResponse:
    """Every queue that has work, a pause, a limit or a worker."""
    after = at.asked("after") or None
    figures = _figures(at)
    found = await list_queues(at.db, limit=SHOWN + 1, after=after, counted=COUNTED)
    return await at.show(
        "queues.html",
        section="queues",
        title="Queues",
        topics="queues,tasks",
        rows=await _rows_of(at, found[:SHOWN], figures),
        is_first=after is None,
        more=found[SHOWN - 1].name if len(found) > SHOWN else None,
    )


@router.get("/queues/{name:path}")
async def queue(at: Visiting, name: str) -> HTMLResponse:
    """One queue; one that ran dry while it was looked at, or is known by what it did, is shown empty."""
    hours = at.hours()
    history = kept(at, ("queue", name, hours), lambda: queue_trends(at.db, name, hours))
    rows = await queue_rows(at, name)
    newest = await newest_tasks(at.db, TaskFilter(queue=name), limit=15)
    if not rows and not newest and REGION_HEADER not in at.request.headers:
        return await not_found(
            at,
            f"there is no queue {name}: nothing waits in it, and no worker, pause or limit names it",
            section="queues",
        )
    rows = rows or await _rows_of(at, [QueueView.empty(name)], _figures(at))
    workers = await list_workers(at.db, limit=WORKERS_SHOWN + 1, queue=name)
    return await at.show(
        "queue.html",
        section="queues",
        title=name,
        topics="queues,tasks",
        row=rows[0],
        limit_fields=limit_fields(rows[0].limits, max_depth=rows[0].view.max_depth, objective=rows[0].objective),
        workers=workers[:WORKERS_SHOWN],
        workers_are_more=len(workers) > WORKERS_SHOWN,
        tasks=newest,
        hours=hours,
        history=await history,
    )
