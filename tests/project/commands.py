"""Whether the command line takes what files and pages show: asked of its own tree of commands, nothing is run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from aaiclick_queue.cli import main

PROGRAM = "aaiclick-queue"


def found(call: Sequence[str]) -> tuple[click.Command, list[str], list[str]]:
    """The command of that call, the words that name it, and the rest."""
    command: click.Command = main
    names: list[str] = []
    words = list(call)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(click.Context(command), words[0])
        assert below is not None, f"{PROGRAM} {shlex.join(call)}: there is no {words[0]!r}"
        command = below
        names.append(words.pop(0))
    return command, names, words


def refusal(call: Sequence[str]) -> str | None:
    """What the command line has against the call: a name, an option, a value, something missing."""
    try:
        command, names, words = found(call)
        command.make_context(names[-1] if names else PROGRAM, words)
    except AssertionError as error:
        return str(error)
    except click.UsageError as error:
        return f"{PROGRAM} {shlex.join(call)}: {error.format_message()}"
    return None
