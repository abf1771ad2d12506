"""What commands print: tables for people, JSON for machines, again and again with --watch."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .program import USAGE, echo, fail, tell

if TYPE_CHECKING:
    from ..postgres import Database
    from ..settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STATUS_COLOURS = {
    "COMPLETED": "green", "ACTIVE": "green", "RUNNING": "cyan", "STOPPING": "yellow", "SCHEDULED": "yellow",
    "PAUSED": "yellow", "CANCELLED": "magenta", "FAILED": "red", "LOST": "red", "ENABLED": "green",
    "DISABLED": "yellow", "GONE": "magenta", "MISSED": "red",
}  # fmt: skip
WATCH_SECONDS = 2.0


def reader(*, limit: int | None) -> Callable[[F], F]:
    """The options of a command that reads: --json, --watch and, for lists, --limit."""

    def decorate(command: F) -> F:
        if limit is not None:
            command = click.option("--limit", type=click.IntRange(1, 10_000), default=limit, help="Rows at most.")(
                command
            )
        command = click.option(
            "--watch",
            is_flag=False,
            flag_value=str(WATCH_SECONDS),
            type=click.FloatRange(0.1, 3600),
            metavar="[SECONDS]",
            help="Show again and again, until Ctrl-C.",
        )(command)
        return json_option(command)

    return decorate


def json_option(command: F) -> F:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="JSON; ids are strings.")(command)


def changer(command: F) -> F:
    """The options of a command that changes something: --dry-run and --yes."""
    command = click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)
    return click.option("--dry-run", is_flag=True, help="Only say what would be done.")(command)


def sure(question: str, *, yes: bool) -> None:
    """Ask on a terminal; anywhere else --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Nobody is here to answer", "add --yes", code=USAGE)
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)


@asynccontextmanager
async def database(settings: Settings) -> AsyncIterator[Database]:
    """A connection or two for reading, to a schema of this version."""
    from ..local import database_url
    from ..migrate import require_head
    from ..postgres import Database

    async with Database(settings, size=2, flow=True, dsn=await database_url(settings)) as db:
        await require_head(db)
        yield db


def with_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Run it with a database made from the settings."""
    from ..settings import Settings

    async def connected() -> T:
        async with database(Settings.load()) as db:
            return await work(db)

    return run(connected())


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, on an event loop of its own."""
    import asyncio  # a third of the time that help takes, were it imported above

    return asyncio.run(work)


def show(
    read: Callable[[Database], Awaitable[T]],
    draw: Callable[[T], str],
    *,
    as_json: bool,
    watch: float | None = None,
    data: Callable[[T], Any] = lambda value: value,
) -> None:
    """Read and print, once or for ever; `data` is what JSON shows of it."""

    def text(value: T) -> str:
        if not as_json:
            return draw(value)
        return one_json_line(data(value)) if watch else to_json(data(value))

    with_database(lambda db: _show(db, read, text, watch, clear=not as_json and sys.stdout.isatty()))


async def _show(
    db: Database,
    read: Callable[[Database], Awaitable[T]],
    text: Callable[[T], str],
    watch: float | None,
    *,
    clear: bool,
) -> None:
    import asyncio

    from ..errors import PostgresUnavailable

    seen = False
    while True:
        try:
            drawn = text(await read(db))
        except PostgresUnavailable as error:
            if not (watch and seen):
                raise
            tell(str(error))
        else:
            if watch and clear:
                click.clear()
                drawn = f"{drawn}\n\n{time.strftime('%H:%M:%S')}, every {watch:g} s, Ctrl-C ends it"
            echo(drawn)
        if not watch:
            return
        seen = True
        await asyncio.sleep(watch)


def to_json(value: Any) -> str:
    """JSON of view structs, indented."""
    import msgspec

    text: str = msgspec.json.format(msgspec.json.encode(value).decode(), indent=2)
    return text


def one_json_line(value: Any) -> str:
    """JSON of view structs on one line."""
    import msgspec

    text: str = msgspec.json.encode(value).decode()
    return text


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their headers, numbers to the right; on a terminal the last column is cut to fit."""
    from ..report import one_line

    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    right = [all(isinstance(row[i], int | float | Right) for row in rows) for i in range(len(headers))]
    widths = [max(len(header), *(len(row[i]) for row in cells)) for i, header in enumerate(headers)]
    room = terminal_width()
    lines = []
    for number, row in enumerate([headers, *cells]):
        padded = [
            f"{cell:>{width}}" if to_right else f"{cell:<{width}}"
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        line = "  ".join(padded).rstrip()
        if room and len(line) > room:
            line = line[: room - 1] + "…"
        lines.append(_styled(line, row, header=number == 0))
    return "\n".join(lines)


def terminal_width() -> int:
    """Columns of the terminal; 0 where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


class Right(str):
    """A text that stands to the right, as a number does."""

    __slots__ = ()


def _styled(line: str, row: Sequence[str], *, header: bool) -> str:
    if header:
        return click.style(line, bold=True)
    for cell in row:
        if cell in STATUS_COLOURS:
            return line.replace(cell, click.style(cell, fg=STATUS_COLOURS[cell]), 1)
    return line


def when(moment: Any) -> str:
    """A moment in local time, with its day unless that is today."""
    if moment is None:
        return "–"
    local = moment.astimezone()
    today = time.strftime("%Y-%m-%d") == local.strftime("%Y-%m-%d")
    text: str = local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")
    return text
