"""Reads for people: the graph of a job, its tasks and groups with their statuses and what waits for what.

Up to 2,000 tasks it is every task; a larger job is folded into tasks that are alike, and a map is always one node.
Drawn by cli/drawing.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from .graph_rows import FAILED_TASKS, FOLDED_NODES, GROUPS, MAPS, NAMED_NODES, NODES, RUNNING_IN_GROUPS
from .graph_wires import Wires
from .postgres import Database
from .redaction import shown_json

NODES_LIMIT = 2_000
NAMES_LIMIT = 500
LOOK_LIMIT = 200_000  # tasks that a folded graph is made of
LOOK_ASKED = 20_000  # for somebody who waits for a page: 60 ms
FAILED_SHOWN = 20
_COUNTED = ("completed", "failed", "upstream_failed", "cancelled", "skipped", "running", "open")


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A task, several tasks that are alike (`kind` tasks), a map or a group; `parent` is the group it is in.

    `counts` are tasks by status, OPEN for those that wait or are in line; a single task has none. Nodes with the same
    `alike` wait for the same ones, and the same ones wait for them.
    """

    id: str
    kind: str
    name: str
    parent: str | None
    status: str
    alike: str
    count: int = 1
    counts: dict[str, int] = {}
    max_parallel: int | None = None
    rule: str | None = None
    critical: bool = True
    attempt: int | None = None
    max_attempts: int | None = None
    ready_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    not_before: datetime | None = None
    reason: str | None = None
    progress: Any = None


class GraphEdge(msgspec.Struct, frozen=True):
    """What waits for what; with `choices`, it runs only if the first one chooses one of them."""

    previous: str
    next: str
    choices: list[str] = []


class FailedTask(msgspec.Struct, frozen=True):
    """A task that failed, and why."""

    id: str
    name: str
    attempt: int | None
    error_type: str | None
    error_message: str | None
    critical: bool = True


class JobGraph(msgspec.Struct, frozen=True):
    """All nodes, in the order in which they were made, their edges, and the first tasks that failed.

    `is_folded` if tasks that are alike stand as one; `left_out` counts tasks that no node stands for.
    """

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    failed: list[FailedTask]
    is_folded: bool = False
    left_out: int = 0


async def read_graph(
    db: Database, job_id: int, *, total: int, any_failed: bool = True, looked: int | None = None
) -> JobGraph:
    """The graph of a job that has so many tasks; without `any_failed` none is looked for that failed.

    Where tasks that are alike stand as one, it is made of the first `looked`, 200,000 unless told otherwise.
    """
    groups = list(await db.fetch(GROUPS, job_id, NODES_LIMIT))
    maps, inside = _maps(groups)
    of_maps = {row["id"]: row for row in await db.fetch(MAPS, maps)} if maps else {}
    others = total - sum(row["total"] for row in groups if row["id"] in of_maps)
    folded = others > NODES_LIMIT
    rows, drawn_from = await _tasks(db, job_id, inside, looked=(looked or LOOK_LIMIT) if folded else None)
    running = {row["group_id"]: row for row in await db.fetch(RUNNING_IN_GROUPS, job_id)}
    shown = [row for row in groups if row["id"] in of_maps or row["id"] not in set(inside)]
    by_name = {_name(row): str(row["id"]) for row in rows} if folded and drawn_from is not rows else {}
    wires = Wires(drawn_from, shown, of_maps, key=lambda row: by_name.get(_name(row), str(row["id"])))
    edges = [GraphEdge(before, after, list(choices)) for before, after, choices in await wires.read(db, job_id)]
    failed = await _failed(db, job_id) if any_failed else []
    parents = {row["id"] for row in shown}
    nodes = [_fold(row, parents) if folded else _task(row, parents) for row in rows]
    in_groups = [_group(row, of_maps.get(row["id"]), running.get(row["id"]), parents) for row in shown]
    nodes += _with_starts(in_groups, nodes)
    left_out = others - sum(row["count"] for row in rows) if folded else 0
    return JobGraph(sorted(nodes, key=lambda one: int(one.id)), edges, failed, folded, max(0, left_out))


async def _failed(db: Database, job_id: int) -> list[FailedTask]:
    rows = await db.fetch(FAILED_TASKS, job_id, FAILED_SHOWN)
    return [FailedTask(str(row["id"]), *tuple(row)[1:]) for row in rows]


