"""`job cancel`, `job retry`, `job rerun`, `job pause`, `job resume`, `task clear`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

import click

from .changing import finish
from .completing import job_names
from .finding import find_tasks
from .lines import fitted
from .output import changer, run, sure
from .program import NOT_FOUND, NOTHING_MATCHED, USAGE, echo, fail

if TYPE_CHECKING:
    from ..client import Client
    from ..job_figures import JobProgress
    from ..postgres import Database

NAMES_SHOWN = 10
COUNT_LIMIT = 10_000
NAMES = """
SELECT coalesce(name, entrypoint) AS name FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[]) ORDER BY id LIMIT $2
"""
CALLED = """
SELECT id FROM aaiclick_queue.tasks
WHERE job_id = $1 AND (name = $2::text OR id::text = $2::text) AND member_gate IS NOT NULL ORDER BY id LIMIT 2
"""
Work = Callable[["Client", "Database"], Awaitable[int]]

job_argument = click.argument("job", metavar="ID_OR_NAME", shell_complete=job_names)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue job cancel etl --dry-run
  aaiclick-queue job cancel 7123456789012345678 --yes""",
)
@job_argument
@changer
def cancel(job: str, dry_run: bool, yes: bool) -> int:
    """End an open job as CANCELLED: what runs is stopped, what waits never starts."""

    async def work(_: Client, db: Database) -> int:
        from ..flow.job_control import cancel_job
        from ..flow.kick import tell_ended
        from ..limits import whoami

        now = await _open_job(db, job)
        what = f"{_named(now)}: {now.running:,} running, {now.remaining:,} open of {_tasks(now.total)}"
        if dry_run:
            echo(f"would cancel {what}")
            return 0
        sure(f"Cancel {what}?", yes=yes)
        number = await cancel_job(db, int(now.job_id), by=whoami())
        tell_ended([int(now.job_id)])
        done = (await finish(db, number)).done
        echo(f"cancelled {_named(now)}, with {_tasks(done)}")
        return 0

    return _with_client(work)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue job retry etl --dry-run
  aaiclick-queue job retry 7123456789012345678 --yes""",
)
@job_argument
@changer
def retry(job: str, dry_run: bool, yes: bool) -> int:
    """Run the tasks of a job that FAILED or were CANCELLED again, and what they had kept from starting.

    Checkpoints are kept, attempts start anew; what has completed stays as it is.
    """

    async def work(client: Client, db: Database) -> int:
        from ..flow.job_retry import would_retry
        from ..recovery import retry_failed_tasks

        now = await _job(db, job)
        bad = await would_retry(db, int(now.job_id), limit=COUNT_LIMIT + 1)
        if not bad:
            fail(f"no task of {_named(now)} FAILED or was CANCELLED", code=NOTHING_MATCHED)
        many = f"{COUNT_LIMIT:,}+ tasks" if len(bad) > COUNT_LIMIT else _tasks(len(bad))
        what = f"{many} of {_named(now)}: {await _names(db, bad)}"
        if dry_run:
            echo(f"would retry {what}")
            return 0
        sure(f"Retry {what}?", yes=yes)
        retried = await retry_failed_tasks(int(now.job_id), client=client)
        echo(f"in line again: {_tasks(len(retried))} of {_named(now)}")
        return 0 if retried else NOTHING_MATCHED

    return _with_client(work)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue job rerun etl --from transform --dry-run
  aaiclick-queue job rerun 7123456789012345678 --from load --yes""",
)
@job_argument
@click.option("--from", "start", required=True, metavar="TASK", help="Name of a task of the job, or its id.")
@changer
def rerun(job: str, start: str, dry_run: bool, yes: bool) -> int:
    """Run a task of a job again, whatever became of it, and everything behind it; what is before it stays."""

    async def work(client: Client, db: Database) -> int:
        now = await _job(db, job)
        rows = await db.fetch(CALLED, int(now.job_id), start)
        if not rows:
            fail(
                f"no task of {_named(now)} is called {start!r}",
                f"aaiclick-queue task list --job {now.job_id}",
                code=NOT_FOUND,
            )
        if len(rows) > 1:
            fail(f"several tasks of {_named(now)} are called {start!r}", "give the id of one", code=USAGE)
        return await _clear(client, db, rows[0]["id"], dry_run=dry_run, yes=yes)

    return _with_client(work)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task clear 7123456789012345678 --dry-run
  aaiclick-queue task clear 12345678 --yes""",
)
@click.argument("task_id", metavar="ID")
@changer
def clear(task_id: str, dry_run: bool, yes: bool) -> int:
    """Run a task of a job again, whatever became of it, and everything behind it.

    Attempts start anew and checkpoints are deleted; a job that had ended goes on. Runs of these are stopped, and tasks
    that they had added to the job leave it.
    """

    async def work(client: Client, db: Database) -> int:
        [found] = await find_tasks(db, [task_id])
        return await _clear(client, db, found, dry_run=dry_run, yes=yes)

    return _with_client(work)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue job pause etl --reason "the warehouse is down\"""",
)
@job_argument
@click.option("--reason", help="Shown to whoever asks why nothing moves.")
@changer
def pause(job: str, reason: str | None, dry_run: bool, yes: bool) -> int:  # noqa: ARG001 - can be undone: nothing to ask
    """Let no task of a job start; those that run go on."""

    async def work(client: Client, db: Database) -> int:
        from ..recovery import pause_job

        now = await _open_job(db, job)
        what = f"{_named(now)}: {now.running:,} running, {now.remaining:,} open"
        if now.is_paused:
            fail(f"{_named(now)} is paused already", code=NOTHING_MATCHED)
        if dry_run:
            echo(f"would pause {what}")
            return 0
        if not await pause_job(int(now.job_id), reason=reason, client=client):
            fail(f"{_named(now)} is paused already", code=NOTHING_MATCHED)
        echo(f"paused {what}")
        return 0

    return _with_client(work)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue job resume etl""",
)
@job_argument
@changer
def resume(job: str, dry_run: bool, yes: bool) -> int:  # noqa: ARG001 - can be undone: nothing to ask
    """Let the tasks of a paused job start again."""

    async def work(client: Client, db: Database) -> int:
        from ..recovery import resume_job

        now = await _job(db, job)
        if not now.is_paused:
            fail(f"{_named(now)} is not paused", code=NOTHING_MATCHED)
        if dry_run:
            echo(f"would resume {_named(now)}: {now.remaining:,} open")
            return 0
        await resume_job(int(now.job_id), client=client)
        echo(f"resumed {_named(now)}: {now.remaining:,} open")
        return 0

    return _with_client(work)


async def _clear(client: Client, db: Database, task_id: int, *, dry_run: bool, yes: bool) -> int:
    from ..flow.clear import would_clear
    from ..recovery import clear_task

    closure = await would_clear(db, task_id)
    behind = closure.again - {task_id}
    what = await _names(db, [task_id]) + (f" and what is behind it, {_tasks(len(behind))}" if behind else "")
    if behind and len(behind) <= NAMES_SHOWN:
        what += f" ({await _names(db, behind)})"
    if closure.gone:
        what += f"; {_tasks(len(closure.gone))} that they had added leave the job"
    if dry_run:
        echo(f"would run again {what}")
        return 0
    sure(f"Run again {what}?", yes=yes)
    cleared = await clear_task(task_id, client=client)
    echo(f"runs again: {_tasks(len(cleared))}")
    return 0


def _with_client(work: Work) -> int:
    from ..client import connect

    async def connected() -> int:
        async with connect() as client:
            return await work(client, await client.database())

    return run(connected())


async def _job(db: Database, job: str) -> JobProgress:
    from ..job_figures import read_progress
    from ..job_views import find_job

    return await read_progress(db, await find_job(db, job))


async def _open_job(db: Database, job: str) -> JobProgress:
    from ..status import FINAL

    now = await _job(db, job)
    if now.status in FINAL:
        fail(f"{_named(now)} has ended {now.status} already", code=NOTHING_MATCHED)
    return now


async def _names(db: Database, ids: Collection[int]) -> str:
    rows = await db.fetch(NAMES, sorted(ids), NAMES_SHOWN)
    more = len(ids) - len(rows)
    return ", ".join(fitted(row["name"], 40) for row in rows) + (f" and {more:,} more" if more > 0 else "")


def _named(now: JobProgress) -> str:
    return f"job {now.name} ({now.job_id})"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count:,} tasks"
