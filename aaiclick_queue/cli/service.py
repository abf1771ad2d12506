"""`worker` and `background`: the commands that stay."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import click

from .completing import served_queues
from .output import run
from .program import USAGE, Program, colour, fail, verbose_option
from .switches import Switches, looked_at, probe_of, read_switches, switches

if TYPE_CHECKING:
    from ..plan import Plan
    from ..settings import Settings
    from .fleet_up import Output

LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"]
WEIGHT_LIMIT = 1000

log_format_option = click.option(
    "--log-format", type=click.Choice(["pretty", "json"]), default="pretty", help="Lines for people, or JSON objects."
)
log_level_option = click.option(
    "--log-level", type=click.Choice(LEVELS, case_sensitive=False), help="Least level; AAICLICK_QUEUE_LOG_LEVEL."
)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue worker -A tasks                        tasks.py in this folder, queue `default`
  aaiclick-queue worker -A shop.mail,shop.reports -Q mail:3,default -c 200
  aaiclick-queue worker -A shop -Q '*' --processes 4 --log-format json
  aaiclick-queue worker -A shop -Q reports,mail --limit reports=2
  aaiclick-queue worker -A tasks --reload               at the desk: each save starts it anew
  aaiclick-queue worker -A tasks --probe-port 8081      /livez, /readyz and /metrics of this process
  aaiclick-queue worker -A tasks --burst                run what waits, then end

\b
Signals: the first SIGTERM or Ctrl-C finishes what runs, the second hands it back, the third ends at once.
SIGUSR1 prints where every thread and task is.""",
)
@click.option(
    "-A", "modules", multiple=True, metavar="MODULE[,MODULE]", help="Modules, or files, with tasks; they alone can run."
)
@click.option(
    "-Q", "queues", multiple=True, metavar="a,b | mail:3,default | '*'", shell_complete=served_queues,
    help="Queues, with weights if wanted; `default` unless given, '*' for all.",
)  # fmt: skip
@click.option("-c", "slots", type=click.IntRange(1, 10_000), default=100, help="Async tasks at a time, a process.")
@click.option(
    "--threads", type=click.IntRange(1, 10_000), help="`def` tasks at a time, a process; 4 × cores unless given."
)
@click.option(
    "--children", type=click.IntRange(1, 1000),
    help="Tasks with isolation='process' at a time, a process; as many as cores unless given.",
)  # fmt: skip
@click.option(
    "--max-tasks-per-child", type=click.IntRange(1), default=1000, help="A child is replaced after so many tasks."
)
@click.option(
    "--max-memory-per-child", type=click.IntRange(1), default=300, metavar="MB",
    help="A child that uses more than this after a task is replaced.",
)  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 1000), default=1, help="Processes; crashed ones are started again.")
@switches
@click.option("--no-background", is_flag=True, help="Leave relay and reaper to others.")
@log_format_option
@log_level_option
@verbose_option
@click.option("--parent-fd", type=int, hidden=True)
@click.option("--ready-fd", type=int, hidden=True)
@click.option("--output-fd", "output_fds", type=int, multiple=True, hidden=True)
@click.option("--fleet-group", hidden=True)
@click.option("--banner-processes", type=int, hidden=True)
def worker(  # noqa: PLR0913, PLR0917 - one parameter an option
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    slots: int,
    threads: int | None,
    children: int | None,
    max_tasks_per_child: int,
    max_memory_per_child: int,
    processes: int,
    no_background: bool,
    log_format: Literal["pretty", "json"],
    log_level: str | None,
    parent_fd: int | None,
    ready_fd: int | None,
    output_fds: tuple[int, ...],
    fleet_group: str | None,
    banner_processes: int | None,
    **given: Any,
) -> int:
    """Claim tasks and run them."""
    from .modules import import_modules, names
    from .stopping import Parent, Supervised, survive_sigusr1

    survive_sigusr1()
    parent = None if parent_fd is None else Parent(parent_fd, output_fds)
    wanted = names(modules)
    if not wanted:
        fail(
            "no module is given, so this worker could run nothing",
            "-A MODULE, the module with your @task functions",
            code=USAGE,
        )
    weights = parse_queues(queues)
    asked = read_switches(given, weights)
    settings = settings_with(log_level, trace=asked.trace)
    numbers = {
        "slots": slots,
        "threads": threads,
        "children": children,
        "max_tasks_per_child": max_tasks_per_child,
        "max_memory_per_child": max_memory_per_child,
    }
    counts = {name: number for name, number in numbers.items() if number is not None}
    if processes > 1 or asked.reload:
        arguments = [
            *("worker", "-A", ",".join(wanted), "-Q", ",".join(f"{name}:{weight}" for name, weight in weights.items())),
            *(*_options(counts), *(["--no-background"] if no_background else [])),
            *asked.arguments(),
        ]
        from .fleet_up import Output

        output = Output(log_format, log_level, verbose_wanted())
        return _with_children(settings, arguments, wanted, asked, (processes, output))
    set_up_logs(log_format, settings)
    modules = import_modules(wanted, verbose=verbose_wanted())
    import msgspec

    from ..probes import Address
    from .serving import stay, work

    plan = _plan(weights, modules, background=not no_background, **counts, **asked.plan())
    plan = msgspec.structs.replace(plan, fleet=fleet_group)
    shown = (banner_processes if parent else 1) if log_format == "pretty" else 0
    supervised = Supervised(parent, ready_fd)
    every_line, probe = log_format == "json", None if asked.probe is None else Address(*asked.probe)
    return stay(work(settings, plan, supervised, banner_processes=shown or 0, every_line=every_line, probe=probe))


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue background --log-format json     beside workers with --no-background""",
)
@log_format_option
@log_level_option
@looked_at
@verbose_option
def background(log_format: Literal["pretty", "json"], log_level: str | None, **given: Any) -> int:
    """Run only the background loops: relay, reaper, limits, pruning; no user code.

    Every worker runs them as well, unless it was started with --no-background.
    """
    from .stopping import survive_sigusr1

    survive_sigusr1()
    settings = settings_with(log_level, trace=given["trace"])
    set_up_logs(log_format, settings)
    from ..probes import Address
    from .serving import loops, stay

    where = probe_of(given)
    return stay(loops(settings, banner=log_format == "pretty", probe=where and Address(*where)))


def _with_children(
    settings: Settings, arguments: list[str], modules: list[str], asked: Switches, many: tuple[int, Output]
) -> int:
    processes, output = many
    if asked.reload:
        from .reloading import reload_worker

        several = ["--processes", str(processes)] if processes > 1 else []
        several += ["--probe-port", str(asked.probe[1])] if asked.probe else []
        return run(reload_worker([*arguments, *output.arguments(), *several], modules))
    from .fleet_up import supervise

    return run(supervise(settings, arguments, processes, output, once=asked.burst, probe=asked.probe))


def parse_queues(given: tuple[str, ...]) -> dict[str, int]:
    """Names and weights of `-Q`; `default` for nothing."""
    weights: dict[str, int] = {}
    for part in (part.strip() for text in given for part in text.split(",")):
        name, weight = part.rsplit(":", 1) if ":" in part else (part, "1")
        if not 1 <= len(name) <= 200 or not weight.isdecimal() or not 1 <= int(weight) <= WEIGHT_LIMIT:
            fail(
                f"-Q {','.join(given)}: {part!r} is no queue",
                f"NAME or NAME:WEIGHT, weight 1 to {WEIGHT_LIMIT}; a name with a colon needs one, as tenant:acme:1",
                code=USAGE,
            )
        weights[name] = int(weight)
    if "*" in weights and len(weights) > 1:
        fail("-Q '*' serves every queue already", "give '*' alone, or names alone", code=USAGE)
    return weights or {"default": 1}


def settings_with(log_level: str | None, *, trace: bool = False) -> Settings:
    """The settings, with what was given."""
    from ..settings import Settings

    return Settings.load(log_level=log_level, tracing="on" if trace else None)


def set_up_logs(log_format: Literal["pretty", "json"], settings: Settings) -> None:
    """Write log lines as they were asked for."""
    from ..logs import set_up

    set_up(log_format, settings.log_level, colour=colour(sys.stdout), tracebacks=verbose_wanted())


def verbose_wanted() -> bool:
    """Whether -v was given."""
    root = click.get_current_context().find_root().command
    return isinstance(root, Program) and root.verbose


def _options(numbers: Mapping[str, int]) -> list[str]:
    names = {name: "-c" if name == "slots" else "--" + name.replace("_", "-") for name in numbers}
    return [word for name, number in numbers.items() for word in (names[name], str(number))]


def _plan(queues: dict[str, int], modules: tuple[str, ...], **more: Any) -> Plan:
    from ..plan import Plan

    return Plan(queues=queues, modules=modules, **more)
