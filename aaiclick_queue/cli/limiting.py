"""Limits: `queue limit`, `queue limits`, `task limit|pause|resume`, `key limit`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .changing import finish
from .completing import queue_names
from .output import Right, changer, json_option, reader, show, table, to_json, when, with_database
from .program import NOTHING_MATCHED, USAGE, Nouns, echo, fail
from .where import duration

if TYPE_CHECKING:
    from ..flow.limits import LimitView, Scope
    from ..limits import Changes
    from ..postgres import Database

F = TypeVar("F", bound=Callable[..., Any])
WORDS = {
    ("running", False): "max-running",
    ("rate", False): "rate",
    ("running", True): "per-key",
    ("rate", True): "per-key-rate",
    ("fair", False): "fair",
    ("pause", False): "pause",
    ("depth", False): "max-depth",
}
PERIODS = {1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}
OLD_TRANSACTIONS = "transactions that are older than the limit"


def limits_options(*, per_key: bool) -> Callable[[F], F]:
    """The options that all limits share."""

    def decorate(command: F) -> F:
        if per_key:
            command = click.option("--per-key-rate", metavar="N/PERIOD|none", help="As --rate, each key for itself.")(
                command
            )
            command = click.option("--per-key", metavar="N|none", help="Running at once of one concurrency_key.")(
                command
            )
        command = click.option("--rate", metavar="N/PERIOD|none", help="Starts in any such period: 100/min, 5/10s.")(
            command
        )
        return click.option("--max-running", metavar="N|none", help="Running at once, in the whole fleet.")(command)

    return decorate


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue queue limit mail                          what limits it has, and what is taken
  aaiclick-queue queue limit mail --max-running 20 --rate 100/min
  aaiclick-queue queue limit mail --per-key 2 --fair       each tenant two at a time, in turns
  aaiclick-queue queue limit mail --max-depth 50000        enqueue beyond that raises QueueFull
  aaiclick-queue queue limit mail --rate none""",
)
@click.argument("name", shell_complete=queue_names)
@limits_options(per_key=True)
@click.option("--fair/--no-fair", default=None, help="Equal turns for each concurrency_key.")
@click.option("--max-depth", metavar="N|none", help="Tasks in line at most; enqueue raises QueueFull beyond.")
@json_option
@changer
def limit(
    *,
    name: str,
    max_depth: str | None,
    as_json: bool,
    dry_run: bool,
    yes: bool,  # noqa: ARG001 - can be undone: nothing to ask
    **given: Any,
) -> None:
    """Limit a queue, or show its limits; `none` takes one away.

    Tasks in line are taken out of it under a new limit, and nobody claims from the queue meanwhile.
    """
    _limit("queue", name, given, max_depth=max_depth, as_json=as_json, dry_run=dry_run)


@click.command(
    "limit",
    epilog="""\b
Examples:
  aaiclick-queue task limit shop.mail.send --rate 10/s
  aaiclick-queue task limit shop.report.build --max-running 2 --per-key 1
  aaiclick-queue task limit shop.mail.send --rate none""",
)
@click.argument("entrypoint")
@limits_options(per_key=True)
@json_option
@changer
def task_limit(*, entrypoint: str, as_json: bool, dry_run: bool, yes: bool, **given: Any) -> None:  # noqa: ARG001 - can be undone
    """Limit a task wherever it is queued, by its whole entrypoint; or show its limits."""
    _limit("task", entrypoint, given, as_json=as_json, dry_run=dry_run)


@click.group(cls=Nouns)
def key() -> None:
    """Concurrency keys: limits of one key over all queues."""


