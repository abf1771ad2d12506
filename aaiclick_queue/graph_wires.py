"""What waits for what in a job, found by its gates. Part of job_graphs.py.

Gates and not dependencies: a gate that a hundred thousand tasks tell is one row, their dependencies are as many. A task
tells its exit gate, or the edges of its own; a group's gate has its id; what is continued is told by what continues it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .graph_rows import BEFORE_NODES, EDGES
from .postgres import Database

EDGES_LIMIT = 20_000
Edge = tuple[str, str, tuple[str, ...]]
Hop = tuple[int, tuple[str, ...]]


class Wires:
    """The edges between nodes; `key` says which node a row of a task is shown as."""

    def __init__(
        self, tasks: Sequence[Any], groups: Sequence[Any], maps: Mapping[int, Any], *, key: Callable[[Any], str]
    ) -> None:
        self._tasks = tasks
        self._groups = groups
        self._key = key
        self._node_of = {row["id"]: key(row) for row in tasks} | {row["id"]: str(row["id"]) for row in groups}
        self._waiters: dict[int, list[str]] = defaultdict(list)
        for row in tasks:
            self._wait_at(row["wait_gate"], key(row))
        for row in groups:
            self._wait_at(row["entry_gate"], str(row["id"]))
        for row in maps.values():
            self._wait_at(row["wait_gate"], str(row["id"]))
        self._hops: dict[int, list[Hop]] = defaultdict(list)

    def _wait_at(self, gate: int | None, node: str) -> None:
        if gate is not None and node not in self._waiters[gate]:
            self._waiters[gate].append(node)

    async def read(self, db: Database, job_id: int) -> list[Edge]:
        """All edges, each once, at most 20,000."""
        columns = ("wait_gate", "exit_gate", "after_gate")
        gates = {row[column] for row in self._tasks for column in columns} | {row["id"] for row in self._groups}
        gates |= {row["entry_gate"] for row in self._groups}
        for row in await db.fetch(EDGES, sorted(gates - {None}), EDGES_LIMIT):
            self._hops[row["gate_id"]].append((row["next_gate_id"], tuple(row["choices"] or ())))
        found = dict.fromkeys(self._drawn())
        always = [row["id"] for row in self._tasks if row["rule"] == "always"]
        for row in await db.fetch(BEFORE_NODES, job_id, always, EDGES_LIMIT) if always else []:
            if row["previous_id"] in self._node_of and row["next_id"] in self._node_of:
                found.setdefault((self._node_of[row["previous_id"]], self._node_of[row["next_id"]], ()))
        return [edge for edge in found if edge[0] != edge[1]][:EDGES_LIMIT]

    def _drawn(self) -> Iterator[Edge]:
        many = 0
        for node, starts in self._starts():
            for other, choices in self._reached(starts):
                yield node, other, choices
                many += 1
            if many > 2 * EDGES_LIMIT:
                return
        yield from self._spawned()

    def _starts(self) -> Iterator[tuple[str, list[Hop]]]:
        for row in self._tasks:
            if row["after_gate"] is None and row["exit_gate"] is not None:
                own = row["exit_gate"] == row["id"]
                yield self._key(row), self._hops[row["id"]] if own else [(row["exit_gate"], ())]
        for row in self._groups:
            yield str(row["id"]), self._hops[row["id"]]

    def _reached(self, starts: Sequence[Hop]) -> Iterator[tuple[str, tuple[str, ...]]]:
        seen: set[int] = set()
        open_hops = list(starts)
        while open_hops:
            gate, choices = open_hops.pop()
            if gate in seen:
                continue
            seen.add(gate)
            for node in self._waiters.get(gate, ()):
                yield node, choices
            open_hops += [(following, choices or more) for following, more in self._hops.get(gate, ())]

    def _spawned(self) -> Iterator[Edge]:
        """What a task has added stands behind it, unless it waits for others."""
        for row in self._tasks:
            if row["wait_gate"] is None and row["parent_id"] in self._node_of:
                yield self._node_of[row["parent_id"]], self._key(row), ()
        for row in self._groups:
            if row["entry_gate"] is None and row["spawned_by"] in self._node_of:
                yield self._node_of[row["spawned_by"]], str(row["id"]), ()
