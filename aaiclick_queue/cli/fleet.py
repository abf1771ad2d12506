"""`fleet up`, `status`, `scale`, `reload`, `down`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .output import STATUS_COLOURS, Right, json_option, run, table, to_json
from .program import DONE, FAILED, NOT_FOUND, USAGE, Nouns, echo, fail, verbose_option
from .service import log_format_option, log_level_option, verbose_wanted

if TYPE_CHECKING:
    from ..fleet.address import Address
    from ..fleet.control import Answer, Request
    from ..fleet.group import GroupView
    from ..fleet.supervisor import FleetView

STATUS_COLOURS.setdefault("STARTING", "cyan")

name_option = click.option("--name", metavar="NAME", help="Which fleet; not needed where one runs.")


@click.group(cls=Nouns)
def fleet() -> None:
    """Groups of worker processes, kept running by one supervisor."""


@fleet.command(
    epilog="""\b
Examples:
  aaiclick-queue fleet up workers/fleet.toml
  aaiclick-queue fleet up workers/fleet.toml --log-format json

\b
Signals: the first SIGTERM or Ctrl-C finishes what runs, the second hands it back, the third kills.
  SIGHUP reads the file again and replaces all processes, one at a time in each group.
Exit codes: 0 stopped, 1 a group had FAILED or was killed, 69 Postgres unreachable, 78 bad settings or file.""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", help="Another name than the file gives it.")
@log_format_option
@log_level_option
@verbose_option
def up(file: Path, name: str | None, log_format: Literal["pretty", "json"], log_level: str | None) -> int:
    """Start the fleet of FILE and keep it running; no user code runs in this process."""
    from ..settings import Settings
    from .fleet_up import Output, keep

    settings = Settings.load(log_level=log_level)
    output = Output(log_format, log_level, verbose_wanted())
    return FAILED if run(keep(settings, file, name, output)) else DONE


@fleet.command(
    epilog="""\b
Examples:
  aaiclick-queue fleet status
  aaiclick-queue fleet status --json | jq .groups""",
)
@name_option
@json_option
def status(name: str | None, as_json: bool) -> int:
    """Every group: processes wanted and running, their pids, restarts, the last exit.

    Ends with 1 when a group has FAILED.
    """
    from ..fleet.control import Show, View

    [answer] = _ask(name, Show())
    assert isinstance(answer, View)
    echo(to_json(answer.fleet) if as_json else _table(answer.fleet))
    return FAILED if answer.fleet.state == "FAILED" else DONE


@fleet.command(
    epilog="""\b
Examples:
  aaiclick-queue fleet scale mail=4
  aaiclick-queue fleet scale mail=4 reports=0""",
)
@click.argument("sizes", metavar="GROUP=N…", nargs=-1, required=True)
@name_option
def scale(sizes: tuple[str, ...], name: str | None) -> None:
    """Run more or fewer processes of a group, until the next reload or start."""
    from ..fleet.control import Done, Scale

    [answer] = _ask(name, Scale(_sizes(sizes)))
    assert isinstance(answer, Done)
    echo(answer.text)
    echo("until the next reload or start of the fleet: `count` in its file is for good", err=True)


@fleet.command(
    epilog="""\b
Examples:
  aaiclick-queue fleet reload""",
)
@name_option
def reload(name: str | None) -> int:
    """Read the file again and replace every process: the new one takes tasks before the old one stops.

    A file with a mistake is refused, and the fleet goes on as it was.
    """
    from ..fleet.control import Done, Reload

    answer = _ask(name, Reload())[-1]
    assert isinstance(answer, Done)
    echo(answer.text, err=not answer.ok)
    return DONE if answer.ok else FAILED


@fleet.command(
    epilog="""\b
Examples:
  aaiclick-queue fleet down
  aaiclick-queue fleet down --now""",
)
@click.option("--now", is_flag=True, help="Hand back what runs, instead of finishing it.")
@name_option
def down(name: str | None, now: bool) -> None:
    """Have every process finish what it runs, and end the fleet."""
    from ..fleet.control import Down, until_down

    address = _address(name)
    _ask(address.name, Down(now))
    run(until_down(address))
    echo(f"fleet {address.name} is down")


def _sizes(given: tuple[str, ...]) -> dict[str, int]:
    from ..fleet.keys import COUNT_LIMIT

    sizes = {}
    for text in given:
        group, _, size = text.partition("=")
        if not group or not size.isdecimal() or int(size) > COUNT_LIMIT:
            fail(f"{text!r} is no size", f"GROUP=N with N from 0 to {COUNT_LIMIT:,}, as mail=4", code=USAGE)
        sizes[group] = int(size)
    return sizes


def _ask(name: str | None, request: Request) -> list[Answer]:
    """All answers; lines on the way are printed as they come."""
    from ..errors import BadFleet, QueueError
    from ..fleet.control import Refused, Said, ask

    async def work() -> list[Answer]:
        answers: list[Answer] = []
        async for answer in ask(_address(name), request):
            if isinstance(answer, Said):
                echo(answer.text, err=True)
            elif isinstance(answer, Refused):
                raise (BadFleet if answer.bad_file else QueueError)(answer.error)
            else:
                answers.append(answer)
        if not answers:
            raise QueueError("the supervisor ended before it answered: `aaiclick-queue fleet up FILE` starts another")
        return answers

    return run(work())


def _address(name: str | None) -> Address:
    from ..fleet.address import Address, running
    from ..settings import Settings

    home = Settings.load().home
    if name is not None:
        return Address(home, name)
    names = running(home)
    if not names:
        fail("no fleet runs here", f"aaiclick-queue fleet up FILE, with AAICLICK_QUEUE_HOME={home}", code=NOT_FOUND)
    if len(names) > 1:
        fail(f"{len(names)} fleets run here: {', '.join(names)}", f"--name {names[0]}", code=USAGE)
    return Address(home, names[0])


def _table(view: FleetView) -> str:
    from ..report import span

    headers = ["GROUP", "STATE", "RUNNING", "UPTIME", "RESTARTS", "NEXT START", "PIDS", "LAST EXIT"]
    head = f"fleet {view.name} is {view.state}, pid {view.pid}, up {span(view.uptime_s)}"
    notes = [f"! {group.name}: {group.note}" for group in view.groups if group.note]
    return "\n".join([head, table(headers, [_row(group) for group in view.groups]), *notes])


def _row(group: GroupView) -> list[object]:
    from ..report import span

    uptimes = [one.uptime_s for one in group.processes if one.uptime_s is not None and one.state == "RUNNING"]
    return [
        group.name,
        group.state,
        Right(f"{group.running}/{group.wanted}"),
        Right(span(min(uptimes)) if uptimes else "–"),
        group.restarts,
        Right("–" if group.next_start_s is None else f"in {span(group.next_start_s)}"),
        ",".join(str(one.pid) for one in group.processes if one.pid) or "–",
        group.last_exit or "–",
    ]
