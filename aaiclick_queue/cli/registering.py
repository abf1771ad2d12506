"""`register-job`: writes a job into the catalogue, and says when it will run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .completing import queue_names
from .given import arguments, moment, seconds
from .output import json_option, to_json
from .program import FAILED, USAGE, echo, fail
from .schedules import with_client

if TYPE_CHECKING:
    from ..client import Client
    from ..registered import RegisteredJob

MISFIRES = ["skip", "coalesce", "catch_up"]
OVERLAPS = ["allow", "skip", "queue", "replace"]

_WHEN = [
    click.option("--cron", multiple=True, metavar="EXPRESSION",
                 help="Minute, hour, day, month, weekday and, if wanted, seconds last; several times."),
    click.option("--every", metavar="DURATION", help="Instead of --cron: 15m, 1h30m, 2d."),
    click.option("--timezone", default="UTC", metavar="ZONE", help="Whose clock --cron goes by, as Europe/Berlin."),
    click.option("--starts-at", metavar="MOMENT", help="Not before; in --timezone if it names none."),
    click.option("--ends-at", metavar="MOMENT", help="Not at it or later; in --timezone if it names none."),
    click.option("--jitter", type=seconds, metavar="DURATION", help="Each run starts up to so much later."),
    click.option("--misfire", type=click.Choice(MISFIRES), help="What becomes of late ticks; coalesce by default."),
    click.option("--misfire-limit", type=int, metavar="N", help="With catch_up: at most so many; 100 by default."),
    click.option("--overlap", type=click.Choice(OVERLAPS),
                 help="What becomes of a tick while the run before it is open; allow by default."),
]  # fmt: skip
RUN_OPTIONS = [
    click.option("--queue", shell_complete=queue_names, help="Queue of its tasks that name none."),
    click.option("--priority", type=int, help="Higher first."),
    click.option("--timeout", type=seconds, metavar="DURATION", help="Of the whole job."),
    click.option("--max-attempts", type=int, help="Of its first task, the first attempt included."),
    click.option("--retention", type=float, metavar="DAYS", help="How long its ended runs are kept."),
]


def _options(command: Any) -> Any:
    more = [click.option("--max-parallel", type=int, metavar="N", help="At most so many of its tasks run at once.")]
    for option in reversed([*_WHEN, *RUN_OPTIONS, *more]):
        command = option(command)
    return command


@click.command(
    "register-job",
    epilog="""\b
Examples:
  aaiclick-queue register-job shop.jobs.nightly --cron "0 8 * * *" --timezone Europe/Berlin
  aaiclick-queue register-job shop.jobs.sync --every 15m --overlap skip --kwargs '{"full": false}'
  aaiclick-queue register-job shop.jobs.report --name monday --cron "0 6 * * mon" --dry-run
  aaiclick-queue register-job shop.jobs.rebuild --description "by hand only" --replace""",
)
@click.argument("entrypoint")
@click.option("--name", help="What it is called; the function's name by default.")
@_options
@click.option("--kwargs", default="{}", metavar="JSON", help="Arguments of its runs by name, a JSON object.")
@click.option("--description", help="What it is for.")
@click.option("--disabled", is_flag=True, help="Do not run it by its schedule yet.")
@click.option("--replace", is_flag=True, help="Overwrite all of the one that has this name.")
@click.option("--dry-run", is_flag=True, help="Only check it, and say when it would run.")
@json_option
def register_job(  # noqa: PLR0913 - one parameter an option
    *,
    entrypoint: str,
    name: str | None,
    kwargs: str,
    disabled: bool,
    replace: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Register a job or a task by its entrypoint, `module.function`, with a schedule or to be run by name.

    No code is imported here: what the function's own decorator says of queue, priority and timeout is not known, and
    the worker checks the arguments. The next three fires are shown: six fields have seconds last.
    """
    given = _given(**options) | {"default_kwargs": arguments(kwargs), "enabled": not disabled}
    name = name or entrypoint.rpartition(".")[2]
    if dry_run:
        _dry_run(name, entrypoint, given, as_json=as_json)
        return
    with_client(lambda client: _register(client, name, entrypoint, given, replace=replace, as_json=as_json))


async def _register(  # noqa: PLR0913 - a command
    client: Client, name: str, entrypoint: str, given: dict[str, Any], *, replace: bool, as_json: bool
) -> None:
    from ..errors import JobExists
    from ..registered import register_job as register
    from ..registered import upsert_registered_job

    word = "registered"
    try:
        made = await register(name, entrypoint, client=client, **given)
    except JobExists:
        if not replace:
            fail(
                f"a job {name!r} is registered already",
                "add --replace to overwrite all of it, or give another --name",
                code=FAILED,
            )
        word, made = "replaced", await upsert_registered_job(name, entrypoint, client=client, **given)
    _tell(made, word, as_json=as_json)


def _tell(made: RegisteredJob, word: str, *, as_json: bool) -> None:
    from .schedule_text import as_data, fires, schedule

    if as_json:
        echo(to_json(as_data(made)))
        return
    how = f", {schedule(made)}" if made.is_scheduled else ""
    echo(f"{word} {made.name}: {made.entrypoint}{how}")
    echo(fires(made))


def _dry_run(name: str, entrypoint: str, given: dict[str, Any], *, as_json: bool) -> None:
    from ..registered import next_runs, registration
    from .schedule_text import draw_fires

    registration(name, entrypoint, given)
    parts = {key: given[key] for key in ("schedule", "interval", "timezone", "starts_at", "ends_at") if key in given}
    fires = next_runs(**parts) if "schedule" in parts or "interval" in parts else []
    if as_json:
        echo(to_json({"name": name, "entrypoint": entrypoint, "next_runs": fires}))
        return
    echo(f"would register {name}: {entrypoint}")
    echo("\n".join(draw_fires(fires, given["timezone"])) or "no fire lies ahead")


def _given(*, cron: tuple[str, ...], every: str | None, timezone: str, **options: Any) -> dict[str, Any]:
    if cron and every:
        fail("--cron and --every are both given", "give one of them", code=USAGE)
    for option in ("starts_at", "ends_at"):
        options[option] = moment(f"--{option.replace('_', '-')}", options[option], timezone)
    found = options | {"schedule": list(cron) or None, "interval": every, "timezone": timezone}
    return {name: value for name, value in found.items() if value is not None}
