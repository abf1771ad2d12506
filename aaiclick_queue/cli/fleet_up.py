"""What `fleet up` and `worker --processes` do once their options are known. After: fleet/supervisor.py."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TextIO, cast

import msgspec

from ..errors import QueueError
from ..fleet.address import Address
from ..fleet.control import answering
from ..fleet.file import Fleet, read
from ..fleet.lines import Screen, Sink
from ..fleet.member import Command
from ..fleet.supervisor import Supervisor, Wanted, on_hangup
from ..logs import set_up
from ..settings import Settings
from .banner import fleet_banner, postgres_facts
from .program import colour, echo

log = logging.getLogger("aaiclick_queue.fleet")

WIND_DOWN_SECONDS = 30.0  # beyond the grace time, a worker takes at most 19 s to hand back and say goodbye


class Output(msgspec.Struct, frozen=True):
    """How lines look, ours and those of the processes."""

    log_format: Literal["pretty", "json"]
    level: str | None  # where each process' settings do not decide
    verbose: bool

    def screen(self, settings: Settings) -> Screen:
        """Our streams; our own log lines go there too."""
        painted = self.log_format == "pretty" and colour(sys.stdout)
        screen = Screen(as_json=self.log_format == "json", colour=painted)
        stream = cast("TextIO", _Stream(screen.stdout))
        set_up(self.log_format, settings.log_level, colour=painted, tracebacks=self.verbose, stream=stream)
        return screen

    def arguments(self) -> list[str]:
        """Options of a process whose lines look alike."""
        verbose = ["--verbose"] if self.verbose else []
        level = ["--log-level", self.level] if self.level else []
        return ["--log-format", self.log_format, *level, *verbose]

    def environment(self) -> dict[str, str]:
        """A process writes to us, but a terminal shows it."""
        return {"FORCE_COLOR": "1"} if self.log_format == "pretty" and colour(sys.stdout) else {}


async def keep(settings: Settings, file: Path, name: str | None, output: Output) -> int:
    """Run the fleet of that file until it is told to stop; gives its exit code."""
    fleet = read(file)
    name = name or fleet.name
    facts = await _postgres_of(settings, fleet)
    with Address(settings.home, name).taken() as listening:
        if output.log_format == "pretty":
            echo(fleet_banner(settings, fleet, facts), err=True)
        screen = output.screen(settings)
        supervisor = Supervisor(name, _wanted(fleet, output), screen, reread=lambda: _wanted(read(fleet.file), output))
        supervisor.file = fleet.file
        on_hangup(lambda: _reload(supervisor), lambda: supervisor.stop(1))
        try:
            async with answering(supervisor, listening):
                code = await supervisor.run()
            log.info("fleet %s has ended", name, extra={"event": "fleet ended", "exit_code": min(code, 1)})
            return code
        finally:
            screen.close()


async def supervise(  # noqa: PLR0913 - one value an option
    settings: Settings,
    arguments: Sequence[str],
    count: int,
    output: Output,
    *,
    once: bool = False,
    probe: tuple[str, int] | None = None,
) -> int:
    """Keep `count` processes of that `worker` command running (`once`: until they end well); gives the exit code."""
    await postgres_facts(settings)  # what is wrong with the database is said once, not by each process
    command = Command(
        arguments=(*arguments, *output.arguments()),
        opening=("--banner-processes", str(count)),
        environment=output.environment(),
        drain_seconds=settings.grace_seconds + WIND_DOWN_SECONDS,
        once=once,
        probe_port=probe[1] if probe else None,
    )
    wanted = {"worker": Wanted(command, count)}
    screen = output.screen(settings)
    try:
        return await Supervisor("worker", wanted, screen, reread=lambda: wanted).run()
    finally:
        screen.close()


async def _postgres_of(settings: Settings, fleet: Fleet) -> tuple[str, str]:
    """Refuse at once what no process could work with; gives version and revision of the fleet's own Postgres."""
    facts = await postgres_facts(settings)
    seen = {_place_of(settings)}
    for group in fleet.groups.values():
        own = Settings.load({**os.environ, **group.environment})
        if _place_of(own) not in seen:
            seen.add(_place_of(own))
            await postgres_facts(own)
    return facts


def _place_of(settings: Settings) -> tuple[str | None, str, Path]:
    return settings.postgres_url, settings.postgres_schema, settings.home


def _wanted(fleet: Fleet, output: Output) -> dict[str, Wanted]:
    wanted = {}
    for name, group in fleet.groups.items():
        settings = Settings.load({**os.environ, **group.environment})
        command = Command(
            arguments=("worker", *group.arguments(), "--fleet-group", name, *output.arguments()),
            environment={**output.environment(), **group.environment},
            folder=fleet.folder,
            drain_seconds=settings.grace_seconds + WIND_DOWN_SECONDS,
            probe_port=group.probe_port,
        )
        wanted[name] = Wanted(command, group.count)
    return wanted


def _reload(supervisor: Supervisor) -> None:
    try:
        supervisor.reload()
    except QueueError as error:
        log.error("the fleet goes on as it was: %s", error, extra={"event": "reload refused"})


class _Stream:
    """What logging writes goes the way of the processes' lines, so that a slow reader does not keep us."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, text: str) -> None:
        self._sink.write(text.encode(errors="replace"))

    def flush(self) -> None:
        """The sink's thread does."""
