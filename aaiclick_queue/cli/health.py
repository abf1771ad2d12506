"""`health` and `metrics`: for probes that start a process, and for a look at the gauges without a server."""

from __future__ import annotations

import click

from .output import run
from .program import USAGE, echo, fail


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue health live                    for livenessProbe.exec: imports no task, asks no server
  aaiclick-queue health ready --max-age 1m""",
)
@click.argument("what", type=click.Choice(["live", "ready"]))
@click.option("--max-age", metavar="TIME", default="30s", help="A process that wrote nothing for so long is not well.")
def health(what: str, max_age: str) -> int:
    """How the workers of this machine are, as they wrote it themselves.

    Ends with 1 when one of them is not well, or there is none.
    """
    from ..health import look, seconds_of

    seconds = seconds_of(max_age)
    if seconds is None:
        fail(f"--max-age {max_age} is no time", "give seconds, or a number with s, m or h, as 30s", code=USAGE)
    return look(what, seconds)


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue metrics | grep oldest_ready""",
)
def metrics() -> None:
    """Print the state of all queues, workers and tables once, as Prometheus reads it."""
    echo(run(_metrics()).rstrip())


async def _metrics() -> str:
    from ..local import database_url
    from ..migrate import require_head
    from ..postgres import Database
    from ..server.metrics import state_metrics
    from ..settings import Settings

    settings = Settings.load()
    async with Database(settings, size=2, flow=True, dsn=await database_url(settings)) as db:
        await require_head(db)
        return (await state_metrics(db)).decode()
