"""Changes of many tasks: `queue purge|move`, `task move|retry|priority|unblock`, and `task cancel --where`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .changing import change_tasks
from .completing import queue_names
from .finding import either, find_tasks, ids_given
from .output import changer, sure, with_database
from .program import NOTHING_MATCHED, echo
from .where import everything_option, parse_where, where_option

if TYPE_CHECKING:
    from ..postgres import Database

ids_argument = click.argument("task_ids", metavar="[ID]...", nargs=-1)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue queue purge mail --dry-run
  aaiclick-queue queue purge mail --where 'entrypoint=send older_than=1d' --yes""",
)
@click.argument("name", shell_complete=queue_names)
@where_option
@changer
def purge(name: str, where: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """End whatever waits in a queue as CANCELLED; what runs goes on."""
    from ..operations import purging

    return change_tasks(purging(name, parse_where(where)), ("purge", "purged"), dry_run=dry_run, yes=yes)


@click.command(
    "move",
    epilog="""\b
Examples:
  aaiclick-queue queue move mail --to slow-mail
  aaiclick-queue queue move mail --to bulk --where 'priority=-5'""",
)
@click.argument("name", metavar="FROM", shell_complete=queue_names)
@click.option("--to", required=True, shell_complete=queue_names, help="The queue that they go to.")
@where_option
@changer
def queue_move(name: str, to: str, where: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Put what waits in a queue into another one, in its order; max_depth is not looked at."""
    from ..operations import moving

    change = moving(to, {**parse_where(where), "queue": name})
    return change_tasks(change, (f"move to {to}", f"moved to {to}:"), dry_run=dry_run, yes=yes)


@click.command(
    "move",
    epilog="""\b
Examples:
  aaiclick-queue task move 7123456789012345678 --to slow-mail
  aaiclick-queue task move --to bulk --where 'entrypoint=send key=acme'""",
)
@ids_argument
@click.option("--to", required=True, shell_complete=queue_names, help="The queue that they go to.")
@where_option
@everything_option
@changer
def task_move(  # noqa: PLR0913 - one parameter an option
    *, task_ids: tuple[str, ...], to: str, where: tuple[str, ...], everything: bool, dry_run: bool, yes: bool
) -> int:
    """Put waiting tasks into another queue; one that runs is left alone."""
    from ..operations import moving

    either(task_ids, where, everything=everything)
    if not task_ids:
        change = moving(to, parse_where(where), everything=everything)
        return change_tasks(change, (f"move to {to}", f"moved to {to}:"), dry_run=dry_run, yes=yes)
    given = ids_given(task_ids, asks=not (yes or dry_run))
    change = moving(to, {}, everything=True)

    async def step(db: Database, ids: list[int]) -> set[int]:
        from ..flow.move import move_tasks
        from ..flow.reaper import ensure_partitions

        await ensure_partitions(db)
        return await move_tasks(db, ids, change.arguments)

    words = (f"move to {to}", f"is in {to} now", "does not wait, or is there already")
    return with_database(lambda db: _each(db, given, step, words=words, dry_run=dry_run, yes=yes))


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task priority 9 --where 'correlation_id=order-7'
  aaiclick-queue task priority -- -5 --where 'queue=mail entrypoint=newsletter'""",
)
@click.argument("priority", type=click.IntRange(-32768, 32767))
@where_option
@everything_option
@changer
def priority(*, priority: int, where: tuple[str, ...], everything: bool, dry_run: bool, yes: bool) -> int:
    """Give waiting tasks another priority."""
    from ..operations import prioritizing

    change = prioritizing(priority, parse_where(where), everything=everything)
    doing = (f"set priority {priority} for", f"set priority {priority} for")
    return change_tasks(change, doing, dry_run=dry_run, yes=yes)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task retry 7123456789012345678
  aaiclick-queue task retry --where 'status=FAILED queue=mail older_than=1h' --yes""",
)
@ids_argument
@where_option
@everything_option
@changer
def retry(*, task_ids: tuple[str, ...], where: tuple[str, ...], everything: bool, dry_run: bool, yes: bool) -> int:
    """Run tasks that FAILED or were CANCELLED again, from their first attempt; `-` reads ids from stdin.

    With a filter: the FAILED ones, unless it says status=CANCELLED. In a job, what they had kept from starting waits
    again.
    """
    from ..operations import retrying

    either(task_ids, where, everything=everything)
    if not task_ids:
        change = retrying(parse_where(where), everything=everything)
        return change_tasks(change, ("retry", "put back in line:"), dry_run=dry_run, yes=yes)
    given = ids_given(task_ids, asks=not (yes or dry_run))

    async def step(db: Database, ids: list[int]) -> set[int]:
        from ..operations import retry_ids

        return await retry_ids(db, ids)

    words = ("retry", "is in line again", "neither FAILED nor CANCELLED")
    return with_database(lambda db: _each(db, given, step, words=words, dry_run=dry_run, yes=yes))


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task unblock 7123456789012345678""",
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@changer
def unblock(task_ids: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Let the tasks behind a failed one go on, where order_on_failure="stop" has stopped them."""
    given = ids_given(task_ids, asks=not (yes or dry_run))

    async def step(db: Database, ids: list[int]) -> set[int]:
        from ..flow.retry import unblock as unblock_tasks
        from ..limits import whoami
        from ..operations import in_batches

        return await in_batches(db, ids, lambda tx, some: unblock_tasks(tx, some, by=whoami()))

    words = ("unblock what waits behind", "is not waited for any more", "stops no order")
    return with_database(lambda db: _each(db, given, step, words=words, dry_run=dry_run, yes=True))


Step = Callable[[Any, list[int]], Awaitable[set[int]]]


async def _each(  # noqa: PLR0913 - a command
    db: Database, texts: Sequence[str], step: Step, *, words: tuple[str, str, str], dry_run: bool, yes: bool
) -> int:
    ids = await find_tasks(db, texts)
    what = str(ids[0]) if len(ids) == 1 else f"{len(ids):,} tasks"
    if dry_run:
        echo(f"would {words[0]} {what}")
        return 0
    sure(f"{words[0].capitalize()} {what}?", yes=yes)
    done = await step(db, ids)
    for one in ids:
        echo(f"{one} {words[1]}" if one in done else f"{one} {words[2]}", err=one not in done)
    return 0 if done else NOTHING_MATCHED
