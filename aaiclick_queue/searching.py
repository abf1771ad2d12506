"""Search in arguments: text, `path.to.key=value`, or JSON that they contain, among the newest tasks; there is no index.

Postgres finds what may be meant; what is shown of its arguments has to match too, and what is not shown moves nothing
of the answer, so that nobody can guess a secret. Looked through part by part, so that a search ends with its first
page, or in time, and can be gone on with.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from .errors import BadTask
from .postgres import Database
from .redaction import shown_json

LONGEST = 1_000
_PATH = re.compile(r"([\w-]+(?:\.[\w-]+)*)=(.*)", re.DOTALL)

SEARCH_LIMIT = 100_000  # tasks that one search goes through
SEARCH_SECONDS = 1.0  # of one answer over HTTP: a busy server leads on from where it came
FIRST_PART, LONGEST_PART = 2_000, 20_000
READ_AT_ONCE = 500  # arguments of hits, which may be long

# $8 text, $9 path, $10 its value, $11 JSON that is contained, $12 text that is not ASCII. What has no other letters is
# lowered as ASCII: half of the time. JSON is given as such: read from its text for each row, it took a third more.
HIT = """($8::text IS NULL OR strpos(lower(t.kwargs::text COLLATE "C"), $8::text) > 0)
    AND ($9::text[] IS NULL OR t.kwargs #>> $9::text[] = $10::text)
    AND ($11::jsonb IS NULL OR t.kwargs @> $11::jsonb)
    AND ($12::text IS NULL OR strpos(lower(t.kwargs::text), $12::text) > 0)"""
KWARGS = "SELECT id, kwargs FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[])"


class Search(msgspec.Struct, frozen=True):
    """What is looked for, one of three."""

    text: str | None = None
    path: list[str] | None = None
    value: str | None = None
    contained: str | None = None

    @classmethod
    def of(cls, given: str) -> Search:
        """What a person has typed."""
        given = given.strip() if isinstance(given, str) else ""
        if not 1 <= len(given) <= LONGEST:
            raise BadTask(f"search={given!r}: give a text of 1 to {LONGEST:,} characters, key=value, or a JSON object")
        if given[0] in "{[":
            try:
                return cls(contained=json.dumps(json.loads(given)))
            except ValueError as error:
                raise BadTask(f"search={given!r} begins like JSON and is none: {error}") from None
        if found := _PATH.fullmatch(given):
            return cls(path=found[1].split("."), value=found[2])
        return cls(text=_written(given))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The parameters of a statement with HIT."""
        ascii_, other = (self.text, None) if self.text is None or self.text.isascii() else (None, self.text)
        return ascii_, self.path, self.value, self.contained, other

    def finds(self, shown: Any) -> bool:
        """Whether arguments, as they are shown, are meant."""
        if self.text is not None:
            return self.text in json.dumps(shown, ensure_ascii=False).lower()
        if self.path is not None:
            return _at(shown, self.path) == self.value
        return _contains(shown, json.loads(self.contained or "{}"))


class Looked(msgspec.Struct):
    """What a search has found so far; it goes on with tasks older than `before`, None when there are no others."""

    before: int | None
    ids: list[int] = []
    searched: int = 0


async def look_through(
    db: Database, statement: str, search: Search, asked: Sequence[Any], *, seconds: float | None = None
) -> Looked:
    """Go through tasks as `asked` (before, how many, filters …, hits wanted, which, words) until there are enough hits.

    With `seconds` it ends when Postgres has looked for as long, wherever it is.
    """
    before, at_most, *filters, limit, which, words = asked
    looked, took, part = Looked(before), 0.0, FIRST_PART
    while looked.before is not None and looked.searched < at_most and len(looked.ids) < limit:
        part = min(part, at_most - looked.searched)
        began = time.monotonic()
        [row] = await db.fetch(statement, looked.before, part, *filters, part, which, *search.arguments, *words)
        # Without the hits that are then read: how far it comes would tell of those that are not shown.
        took += time.monotonic() - began
        looked.searched += row["passed"]
        looked.ids += await shown_hits(db, row["ids"], search, limit - len(looked.ids))
        is_full = len(looked.ids) >= limit
        looked.before = looked.ids[-1] if is_full else row["last"] if row["passed"] >= part else None
        part = min(2 * part, LONGEST_PART)
        if seconds is not None:
            if took >= seconds:
                break
            # Not more than what is left of the time, at the speed so far.
            part = min(part, max(1_000, int(looked.searched * (seconds - took) / max(took, 0.001))))
    return looked


async def shown_hits(db: Database, ids: Sequence[int], search: Search, limit: int) -> list[int]:
    """The first of the tasks whose arguments match as they are shown."""
    names, found = db.settings.redact_names, list[int]()
    for at in range(0, len(ids), READ_AT_ONCE):
        some = ids[at : at + READ_AT_ONCE]
        kwargs = {row["id"]: row["kwargs"] for row in await db.fetch(KWARGS, some)}
        found += [one for one in some if one in kwargs and search.finds(shown_json(kwargs[one], names))]
        if len(found) >= limit:
            break
    return found[:limit]


def _written(text: str) -> str:
    """A text as JSON has it, without its quotes."""
    return json.dumps(text.lower(), ensure_ascii=False)[1:-1]


def _at(value: Any, path: list[str]) -> str | None:
    """What Postgres' #>> gives."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.lstrip("-").isdigit() and -len(value) <= int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _contains(value: Any, part: Any) -> bool:
    """What Postgres' @> says."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(key in value and _contains(value[key], one) for key, one in part.items())
    if isinstance(part, list):
        return isinstance(value, list) and all(any(_contains(one, wanted) for one in value) for wanted in part)
    return (type(value) is type(part) and bool(value == part)) or _are_numbers(value, part)


def _are_numbers(value: Any, part: Any) -> bool:
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, part))
    return numbers and bool(value == part)
