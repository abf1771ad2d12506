"""`prune`: forgets finished tasks, jobs and old history now, by the policy of the settings or another one."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from .output import changer, json_option, sure, to_json, when, with_database
from .program import echo

if TYPE_CHECKING:
    from ..flow.prune import Policy, Pruned
    from ..postgres import Database

TELL_SECONDS = 1.0


def _days(ctx: click.Context, param: click.Parameter, value: str | None) -> float | str | None:
    """Days as the settings take them."""
    if value is None:
        return None
    from ..settings import days_or_forever

    try:
        return days_or_forever(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}", ctx, param) from None


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue prune --dry-run                     what the settings would have pruned by now
  aaiclick-queue prune --completed-days 1 --yes      make room
  aaiclick-queue prune --max-tasks 100000 --json --yes

\b
Workers prune by themselves; this is for other policies, and for those who cannot wait.
What is not given is as in the settings, AAICLICK_QUEUE_RETENTION_*.""",
)
@click.option(
    "--completed-days", callback=_days, metavar="DAYS", help="Age of COMPLETED and CANCELLED tasks, or `forever`."
)
@click.option("--failed-days", callback=_days, metavar="DAYS", help="Age of FAILED tasks, or `forever`.")
@click.option("--max-tasks", type=click.IntRange(1, 10**12), help="Keep only so many finished tasks, the newest.")
@json_option
@changer
def prune(  # noqa: PLR0913, PLR0917 - one parameter an option
    completed_days: float | str | None,
    failed_days: float | str | None,
    max_tasks: int | None,
    as_json: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Delete finished tasks and jobs that are older than the policy keeps them, and days of history older than those.

    A job goes whole, by its own end; FAILED and CANCELLED jobs are kept as long as FAILED tasks.
    """

    async def work(db: Database) -> dict[str, Any]:
        policy = _policy(db, completed_days, failed_days, max_tasks)
        if not dry_run and not yes:
            found = await _prune(db, policy, dry_run=True)
            if found["tasks"] or found["jobs"] or found["days"]:
                sure(f"{_told(found, 'Prune')}?", yes=False)
        return await _prune(db, policy, dry_run=dry_run)

    done = with_database(work)
    echo(to_json(done) if as_json else _told(done, "would prune" if dry_run else "pruned"))
    if done["days_left"]:
        echo(f"note: still in use, to be dropped later: {', '.join(done['days_left'])}", err=True)


def _policy(db: Database, completed: float | str | None, failed: float | str | None, most: int | None) -> Policy:
    from ..flow.prune import Policy, seconds_of

    given = db.settings
    return Policy(
        seconds_of(given.retention_completed_days if completed is None else completed),
        seconds_of(given.retention_failed_days if failed is None else failed),
        given.retention_max_tasks if most is None else most,
    )


async def _prune(db: Database, policy: Policy, *, dry_run: bool) -> dict[str, Any]:
    from ..flow.days import Dropped, drop_old_days
    from ..flow.prune_by_hand import prune_for
    from ..history import history_of

    tell = _Progress("counted" if dry_run else "pruned").tell
    stretch = await prune_for(db, policy, dry_run=dry_run, tell=tell, archive=history_of(db.settings))
    pruned, days = stretch.pruned, Dropped()
    if not stretch.is_away:  # attempts go into the history with their tasks
        days = await drop_old_days(db, policy.history_seconds, dry_run=dry_run)
    return {
        "dry_run": dry_run,
        "tasks": pruned.tasks,
        "completed": pruned.completed,
        "failed": pruned.failed,
        "cancelled": pruned.cancelled,
        "jobs": pruned.jobs,
        "tasks_of_jobs": pruned.tasks_of_jobs,
        "days": days.names,
        "days_left": days.left,
    }


class _Progress:
    """A line now and then, on a terminal alone."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._next_at = time.monotonic() + TELL_SECONDS

    def tell(self, pruned: Pruned, last_id: int) -> None:
        if time.monotonic() < self._next_at or not sys.stderr.isatty():
            return
        from datetime import UTC, datetime

        self._next_at = time.monotonic() + TELL_SECONDS
        reached = datetime.fromtimestamp((last_id >> 22) / 1000, UTC)
        tasks = pruned.tasks + pruned.tasks_of_jobs
        echo(f"{self._doing} {tasks:,} tasks, up to those of {when(reached)}", err=True)


def _told(done: dict[str, Any], verb: str) -> str:
    kinds = ", ".join(f"{done[kind]:,} {kind}" for kind in ("completed", "failed", "cancelled") if done[kind])
    tasks = _many(done["tasks"], "finished task") + (f" ({kinds})" if kinds else "")
    parts = [tasks]
    if done["jobs"]:
        parts.append(f"{_many(done['jobs'], 'finished job')} with {_many(done['tasks_of_jobs'], 'task')}")
    if done["days"]:
        parts.append(f"{_many(len(done['days']), 'day partition')} of history")
    return f"{verb} {', '.join(parts[:-1])}{' and ' if len(parts) > 1 else ''}{parts[-1]}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
