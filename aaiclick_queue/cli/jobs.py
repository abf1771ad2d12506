"""`job list`, `job get`, `job stats`, `job timeline`, `job wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .completing import job_names, registered_names
from .output import Right, reader, show, table, terminal_width, when
from .program import Nouns, echo

if TYPE_CHECKING:
    from ..job_figures import JobProgress, JobStats, Spread
    from ..job_views import JobFilter, JobRow
    from ..job_views import JobPage as Listed
    from ..postgres import Database
    from .job_text import JobPage

STATUSES = ["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]
WIDE = 100  # a terminal with fewer columns shows fewer of ours

job_argument = click.argument("job", metavar="ID_OR_NAME", shell_complete=job_names)


@click.group(cls=Nouns)
def job() -> None:
    """Jobs: find them, see their graph, wait for one, cancel, pause, run parts of it again."""


@job.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue job list --status RUNNING --watch
  aaiclick-queue job list --like 'etl-*' --limit 20
  aaiclick-queue job list --registered nightly
  aaiclick-queue job list --status FAILED --json | jq -r '.[].id'""",
)
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), help="Only jobs of this status.")
@click.option("--like", metavar="TEXT", help="Only jobs with this in their names; with * the whole name.")
@click.option("--registered", metavar="NAME", shell_complete=registered_names, help="Only runs of this registered job.")
@click.option("--offset", type=click.IntRange(0, 10_000), default=0, help="Jobs to leave out at the start.")
@click.option("--before", metavar="ID", type=click.IntRange(1, 2**63 - 1), help="Only jobs older than this one.")
@reader(limit=50)
def list_command(  # noqa: PLR0913, PLR0917 - one parameter an option
    status: str | None,
    like: str | None,
    registered: str | None,
    offset: int,
    before: int | None,
    as_json: bool,
    watch: float | None,
    limit: int,
) -> None:
    """Jobs, newest first, with how far each is."""
    from ..job_views import NEWEST, SCAN_LIMIT, read_jobs

    async def read(db: Database) -> Listed:
        wanted = await _filter(db, status, like, registered)
        page = await read_jobs(db, wanted, limit=limit, offset=offset, before=before or NEWEST)
        if page.before and not watch:
            looked = "" if len(page.jobs) >= limit else f"looked at the newest {SCAN_LIMIT:,}; "
            echo(f"{looked}older ones: add --before {page.before}", err=True)
        return page

    none = f"no job is {status.upper()}" if status else "no job"
    none += f" with a name like {like}" if like else ""
    none += f" of the registered job {registered}" if registered else ""
    show(read, lambda page: _table(page.jobs, none), as_json=as_json, watch=watch, data=lambda page: page.jobs)


@job.command(
    epilog="""\b
Examples:
  aaiclick-queue job get etl --watch              the newest job of that name
  aaiclick-queue job get 7123456789012345678      or by its id, or the last digits of it
  aaiclick-queue job get etl --outputs            what its tasks gave, by their names
  aaiclick-queue job get etl --json | jq .progress""",
)
@job_argument
@click.option("--outputs", is_flag=True, help="The results of its tasks by name, as JSON.")
@click.option("--all", "everything", is_flag=True, help="Draw every task, up to 2,000.")
@reader(limit=None)
def get(job: str, outputs: bool, everything: bool, as_json: bool, watch: float | None) -> None:
    """One job: how far it is, its graph, what failed and why, what it gave.

    Tasks that are alike are drawn as one, as are those of a map; `--all` draws each.
    """
    from .job_text import draw_job

    if outputs:
        show(lambda db: _outputs(db, job), lambda found: found, as_json=False, watch=watch)
        return
    show(
        lambda db: read_page(db, job, results=10_000 if as_json else 100),
        lambda page: draw_job(page, everything=everything, fits_screen=bool(watch)),
        as_json=as_json,
        watch=watch,
    )


@job.command(
    epilog="""\b
Examples:
  aaiclick-queue job stats etl
  aaiclick-queue job stats 7123456789012345678 --json | jq '.tasks[] | {name, run}'""",
)
@job_argument
@reader(limit=None)
def stats(job: str, as_json: bool, watch: float | None) -> None:
    """What the tasks of a job took, by name: how many, how long they waited and ran, attempts."""

    async def read(db: Database) -> JobStats:
        from ..job_figures import read_stats
        from ..job_views import find_job

        return await read_stats(db, await find_job(db, job))

    show(read, _stats, as_json=as_json, watch=watch)


