"""A graph taken apart before it is drawn: a level for each group, units on a level, their order and edges. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..job_graphs import GraphEdge, GraphNode, JobGraph

NUMBERED = re.compile(r"(#\d+|\[\d+\])$")


class Unit(NamedTuple):
    """What stands at one place: a node, or several tasks side by side that wait for the same and lead to the same."""

    key: str
    nodes: tuple[GraphNode, ...]

    @property
    def first(self) -> GraphNode:
        """The only node of most units."""
        return self.nodes[0]


class Level(NamedTuple):
    """What is in one group, or in none: units in an order that puts each behind what it waits for."""

    units: list[Unit]
    nexts: dict[str, list[str]]
    previous: dict[str, list[str]]


class Shapes:
    """All levels of a graph. `notes` are of nodes whose arrows no level can draw."""

    def __init__(self, graph: JobGraph) -> None:
        self._nodes = {node.id: node for node in graph.nodes}
        self.choices: dict[str, list[str]] = defaultdict(list)
        self.notes: dict[str, list[str]] = defaultdict(list)
        members: dict[str | None, list[GraphNode]] = defaultdict(list)
        for node in graph.nodes:
            members[node.parent].append(node)
        self._units = {parent: _units(nodes) for parent, nodes in members.items()}
        self._unit_of = {node.id: unit.key for units in self._units.values() for unit in units for node in unit.nodes}
        self._lifted: dict[str | None, list[tuple[str, str, GraphEdge]]] = defaultdict(list)
        for edge in graph.edges:
            self._lift(edge)
        self._levels: dict[str | None, Level] = {}

    def level(self, parent: str | None) -> Level:
        """What is in this group; None: in no group."""
        if parent not in self._levels:
            self._levels[parent] = self._order(parent)
        return self._levels[parent]

    def _lift(self, edge: GraphEdge) -> None:
        """Draw an edge on the level that both ends share; inside a group it is the group that leads on."""
        if edge.previous not in self._nodes or edge.next not in self._nodes:
            return
        if edge.choices and self._nodes[edge.next].id == edge.next:
            self.choices[edge.next] += [one for one in edge.choices if one not in self.choices[edge.next]]
        before, after = self._path(edge.previous), self._path(edge.next)
        while len(before) > 1 and len(after) > 1 and before[-1] == after[-1]:
            before.pop()
            after.pop()
        start, end = before[-1], after[-1]
        if start != end and self._nodes[start].parent == self._nodes[end].parent:
            self._lifted[self._nodes[start].parent].append((self._unit_of[start], self._unit_of[end], edge))

    def _path(self, node: str) -> list[str]:
        path = [node]
        while (parent := self._nodes[path[-1]].parent) is not None and parent in self._nodes:
            path.append(parent)
        return path

    def _order(self, parent: str | None) -> Level:
        units = {unit.key: unit for unit in self._units.get(parent, ())}
        nexts: dict[str, dict[str, GraphEdge]] = {key: {} for key in units}
        for start, end, edge in self._lifted.get(parent, ()):
            if start != end:
                nexts[start].setdefault(end, edge)
        order, back = topological(list(units), {key: list(found) for key, found in nexts.items()})
        for start, end in back:  # through a group and back into it: told, not drawn
            edge = nexts[start].pop(end)
            self.notes[edge.next].append(self._nodes[edge.previous].name)
        reduced = without_shortcuts(order, {key: list(found) for key, found in nexts.items()})
        previous: dict[str, list[str]] = defaultdict(list)
        for key in order:
            for following in reduced[key]:
                previous[following].append(key)
        return Level([units[key] for key in order], reduced, dict(previous))


def _units(nodes: Iterable[GraphNode]) -> list[Unit]:
    alike: dict[str, list[GraphNode]] = {}
    for node in nodes:
        alike.setdefault(node.alike if node.kind in ("task", "tasks") else node.id, []).append(node)
    return [Unit(found[0].id, tuple(found)) for found in alike.values()]


def topological(keys: Sequence[str], nexts: Mapping[str, Sequence[str]]) -> tuple[list[str], list[tuple[str, str]]]:
    """An order in which chains stay together, and the edges that lead back where there are circles."""
    waits = dict.fromkeys(keys, 0)
    for following in nexts.values():
        for key in following:
            waits[key] += 1
    position = {key: number for number, key in enumerate(keys)}
    drawn: dict[str, int] = {}
    last: dict[str, int] = {}  # when the last of what it waits for was drawn
    back: list[tuple[str, str]] = []
    open_keys = {key for key in keys if not waits[key]}
    while len(drawn) < len(keys):
        if not open_keys:
            first = next(key for key in keys if key not in drawn)
            back += [(key, first) for key in keys if key not in drawn and first in nexts.get(key, ())]
            open_keys.add(first)
        key = min(open_keys, key=lambda one: (-last.get(one, -1), position[one]))
        open_keys.discard(key)
        drawn[key] = len(drawn)
        for following in nexts.get(key, ()):
            waits[following] -= 1
            last[following] = drawn[key]
            if not waits[following] and following not in drawn:
                open_keys.add(following)
    return list(drawn), back


def without_shortcuts(order: Sequence[str], nexts: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Without edges that a longer way makes needless: what waits for a chain's end waits for its start."""
    bit = {key: 1 << number for number, key in enumerate(order)}
    position = {key: number for number, key in enumerate(order)}
    reached: dict[str, int] = {}
    kept: dict[str, list[str]] = {}
    for key in reversed(order):
        seen, kept[key] = 0, []
        for following in sorted(nexts.get(key, ()), key=lambda one: position[one]):
            if not seen & bit[following]:
                kept[key].append(following)
            seen |= bit[following] | reached[following]
        reached[key] = seen
    return kept


def in_layers(level: Level) -> Level:
    """The same with all that can start together next to each other."""
    layers: dict[str, int] = {}
    for unit in level.units:
        layers[unit.key] = 1 + max((layers[key] for key in level.previous.get(unit.key, ())), default=0)
    return level._replace(units=sorted(level.units, key=lambda unit: layers[unit.key]))


def base_name(name: str) -> str:
    """A task's name without the number that sets it apart from others of its kind."""
    return NUMBERED.sub("", name)
