"""`server`: the HTTP API and the dashboard."""

from __future__ import annotations

from typing import Any

import click

from .output import run
from .program import USAGE, fail, verbose_option
from .service import log_format_option, log_level_option, set_up_logs, settings_with

LOCAL = ("127.0.0.1", "localhost", "::1")
PORT = 8787

_OPTIONS = [
    click.option("--host", default="127.0.0.1", help="Address to listen at."),
    click.option("--port", type=click.IntRange(0, 65535), default=PORT, help="Port; 0 for any that is free."),
    click.option("--prefix", default="", metavar="/PATH", help="Path under which a proxy shows it."),
    click.option("--env-label", metavar="TEXT", help="Shown on every page, as PROD."),
    click.option("--env-color", metavar="COLOUR", help="Colour of that label, as red."),
    click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="A name it may be called by."),
    click.option("--read-only", is_flag=True, help="Nobody can change anything, whatever their token says."),
    click.option("--no-docs", is_flag=True, help="No OpenAPI document."),
]


def web_options(command: Any) -> Any:
    """The options of everything that serves HTTP."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    epilog="""\b
Examples:
  aaiclick-queue server                                      for this machine: no token needed
  aaiclick-queue token create me --role admin                before anybody else is let in
  aaiclick-queue server --host 0.0.0.0 --env-label PROD --env-color red
  aaiclick-queue server --prefix /queue --read-only          behind a proxy, to look at

\b
On 127.0.0.1 whoever is on this machine may do everything. On any other address a token is needed.""",
)
@web_options
@click.option(
    "--auth",
    type=click.Choice(["tokens", "open-to-everyone"]),
    help="tokens: ask for one, also on 127.0.0.1. open-to-everyone: ask nobody, wherever they are.",
)
@log_format_option
@log_level_option
@verbose_option
def server(log_format: Any, log_level: str | None, auth: str | None, **given: Any) -> int:
    """Serve the HTTP API and the dashboard, until SIGTERM or Ctrl-C."""
    settings = settings_with(log_level)
    set_up_logs(log_format, settings)
    from .web import Web, serve

    web = Web(**checked(given), auth=auth)
    return run(serve(settings, web, banner=log_format == "pretty"))


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """The options, with what cannot be meant refused."""
    prefix = given["prefix"].rstrip("/")
    if prefix and not prefix.startswith("/"):
        fail(f"--prefix {prefix} is no path", f"write it as --prefix /{prefix}", code=USAGE)
    return given | {"prefix": prefix}
