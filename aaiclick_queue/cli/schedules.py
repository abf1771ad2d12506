"""`registered-job list`, `get`, `enable`, `disable`, `delete`, `history`, `next`, `reset`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from .completing import registered_names
from .given import moment
from .output import changer, json_option, reader, run, show, sure, to_json, when
from .program import NOTHING_MATCHED, Nouns, echo, fail

if TYPE_CHECKING:
    from ..client import Client
    from ..postgres import Database
    from ..registered import RegisteredJob, TickView

name_argument = click.argument("name", shell_complete=registered_names)


@click.group("registered-job", cls=Nouns)
def registered_job() -> None:
    """Registered jobs: what runs by the clock or by its name, when, and what became of it."""


@registered_job.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue registered-job list
  aaiclick-queue registered-job list --enabled --watch
  aaiclick-queue registered-job list --json | jq -r '.[] | [.name, .next_run_at] | @tsv'""",
)
@click.option("--enabled", is_flag=True, help="Only those that are enabled.")
@reader(limit=None)
def list_command(enabled: bool, as_json: bool, watch: float | None) -> None:
    """Registered jobs by name, with their schedules and when they run next."""
    from ..registered import read_registered_jobs
    from .schedule_text import as_data, draw_list

    none = f"no job is registered{' and enabled' if enabled else ''}: `aaiclick-queue register-job` makes one"
    show(
        lambda db: read_registered_jobs(db, enabled_only=enabled),
        lambda found: draw_list(found) if found else none,
        as_json=as_json,
        watch=watch,
        data=lambda found: [as_data(one) for one in found],
    )


@registered_job.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job get nightly
  aaiclick-queue registered-job get nightly --json | jq '.next_runs'""",
)
@name_argument
@reader(limit=None)
def get(name: str, as_json: bool, watch: float | None) -> None:
    """One registered job: its schedule and options, its next fires, its last ticks."""
    from ..registered import read_registered_job, read_ticks
    from .schedule_text import TICKS_SHOWN, as_data, draw_one

    async def read(db: Database) -> tuple[RegisteredJob, list[TickView]]:
        found = await read_registered_job(db, name)
        return found, await read_ticks(db, found.id, limit=TICKS_SHOWN)

    show(read, lambda both: draw_one(*both), as_json=as_json, watch=watch, data=lambda both: as_data(both[0]))


@registered_job.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job history nightly
  aaiclick-queue registered-job history nightly --before 2027-03-28 --limit 50
  aaiclick-queue registered-job history nightly --json | jq '.[] | select(.status == "FAILED") | .job_id'""",
)
@name_argument
@click.option("--before", metavar="MOMENT", help="Only ticks before it, in the schedule's own zone if it names none.")
@reader(limit=20)
def history(name: str, before: str | None, as_json: bool, watch: float | None, limit: int) -> None:
    """The ticks of a registered job, newest first: what became of each, its job and how that ended."""
    from ..registered import read_registered_job, read_ticks
    from .schedule_text import draw_ticks

    async def read(db: Database) -> tuple[RegisteredJob, list[TickView]]:
        found = await read_registered_job(db, name)
        until = moment("--before", before, found.timezone)
        ticks = await read_ticks(db, found.id, limit=limit, before=until)
        if len(ticks) >= limit and not watch and not as_json:
            echo(f"older ones: add --before {ticks[-1].fire_at.isoformat()}", err=True)
        return found, ticks

    none = f"no tick of {name} {'is older' if before else 'has been yet'}"
    show(
        read,
        lambda both: draw_ticks(*both) if both[1] else none,
        as_json=as_json,
        watch=watch,
        data=lambda both: both[1],
    )


