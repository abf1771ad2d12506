"""`failures`: what fails, in groups; look into one, acknowledge it, retry its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from .changing import change_tasks
from .output import Right, changer, reader, show, table, when, with_database
from .program import NOT_FOUND, Nouns, echo, fail
from .where import duration

if TYPE_CHECKING:
    from ..failing import Failure, FailureGroup, FailurePage
    from ..postgres import Database

BARS = " ▁▂▃▄▅▆▇█"


@click.group(
    cls=Nouns,
    invoke_without_command=True,
    epilog="""\b
Examples:
  aaiclick-queue failures
  aaiclick-queue failures --hours 168 --all
  aaiclick-queue failures show 3f1c0a9b2d4e5f60
  aaiclick-queue failures retry 3f1c0a9b2d4e5f60 --dry-run""",
)
@click.option("--hours", type=click.FloatRange(0.1, 24 * 366), default=24.0, help="How far back.")
@click.option("--all", "everything", is_flag=True, help="Also groups that were acknowledged or muted.")
@reader(limit=50)
@click.pass_context
def failures(  # noqa: PLR0913, PLR0917 - one parameter an option
    ctx: click.Context, hours: float, everything: bool, as_json: bool, watch: float | None, limit: int
) -> None:
    """What fails, in groups: same task, same kind of error, same function."""
    if ctx.invoked_subcommand is not None:
        return
    from ..failing import LOOK_LIMIT, list_failures

    async def read(db: Database) -> FailurePage:
        page = await list_failures(db, hours=hours, limit=limit, acknowledged=everything)
        if page.is_cut and not watch:
            echo(f"there are more: looked at the newest {min(page.looked, LOOK_LIMIT):,}, {limit} groups", err=True)
        return page

    show(read, lambda page: _table(page, hours), as_json=as_json, watch=watch)


@failures.command(
    "show",
    epilog="""\b
Examples:
  aaiclick-queue failures show 3f1c0a9b2d4e5f60
  aaiclick-queue failures show 3f1c0a9b2d4e5f60 --json | jq -r '.tasks[].id'""",
)
@click.argument("fingerprint")
@reader(limit=None)
def show_command(fingerprint: str, as_json: bool, watch: float | None) -> None:
    """One group with its newest tasks."""
    from ..failing import get_failure

    async def read(db: Database) -> Failure:
        found = await get_failure(db, fingerprint)
        if found is None:
            _unknown(fingerprint)
        return found

    show(read, _draw, as_json=as_json, watch=watch)


@failures.command(
    epilog="""\b
Examples:
  aaiclick-queue failures ack 3f1c0a9b2d4e5f60 --reason "fixed in 1.4.3"
  aaiclick-queue failures ack 3f1c0a9b2d4e5f60 --mute 2d""",
)
@click.argument("fingerprint")
@click.option("--reason", help="Why; shown with --all.")
@click.option("--mute", metavar="DURATION", help="Also when it happens again, for so long: 2h, 1d.")
@changer
def ack(fingerprint: str, reason: str | None, mute: str | None, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - nothing to ask
    """Show the group no more until it happens again."""
    from datetime import UTC, datetime, timedelta

    from ..failing import acknowledge_failure, get_failure, mute_failure

    until = None if mute is None else datetime.now(UTC) + timedelta(seconds=duration(mute))

    async def acknowledge(db: Database) -> bool:
        if dry_run:
            return await get_failure(db, fingerprint) is not None
        if until is not None:
            return await mute_failure(db, fingerprint, until, reason=reason)
        return await acknowledge_failure(db, fingerprint, reason=reason)

    if not with_database(acknowledge):
        _unknown(fingerprint)
    told = f"until {when(until)}" if until else "until it happens again"
    echo(f"{'would acknowledge' if dry_run else 'acknowledged'} {fingerprint} {told}")


@failures.command(
    epilog="""\b
Examples:
  aaiclick-queue failures retry 3f1c0a9b2d4e5f60 --dry-run
  aaiclick-queue failures retry 3f1c0a9b2d4e5f60 --yes""",
)
@click.argument("fingerprint")
@changer
def retry(fingerprint: str, dry_run: bool, yes: bool) -> int:
    """Run all tasks of the group again, from their first attempt."""
    from ..operations import retrying

    change = retrying({"fingerprint": fingerprint})
    return change_tasks(change, ("retry", "retried"), dry_run=dry_run, yes=yes)


def _unknown(fingerprint: str) -> NoReturn:
    fail(f"nothing is left that failed as {fingerprint}", "aaiclick-queue failures --all", code=NOT_FOUND)


def _table(page: FailurePage, hours: float) -> str:
    if not page.groups:
        return f"nothing has failed in the last {hours:g} hours that was not acknowledged"
    headers = ["FINGERPRINT", "COUNT", "TREND", "TASK", "FIRST", "LAST", "ERROR"]
    return table(headers, [_row(one) for one in page.groups])


def _row(one: FailureGroup) -> list[object]:
    place = f" in {one.place}" if one.place else ""
    new = "new: " if one.is_new else ""
    error = f"{new}{one.error_type}{place}: {one.message or ''}"
    first, last = when(one.first_at), when(one.last_at)
    return [one.fingerprint, Right(f"{one.count:,}"), bars(one.trend), one.entrypoint, first, last, error]


def bars(values: list[int]) -> str:
    """Numbers as a row of bars."""
    most = max(values, default=0) or 1
    return "".join(BARS[0 if not value else max(1, round(value / most * 8))] for value in values)


def _draw(found: Failure) -> str:
    one = found.group
    lines = [
        f"{click.style(one.error_type, bold=True)}  {one.entrypoint}  {one.fingerprint}",
        f"  place        {one.place or '–'}",
        f"  tasks        {found.total:,}, of {one.jobs:,} jobs",
        f"  first, last  {when(one.first_at)}, {when(one.last_at)}  {bars(one.trend)}",
        f"  queues       {', '.join(one.queues)}",
    ]
    if one.acknowledged_at:
        why = f": {one.reason}" if one.reason else ""
        lines.append(f"  acknowledged {when(one.acknowledged_at)} by {one.acknowledged_by}{why}")
    rows: list[list[object]] = [
        [task.id, when(task.failed_at), task.queue, Right(str(task.attempt or 0)), task.message or ""]
        for task in found.tasks
    ]
    return "\n".join(lines) + "\n\n" + table(["ID", "FAILED", "QUEUE", "ATTEMPT", "MESSAGE"], rows)
