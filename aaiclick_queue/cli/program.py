"""The program around the commands: exit codes, errors as two lines, quiet ends by Ctrl-C and closed pipes."""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
import traceback
from typing import Any, NoReturn, TextIO

import click

DONE, FAILED, USAGE, NOTHING_MATCHED, NOT_FOUND, UNREACHABLE, BAD_SETTINGS = 0, 1, 2, 3, 4, 69, 78
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Nouns(click.Group):
    """A group that knows what a mistyped command was meant to be."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; for an unknown one the nearest name."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.list_commands(ctx))}"
            raise click.UsageError(f"there is no command {args[0]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)


class Program(Nouns):
    """The root of all commands; a command returns its exit code, None for 0."""

    verbose = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a program of its own."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that what is open gets closed
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        return super().__call__(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run one command and exit; every error that has a name is told without a traceback."""
        kwargs |= {"prog_name": "aaiclick-queue", "standalone_mode": False}
        self.verbose = False
        try:
            code = super().main(*args, **kwargs)
        except click.Abort:
            code = INTERRUPTED
        except click.ClickException as error:
            code = _usage(error)
        except Exception as error:
            code = _present(error, verbose=self.verbose)
        sys.exit(code if isinstance(code, int) else DONE)


def _set_verbose(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    root = ctx.find_root().command
    if value and isinstance(root, Program):
        root.verbose = True


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, expose_value=False, callback=_set_verbose, help="Tracebacks with errors."
)


def fail(what: str, fix: str = "", *, code: int = FAILED) -> NoReturn:
    """Say what is wrong and how to mend it, and end with the exit code."""
    tell(what, fix)
    raise click.exceptions.Exit(code)


def tell(what: str, fix: str = "") -> None:
    """The two lines of an error."""
    echo(f"{click.style('error', fg='red', bold=True)}: {what}", err=True)
    if fix:
        echo(f"{click.style('fix', fg='green', bold=True)}: {fix}", err=True)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a line, data to stdout and all else to stderr, without colour where none is wanted."""
    click.echo(text, err=err, color=colour(sys.stderr if err else sys.stdout))


def colour(stream: TextIO) -> bool:
    """Whether colour is welcome there."""
    # The terminal's own conventions, no settings of ours.
    welcome = stream.isatty() or os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    return welcome and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _usage(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        echo(error.format_message(), err=True)
        return USAGE
    context = error.ctx if isinstance(error, click.UsageError) else None
    what, fix = error.format_message().rstrip("."), f"{context.command_path} --help" if context else ""
    tell(*(_what_and_fix(what) if "did you mean" in what else (what, fix)))
    return error.exit_code


def _present(error: Exception, *, verbose: bool) -> int:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    code, what = _named(error)
    if verbose or code is None:
        echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    if code is None:
        tell(f"this should not happen: {type(error).__name__}", "report it, with the lines above")
        return FAILED
    tell(*_what_and_fix(what))
    return code


def _named(error: Exception) -> tuple[int | None, str]:
    """The exit code and text of an error that people can do something about; None for a bug of ours."""
    from .. import errors
    from ..flow.dedupe import sqlstate

    codes = {
        errors.SettingsError: BAD_SETTINGS,
        errors.MissingExtra: BAD_SETTINGS,
        errors.PostgresUnavailable: UNREACHABLE,
        errors.UnknownTask: NOT_FOUND,
        errors.UnknownJob: NOT_FOUND,
        errors.UnknownOperation: NOT_FOUND,
        errors.NoFleet: NOT_FOUND,
        errors.ResultExpired: NOT_FOUND,
        errors.BadTask: USAGE,
        errors.ArgumentsDoNotFit: USAGE,
        errors.PayloadTooLarge: USAGE,
        errors.QueueError: FAILED,
    }
    for kind, code in codes.items():
        if isinstance(error, kind):
            return code, str(error)
    if sqlstate(error):
        origin = getattr(error, "orig", None) or error
        return FAILED, f"Postgres refused this ({str(origin).splitlines()[0]})"
    return None, ""


def _what_and_fix(message: str) -> tuple[str, str]:
    """Our messages read "what (why): how to fix"; the colon that parts them is the last one outside of quotes."""
    first, *rest = message.split("\n", 1)
    if found := re.fullmatch(r"(.*?)[;:] (did you mean .*)", first) or re.fullmatch(
        r"(AAICLICK_QUEUE_\w+ is no setting[^;:]*?) \((did you mean [^;:()]*)\)", first
    ):
        return found[1], found[2]
    if re.match(r"AAICLICK_QUEUE_\w+(( = ('[^']*'|[^:]*))?: | is no setting)", first):
        return message, "correct the variable or unset it; `aaiclick-queue config` says what each is for"
    bare = re.sub(r"\([^()]*\)|'[^']*'|\"[^\"]*\"", lambda found: "_" * len(found[0]), first)
    at = bare.rfind(": ")
    what, fix = (first[:at], first[at + 2 :]) if at > 0 else (first, "")
    return "\n".join([what, *rest]), fix
