"""How a command changes many tasks: count, ask, write the operation down, work it to its end and show how far it is."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from .output import sure, with_database
from .program import FAILED, NOTHING_MATCHED, echo, fail
from .where import spelled

if TYPE_CHECKING:
    from ..flow.wanted import Count
    from ..operations import Change, Operation
    from ..postgres import Database

WAITS_SECONDS = 2.0


def change_tasks(change: Change, doing: tuple[str, str], *, dry_run: bool, yes: bool) -> int:
    """Carry a change out; `doing` are its words, as in ("move to slow", "moved to slow")."""
    return with_database(lambda db: _change(db, change, doing, dry_run=dry_run, yes=yes))


async def _change(db: Database, change: Change, doing: tuple[str, str], *, dry_run: bool, yes: bool) -> int:
    from ..operations import begin

    count = await change.count(db)
    if not count.n and not count.more:
        fail(f"no task matches {spelled(change.where) or 'at all'}", "aaiclick-queue task list", code=NOTHING_MATCHED)
    what = f"{_tasks(count)} ({_shares(count)}){_meant(change)}"
    if dry_run:
        echo(f"would {doing[0]} {what}")
        return 0
    sure(f"{doing[0].capitalize()} {what}?", yes=yes)
    operation = await finish(db, await begin(db, change, count))
    if operation.status == "CANCELLED":
        fail(f"operation {operation.id} was cancelled: {operation.done:,} {doing[1]} before", code=FAILED)
    if operation.status == "FAILED":
        fail(f"operation {operation.id} failed ({operation.error}): {operation.done:,} {doing[1]} before", code=FAILED)
    echo(f"{doing[1]} {operation.done:,} {'task' if operation.done == 1 else 'tasks'} (operation {operation.id})")
    return 0


async def finish(db: Database, operation_id: int, *, waits_for: str = "tasks that others hold") -> Operation:
    """Work an operation to its end, with a line on a terminal that says how far it is."""
    from ..operations import work_to_end

    shown = Shown(waits_for)
    try:
        return await work_to_end(db, operation_id, progress=shown)
    finally:
        shown.end()


class Shown:
    """The progress of an operation as one line that is written over and over."""

    def __init__(self, waits_for: str) -> None:
        self._waits_for = waits_for
        self._done = -1
        self._done_at = 0.0
        self._width = 0

    def __call__(self, operation: Operation) -> None:
        """Show how far it is."""
        if not sys.stderr.isatty():
            return
        of = f" of {operation.total:,}" if operation.total is not None else ""
        if operation.done != self._done:
            self._done, self._done_at = operation.done, time.monotonic()
        waits = f", waits for {self._waits_for}" if time.monotonic() - self._done_at > WAITS_SECONDS else ""
        line = f"operation {operation.id}: {operation.done:,}{of}{waits} (Ctrl-C: workers go on with it)"
        click.echo(f"\r{line:<{self._width}}", nl=False, err=True)
        self._width = len(line)

    def end(self) -> None:
        """Leave a clean line behind."""
        if self._width:
            click.echo(f"\r{' ' * self._width}\r", nl=False, err=True)


def _tasks(count: Count) -> str:
    return f"{count} task" + ("" if count.n == 1 and not count.more else "s")


def _shares(count: Count) -> str:
    none = f"none among the {count.looked_at:,} looked at" if count.looked_at else "none"
    return ", ".join(f"{n:,} {status}" for status, n in count.by_status.items() if n) or none


def _meant(change: Change) -> str:
    return f" with {spelled(change.where)}" if change.where else " of all queues"
