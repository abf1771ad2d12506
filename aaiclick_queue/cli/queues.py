"""`queue list`, `queue pause`, `queue resume`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from .completing import queue_names
from .output import Right, changer, reader, show, table, with_database
from .program import NOTHING_MATCHED, USAGE, Nouns, echo, fail

if TYPE_CHECKING:
    from ..postgres import Database
    from ..queue_views import QueueView

T = TypeVar("T")
LONGEST_NAME = 200


@click.group(cls=Nouns)
def queue() -> None:
    """Queues: how much waits, who serves them, pausing, limits, moving and purging."""


@queue.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue queue list --watch
  aaiclick-queue queue list --json | jq '.[] | select(.workers == 0) | .name'""",
)
@reader(limit=100)
def list_command(as_json: bool, watch: float | None, limit: int) -> None:
    """Ready, oldest, held, waiting, delayed, running and workers of every queue.

    READY is exact up to 10,000; of a longer line it is what was counted within the last minute, and when. OLDEST is the
    longest wait among the first hundred of each priority. HELD waits for a limit, WAITING for other tasks of its job;
    together they are PENDING.
    """
    from ..queue_views import list_queues

    show(lambda db: list_queues(db, limit=limit), _table, as_json=as_json, watch=watch)


@queue.command(
    epilog="""\b
Examples:
  aaiclick-queue queue pause mail --reason "the provider is down\"""",
)
@click.argument("name", shell_complete=queue_names)
@click.option("--reason", help="Shown to whoever asks why nothing moves.")
@changer
def pause(name: str, reason: str | None, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - can be undone: nothing to ask
    """Claim no more tasks of a queue; those that run go on."""
    if not 1 <= len(name) <= LONGEST_NAME:
        fail(f"{name[:20]!r} is no queue", "give its name, of 1 to 200 characters", code=USAGE)

    async def work(db: Database) -> str:
        from ..flow.pause import pause_queue
        from ..flow.reaper import ensure_partitions
        from ..limits import whoami

        [*before] = await _this_queue(db, name)
        if not before:
            echo(f"note: no task, worker or pause has named the queue {name!r} so far", err=True)
        if dry_run:
            return f"would pause {name}: {_waiting(before)}"
        await ensure_partitions(db)
        if not await pause_queue(db, name, by=whoami(), reason=reason):
            return f"{name} was paused already"
        return f"paused {name}: {_waiting(before)}"

    echo(with_database(work))


@queue.command(
    epilog="""\b
Examples:
  aaiclick-queue queue resume mail""",
)
@click.argument("name", shell_complete=queue_names)
@changer
def resume(name: str, dry_run: bool, yes: bool) -> int | None:  # noqa: ARG001 - can be undone: nothing to ask
    """Claim tasks of a paused queue again."""

    async def work(db: Database) -> tuple[str, int]:
        from ..flow.pause import resume_queue
        from ..flow.reaper import ensure_partitions
        from ..limits import whoami

        before = await _this_queue(db, name)
        if not any(view.paused_at for view in before):
            return f"{name} is not paused", NOTHING_MATCHED
        if dry_run:
            return f"would resume {name}: {_waiting(before)}", 0
        await ensure_partitions(db)
        await resume_queue(db, name, by=whoami())
        return f"resumed {name}: {_waiting(before)}", 0

    said, code = with_database(work)
    echo(said, err=code != 0)
    return code


async def _this_queue(db: Database, name: str) -> Sequence[QueueView]:
    from ..queue_views import list_queues

    return await list_queues(db, limit=1, name=name)


def _waiting(views: Sequence[QueueView]) -> str:
    return f"{_ready(views[0]) if views else 0} ready"


def _table(views: Sequence[QueueView]) -> str:
    if not views:
        return "no queue has any work, pause or worker"
    headers = ["QUEUE", "READY", "OLDEST", "HELD", "WAITING", "DELAYED", "RUNNING", "WORKERS", "STATE"]
    rows = [_row(view) for view in views]
    if not any(view.waiting for view in views):  # no jobs here: no column for what jobs alone have
        headers, rows = _without(4, headers), [_without(4, row) for row in rows]
    return table(headers, rows)


def _without(at: int, row: list[T]) -> list[T]:
    return [*row[:at], *row[at + 1 :]]


def _row(view: QueueView) -> list[object]:
    from ..report import span

    state = ""
    if view.paused_at:
        state = (
            "PAUSED" + (f" by {view.paused_by}" if view.paused_by else "") + (f": {view.reason}" if view.reason else "")
        )
    elif not view.workers and (view.ready or view.delayed):
        state = "no worker serves it"
    return [
        view.name,
        Right(_ready(view)),
        Right("–" if view.oldest_seconds is None else span(view.oldest_seconds)),
        Right(_many(view.held, more=view.held_is_more)),
        Right(_many(view.waiting, more=view.waiting_is_more)),
        Right(_many(view.delayed, more=view.delayed_is_more)),
        view.running,
        view.workers,
        state,
    ]


def _ready(view: QueueView) -> str:
    """What is in line; of a long line what the background counted, and when."""
    from ..report import span

    said = _many(view.ready, more=view.ready_is_more)
    return said if view.ready_at_seconds is None else f"~{said}, {span(view.ready_at_seconds)} ago"


def _many(number: int, *, more: bool) -> str:
    return f"{number:,}{'+' if more else ''}"
