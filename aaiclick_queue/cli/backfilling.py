"""`registered-job backfill`: a run for each tick of a range that has none, with how far it is."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from .changing import Shown
from .given import moment
from .output import changer, json_option, sure, to_json
from .program import FAILED, NOTHING_MATCHED, USAGE, echo, fail
from .schedules import name_argument, with_client

if TYPE_CHECKING:
    from ..client import Client
    from ..operations import Operation
    from ..registered import RegisteredJob

MOST_LISTED = 1000


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job backfill nightly --from 2027-01-01 --to 2027-02-01 --dry-run
  aaiclick-queue registered-job backfill nightly --from 2027-01-01 --to 2027-02-01 --max-running 2 --yes""",
)
@name_argument
@click.option("--from", "start", required=True, metavar="MOMENT", help="First; in the schedule's own zone.")
@click.option("--to", "end", required=True, metavar="MOMENT", help="Not at it or later; in the schedule's own zone.")
@click.option("--max-running", type=click.IntRange(1), metavar="N", help="At most so many of its runs at once.")
@json_option
@changer
def backfill(  # noqa: PLR0913 - one parameter an option
    *, name: str, start: str, end: str, max_running: int | None, as_json: bool, dry_run: bool, yes: bool
) -> None:
    """Run what a schedule would have run in a range: one job for each tick that has none.

    It is an operation: Ctrl-C leaves it to the workers, `operation cancel` stops it, the same range again goes on.
    """

    async def work(client: Client) -> None:
        from ..registered import get_registered_job

        found = await get_registered_job(name, client=client)
        first, last = (moment(*one, found.timezone) for one in (("--from", start), ("--to", end)))
        assert first is not None
        assert last is not None
        if last <= first:
            fail(f"--to {end} is not after --from {start}", "give the range from its first moment on", code=USAGE)
        count = await _missing(client, found, first, last, dry_run=dry_run, as_json=as_json)
        if not dry_run:
            sure(f"Backfill {count} of {name}?", yes=yes)
            done = await _backfill(client, name, (first, last), max_running)
            _tell(done, name, as_json=as_json)

    with_client(work)


async def _missing(  # noqa: PLR0913 - a command
    client: Client, found: RegisteredJob, first: datetime, last: datetime, *, dry_run: bool, as_json: bool
) -> str:
    """How many ticks the range lacks; ends the command when that is none."""
    from ..backfilling import missing_ticks
    from .schedule_text import draw_fires

    missing = await missing_ticks(found.name, first, last, limit=MOST_LISTED + 1, client=client)
    if not missing:
        fail(f"no tick of {found.name} is missing in that range", code=NOTHING_MATCHED)
    more = len(missing) > MOST_LISTED
    count = f"{min(len(missing), MOST_LISTED):,}{'+' if more else ''} {'tick' if len(missing) == 1 else 'ticks'}"
    if dry_run and as_json:
        echo(to_json(missing[:MOST_LISTED]))
    elif dry_run:
        echo("\n".join([f"would backfill {count} of {found.name}", *draw_fires(missing[:MOST_LISTED], found.timezone)]))
    return count


async def _backfill(
    client: Client, name: str, between: tuple[datetime, datetime], max_running: int | None
) -> Operation:
    from ..backfilling import backfill as fill

    shown = Shown("runs to end")
    try:
        return await fill(name, *between, max_running=max_running, client=client, progress=shown)
    finally:
        shown.end()


def _tell(done: Operation, name: str, *, as_json: bool) -> None:
    if done.status != "DONE":
        why = f" ({done.error})" if done.error else ""
        fail(f"operation {done.id} is {done.status}{why}: {done.done:,} runs made before", code=FAILED)
    if as_json:
        echo(to_json(done))
        return
    echo(f"backfilled {name}: {done.done:,} {'run' if done.done == 1 else 'runs'} (operation {done.id})")
