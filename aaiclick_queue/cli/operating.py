"""`operation list`, `operation get`, `operation cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .output import Right, changer, reader, show, sure, table, when, with_database
from .program import NOTHING_MATCHED, Nouns, echo, fail
from .where import spelled

if TYPE_CHECKING:
    from ..operations import Operation
    from ..postgres import Database


@click.group(cls=Nouns)
def operation() -> None:
    """Operations: changes of many tasks by filter, and how far they are."""


@operation.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue operation list --watch
  aaiclick-queue operation list --json | jq '.[] | select(.status == "OPEN")'""",
)
@reader(limit=20)
def list_command(as_json: bool, watch: float | None, limit: int) -> None:
    """Operations, newest first. OPEN ones are worked on by whoever made them and by every worker."""
    from ..operations import read_operations

    show(lambda db: read_operations(db, limit=limit), _table, as_json=as_json, watch=watch)


@operation.command(
    epilog="""\b
Examples:
  aaiclick-queue operation get 7 --watch""",
)
@click.argument("number", type=click.IntRange(1, 2**63 - 1))
@reader(limit=None)
def get(number: int, as_json: bool, watch: float | None) -> None:
    """One operation."""
    from ..operations import read_operation

    show(lambda db: read_operation(db, number), _drawn, as_json=as_json, watch=watch)


@operation.command(
    epilog="""\b
Examples:
  aaiclick-queue operation cancel 7 --yes""",
)
@click.argument("number", type=click.IntRange(1, 2**63 - 1))
@changer
def cancel(number: int, dry_run: bool, yes: bool) -> None:
    """Stop an operation after the page it is at; what it has changed stays changed."""

    async def work(db: Database) -> str:
        from ..operations import cancel_operation, read_operation

        found = await read_operation(db, number)
        if found.kind == "limit" and found.status == "OPEN":
            fail(
                f"operation {number} applies a limit, and its queue is closed until it has",
                "take the limit away instead, e.g. aaiclick-queue queue limit NAME --max-running none",
            )
        if found.status != "OPEN":
            fail(f"operation {number} is {found.status} already", code=NOTHING_MATCHED)
        if dry_run:
            return f"would cancel operation {number} ({_what(found)}, {_done(found)} done)"
        sure(f"Cancel operation {number} ({_what(found)}, {_done(found)} done)?", yes=yes)
        if not await cancel_operation(db, number):
            fail(f"operation {number} ended meanwhile", code=NOTHING_MATCHED)
        return f"cancelled operation {number}: {_done(await read_operation(db, number))} done"

    echo(with_database(work))


def _table(found: Sequence[Operation]) -> str:
    if not found:
        return "no operation has been made"
    headers = ["ID", "STATUS", "KIND", "DONE", "MADE", "ENDED", "BY", "WHICH"]
    return table(headers, [_row(one) for one in found])


def _row(one: Operation) -> list[object]:
    return [
        one.id,
        one.status,
        _what(one),
        Right(_done(one)),
        when(one.created_at),
        when(one.finished_at),
        one.made_by or "–",
        spelled(one.filter),
    ]


def _drawn(one: Operation) -> str:
    facts = {
        "what": _what(one),
        "which": spelled(one.filter) or "all tasks",
        "done": _done(one),
        "made": f"{when(one.created_at)} by {one.made_by or '–'}",
        "last page": when(one.updated_at),
        "ended": when(one.finished_at),
        "error": one.error,
    }
    lines = [f"operation {one.id}  {one.status}", ""]
    return "\n".join([*lines, *(f"  {name:<10} {value}" for name, value in facts.items() if value)])


def _what(one: Operation) -> str:
    if one.kind == "move":
        return ", ".join(f"{word} → {value}" for word, value in one.arguments.items())
    return one.kind


def _done(one: Operation) -> str:
    return f"{one.done:,}" + (f" of {one.total:,}" if one.total is not None else "")
