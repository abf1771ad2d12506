"""`workers list`, `workers stop`, `workers stacks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .completing import worker_ids
from .output import Right, changer, json_option, reader, show, table, to_json, with_database
from .program import NOT_FOUND, NOTHING_MATCHED, USAGE, Nouns, echo, fail

if TYPE_CHECKING:
    from ..postgres import Database
    from ..queue_views import WorkerView

ALL = 10_000


@click.group(cls=Nouns)
def workers() -> None:
    """Worker processes: what they do, where one hangs, stopping one from afar."""


@workers.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue workers list --watch
  aaiclick-queue workers list --json | jq '.[] | select(.heartbeat_seconds > 20) | .id'""",
)
@reader(limit=100)
def list_command(as_json: bool, watch: float | None, limit: int) -> None:
    """Every worker: queues, slots, runs, age of its heartbeat, what it has done.

    Those that stopped or were lost are kept for an hour.
    """
    from ..queue_views import list_workers

    show(lambda db: list_workers(db, limit=limit), _table, as_json=as_json, watch=watch)


@workers.command(
    epilog="""\b
Examples:
  aaiclick-queue workers stop 4611686018427387904""",
)
@click.argument("worker_id", metavar="ID", shell_complete=worker_ids)
@changer
def stop(worker_id: str, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - tasks are finished or handed back: nothing to ask
    """Have a worker finish what it runs and end, as by SIGTERM.

    It learns so with its next heartbeat. ID may be the last digits, six or more.
    """

    async def work(db: Database) -> str:
        from ..flow.heartbeat import Counters, set_status
        from ..status import WorkerStatus

        worker = await _find(db, worker_id)
        what = f"worker {worker.id} ({worker.hostname} pid {worker.pid}, {worker.running} running)"
        if worker.status != WorkerStatus.ACTIVE:
            fail(f"{what} is {worker.status} already", code=NOTHING_MATCHED)
        if dry_run:
            return f"would stop {what}"
        await set_status(db, int(worker.id), WorkerStatus.STOPPING, Counters())
        return f"stopping {what}"

    echo(with_database(work))


@workers.command(
    epilog="""\b
Examples:
  aaiclick-queue workers stacks 427387904         the last digits will do
  kill -USR1 PID                                  the same to the worker's own stderr, at once""",
)
@click.argument("worker_id", metavar="ID", shell_complete=worker_ids)
@click.option(
    "--timeout", type=click.FloatRange(0.1, 3600), default=60.0, metavar="SECONDS", help="Wait so long at most."
)
@json_option
def stacks(worker_id: str, timeout: float, as_json: bool) -> None:
    """Where every run, thread and asyncio task of a worker is: what a hung one hangs in.

    It answers with its next heartbeat, also when its event loop is blocked. ID may be the last digits, six or more.
    """
    from .asking import ask_worker

    async def work(db: Database) -> str:
        worker = await _find(db, worker_id)
        text = await ask_worker(db, worker, timeout)
        return to_json({"id": worker.id, "stacks": text}) if as_json else text

    echo(with_database(work))


async def _find(db: Database, text: str) -> WorkerView:
    from ..queue_views import list_workers

    if not text.isdigit():
        fail(f"{text!r} is no id", "give the digits that `aaiclick-queue workers list` shows", code=USAGE)
    known = await list_workers(db, limit=ALL)
    found = [one for one in known if one.id == text] or [
        one for one in known if len(text) >= 6 and one.id.endswith(text)
    ]
    if not found:
        fail(f"there is no worker {text}", "aaiclick-queue workers list", code=NOT_FOUND)
    if len(found) > 1:
        fail(f"{len(found)} workers end in {text}", "give more digits", code=USAGE)
    return found[0]


def _table(views: Sequence[WorkerView]) -> str:
    if not views:
        return "no worker has been here in the last hour"
    headers = ["ID", "STATUS", "HOST", "PID", "RUNNING", "HEARTBEAT", "DONE", "FAILED", "VERSION", "GROUP", "QUEUES"]
    return table(headers, [_row(view) for view in views])


def _row(view: WorkerView) -> list[object]:
    from ..report import span

    return [
        view.id,
        view.status,
        view.hostname,
        view.pid,
        Right(f"{view.running}/{view.slots}"),
        Right(span(view.heartbeat_seconds)),
        Right(f"{view.completed:,}"),
        Right(f"{view.failed:,}"),
        view.version,
        view.fleet or "–",
        ",".join(view.queues),
    ]
