"""`task list`, `task get`, `task enqueue`, `task cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .changing import change_tasks
from .completing import job_names, queue_names
from .details import draw_task
from .finding import either, find_tasks, ids_given
from .given import arguments as json_arguments
from .output import Right, changer, json_option, reader, run, show, sure, table, terminal_width, when, with_database
from .program import NOTHING_MATCHED, Nouns, echo, fail
from .where import everything_option, parse_where, where_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..postgres import Database
    from ..views import TaskPage, TaskRow

STATUSES = [
    "PENDING", "SCHEDULED", "QUEUED", "RUNNING", "COMPLETED", "FAILED", "UPSTREAM_FAILED", "SKIPPED", "CANCELLED"
]  # fmt: skip
WIDE = 110  # a terminal with fewer columns shows fewer of ours


@click.group(cls=Nouns)
def task() -> None:
    """Tasks: find them, look into one, enqueue, cancel, retry, move, limit."""


@task.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue task list --status FAILED --limit 20
  aaiclick-queue task list --entrypoint send_email --queue mail
  aaiclick-queue task list --job etl --status UPSTREAM_FAILED
  aaiclick-queue task list --search customer.id=42
  aaiclick-queue task list --json | jq -r '.[].id'""",
)
@click.option("--status", type=click.Choice(STATUSES, case_sensitive=False), help="Only tasks of this status.")
@click.option("--queue", shell_complete=queue_names, help="Only tasks of this queue.")
@click.option("--entrypoint", help="Only tasks of this function, with its module or without.")
@click.option("--job", metavar="ID_OR_NAME", shell_complete=job_names, help="Only tasks of this job.")
@click.option("--fingerprint", help="Only tasks that failed like this, of `failures`.")
@click.option("--search", metavar="TEXT|KEY=VALUE|JSON", help="Only tasks with this in their arguments.")
@click.option("--before", metavar="ID", type=click.IntRange(1, 2**63 - 1), help="Only tasks older than this one.")
@reader(limit=50)
def list_command(  # noqa: PLR0913, PLR0917 - one parameter an option
    status: str | None,
    queue: str | None,
    entrypoint: str | None,
    job: str | None,
    fingerprint: str | None,
    search: str | None,
    before: int | None,
    as_json: bool,
    watch: float | None,
    limit: int,
) -> None:
    """Tasks, newest first."""
    import msgspec

    from ..job_views import find_job
    from ..status import Status
    from ..views import NEWEST, SCAN_LIMIT, TaskFilter, list_tasks

    wanted = TaskFilter(Status(status) if status else None, queue, entrypoint, None, fingerprint, search)

    async def read(db: Database) -> TaskPage:
        number = None if job is None else await find_job(db, job)
        these = msgspec.structs.replace(wanted, job_id=number)
        page = await list_tasks(db, these, limit=limit, before=before or NEWEST)
        if page.before and not watch:
            looked = "" if len(page.tasks) >= limit else f"looked at the newest {SCAN_LIMIT:,}; "
            if page.searched is not None:
                looked = f"searched {page.searched:,}; "
            echo(f"{looked}older ones: add --before {page.before}", err=True)
        return page

    none = f"no task is {wanted.status}" if wanted.status else "no task"
    if queue or entrypoint or job or fingerprint or search:
        none += " that matches" if not status else ", of those that match"
    show(read, lambda page: _table(page, none), as_json=as_json, watch=watch, data=lambda page: page.tasks)


@task.command(
    epilog="""\b
Examples:
  aaiclick-queue task get 12345678            the digits of a log line, among the newest tasks
  aaiclick-queue task get 7123456789012345678 --json | jq .attempts""",
)
@click.argument("task_id", metavar="ID")
@reader(limit=None)
def get(task_id: str, as_json: bool, watch: float | None) -> None:
    """Everything about one task: arguments, result or error, attempts, what happened when.

    ID may be the last digits as log lines show them, six or more.
    """
    from ..views import get_task

    async def read(db: Database) -> tuple[Any, Any]:
        from ..timelines import Asked, read_timeline

        [found] = await find_tasks(db, [task_id])
        events = () if as_json else (await read_timeline(db, "task", found, Asked(limit=200, newest=True))).events
        return await get_task(db, found), events

    show(read, lambda found: draw_task(*found), as_json=as_json, watch=watch, data=lambda found: found[0])


