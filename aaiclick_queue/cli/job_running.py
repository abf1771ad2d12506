"""`run-job`: starts a job by its name and, if asked to, waits for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .completing import registered_names
from .given import arguments
from .output import changer, json_option, to_json
from .program import FAILED, echo, fail
from .registering import RUN_OPTIONS
from .schedules import with_client

if TYPE_CHECKING:
    from ..client import Client
    from ..job_handles import JobHandle

PATIENCE_SECONDS = 3.0


def _options(command: Any) -> Any:
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


@click.command(
    "run-job",
    epilog="""\b
Examples:
  aaiclick-queue run-job nightly
  aaiclick-queue run-job nightly --kwargs '{"day": "2027-03-28"}' --queue bulk --wait
  aaiclick-queue run-job trial --entrypoint shop.jobs.nightly
  aaiclick-queue job wait "$(aaiclick-queue run-job nightly)\"""",
)
@click.argument("name", shell_complete=registered_names)
@click.option("--kwargs", default="{}", metavar="JSON", help="Arguments by name, merged over the registered ones.")
@click.option("--entrypoint", metavar="MODULE.FUNCTION", help="Run this one, under that name.")
@_options
@click.option("--wait", is_flag=True, help="Wait for the end and print the result; exit code 1 when it failed.")
@json_option
@changer
def run_job(  # noqa: PLR0913 - one parameter an option
    *,
    name: str,
    kwargs: str,
    entrypoint: str | None,
    wait: bool,
    as_json: bool,
    dry_run: bool,
    yes: bool,  # noqa: ARG001 - there is nothing to ask
    **options: Any,
) -> int | None:
    """Start a registered job by its name, or any job or task by its entrypoint; prints the id of the job.

    An option that is not given is the registered one. It runs whether its schedule is enabled or not.
    """
    given = {option: value for option, value in options.items() if value is not None}
    values = arguments(kwargs)
    if dry_run:
        from ..redaction import redacted_text

        echo(f"would run {entrypoint or name} with {redacted_text(kwargs)}")
        return None

    async def work(client: Client) -> int:
        from ..starting import run_job as start

        handle = await start(name, entrypoint, values, client=client, **given)
        if not wait:
            echo(to_json({"id": str(handle.id)}) if as_json else str(handle.id))
            return 0
        echo(f"started {handle.id}, waiting for its end (Ctrl-C: it goes on without us)", err=True)
        return await _await(client, handle, as_json=as_json)

    code: int = with_client(work)
    return code


async def _await(client: Client, handle: JobHandle[Any], *, as_json: bool) -> int:
    import asyncio

    from ..errors import JobCancelled, JobFailed

    impatient = asyncio.create_task(_say_why(client, handle.id))
    end: dict[str, Any] = {"id": str(handle.id)}
    try:
        end |= {"status": "COMPLETED", "result": await handle.result()}
    except (JobFailed, JobCancelled) as error:
        status = "FAILED" if isinstance(error, JobFailed) else "CANCELLED"
        if not as_json:
            fail(str(error), f"aaiclick-queue job get {handle.id}", code=FAILED)
        end |= {"status": status, "error": {"message": str(error)}}
    finally:
        impatient.cancel()
    echo(to_json(end if as_json else end["result"]))
    return 0 if end["status"] == "COMPLETED" else FAILED


async def _say_why(client: Client, job_id: int) -> None:
    """Now and then a line on what the wait is for."""
    import asyncio

    from ..reading import get_tasks_for_job
    from .enqueueing import why_it_waits

    said = ""
    while True:
        await asyncio.sleep(PATIENCE_SECONDS)
        [*first] = await get_tasks_for_job(job_id, limit=1, client=client)
        why = await why_it_waits(client, int(first[0].id)) if first else ""
        if why and why != said and "COMPLETED" not in why:
            said = why
            echo(f"its first task is {why}", err=True)
