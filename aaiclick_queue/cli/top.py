"""`top`: queues, workers and rates, live in a terminal; one frame, plain frames or JSON anywhere else."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from .output import database, json_option, run

if TYPE_CHECKING:
    from ..settings import Settings


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue top
  aaiclick-queue top --once                       one frame, for a report
  aaiclick-queue top --json --interval 5 | jq .totals

\b
Keys: q quit, arrows select a queue, p pause or resume it, s sort, ? help.""",
)
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=1.0, metavar="SECONDS", help="Time between looks."
)
@click.option("--once", is_flag=True, help="One frame, after two looks, and end.")
@json_option
def top(interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, workers and rates, with sparklines of the last minutes.

    Without a terminal the frames follow each other as plain text.
    """
    from ..settings import Settings

    run(_top(Settings.load(), interval, once=once, as_json=as_json))


async def _top(settings: Settings, interval: float, *, once: bool, as_json: bool) -> None:
    from .topping import print_frames, stay_on_screen

    live = screen_is_there() and not once and not as_json
    async with database(settings) as db:
        if live:
            await stay_on_screen(db, settings.postgres_shown, interval)
        else:
            await print_frames(db, settings.postgres_shown, interval, once=once, as_json=as_json)


def screen_is_there() -> bool:
    """Whether frames can be drawn over each other; NO_COLOR takes away the colour alone."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
