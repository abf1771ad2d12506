"""The words in which commands are told which tasks are meant: `--where 'queue=mail older_than=1h'`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from .. import durations
from .program import USAGE, fail

F = TypeVar("F", bound=Callable[..., Any])

WORDS_HELP = (
    "queue, entrypoint (with its module or without), key, correlation_id, priority, older_than (90s, 30m, 1h), status, "
    "fingerprint (of `failures`), job_id"
)


def where_option(command: F) -> F:
    """--where."""
    return click.option(
        "--where", metavar="'WORD=VALUE …'", multiple=True, help=f"Only these tasks; words: {WORDS_HELP}."
    )(command)


def everything_option(command: F) -> F:
    """--everything."""
    return click.option("--everything", is_flag=True, help="Without a filter: all tasks of all queues.")(command)


def parse_where(texts: Iterable[str]) -> dict[str, Any]:
    """The filter that these texts spell; ends the command with exit code 2 when they spell none."""
    found: dict[str, Any] = {}
    for text in texts:
        try:
            pairs = shlex.split(text)
        except ValueError as error:
            fail(f"--where {text!r} cannot be read ({error})", "write it as --where 'queue=mail'", code=USAGE)
        for pair in pairs:
            word, equals, value = pair.partition("=")
            if not equals or not value:
                fail(f"--where {pair!r} is no WORD=VALUE", "write it as --where 'queue=mail'", code=USAGE)
            if word in found:
                fail(f"--where names {word} twice", "all words must hold at once: give each once", code=USAGE)
            found[word] = _value(word, value)
    return found


def _value(word: str, value: str) -> Any:
    if word == "older_than":
        return duration(value)
    if word == "priority":
        if not re.fullmatch(r"-?\d{1,6}", value):
            fail(f"priority={value} is no whole number", "write it as --where 'priority=5'", code=USAGE)
        return int(value)
    return value.upper() if word == "status" else value


def duration(text: str) -> float:
    """Seconds of '90', '90s', '30m', '1h30m', '2d'."""
    found = durations.duration(text)
    if found is None or found > durations.MOST:
        fail(f"{text!r} is no duration", f"write {durations.EXAMPLES}; at most 100 years", code=USAGE)
    return found


def spelled(where: Mapping[str, Any]) -> str:
    """A filter as a person would write it."""
    return " ".join(f"{word}={_spelled(word, value)}" for word, value in where.items())


def _spelled(word: str, value: Any) -> str:
    if word == "older_than":
        return f"{value:g}s"
    return f"({len(value):,} of them)" if isinstance(value, list) else str(value)
