"""`token create`, `token list`, `token revoke`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .given import seconds
from .output import changer, json_option, reader, show, sure, table, to_json, when, with_database
from .program import NOT_FOUND, Nouns, echo, fail

if TYPE_CHECKING:
    from ..postgres import Database
    from ..tokens import TokenView

ALL = 100_000


@click.group(cls=Nouns)
def token() -> None:
    """API tokens: who may read, change, or administer over HTTP."""


@token.command(
    epilog="""\b
Examples:
  aaiclick-queue token create grafana --role reader
  aaiclick-queue token create deploy --role writer --expires 30d
  export TOKEN=$(aaiclick-queue token create me --role admin --expires 8h)""",
)
@click.argument("name")
@click.option("--role", type=click.Choice(["reader", "writer", "admin"]), default="reader", help="What it may do.")
@click.option("--expires", type=seconds, metavar="DURATION", help="Ends after 8h, 30d …; never unless given.")
@json_option
def create(name: str, role: str, expires: float | None, as_json: bool) -> None:
    """Make a token and print it: this once, for only a digest of it is kept.

    A reader sees everything; a writer acts on tasks, jobs, queues, schedules and workers; an admin also makes tokens,
    sets limits, purges and prunes.
    """

    async def work(db: Database) -> str:
        from ..limits import whoami
        from ..tokens import create_token

        made = await create_token(db, name, role, lasts=expires, by=whoami())
        return to_json(made) if as_json else made.token

    echo(with_database(work))


@token.command(
    "list",
    epilog="""\b
Examples:
  aaiclick-queue token list
  aaiclick-queue token list --json | jq '.[] | select(.used_at == null) | .id'""",
)
@reader(limit=100)
def list_command(as_json: bool, watch: float | None, limit: int) -> None:
    """Tokens, newest first: whose, what for, until when, used when."""

    async def read(db: Database) -> list[TokenView]:
        from ..tokens import list_tokens

        return await list_tokens(db, limit=limit)

    show(read, _table, as_json=as_json, watch=watch)


@token.command(
    epilog="""\b
Examples:
  aaiclick-queue token revoke 7 --yes""",
)
@click.argument("token_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@changer
def revoke(token_id: int, dry_run: bool, yes: bool) -> None:
    """End a token now, and the sessions that were begun with it."""

    async def work(db: Database) -> str:
        from ..tokens import list_tokens, revoke_token

        known = {one.id: one for one in await list_tokens(db, limit=ALL)}
        found = known.get(str(token_id))
        if found is None:
            fail(f"there is no token {token_id}", "aaiclick-queue token list", code=NOT_FOUND)
        what = f"token {token_id} of {found.name} ({found.role})"
        if dry_run:
            return f"would revoke {what}"
        sure(f"Revoke {what}?", yes=yes)
        await revoke_token(db, token_id)
        return f"revoked {what}"

    echo(with_database(work))


def _table(views: Sequence[TokenView]) -> str:
    if not views:
        return "no token has been made: `aaiclick-queue token create NAME --role reader` makes one"
    headers = ["ID", "NAME", "ROLE", "MADE", "EXPIRES", "USED", "REVOKED", "BY"]
    return table(headers, [_row(view) for view in views])


def _row(view: TokenView) -> list[object]:
    moments = (view.created_at, view.expires_at, view.used_at, view.revoked_at)
    return [view.id, view.name, view.role, *map(when, moments), view.made_by or "–"]