@key.command(
    "limit",
    epilog="""\b
Examples:
  aaiclick-queue key limit tenant-7 --max-running 3
  aaiclick-queue key limit tenant-7 --rate 100/h --max-running none""",
)
@click.argument("name", metavar="KEY")
@limits_options(per_key=False)
@json_option
@changer
def key_limit(*, name: str, as_json: bool, dry_run: bool, yes: bool, **given: Any) -> None:  # noqa: ARG001 - can be undone
    """Limit one concurrency_key over all queues, or show its limits."""
    _limit("key", name, given, as_json=as_json, dry_run=dry_run)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue queue limits --watch
  aaiclick-queue queue limits --json | jq '.[] | select(.stopping > 0)'""",
)
@reader(limit=1000)
def limits(as_json: bool, watch: float | None, limit: int) -> None:
    """Every limit there is, of queues, tasks and keys, with what is taken of it.

    STOPPING are runs that were told to stop and have not yet: they count until they have.
    """
    from ..flow.limits import list_limits

    show(lambda db: list_limits(db, limit=limit), _table, as_json=as_json, watch=watch)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task pause shop.mail.send --for 30m --reason "the provider is down\"""",
)
@click.argument("entrypoint")
@click.option("--for", "lasts", metavar="DURATION", help="How long: 90s, 30m, 1h30m; until `task resume` if not given.")
@click.option("--reason", help="Shown to whoever asks why nothing moves.")
@changer
def pause(entrypoint: str, lasts: str | None, reason: str | None, dry_run: bool, yes: bool) -> None:  # noqa: ARG001 - can be undone
    """Let no run of a task start, in any queue; what runs goes on."""
    from ..limits import a_pause, apply

    wanted = a_pause(entrypoint, None if lasts is None else duration(lasts), reason)
    until = f" for {lasts}" if lasts else ""

    async def work(db: Database) -> str:
        _doubt(entrypoint)
        if dry_run:
            return f"would pause {entrypoint}{until}"
        for operation in await apply(db, wanted):
            await finish(db, operation, waits_for=OLD_TRANSACTIONS)
        return f"paused {entrypoint}{until}"

    echo(with_database(work))


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue task resume shop.mail.send""",
)
@click.argument("entrypoint")
@changer
def resume(entrypoint: str, dry_run: bool, yes: bool) -> int:  # noqa: ARG001 - can be undone: nothing to ask
    """Let a paused task run again."""

    async def work(db: Database) -> tuple[str, int]:
        from ..flow.limits import NewLimit
        from ..limits import apply

        if not any(one.kind == "pause" for one in await _limits_of(db, "task", entrypoint)):
            return f"{entrypoint} is not paused", NOTHING_MATCHED
        if dry_run:
            return f"would resume {entrypoint}", 0
        await apply(db, {NewLimit("task", entrypoint, "pause"): None})
        return f"resumed {entrypoint}", 0

    said, code = with_database(work)
    echo(said, err=code != 0)
    return code


def _limit(  # noqa: PLR0913 - a command
    scope: Scope, name: str, given: Mapping[str, Any], *, as_json: bool, dry_run: bool, max_depth: str | None = None
) -> None:
    from ..limits import UNCHANGED, changes, checked_depth

    values = {word: UNCHANGED if value is None else _value(word, value) for word, value in given.items()}
    wanted = changes(scope, name, **values)
    depth = UNCHANGED if max_depth is None else checked_depth(_value("max_depth", max_depth))

    async def work(db: Database) -> str:
        before = await _limits_of(db, scope, name)
        if wanted or depth is not UNCHANGED:
            if scope == "task":
                _doubt(name)
            if not dry_run:
                await _apply(db, name, wanted, depth)
            if not as_json:
                return "\n".join(_lines(before, wanted, depth, dry_run=dry_run))
        views = await _limits_of(db, scope, name)
        return to_json(views) if as_json else _table(views, none=f"{scope} {name} has no limits")

    echo(with_database(work))


async def _apply(db: Database, name: str, wanted: Changes, depth: Any) -> None:
    from ..flow.limits import set_max_depth
    from ..limits import UNCHANGED, apply, whoami

    if depth is not UNCHANGED:
        await set_max_depth(db, name, depth, by=whoami())
    for operation in await apply(db, wanted):
        await finish(db, operation, waits_for=OLD_TRANSACTIONS)


def _lines(before: Sequence[LimitView], wanted: Changes, depth: Any, *, dry_run: bool) -> list[str]:
    """What was and what is, a limit a line."""
    from ..limits import UNCHANGED

    was = {(one.kind, one.per_key): _shown(one.kind, one.n, one.seconds) for one in before}
    becomes: dict[tuple[str, bool], str] = {
        (key.kind, key.per_key): "none" if limit is None else _shown(limit.kind, limit.n, limit.seconds)
        for key, limit in wanted.items()
    }
    if depth is not UNCHANGED:
        becomes["depth", False] = "none" if depth is None else f"{depth:,}"
    would = "would be " if dry_run else ""
    return [f"{word}: {was.get(one, 'none')} → {would}{becomes[one]}" for one, word in WORDS.items() if one in becomes]


async def _limits_of(db: Database, scope: str, name: str) -> list[LimitView]:
    from ..flow.limits import list_limits

    return [one for one in await list_limits(db, limit=100_000) if (one.scope, one.name) == (scope, name)]


def _value(word: str, value: Any) -> Any:
    """None for `none`; numbers as numbers, the rest as it is."""
    from ..limits import MOST

    if isinstance(value, bool):
        return value
    if value.lower() == "none":
        return None
    if word in ("rate", "per_key_rate"):
        return value
    digits = value.replace(",", "").replace("_", "")
    if not re.fullmatch(r"\d{1,9}", digits) or not 1 <= int(digits) <= MOST:
        what = f"--{word.replace('_', '-')} {value}: that is no whole number from 1 to {MOST:,}"
        fail(what, "give one, or `none` for no limit", code=USAGE)
    return int(digits)


def _doubt(entrypoint: str) -> None:
    if "." not in entrypoint:
        echo(
            f"note: limits and pauses go by the whole entrypoint, module.function; {entrypoint!r} has no module",
            err=True,
        )


def _shown(kind: str, n: int, seconds: float | None) -> str:
    if kind == "rate" and seconds:
        return f"{n:,}/{PERIODS.get(seconds) or f'{seconds:g}s'}"
    return {"fair": "on", "pause": "on"}.get(kind, f"{n:,}")


def _table(views: Sequence[LimitView], *, none: str = "there are no limits") -> str:
    if not views:
        return none
    headers = ["SCOPE", "NAME", "KIND", "LIMIT", "USED", "STOPPING", "UNTIL", "BY", "REASON"]
    return table(headers, [_row(view) for view in views])


def _row(view: LimitView) -> list[object]:
    return [
        view.scope,
        view.name,
        WORDS[view.kind, view.per_key],
        Right(_shown(view.kind, view.n, view.seconds)),
        view.used,
        view.stopping,
        when(view.until),
        view.made_by or "–",
        view.reason or "",
    ]
