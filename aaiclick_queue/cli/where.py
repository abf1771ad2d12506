"""The words in which commands are told which tasks are meant: `--where 'queue=mail older_than=1h'`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from .program import USAGE, fail

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
WORDS_HELP = (
    "queue, entrypoint (with its module or without), key, correlation_id, priority, older_than (90s, 30m, 1h), status"
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
    parts = re.findall(r"(\d+(?:\.\d+)?)(min|[smhd]|$)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        fail(f"{text!r} is no duration", "write 90s, 30m, 1h30m or 2d", code=USAGE)
    return sum(float(number) * UNITS[unit or "s"] for number, unit in parts)


def spelled(where: Mapping[str, Any]) -> str:
    """A filter as a person would write it."""
    return " ".join(
        f"{word}={value:g}s" if word == "older_than" else f"{word}={value}" for word, value in where.items()
    )
