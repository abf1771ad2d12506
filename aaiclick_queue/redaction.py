"""Secrets in arguments: marked in the row, given to the task as they are, and shown to nobody.

A marked value is written as {"$secret": value}, wherever it stands in the JSON; the worker opens it, every view shows
the sign instead. As with references (references.py) a mark is found in the text itself: no user's text can look like
one. What is called `password`, `token` and the like is not shown either, marked or not.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

SIGN = "••••"
KEY = "$secret"
MARKED = f'{{"{KEY}":'
SHORTEST = 4  # characters: shorter ones would be found in every other word
SHORTEST_LINE = 8  # of one of several lines
NAMES = "password|passwd|token|secret|authorization|api_?key|credential|private_?key"

_OPENING = re.compile(r'\{"\$secret":\s*')
_CLOSING = re.compile(r"\s*\}")
_DECODER = json.JSONDecoder()


class Secret:
    """Marks an argument as a secret: `token: Annotated[str, Secret()]`. Pydantic's SecretStr is one by itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret()"


def opened(text: str) -> str:
    """JSON text with its marked values as they are: for the task alone."""
    return _replaced(text, opened) if MARKED in text else text


def shown_json(text: str | None, more_names: str | None = None) -> Any:
    """The value of JSON text as it may be shown; None for no text."""
    return None if text is None else redacted(shown_marks(text), more_names)


def shown_marks(text: str) -> Any:
    """The value of JSON text without what is marked; names are not looked at."""
    return json.loads(_replaced(text, lambda _: f'"{SIGN}"') if MARKED in text else text)


def redacted(value: Any, more_names: str | None = None) -> Any:
    """A JSON value as it may be shown: without what is marked, and without what has the name of a secret."""
    return _redacted(value, names_of(more_names))


def redacted_text(text: str, more_names: str | None = None) -> str:
    """The same as JSON text; a text that is no JSON stays."""
    try:
        return json.dumps(shown_json(text, more_names), ensure_ascii=False)
    except ValueError:
        return text


def masked_in(arguments: Any) -> list[str]:
    """Names of the arguments that are, or hold, the sign: what was shown, and not what it stands for."""
    given = arguments if isinstance(arguments, Mapping) else {}
    return [str(name) for name, value in given.items() if _is_masked(value)]


def masked_text(names: Sequence[str]) -> str:
    """Why arguments with the sign are refused, and what to do."""
    return f"{', '.join(names[:5])}: {SIGN} is shown instead of a secret: give the secret itself, or leave it out"


def secrets_in(text: str | None, more_names: str | None = None) -> tuple[str, ...]:
    """The texts in arguments that nobody may see, the longest first: for what a run says of itself."""
    names = names_of(more_names)
    if not text or not (MARKED in text or names.search(text)):
        return ()
    found = {leaf for inner in _marked(text) for leaf in _leaves(json.loads(opened(inner)))}
    found.update(_named(json.loads(opened(text)), names))
    found.update(line for one in list(found) for line in _lines(one))
    return tuple(sorted((one for one in found if len(one) >= SHORTEST), key=len, reverse=True))


def hidden(text: str, secrets: Sequence[str]) -> str:
    """The text with the sign in the place of each of these, also where they are written as Python or JSON would."""
    for secret in secrets:
        for written in dict.fromkeys((secret, repr(secret)[1:-1], json.dumps(secret)[1:-1])):
            text = text.replace(written, SIGN)
    return text


def hidden_in(value: Any, secrets: Sequence[str]) -> Any:
    """A JSON value with the sign in its texts; not in its names, and never as text: it stays JSON."""
    if not secrets:
        return value
    if isinstance(value, Mapping):
        return {key: hidden_in(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hidden_in(one, secrets) for one in value]
    if isinstance(value, str):
        return hidden(value, secrets)
    return SIGN if not isinstance(value, bool) and str(value) in secrets else value


def names_of(more: str | None) -> re.Pattern[str]:
    """What names secrets have: ours, and those of the setting REDACT_NAMES, by commas."""
    return _pattern(more or "")


@functools.lru_cache(maxsize=16)
def _pattern(more: str) -> re.Pattern[str]:
    own = [re.escape(name.strip()) for name in more.split(",") if name.strip()]
    return re.compile("|".join([NAMES, *own]), re.IGNORECASE)


def _replaced(text: str, instead: Callable[[str], str]) -> str:
    """The text with something else in the place of each outermost marked value."""
    parts: list[str] = []
    at = 0
    while found := _OPENING.search(text, at):
        _, end = _DECODER.raw_decode(text, found.end())
        closing = _CLOSING.match(text, end)
        if closing is None:  # another key beside it: somebody's own dict
            parts.append(text[at : found.end()])
            at = found.end()
            continue
        parts += (text[at : found.start()], instead(text[found.end() : end]))
        at = closing.end()
    return "".join([*parts, text[at:]])


def _marked(text: str) -> list[str]:
    found: list[str] = []

    def keep(inner: str) -> str:
        found.append(inner)
        return "null"

    _replaced(text, keep)
    return found


def _redacted(value: Any, names: re.Pattern[str]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {KEY}:
            return SIGN
        return {key: SIGN if _is_secret(key, inner, names) else _redacted(inner, names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(one, names) for one in value]
    return value


def _is_secret(name: Any, value: Any, names: re.Pattern[str]) -> bool:
    """Whether it is not to be shown for its name; a count of tokens is no token, and an empty one tells that."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    if isinstance(value, int | float) and str(name).lower().endswith("tokens"):
        return False
    return names.search(str(name)) is not None


def _is_masked(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_masked(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return any(_is_masked(one) for one in value)
    return isinstance(value, str) and value == SIGN


def _named(value: Any, names: re.Pattern[str]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner) if _is_secret(key, inner, names) else _named(inner, names)
    elif isinstance(value, list):
        for one in value:
            yield from _named(one, names)


def _lines(text: str) -> Iterator[str]:
    """Those of a secret of several, as of a private key: what is printed is looked at line by line."""
    lines = [line.strip() for line in text.splitlines()]
    return (line for line in lines if len(lines) > 1 and len(line) >= SHORTEST_LINE)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