async def _filter(db: Database, status: str | None, like: str | None, registered: str | None) -> JobFilter:
    from ..job_views import JobFilter
    from ..status import JobStatus

    registered_id = None
    if registered is not None:
        from ..registered import read_registered_job

        registered_id = (await read_registered_job(db, registered)).id
    return JobFilter(JobStatus(status.upper()) if status else None, like, registered_id)


async def read_page(db: Database, job: str, *, results: int) -> JobPage:
    """Everything that `job get` shows."""
    from ..job_figures import read_progress
    from ..job_graphs import read_graph
    from ..job_outputs import read_result
    from ..job_views import read_job
    from .job_text import JobPage

    view = await read_job(db, job)
    number = int(view.id)
    has_result, result = await read_result(db, number, at_most=results)
    graph = await read_graph(db, number, total=view.total, any_failed=bool(view.failed or view.skipped))
    progress = await read_progress(db, number)
    return JobPage(view, progress, graph, has_result, result, await _stall(db, number, progress))


async def _stall(db: Database, number: int, progress: JobProgress) -> str | None:
    """Why nothing will go on with an open job of which nothing is on its way."""
    from ..stalls import stalled_jobs
    from ..status import FINAL

    if progress.status in FINAL or progress.is_paused or progress.running or progress.queued:
        return None
    return next((stall.reason for stall in await stalled_jobs(db, [number])), None)


async def _outputs(db: Database, job: str) -> str:
    from ..job_outputs import read_outputs
    from ..job_views import read_job
    from .output import to_json

    view = await read_job(db, job)
    found = await read_outputs(db, int(view.id), completed=view.completed)
    if found.left_out:
        echo(f"{found.left_out:,} more are left out: their results are too many or too large", err=True)
    return to_json(found.outputs)


def _table(jobs: list[JobRow], none: str) -> str:
    if not jobs:
        return none
    headers = ["ID", "STATUS", "JOB", "DONE", "OF", "FAILED", "CREATED", "TOOK", "WHAT"]
    rows = [_row(one) for one in jobs]
    if 0 < terminal_width() < WIDE:
        from ..report import short

        rows = [[short(int(one.id)), *row[1:6], row[7], row[8]] for one, row in zip(jobs, rows, strict=True)]
        headers = [*headers[:6], *headers[7:]]
    return table(headers, rows)


def _row(one: JobRow) -> list[object]:
    from ..report import span

    took = "–" if one.duration is None else span(one.duration.total_seconds())
    done = f"{100 * (one.total - one.remaining) / one.total:.0f} %" if one.total else "–"
    what = ""
    if one.error_type:
        what = f"{one.error_type}: {one.error_message or ''}"
    elif one.paused_at and not one.is_final:
        what = "PAUSED" + (f": {one.reason}" if one.reason else "")
    row: list[Any] = [one.id, one.status, one.name, Right(done), one.total, one.failed]
    return [*row, when(one.created_at), Right(took if one.is_final or took == "–" else f"{took} …"), what]


def _stats(stats: JobStats) -> str:
    if not stats.tasks:
        return "the job has no tasks"
    headers = ["TASK", "COUNT", "DONE", "FAILED", "WAIT P50", "P95", "MAX", "RUN P50", "P95", "MAX", "ATTEMPTS"]
    rows = [
        [
            one.name, one.count, one.completed, one.failed, *_spread(one.wait), *_spread(one.run),
            Right(f"{one.attempts:,}" + (f" (≤ {one.most_attempts})" if one.most_attempts > 1 else "")),
        ]
        for one in stats.tasks
    ]  # fmt: skip
    if 0 < terminal_width() < WIDE:
        shown = (0, 1, 3, 4, 5, 7, 8, 9)
        headers, rows = [headers[at] for at in shown], [[row[at] for at in shown] for row in rows]
    text = table(headers, rows)
    if stats.left_out:
        text += f"\n\n{stats.left_out:,} tasks are left out: these are the first {stats.looked_at:,}"
    return text


def _spread(found: Spread | None) -> list[Right]:
    from ..report import span

    values = (None, None, None) if found is None else (found.p50, found.p95, found.max)
    return [Right("–" if value is None else span(value)) for value in values]
