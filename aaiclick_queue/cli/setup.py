"""`demo`, `migrate`, `doctor`, `config`, `completion`: around the queue rather than in it."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .output import changer, json_option, run, sure, table, to_json, with_database
from .program import FAILED, NOT_FOUND, Nouns, colour, echo, fail

if TYPE_CHECKING:
    from ..doctor import Finding
    from ..settings import Settings


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue demo
  NO_COLOR=1 aaiclick-queue demo > what-happened.txt""",
)
def demo() -> int:
    """See it work: tasks flow, retry and fail, a worker is killed. Needs no server; 15 seconds.

    A throw-away Postgres is started and removed again; your settings and data are not touched.
    """
    from ..demo import run_demo

    return run_demo(live=colour(sys.stdout))


@click.group(
    cls=Nouns,
    invoke_without_command=True,
    epilog="""\b
Examples:
  aaiclick-queue migrate                  to the newest revision
  aaiclick-queue migrate current
  aaiclick-queue migrate downgrade base --yes""",
)
@click.pass_context
def migrate(context: click.Context) -> None:
    """Bring the database schema to this version; safe to run from several places at once."""
    if context.invoked_subcommand is None:
        context.invoke(upgrade)


@migrate.command(
    epilog="""\b
Examples:
  aaiclick-queue migrate upgrade
  aaiclick-queue migrate upgrade +1 --dry-run""",
)
@click.argument("revision", default="head")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-y", "--yes", is_flag=True, hidden=True)
def upgrade(revision: str = "head", dry_run: bool = False, yes: bool = False) -> None:  # noqa: ARG001 - asks nothing
    """Up to a revision, the newest unless given."""
    run(_migrate("upgrade", revision, dry_run=dry_run))


@migrate.command(
    epilog="""\b
Examples:
  aaiclick-queue migrate downgrade 0001 --dry-run
  aaiclick-queue migrate downgrade base --yes     drop everything""",
)
@click.argument("revision")
@changer
def downgrade(revision: str, dry_run: bool, yes: bool) -> None:
    """Down to a revision, `base` for none; tables that it does not know are dropped with all that is in them."""
    if not dry_run:
        sure(f"Drop everything that came after {revision}?", yes=yes)
    run(_migrate("downgrade", revision, dry_run=dry_run))


@migrate.command(
    epilog="""\b
Examples:
  aaiclick-queue migrate current""",
)
def current() -> None:
    """The revision that the database is at."""

    async def read() -> str:
        from ..migrate import HEAD
        from ..settings import Settings

        settings = Settings.load()
        async with _dsn(settings) as dsn:
            revision = await _revision(settings, dsn)
        return (
            "none: run `aaiclick-queue migrate`"
            if revision is None
            else f"{revision}{' (head)' if revision == HEAD else ''}"
        )

    echo(run(read()))


@migrate.command(
    epilog="""\b
Examples:
  aaiclick-queue migrate history""",
)
def history() -> None:
    """Every revision there is, oldest first."""
    from ..migrate import history as revisions
    from ..settings import Settings

    for revision, what in revisions(Settings.load()):
        echo(f"{revision}  {what.strip().splitlines()[0]}")


