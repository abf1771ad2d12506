"""`local start`: everything on this machine, with one command."""

from __future__ import annotations

from typing import Any

import click

from .output import run
from .program import Nouns, verbose_option
from .server import checked, web_options
from .service import log_format_option, log_level_option, set_up_logs, settings_with


@click.group(cls=Nouns)
def local() -> None:
    """Everything on this machine: Postgres, a worker, the API and the dashboard."""


@local.command(
    epilog="""\b
Examples:
  aaiclick-queue local start -A tasks                 tasks.py in this folder, http://127.0.0.1:8787/
  aaiclick-queue local start -A shop.mail,shop.jobs --reload
  aaiclick-queue local start --port 9000              no tasks of yours: the loops and the dashboard""",
)
@click.option("-A", "--app", "modules", multiple=True, metavar="MODULE", help="Modules with tasks; several times.")
@click.option("-Q", "queues", multiple=True, metavar="a,b", help="Queues; all unless given.")
@click.option("--reload", is_flag=True, help="Start the worker anew when a file is saved.")
@web_options
@log_format_option
@log_level_option
@verbose_option
def start(
    *,
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    reload: bool,
    log_format: Any,
    log_level: str | None,
    **given: Any,
) -> int:
    """Start Postgres (an embedded one unless a URL is set), a worker with its loops, and the server; Ctrl-C ends all.

    The schema of a database that a URL names is brought to this version first, as `aaiclick-queue migrate` does.
    """
    settings = settings_with(log_level)
    set_up_logs(log_format, settings)
    from .together import Crew, start_all
    from .web import Web

    crew = Crew(modules=modules, queues=queues, reload=reload, log_format=log_format, log_level=log_level)
    return run(start_all(settings, Web(**checked(given)), crew))
