"""`job timeline`, `task timeline`: what happened, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .completing import event_types, job_names
from .finding import find_tasks
from .lines import Line, fitted
from .output import reader, show, terminal_width
from .program import USAGE, echo, fail

if TYPE_CHECKING:
    from datetime import datetime

    from ..postgres import Database
    from ..timelines import Asked, Event, Summary, Timeline

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = {"SUCCESS": ("✔", "green"), "FAILURE": ("✘", "red"), "WARNING": ("!", "yellow"), "INFO": ("·", None)}
NAME_WIDTH = 24
WIDE = 110


def timeline_options(command: F) -> F:
    """What both timelines can be asked for."""
    options = [
        click.option("--type", "types", multiple=True, metavar="TYPE[,TYPE]", shell_complete=event_types,
                     help="Only events of these types, as TASK_FAILED; several times or with commas."),
        click.option("--level", multiple=True, type=click.Choice(list(LEVELS), case_sensitive=False),
                     help="Only events of this level; several times."),
        click.option("--last", is_flag=True, help="The last events instead of the first."),
        click.option("--after", metavar="MARK", help="Where the page before ended, as it has said."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    "timeline",
    epilog="""\b
Examples:
  aaiclick-queue job timeline etl
  aaiclick-queue job timeline etl --level FAILURE --level WARNING
  aaiclick-queue job timeline etl --type TASK_RETRYING,TASK_LOST --json
  aaiclick-queue job timeline etl --last --limit 20 --watch""",
)
@click.argument("job", metavar="ID_OR_NAME", shell_complete=job_names)
@timeline_options
@reader(limit=100)
def job_timeline(*, job: str, as_json: bool, watch: float | None, **given: Any) -> None:
    """What happened to a job and its tasks, oldest first."""
    asked = _asked(**given)

    async def read(db: Database) -> Timeline:
        from ..job_views import find_job
        from ..timelines import read_timeline

        return await read_timeline(db, "job", await find_job(db, job), asked)

    _show(read, asked, as_json=as_json, watch=watch)


@click.command(
    "timeline",
    epilog="""\b
Examples:
  aaiclick-queue task timeline 12345678
  aaiclick-queue task timeline 7123456789012345678 --json | jq '.events[] | [.at, .message]'""",
)
@click.argument("task_id", metavar="ID")
@timeline_options
@reader(limit=100)
def task_timeline(*, task_id: str, as_json: bool, watch: float | None, **given: Any) -> None:
    """What happened to a task, oldest first."""
    asked = _asked(**given)

    async def read(db: Database) -> Timeline:
        from ..timelines import read_timeline

        [found] = await find_tasks(db, [task_id])
        return await read_timeline(db, "task", found, asked)

    _show(read, asked, as_json=as_json, watch=watch)


def _asked(*, types: tuple[str, ...], level: tuple[str, ...], last: bool, after: str | None, limit: int) -> Asked:
    from ..event_words import LEVELS as LEVEL_OF
    from ..timelines import Asked

    wanted = [kind.strip().upper() for text in types for kind in text.split(",") if kind.strip()]
    if level:
        levels = {one.upper() for one in level}
        wanted = [kind for kind in wanted or LEVEL_OF if LEVEL_OF.get(kind) in levels]
        if not wanted:
            fail("no type of event has both that level and that name", "leave --type or --level away", code=USAGE)
    return Asked(tuple(wanted), limit, after, last)


def _show(read: Callable[[Database], Any], asked: Asked, *, as_json: bool, watch: float | None) -> None:
    async def told(db: Database) -> Timeline:
        found: Timeline = await read(db)
        if found.more and not watch and not as_json:
            echo(f"{'earlier' if asked.newest else 'later'} ones: add --after {found.more}", err=True)
        return found

    show(told, draw_timeline, as_json=as_json, watch=watch)


def draw_timeline(found: Timeline) -> str:
    """The events as rows, and the summary below."""
    from ..timelines import last_line_of_unknown

    if not found.events:
        return "nothing has happened that was asked for"
    width = terminal_width() or 120
    names = any(event.name for event in found.events) and len({event.task_id for event in found.events}) > 1
    rows = [str(_row(event, width, name=names)) for event in last_line_of_unknown(found.events)]
    if found.tasks_left_out:
        rows.append(f"{found.tasks_left_out:,} tasks of the job are left out")
    if found.summary:
        rows += ["", *(str(line) for line in _summary(found.summary, width))]
    return "\n".join(rows)


def _row(event: Event, width: int, *, name: bool) -> Line:
    sign, colour = LEVELS[event.level]
    style: dict[str, Any] = {"fg": colour} if colour else {"dim": True}
    line = Line(moment(event.at), dim=True) + "  " + Line(sign, **style) + " "
    if name:
        line += Line(fitted(event.name or "(job)", NAME_WIDTH)).padded(NAME_WIDTH + 2)
    if width >= WIDE:
        line += Line(event.type, dim=True).padded(22)
    told = fitted(event.message, width - line.width)
    return line + (Line(told, fg=colour) if event.level in ("FAILURE", "WARNING") else Line(told))


def _summary(summary: Summary, width: int) -> Iterator[Line]:
    from ..report import span

    took = f" in {span(summary.duration.total_seconds())}" if summary.duration else ""
    many = "1 event" if summary.events == 1 else f"{summary.events:,} events{took}"
    counts = ", ".join(f"{kind.lower().replace('_', ' ')} {n:,}" for kind, n in summary.counts.items())
    yield Line(fitted(f"{many}: {counts}", max(width, 80) * 3), dim=True)
    if summary.with_retries:
        yield Line(fitted(f"tried again: {', '.join(summary.with_retries)}", width), dim=True)


def moment(at: datetime) -> str:
    """A moment in local time to the millisecond, with its day unless that is today."""
    from .output import when

    return f"{when(at)}.{at.microsecond // 1000:03d}"
