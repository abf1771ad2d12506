"""How `job get` shows one job to a person: how far it is, its graph, what failed, what it gave."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from ..job_figures import JobProgress
from ..job_graphs import JobGraph
from ..job_views import JobView
from ..report import span
from .drawing import draw_graph
from .lines import MARKS, PLAIN, WORDS, Line, counted, fitted, joined, mark
from .output import STATUS_COLOURS, one_json_line, when

WIDEST = 120
NARROWEST = 40
BAR_WIDTH = 24
ERROR_LINES = 3
RUN_TYPES = {"SCHEDULED": "by its schedule", "BACKFILL": "by a backfill"}


class JobPage(msgspec.Struct, frozen=True):
    """All that is shown of one job."""

    job: JobView
    progress: JobProgress
    graph: JobGraph
    has_result: bool
    result: Any = None
    stall: str | None = None


def page_width() -> int:
    """Columns to draw in: those of the terminal, 80 where there is none."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))


def draw_job(page: JobPage, *, everything: bool = False, fits_screen: bool = False) -> str:
    """The page as text; what is shown again and again ends where a terminal's screen does."""
    width = page_width()
    graph = draw_graph(page.graph, now=page.job.read_at, width=width, everything=everything)
    below = [list(part(page, width)) for part in (_left_out, _failed, _foot, _legend)]
    text = "\n\n".join("\n".join(map(str, part)) for part in (list(_head(page, width)), graph, *below) if part)
    lines, height = text.split("\n"), shutil.get_terminal_size((80, 24)).lines - 4
    if fits_screen and sys.stdout.isatty() and len(lines) > height:
        text = "\n".join([*lines[:height], str(Line(f"… {len(lines) - height:,} rows more than fit", dim=True))])
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    return text if encoding.startswith("utf") else text.translate(PLAIN)


def _head(page: JobPage, width: int) -> Iterator[Line]:
    job, progress = page.job, page.progress
    status = Line(job.status, fg=STATUS_COLOURS.get(job.status), bold=True)
    paused = Line("  PAUSED", fg="yellow") if job.paused_at and not job.is_final else Line()
    name = Line(fitted(job.name, width - len(job.id) - status.width - paused.width - 4), bold=True)
    yield name + Line(f"  {job.id}  ", dim=True) + status + paused
    yield Line(fitted("  ".join(_facts(job, progress)), width), dim=True)
    if job.total:
        yield _progress_line(progress)
    if job.paused_at and not job.is_final:
        by = f" by {job.paused_by}" if job.paused_by else ""
        why = f": {job.reason}" if job.reason else ""
        yield Line(fitted(f"paused{by} since {when(job.paused_at)}{why}", width), fg="yellow")
    if page.stall:
        yield Line(fitted(f"stands still: {page.stall}", 10 * width), fg="yellow")


def _facts(job: JobView, progress: JobProgress) -> Iterator[str]:
    yield f"created {when(job.created_at)}"
    if job.started_at:
        yield f"started {when(job.started_at)}"
    if job.finished_at:
        yield f"ended {when(job.finished_at)}"
    if job.duration is not None:
        yield f"{'took' if job.is_final else 'runs for'} {span(job.duration.total_seconds())}"
    if progress.ends_at:
        yield f"ends about {when(progress.ends_at)}"
    if job.deadline_at and not job.is_final:
        yield f"deadline {when(job.deadline_at)}"
    if job.max_parallel:
        yield f"{job.max_parallel:,} at once"
    if job.run_type != "MANUAL":
        yield RUN_TYPES.get(job.run_type, job.run_type.lower())
    if job.registered is not None and job.registered != job.name:
        yield f"registered as {job.registered}"


def _progress_line(progress: JobProgress) -> Line:
    share = int(BAR_WIDTH * progress.percent / 100)
    red = min(share, max(1, round(BAR_WIDTH * progress.failed / progress.total))) if progress.failed else 0
    bar = Line("█" * (share - red), fg="green") + Line("█" * red, fg="red")
    bar = bar.padded(BAR_WIDTH, "░", dim=True)
    waiting = progress.remaining - progress.running - (progress.queued or 0)
    not_completed = "CANCELLED" if progress.status == "CANCELLED" else "FAILED"
    counts = {
        "COMPLETED": progress.completed, not_completed: progress.failed, "SKIPPED": progress.skipped,
        "RUNNING": progress.running, "QUEUED": progress.queued or 0, "PENDING": max(0, waiting),
    }  # fmt: skip
    percent = f"{progress.percent:.0f} %" if progress.percent < 99.5 or not progress.remaining else "99 %"
    return joined([bar, Line(f"{percent:>5}"), Line(f"of {progress.total:,}", dim=True), counted(counts)], "  ")


def _left_out(page: JobPage, width: int) -> Iterator[Line]:
    if page.graph.is_folded:
        text = "more than 2,000 tasks: those that are alike are drawn as one"
        yield Line(fitted(text, width), dim=True)
    if page.graph.left_out:
        yield Line(fitted(f"{page.graph.left_out:,} tasks are not in this picture", width), dim=True)


def _failed(page: JobPage, width: int) -> Iterator[Line]:
    failed = page.graph.failed
    if not failed:
        return
    yield Line("Failed", bold=True)
    for one in failed:
        attempts = f", {one.attempt} attempts" if (one.attempt or 0) > 1 else ""
        named = fitted(one.name, width - 40)
        about = f"  {one.id}{attempts}{'' if one.critical else ', not critical'}"
        yield Line("  ") + mark("FAILED") + " " + Line(named, bold=True) + Line(about, dim=True)
        text = f"{one.error_type or 'Error'}: {one.error_message or ''}".rstrip(": ")
        lines = [line for line in text.splitlines() if line.strip()]
        for line in lines[:ERROR_LINES]:
            yield Line("    " + fitted(line, width - 4), fg="red")
        if len(lines) > ERROR_LINES:
            yield Line(f"    … `aaiclick-queue task get {one.id}` shows the rest", dim=True)
    more = page.job.failed - sum(one.critical for one in failed)
    if more > 0:
        yield Line(fitted(f"  … {more:,} more that failed, were cancelled or will not run", width), dim=True)


def _foot(page: JobPage, width: int) -> Iterator[Line]:
    job = page.job
    if job.error and job.status != "COMPLETED":
        yield Line("error   ", dim=True) + Line(fitted(f"{job.error.type}: {job.error.message}", width - 8), fg="red")
    if page.has_result and job.returns is not None:
        yield Line("result  ", dim=True) + Line(fitted(one_json_line(page.result), width - 8))
    elif job.status == "COMPLETED" and job.returns is not None:
        yield Line(fitted("result  is of many tasks: `job get --json` has all of it", width), dim=True)
    if job.status == "FAILED":
        yield Line(fitted(f"again   aaiclick-queue job retry {job.id}", width), dim=True)
    if job.paused_at and not job.is_final:
        yield Line(fitted(f"go on   aaiclick-queue job resume {job.id}", width), dim=True)


def _legend(page: JobPage, width: int) -> Iterator[Line]:
    """The marks that are in the picture."""
    seen = {node.status for node in page.graph.nodes} | {s for node in page.graph.nodes for s in node.counts}
    words = [f"{MARKS[status][0]} {WORDS[status]}" for status in MARKS if status in seen and status != "OPEN"]
    if "OPEN" in seen and "QUEUED" not in seen:
        words.append(f"{MARKS['OPEN'][0]} {WORDS['OPEN']}")
    if words:
        yield Line(fitted("  ".join(words), width), dim=True)
