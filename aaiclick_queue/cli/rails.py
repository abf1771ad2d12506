"""Rails: the lines left of a graph that is drawn from top to bottom, one node a row, as version control draws history.

A rail leads to the nodes that wait for one. A row between nodes lets one rail branch off, or lets others end in it, and
never both: where lines cross and meet in one row, nobody can tell who leads where. Pure: no terminal, no colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

NODE, LINE = "●", "│"
FEW = 3  # to so many each gets a rail of its own at once; to more one rail leads on, and each branches off in its turn
# Up, down, left, right.
_CORNERS = {
    (1, 1, 0, 0): "│", (1, 1, 0, 1): "├", (1, 1, 1, 0): "┤", (1, 1, 1, 1): "┼", (1, 0, 0, 1): "╰", (1, 0, 1, 0): "╯",
    (1, 0, 1, 1): "┴", (0, 1, 0, 1): "╭", (0, 1, 1, 0): "╮", (0, 1, 1, 1): "┬",
}  # fmt: skip
Rail = frozenset[str]  # the nodes that it leads to
_FREE: Rail = frozenset()


class Step(NamedTuple):
    """One node: rows that lead to it, the rails beside it, rows that lead on."""

    above: tuple[str, ...]
    rails: str  # with NODE where the node is
    at: int  # where that is
    arrives: bool  # something leads to it
    leaves: bool  # it leads to something
    beside: str  # for more rows of the same node
    below: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns that it needs."""
        return max(len(row) for row in (*self.above, self.rails, *self.below))


def draw_rails(order: Sequence[str], nexts: Mapping[str, Sequence[str]]) -> list[Step]:
    """A step for each node; `order` has every node before those that wait for it."""
    drawing = _Rails()
    return [drawing.step(node, frozenset(nexts.get(node, ()))) for node in order]


class _Rails:
    def __init__(self) -> None:
        self._rails: list[Rail] = []
        self._rows: list[str] = []
        self._dead_end: int | None = None  # where the node above stands, if it leads nowhere

    def step(self, node: str, targets: Rail) -> Step:
        at, arrives = self._arrive(node)
        above, self._rows = tuple(self._rows), []
        rails = _row(self._rails, at)
        self._rails[at] = targets
        beside = _row(self._rails)
        self._lead_on(at, targets)
        below, self._rows = tuple(self._rows), []
        self._dead_end = None if targets else at
        while self._rails and not self._rails[-1]:
            self._rails.pop()
        return Step(above, rails, 2 * at, arrives, bool(targets), beside, below)

    def _arrive(self, node: str) -> tuple[int, bool]:
        """Where the node stands, and whether anything leads there: rails to others too branch off, then all join."""
        own = frozenset({node})
        incoming = [number for number, rail in enumerate(self._rails) if node in rail]
        if not incoming:
            before = _row(self._rails)
            at = self._put(own, 0)
            if at == self._dead_end:
                self._rows.append(before)  # else it would seem to follow from the one above
            return at, False
        joining = []
        for number in incoming:
            if self._rails[number] == own:
                joining.append(number)
            else:
                joining.append(self._branch(number, self._rails[number] - own, [own])[0])
        at, *others = sorted(joining)
        if others:
            self._join(at, others)
        return at, True

    def _lead_on(self, at: int, targets: Rail) -> None:
        rails = [frozenset({one}) for one in sorted(targets)] if len(targets) <= FEW else [targets]
        if len(rails) > 1:
            self._rails[at] = _FREE
            self._branch(at, rails[0], rails[1:])
        for rail in rails if targets else ():
            left, *others = [number for number, one in enumerate(self._rails) if one == rail]
            if others:
                self._join(left, others)

    def _branch(self, at: int, stays: Rail, rails: Sequence[Rail]) -> list[int]:
        """A row in which rails branch off from one that stays, to the right; gives where they are."""
        was = [*self._rails]
        was[at] = was[at] or stays
        self._rails[at] = stays
        places = [self._put(rail, at + 1) for rail in rails]
        self._rows.append(_link(was, self._rails, at, places))
        return places

    def _join(self, at: int, others: Sequence[int]) -> None:
        """A row in which others end in the leftmost."""
        was = [*self._rails]
        for number in others:
            self._rails[number] = _FREE
        self._rows.append(_link(was, self._rails, at, others))

    def _put(self, rail: Rail, start: int) -> int:
        """In the first free place."""
        for number in range(start, len(self._rails)):
            if not self._rails[number]:
                self._rails[number] = rail
                return number
        self._rails.append(rail)
        return len(self._rails) - 1


def _row(rails: Iterable[Rail], at: int | None = None) -> str:
    return " ".join(NODE if number == at else LINE if rail else " " for number, rail in enumerate(rails)).rstrip()


def _link(was: Sequence[Rail], now: Sequence[Rail], at: int, ends: Sequence[int]) -> str:
    high = max(ends)
    drawn = ""
    for column in range(max(len(was), len(now))):
        up, down = column < len(was) and bool(was[column]), column < len(now) and bool(now[column])
        if column == at or column in ends:
            drawn += _CORNERS[int(up), int(down), int(at < column), int(column < high)]
        elif up:
            drawn += LINE  # it passes below
        else:
            drawn += "─" if at < column < high else " "
        drawn += "─" if at <= column < high else " "
    return drawn.rstrip()
