"""References: how arguments and results name other tasks in JSON, and how results take their place.

{"$node": id} is the result of a task, {"$nodes": [id, …]} a list of results with null for those that are not there,
{"$completed": [id, …]} without these, {"$group": id} the results of a group in order, also without.
They are found in the text itself: inside a JSON string every quote is escaped, so no user's text can look like one.
{"$$node": id} and so on are deferred: for the children of a task, which takes them along without their results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

_REFERENCE = re.compile(
    r'\{"\$(\$?(?:(?:nodes|completed)(?=":\s*\[)|(?:node|group)(?=":\s*\d)))":\s*(\d+|\[[\d,\s]*\])\}'
)

_LISTS = ("nodes", "completed")


class Reference(NamedTuple):
    """What one reference names."""

    kind: str  # node, nodes, completed, group; with a $ before it where it is deferred
    ids: tuple[int, ...]

    def __str__(self) -> str:
        ids = f"[{','.join(map(str, self.ids))}]" if self.kind.lstrip("$") in _LISTS else str(self.ids[0])
        return f'{{"${self.kind}":{ids}}}'


def references(text: str) -> Iterator[Reference]:
    """All references in the text that are to be filled in, in its order."""
    for found in _REFERENCE.finditer(text):
        if found[1][0] != "$":
            yield _read(found)


def count(text: str) -> int:
    """How many there are, deferred ones included."""
    return sum(1 for _ in _REFERENCE.finditer(text))


def renumbered(text: str, ids: Mapping[int, int]) -> str:
    """The text with other ids where the mapping has them."""
    return renumbered_inputs(text, ids)[0]


def renumbered_inputs(text: str, ids: Mapping[int, int]) -> tuple[str, bool]:
    """The same, and whether any of them is to be filled in."""
    is_any = False

    def other(found: re.Match[str]) -> str:
        nonlocal is_any
        kind, number = found.groups()
        is_any = is_any or kind[0] != "$"
        if number[0] != "[":  # the commonest, a hundred thousand times
            return f'{{"${kind}":{ids.get(int(number), number)}}}'
        one = _read(found)
        return str(one._replace(ids=tuple(ids.get(n, n) for n in one.ids)))

    return _REFERENCE.sub(other, text), is_any


def replaced(text: str, value: Callable[[Reference], str]) -> str:
    """The text with the JSON that `value` gives in the place of each reference; deferred ones stay."""
    return _REFERENCE.sub(lambda found: found[0] if found[1][0] == "$" else value(_read(found)), text)


def deferred(text: str) -> str:
    """The text with all its references deferred."""
    return _REFERENCE.sub(lambda found: str(_read(found)._replace(kind=f"${found[1].lstrip('$')}")), text)


def undeferred(text: str) -> str:
    """The text with its deferred references to be filled in."""
    return _REFERENCE.sub(lambda found: str(_read(found)._replace(kind=found[1].lstrip("$"))), text)


def node(number: int) -> dict[str, int]:
    """A reference to the result of one task."""
    return {"$node": number}


def nodes(numbers: Sequence[int]) -> dict[str, list[int]]:
    """A reference to the results of several tasks, as a list."""
    return {"$nodes": list(numbers)}


def completed(numbers: Sequence[int]) -> dict[str, list[int]]:
    """A reference to the results of those of several tasks that completed, as a list."""
    return {"$completed": list(numbers)}


def group(number: int) -> dict[str, int]:
    """A reference to the results of a group's tasks, as a list."""
    return {"$group": number}


def _read(found: re.Match[str]) -> Reference:
    kind, ids = found.groups()
    if ids[0] == "[":
        return Reference(kind, tuple(int(one) for one in ids[1:-1].split(",") if one.strip()))
    return Reference(kind, (int(ids),))
