"""`task logs`: what a task has printed and logged, and what it says now."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import click

from .finding import find_tasks
from .output import json_option, one_json_line, with_database
from .program import NOTHING_MATCHED, echo, fail

if TYPE_CHECKING:
    from ..log_lines import LogLine
    from ..postgres import Database
    from ..task_logs import LogPage

COLOURS = {"DEBUG": "bright_black", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LOOK_SECONDS = 0.2
QUIET_SECONDS = 1.0  # after the end of the task: its last lines are written by then


class Asked(NamedTuple):
    """What is wanted of a log."""

    attempt: int | None
    tail: int | None
    level: str | None
    as_json: bool


@click.command(
    "logs",
    epilog="""\b
Examples:
  aaiclick-queue task logs 12345678
  aaiclick-queue task logs 12345678 -f                 until the task has ended
  aaiclick-queue task logs 12345678 --attempt 1 --level WARNING
  aaiclick-queue task logs 12345678 --json | jq -r .text""",
)
@click.argument("task_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Show what it says from now on too, until it has ended.")
@click.option("--attempt", type=click.IntRange(1, 32_767), help="Of this attempt; the last one unless given.")
@click.option("--tail", type=click.IntRange(0, 20_000), metavar="N", help="The last lines instead of all.")
@click.option("--level", type=click.Choice(LEVELS, case_sensitive=False), help="Only lines of this level or above.")
@json_option
def task_logs(  # noqa: PLR0913, PLR0917 - one parameter an option
    task_id: str, follow: bool, attempt: int | None, tail: int | None, level: str | None, as_json: bool
) -> None:
    """What a task printed and logged, attempt by attempt.

    With --json each line is an object of its own.
    """
    asked = Asked(attempt, tail, level and level.upper(), as_json)

    async def read(db: Database) -> None:
        [found] = await find_tasks(db, [task_id])
        if follow:
            await _follow(db, found, asked)
        else:
            await _show_all(db, found, asked)

    with_database(read)


async def _show_all(db: Database, task_id: int, asked: Asked) -> None:
    from ..task_logs import explain_no_logs

    page = await _first(db, task_id, asked)
    if page.source == "none":
        what, fix = await explain_no_logs(db, task_id)
        fail(what, fix, code=NOTHING_MATCHED)
    _print(page, asked)
    while not page.is_end:
        page = await _next(db, task_id, page, asked)
        _print(page, asked)


async def _follow(db: Database, task_id: int, asked: Asked) -> None:
    import asyncio

    from ..task_logs import explain_no_logs, list_log_attempts

    page, quiet_since = await _first(db, task_id, asked), None
    while True:
        _print(page, asked)
        if page.lines or not page.is_end:
            quiet_since = None
        elif asked.attempt is None and page.attempt is not None:
            attempts = await asyncio.to_thread(list_log_attempts, db.settings, task_id)
            if following := min((one.attempt for one in attempts if one.attempt > page.attempt), default=None):
                page = await _page(db, task_id, asked, attempt=following, after=0)
                continue
        if page.is_end:
            if await _has_ended(db, task_id):
                quiet_since = quiet_since or time.monotonic()
                if time.monotonic() - quiet_since > QUIET_SECONDS:
                    break
            await asyncio.sleep(LOOK_SECONDS)
        page = await (_first(db, task_id, asked) if page.source == "none" else _next(db, task_id, page, asked))
    if page.source == "none":
        what, fix = await explain_no_logs(db, task_id)
        fail(what, fix, code=NOTHING_MATCHED)


async def _first(db: Database, task_id: int, asked: Asked) -> LogPage:
    import asyncio

    from ..task_logs import read_last_logs

    if asked.tail is None:
        return await _page(db, task_id, asked, attempt=asked.attempt, after=0)
    return await asyncio.to_thread(
        read_last_logs, db.settings, task_id, attempt=asked.attempt, limit=asked.tail, least=asked.level
    )


async def _next(db: Database, task_id: int, page: LogPage, asked: Asked) -> LogPage:
    return await _page(db, task_id, asked, attempt=page.attempt, after=page.after)


async def _page(db: Database, task_id: int, asked: Asked, *, attempt: int | None, after: int) -> LogPage:
    import asyncio

    from ..task_logs import read_logs

    return await asyncio.to_thread(
        read_logs, db.settings, task_id, attempt=attempt, after=after, limit=1000, least=asked.level
    )


async def _has_ended(db: Database, task_id: int) -> bool:
    from ..task_logs import HAS_ENDED

    return bool(await db.fetchval(HAS_ENDED, task_id))


def _print(page: LogPage, asked: Asked) -> None:
    if not page.lines:
        return
    if asked.as_json:
        echo("\n".join(one_json_line({"attempt": page.attempt, **_fields(line)}) for line in page.lines))
    else:
        echo("\n".join(_drawn(page.lines)))


def _fields(line: LogLine) -> dict[str, object]:
    return {name: getattr(line, name) for name in line.__struct_fields__}


def _drawn(lines: Iterable[LogLine]) -> Iterable[str]:
    from ..report import one_line

    for line in lines:
        at = line.at.astimezone()
        first, *more = (one_line(part, 4096) for part in line.text.split("\n"))
        level = click.style(f"{line.level:<8}", fg=COLOURS.get(line.level))
        moment = click.style(f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}", dim=True)
        yield f"{moment} {level} {line.logger}  {first}".rstrip()
        yield from (f"    {part}".rstrip() for part in more)
