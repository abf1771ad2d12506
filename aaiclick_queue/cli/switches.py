"""The switches of `worker` that say when it ends or starts anew, and how much of a queue it runs at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from .completing import capped_queues
from .program import USAGE, fail

F = TypeVar("F", bound=Callable[..., Any])

CAP_LIMIT = 10_000


class Switches(NamedTuple):
    """What was asked for by them."""

    limits: Mapping[str, int]
    burst: bool
    max_tasks: int | None
    max_memory: int | None
    reload: bool
    probe: tuple[str, int] | None = None  # host and port
    trace: bool = False

    def arguments(self) -> list[str]:
        """The same for a child process, but for --reload, its parent's, and --probe-port, which each has its own of."""
        given = [f"--limit={name}={cap}" for name, cap in self.limits.items()]
        given += ["--burst"] if self.burst else []
        given += ["--trace"] if self.trace else []
        given += [f"--probe-host={self.probe[0]}"] if self.probe else []
        given += [f"--max-tasks={self.max_tasks}"] if self.max_tasks else []
        return given + ([f"--max-memory={self.max_memory}"] if self.max_memory else [])

    def plan(self) -> dict[str, Any]:
        """The fields of a worker's plan."""
        return {
            "limits": self.limits, "burst": self.burst, "max_tasks": self.max_tasks, "max_memory": self.max_memory
        }  # fmt: skip


looking = [
    click.option(
        "--probe-port", type=click.IntRange(0, 65_535), metavar="PORT",
        help="Answer /livez, /readyz, /startupz and /metrics there; several processes take the ports from it on.",
    ),
    click.option("--probe-host", default="127.0.0.1", help="Address for --probe-port; 0.0.0.0 for all."),
    click.option("--trace", is_flag=True, help="Spans of tasks, to where OTEL_* says; AAICLICK_QUEUE_TRACING=on."),
]  # fmt: skip


def looked_at(command: F) -> F:
    """The options that let a process be looked at."""
    for option in reversed(looking):
        command = option(command)
    return command


def probe_of(given: Mapping[str, Any]) -> tuple[str, int] | None:
    """Where probes are to be answered."""
    return None if given["probe_port"] is None else (given["probe_host"], given["probe_port"])


def switches(command: F) -> F:
    """The options; the command takes them as `**given` and makes `read_switches(given, queues)` of them."""
    options = [
        click.option(
            "--limit", multiple=True, metavar="QUEUE=N[,QUEUE=N]", shell_complete=capped_queues,
            help="At most N runs of the queue at once, a process.",
        ),
        click.option("--burst", is_flag=True, help="End with 0 when nothing is left to do now."),
        click.option("--max-tasks", type=click.IntRange(1), metavar="N", help="End with 0 after N runs."),
        click.option(
            "--max-memory", type=click.IntRange(1), metavar="MB", help="End with 0 when the process uses more."
        ),
        *looking,
        click.option("--reload", is_flag=True, help="Start anew when a Python file of the modules' folders changes."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def read_switches(given: Mapping[str, Any], queues: Mapping[str, int]) -> Switches:
    """What the options say, refused where it makes no sense."""
    if given["reload"] and given["burst"]:
        fail("--burst ends and --reload goes on", "give one of them", code=USAGE)
    limits = parse_limits(given["limit"])
    for name in limits:
        if name not in queues and "*" not in queues:
            served = ",".join([*queues, name])
            fail(f"--limit {name}: this worker does not serve the queue {name!r}", f"-Q {served}", code=USAGE)
    return Switches(
        limits,
        given["burst"],
        given["max_tasks"],
        given["max_memory"],
        given["reload"],
        probe_of(given),
        given["trace"],
    )


def parse_limits(given: tuple[str, ...]) -> dict[str, int]:
    """Names and caps of `--limit`."""
    limits: dict[str, int] = {}
    for part in (part.strip() for text in given for part in text.split(",")):
        name, _, cap = part.rpartition("=")
        if not 1 <= len(name) <= 200 or name == "*" or not (cap.isascii() and cap.isdecimal()) or len(cap) > 5:
            fail(f"--limit {','.join(given)}: {part!r} is no cap", "QUEUE=N, as reports=2,mail=10", code=USAGE)
        if not 1 <= int(cap) <= CAP_LIMIT:
            why = "to run none of it, leave it out of -Q or `aaiclick-queue queue pause` it"
            fail(f"--limit {part}: a cap is 1 to {CAP_LIMIT:,}", why if int(cap) == 0 else "", code=USAGE)
        if limits.setdefault(name, int(cap)) != int(cap):
            fail(f"--limit gives the queue {name!r} two caps, {limits[name]} and {cap}", "give one", code=USAGE)
    return limits