@task.command(
    epilog="""\b
Examples:
  aaiclick-queue task enqueue shop.mail.send --kwargs '{"to": "ada@example.com"}'
  aaiclick-queue task enqueue shop.report.build --queue reports --priority 5 --countdown 60
  aaiclick-queue task enqueue shop.math.add --kwargs '{"a": 1, "b": 2}' --wait""",
)
@click.argument("entrypoint")
@click.option("--kwargs", default="{}", metavar="JSON", help="Arguments by name, a JSON object.")
@click.option(
    "--queue", shell_complete=queue_names, help="Queue; `default` unless given, whatever the task's decorator says."
)
@click.option("--priority", type=int, help="Higher first, 0 by default.")
@click.option("--countdown", type=float, metavar="SECONDS", help="Not before this time has passed.")
@click.option("--max-attempts", type=int, help="Attempts, the first included; the task's own number by default.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; exit code 1 when it failed.")
@json_option
@changer
def enqueue(  # noqa: PLR0913 - one parameter an option
    entrypoint: str,
    kwargs: str,
    *,
    wait: bool,
    as_json: bool,
    dry_run: bool,
    yes: bool,  # noqa: ARG001 - there is nothing to ask
    **options: Any,
) -> int | None:
    """Enqueue a task by its name, `module.function`; prints its id.

    No code is imported here: the worker checks the arguments.
    """
    arguments = json_arguments(kwargs)
    given = {name: value for name, value in options.items() if value is not None}
    if dry_run:
        from ..redaction import redacted_text

        echo(f"would enqueue {entrypoint} with {redacted_text(kwargs)}")
        return None
    from .enqueueing import enqueue_task

    return run(enqueue_task(entrypoint, arguments, given, wait=wait, as_json=as_json))


@task.command(
    epilog="""\b
Examples:
  aaiclick-queue task cancel 7123456789012345678 --yes
  aaiclick-queue task cancel --where 'queue=mail entrypoint=send status=QUEUED'
  aaiclick-queue task list --status QUEUED --json | jq -r '.[].id' | aaiclick-queue task cancel - --yes""",
)
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@where_option
@everything_option
@click.option("--running", is_flag=True, help="With a filter: also tasks that run; their workers stop them.")
@changer
def cancel(  # noqa: PLR0913 - one parameter an option
    *, task_ids: tuple[str, ...], where: tuple[str, ...], everything: bool, running: bool, dry_run: bool, yes: bool
) -> int:
    """End tasks as CANCELLED, wherever they are; one that runs is stopped by its worker.

    `-` reads ids from stdin, one a line. With a filter, tasks that run are left alone unless --running says otherwise.
    """
    either(task_ids, where, everything=everything)
    if not task_ids:
        from ..operations import cancelling

        change = cancelling(parse_where(where), running=running, everything=everything)
        return change_tasks(change, ("cancel", "cancelled"), dry_run=dry_run, yes=yes)
    given = ids_given(task_ids, asks=not (yes or dry_run))
    return with_database(lambda db: _cancel(db, given, dry_run=dry_run, yes=yes))


async def _cancel(db: Database, texts: Sequence[str], *, dry_run: bool, yes: bool) -> int:
    from ..flow.cancel import cancel as cancel_tasks
    from ..flow.reaper import ensure_partitions
    from ..status import Status
    from ..views import get_task

    ids = await find_tasks(db, texts)
    tasks = [found for one in ids if (found := await get_task(db, one))]
    waiting = [one for one in tasks if one.status is None or not Status(one.status).is_final]
    for one in tasks:
        if one not in waiting:
            echo(f"{one.id} {one.entrypoint} is {one.status} already", err=True)
    if not waiting:
        fail("there is nothing to cancel", code=NOTHING_MATCHED)
    if dry_run:
        for one in waiting:
            echo(f"would cancel {one.id} {one.entrypoint}, {one.status}")
        return 0
    what = f"{waiting[0].id} ({waiting[0].entrypoint})" if len(waiting) == 1 else f"{len(waiting)} tasks"
    sure(f"Cancel {what}?", yes=yes)
    await ensure_partitions(db)
    cancelled = await cancel_tasks(db, [int(one.id) for one in waiting])
    for one in waiting:
        echo(f"cancelled {one.id}" if int(one.id) in cancelled else f"{one.id} ended meanwhile")
    return 0 if cancelled else NOTHING_MATCHED


def _table(page: TaskPage, none: str) -> str:
    if not page.tasks:
        return none
    headers = ["ID", "STATUS", "TASK", "QUEUE", "ATTEMPT", "CREATED", "TOOK", "WHAT"]
    rows = [_row(one) for one in page.tasks]
    if 0 < terminal_width() < WIDE:
        from ..report import short

        rows = [[short(int(one.id)), *row[1:5], row[7]] for one, row in zip(page.tasks, rows, strict=True)]
        headers = [*headers[:5], headers[7]]
    return table(headers, rows)


def _row(one: TaskRow) -> list[object]:
    from ..report import span

    took = "–"
    if one.started_at and one.finished_at:
        took = span((one.finished_at - one.started_at).total_seconds())
    what = ""
    if one.error_type:
        what = f"{one.error_type}: {one.error_message or ''}"
    elif one.not_before:
        what = f"{one.reason}, due {when(one.not_before)}"
    elif one.reason:
        what = f"waits: {one.reason}"
    attempt = f"{one.attempt}/{one.max_attempts}" if one.max_attempts else str(one.attempt)
    name = one.name or one.entrypoint
    return [one.id, one.status or "?", name, one.queue, Right(attempt), when(one.created_at), Right(took), what]