@migrate.command(
    epilog="""\b
Examples:
  aaiclick-queue migrate roles
  aaiclick-queue migrate roles --dry-run | psql     with a role that has CREATEROLE""",
)
@click.option("--dry-run", is_flag=True, help="Only print the statements.")
@click.option("-y", "--yes", is_flag=True, hidden=True)
def roles(dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - asks nothing
    """Make database roles with no more rights than they need: enqueue, results, worker, read, operator.

    They are groups without a login: GRANT aaiclick_queue_worker TO a login of yours. Migrations keep their rights up.
    """
    run(_roles(dry_run=dry_run))


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue doctor
  aaiclick-queue doctor --json | jq '.[] | select(.ok | not)'""",
)
@json_option
def doctor(as_json: bool) -> int:
    """Check what must always be true; exit code 1 when something is not.

    What only needs a look, as work that waits where no worker is, is shown and changes no exit code.
    """
    from ..doctor import check

    def tell(finding: Finding) -> None:  # as they are found: over millions of tasks it takes a while
        if not as_json:
            echo(_finding(finding))

    findings = with_database(lambda db: check(db, tell=tell))
    if as_json:
        echo(to_json(findings))
    return 0 if all(finding.ok for finding in findings) else FAILED


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue config
  AAICLICK_QUEUE_LEASE_SECONDS=10 aaiclick-queue config --json | jq '.[] | select(.source == "environment")'""",
)
@json_option
def config(as_json: bool) -> None:
    """Every setting, its value and where that came from; passwords are masked."""
    from ..settings import PREFIX, Settings

    settings = Settings.load()
    rows = [
        {
            "name": PREFIX + name.upper(),
            "value": _shown(settings, name),
            "source": "environment" if name in settings.model_fields_set else "default",
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        echo(to_json(rows))
    else:
        headers = ["SETTING", "VALUE", "FROM", "WHAT IT DOES"]
        cells = [
            [row["name"], "unset" if row["value"] is None else row["value"], *list(row.values())[2:]] for row in rows
        ]
        echo(table(headers, [[str(cell) for cell in row] for row in cells]))


@click.command(
    epilog="""\b
Examples:
  eval "$(aaiclick-queue completion bash)"         in ~/.bashrc; zsh likewise
  aaiclick-queue completion fish > ~/.config/fish/completions/aaiclick-queue.fish""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "aaiclick-queue", "_AAICLICK_QUEUE_COMPLETE")
    echo(made.source_template % made.source_vars())


async def _migrate(direction: str, revision: str, *, dry_run: bool) -> None:
    from ..migrate import downgrade as down
    from ..migrate import history as revisions
    from ..migrate import upgrade as up
    from ..settings import Settings

    settings = Settings.load()
    names = dict(revisions(settings))
    if revision not in {*names, "head", "base"} and not re.fullmatch(r"[+-]\d+", revision):
        fail(f"there is no revision {revision!r}", "aaiclick-queue migrate history", code=NOT_FOUND)
    async with _dsn(settings) as dsn:
        before = await _revision(settings, dsn)
        if dry_run:
            echo(f"would {direction} from {before or 'nothing'} to {max(names) if revision == 'head' else revision}")
            return
        await (up if direction == "upgrade" else down)(settings, revision, dsn=dsn)
        after = await _revision(settings, dsn)
    low, high = sorted([before or "", after or ""])
    moved = [name for name in names if low < name <= high]
    for name in moved if direction == "upgrade" else reversed(moved):
        echo(f"{'applied' if direction == 'upgrade' else 'removed'} {name}  {names[name].strip().splitlines()[0]}")
    where = f"schema {settings.postgres_schema} of {settings.postgres_shown}"
    echo(f"{where} is {'already ' if not moved else ''}at {after or 'nothing'}")


async def _roles(*, dry_run: bool) -> None:
    from ..migrate import make_roles
    from ..roles import KINDS, role_name
    from ..settings import Settings

    settings = Settings.load()
    async with _dsn(settings) as dsn:
        statements = await make_roles(settings, dsn=dsn, dry_run=dry_run)
    if dry_run:
        for statement in ("BEGIN", *statements, "COMMIT"):
            echo(f"{statement};")
        return
    echo(
        table(
            ["ROLE", "WHAT IT MAY"], [[role_name(settings.postgres_schema, kind), what] for kind, what in KINDS.items()]
        )
    )


async def _revision(settings: Settings, dsn: str) -> str | None:
    from ..migrate import current as revision
    from ..postgres import Database

    async with Database(settings, size=1, dsn=dsn) as db:
        return await revision(db)


@asynccontextmanager
async def _dsn(settings: Settings) -> AsyncIterator[str]:
    """The database as it is: unlike anywhere else the embedded one is not migrated behind one's back."""
    if settings.postgres_url:
        yield settings.postgres_url
        return
    import asyncio

    from ..embedded import start

    server = await asyncio.to_thread(start, settings.home)
    try:
        yield server.dsn
    finally:
        server.stop()


def _finding(finding: Any) -> str:
    mark = click.style("✔", fg="green") if finding.ok else click.style("✖", fg="red")
    if finding.notice:
        mark = click.style("!", fg="yellow")
    elif finding.ok:
        return f"{mark} {finding.name}"
    return f"{mark} {finding.name}: {finding.count:,}, {finding.detail}\n  fix: {finding.fix}"


def _shown(settings: Settings, name: str) -> Any:
    value = settings.shown(name)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, Path) else value
