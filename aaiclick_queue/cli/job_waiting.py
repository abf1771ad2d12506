"""`job wait`: until a job has ended, with a line on a terminal that says how far it is."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from .completing import job_names
from .output import json_option, to_json, when, with_database
from .program import FAILED, echo, fail

if TYPE_CHECKING:
    from ..job_figures import JobProgress
    from ..postgres import Database

LOOK_SECONDS = (0.05, 1.0)  # soon at first, for jobs that take no time


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue job wait etl && echo done
  aaiclick-queue job wait 7123456789012345678 --timeout 600""",
)
@click.argument("job", metavar="ID_OR_NAME", shell_complete=job_names)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up after this time.")
@json_option
def wait(job: str, timeout: float | None, as_json: bool) -> int:
    """Wait until a job has ended: exit code 0 when it COMPLETED, 1 when it did not or the time is over."""
    return with_database(lambda db: _wait(db, job, timeout, as_json=as_json))


async def _wait(db: Database, job: str, patience: float | None, *, as_json: bool) -> int:
    import asyncio

    from ..job_figures import read_progress
    from ..job_views import find_job
    from ..status import JobStatus

    number = await find_job(db, job)
    began, pause, shown = time.monotonic(), LOOK_SECONDS[0], _Shown()
    try:
        while not JobStatus((now := await read_progress(db, number)).status).is_final:
            left = None if patience is None else patience - (time.monotonic() - began)
            if left is not None and left <= 0:
                shown.over()
                fail(f"job {now.name} ({number}) has not ended within {patience:g} s, {_far(now)}; it goes on")
            shown.tell(now)
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, LOOK_SECONDS[1])
    finally:
        shown.over()
    if as_json:
        echo(to_json(now))
    else:
        echo(_ended(now))
    return 0 if now.status == JobStatus.COMPLETED else FAILED


class _Shown:
    """One line on stderr, where somebody sees it."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0

    def tell(self, now: JobProgress) -> None:
        """How far it is."""
        if self._live:
            line = f"{now.name}  {_far(now)}"
            click.echo(f"\r{line:<{self._width}}", nl=False, err=True)
            self._width = len(line)

    def over(self) -> None:
        """Leave a clean line behind."""
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", nl=False, err=True)
            self._width = 0


def _far(now: JobProgress) -> str:
    end = f", ends about {when(now.ends_at)}" if now.ends_at else ""
    failed = f", {now.failed:,} failed" if now.failed else ""
    paused = ", PAUSED" if now.is_paused else ""
    return f"{now.percent:.0f} % of {now.total:,}, {now.running:,} running{failed}{paused}{end}"


def _ended(now: JobProgress) -> str:
    from ..report import span

    took = f" in {span(now.elapsed.total_seconds())}" if now.elapsed is not None else ""
    tasks = "1 task" if now.total == 1 else f"{now.total:,} tasks"
    failed = f", {now.failed:,} did not complete" if now.failed else ""
    skipped = f", {now.skipped:,} skipped" if now.skipped else ""
    return f"{now.name} {now.status}{took}: {tasks}{failed}{skipped}"