async def _tasks(
    db: Database, job_id: int, inside: Sequence[int], *, looked: int | None
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Rows of tasks that are in no map, each, or `looked` folded; and those by whose gates the edges are found."""
    if looked is None:
        rows = await db.fetch(NODES, job_id, inside, NODES_LIMIT)
        return rows, rows
    rows = await db.fetch(FOLDED_NODES, job_id, inside, NODES_LIMIT, looked)
    if len(rows) < NODES_LIMIT:
        return rows, rows
    by_name = await db.fetch(NAMED_NODES, job_id, inside, NAMES_LIMIT, looked)
    return by_name, [*by_name, *rows]


def _maps(groups: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Groups of maps that are in no other map, and all groups in maps."""
    by_id = {row["id"]: row for row in groups}
    inside: set[int] = set()
    for row in groups:
        path = [row]
        while (above := by_id.get(path[-1]["parent_group_id"])) is not None and len(path) <= len(groups):
            path.append(above)
        if any(one["mapped"] for one in path):
            inside.add(row["id"])
    return [row["id"] for row in groups if row["mapped"] and row["parent_group_id"] not in inside], sorted(inside)


def _name(row: Any) -> tuple[int | None, str]:
    return row["group_id"], row["name"]


def _parent(number: int | None, parents: set[int]) -> str | None:
    return str(number) if number in parents else None


def _task(row: Any, parents: set[int]) -> GraphNode:
    own = row["id"] if row["exit_gate"] == row["id"] or row["after_gate"] or row["rule"] == "always" else None
    before = row["wait_gate"] or row["parent_id"]
    return GraphNode(
        id=str(row["id"]),
        kind="task",
        name=row["name"] or row["entrypoint"],
        parent=_parent(row["group_id"], parents),
        status=row["status"],
        alike=f"{row['group_id']}/{before}/{own or row['exit_gate']}",
        rule=row["rule"],
        critical=row["critical"] is not False,
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        ready_at=row["ready_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        not_before=row["not_before"],
        reason=row["reason"],
        progress=shown_json(row["progress"]),
    )


def _fold(row: Any, parents: set[int]) -> GraphNode:
    counts = {name.upper(): row[name] for name in _COUNTED if row[name]}
    return GraphNode(
        id=str(row["id"]),
        kind="tasks" if row["count"] > 1 else "task",
        name=row["name"],
        parent=_parent(row["group_id"], parents),
        status=status_of(counts),
        alike=f"{row['group_id']}/{row['wait_gate'] or row['parent_id']}/{row['exit_gate'] or row['id']}",
        count=row["count"],
        counts=counts if row["count"] > 1 else {},
        started_at=row["started_at"],
        finished_at=None if counts.get("OPEN") or counts.get("RUNNING") else row["finished_at"],
    )


def _group(row: Any, of_map: Any, running: Any, parents: set[int]) -> GraphNode:
    runs = running["n"] if running else 0
    counts = {
        "COMPLETED": row["total"] - row["remaining"] - row["failed"] - row["skipped"],
        "FAILED": row["failed"],
        "SKIPPED": row["skipped"],
        "RUNNING": runs,
        "OPEN": max(0, row["remaining"] - runs),
    }
    if of_map and of_map["expander"]:  # it is no item of the map
        counts[of_map["expander_status"] if of_map["expander_status"] in counts else "FAILED"] -= 1
    return GraphNode(
        id=str(row["id"]),
        kind="map" if of_map else "group",
        name=row["name"],
        parent=_parent(row["parent_group_id"], parents),
        status=status_of(counts),
        alike=str(row["id"]),
        count=of_map["items"] if of_map else row["total"],
        counts={status: n for status, n in counts.items() if n > 0},
        max_parallel=row["max_parallel"],
        rule=row["rule"],
        started_at=of_map["started_at"] if of_map else None,
        finished_at=row["decided_at"],
    )


def _with_starts(groups: Sequence[GraphNode], tasks: Sequence[GraphNode]) -> list[GraphNode]:
    """Groups start with the first of what is in them."""
    parents = {group.id: group.parent for group in groups}
    first: dict[str, datetime] = {}
    for node in (*tasks, *(group for group in groups if group.kind == "map")):
        at = node.parent
        while node.started_at is not None and at is not None:
            first[at] = min(first.get(at, node.started_at), node.started_at)
            at = parents.get(at)
    return [msgspec.structs.replace(group, started_at=group.started_at or first.get(group.id)) for group in groups]


def status_of(counts: Mapping[str, int]) -> str:
    """One status for several tasks: what goes on first, then what went wrong."""
    ended = sum(n for status, n in counts.items() if status not in ("OPEN", "RUNNING"))
    if counts.get("RUNNING"):
        return "RUNNING"
    if counts.get("OPEN"):
        return "OPEN" if ended > 0 else "PENDING"
    for status in ("FAILED", "UPSTREAM_FAILED", "CANCELLED"):
        if counts.get(status):
            return status
    return "SKIPPED" if counts.get("SKIPPED") and not counts.get("COMPLETED") else "COMPLETED"