@registered_job.command(
    "next",
    epilog="""\b
Examples:
  aaiclick-queue registered-job next nightly
  aaiclick-queue registered-job next nightly --count 20 --json""",
)
@name_argument
@click.option("--count", type=click.IntRange(1, 1000), default=5, help="How many.")
@json_option
def next_command(name: str, count: int, as_json: bool) -> None:
    """When it fires next, in its own zone and in UTC; as if it were enabled."""

    async def work(client: Client) -> None:
        from ..registered import get_registered_job
        from .schedule_text import fires

        found = await get_registered_job(name, client=client)
        upcoming = found.next_runs(count)
        if not upcoming:
            why = "never fires again" if found.is_scheduled else "has no schedule"
            fail(f"{name} {why}", f"aaiclick-queue registered-job get {name}", code=NOTHING_MATCHED)
        echo(to_json(upcoming) if as_json else fires(found, count))

    with_client(work)


@registered_job.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job enable nightly""",
)
@name_argument
@changer
def enable(name: str, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - can be undone: nothing to ask
    """Let it run by its schedule again, from now on: what it did not run meanwhile is not made up for."""
    _turn(name, enabled=True, dry_run=dry_run)


@registered_job.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job disable nightly""",
)
@name_argument
@changer
def disable(name: str, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - can be undone: nothing to ask
    """Let it not run by its schedule; what runs goes on, and `run-job` works."""
    _turn(name, enabled=False, dry_run=dry_run)


@registered_job.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job reset nightly --dry-run
  aaiclick-queue registered-job reset nightly""",
)
@name_argument
@changer
def reset(name: str, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - the code has it all
    """Give a schedule that was edited back to the code that declared it, as that was when a worker last started."""

    async def work(client: Client) -> None:
        from ..registered import get_registered_job, reset_registered_job

        found = await get_registered_job(name, client=client)
        if found.source == "code" and not found.is_gone:
            fail(f"{name} is as its code says already", code=NOTHING_MATCHED)
        if not found.is_declared:
            fix = f"aaiclick-queue register-job {found.entrypoint} --name {name} --replace changes it"
            fail(f"no code has declared {name}", fix, code=NOTHING_MATCHED)
        if dry_run:
            echo(f"would make {name} what its code says")
            return
        found = await reset_registered_job(name, client=client)
        echo(f"{name} is what its code says again{_then(found)}")

    with_client(work)


@registered_job.command(
    epilog="""\b
Examples:
  aaiclick-queue registered-job delete nightly --dry-run
  aaiclick-queue registered-job delete nightly --yes""",
)
@name_argument
@changer
def delete(name: str, dry_run: bool, yes: bool) -> None:
    """Forget a registered job and its history; jobs that it has started stay.

    One that code declares is registered again by the next worker that starts: disable that instead.
    """

    async def work(client: Client) -> None:
        from ..registered import delete_registered_job, get_registered_job

        found = await get_registered_job(name, client=client)
        what = f"registered job {name} ({found.entrypoint}) and its history"
        if dry_run:
            echo(f"would delete {what}")
            return
        sure(f"Delete {what}?", yes=yes)
        if not await delete_registered_job(name, client=client):
            fail(f"{name} was deleted meanwhile", code=NOTHING_MATCHED)
        echo(f"deleted {what}")
        if found.is_declared and not found.is_gone:
            echo(
                f"code declares it: a worker that starts registers it again; `registered-job disable {name}` lasts",
                err=True,
            )

    with_client(work)


def with_client(work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Run it with a client made from the settings."""
    from ..client import connect

    async def connected() -> Any:
        async with connect() as client:
            return await work(client)

    return run(connected())


def _turn(name: str, *, enabled: bool, dry_run: bool) -> None:
    word = "enable" if enabled else "disable"

    async def work(client: Client) -> None:
        from ..registered import disable_job, enable_job, get_registered_job

        found = await get_registered_job(name, client=client)
        if found.enabled == enabled:
            fail(f"{name} is {word}d already", code=NOTHING_MATCHED)
        if dry_run:
            echo(f"would {word} {name}")
            return
        found = await (enable_job if enabled else disable_job)(name, client=client)
        echo(f"{word}d {name}{_then(found) if enabled else ''}")

    with_client(work)


def _then(found: RegisteredJob) -> str:
    if found.next_run_at is not None:
        return f": its next run is at {when(found.next_run_at)}"
    if not found.enabled:
        return ": it is disabled"
    return ": it never fires again" if found.is_scheduled else ": it has no schedule"
