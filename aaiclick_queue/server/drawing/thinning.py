"""Thinning: which nodes of a job's graph are drawn, so that a browser and a person can take it in.

Up to 300 every task; beyond that groups and tasks that are alike stand as one; beyond 3,000 only the frontier:
what runs, failed or is in line, and what is next to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ...job_graphs import GraphEdge, GraphNode, status_of

EACH_LIMIT = 300
FRONTIER_LIMIT = 3_000
Edges = list[tuple[str, str]]
_ORDER = ("FAILED", "UPSTREAM_FAILED", "RUNNING", "QUEUED", "SCHEDULED", "PENDING", "OPEN", "CANCELLED")


class Thinned(msgspec.Struct, frozen=True):
    """What is to be drawn; `note` says what was left out or put together, `stands_for` where each node went."""

    nodes: list[GraphNode]
    edges: Edges
    note: str = ""
    stands_for: dict[str, str] = {}


def thinned(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Thinned:
    """As many nodes as can be looked at."""
    spread = _spread(nodes, edges)
    if len(spread.nodes) <= EACH_LIMIT:
        return spread
    folded = _folded(nodes, edges)
    if len(folded.nodes) <= FRONTIER_LIMIT:
        note = (
            f"{len(spread.nodes):,} tasks drawn as {len(folded.nodes):,}: groups and tasks that are alike stand as one"
        )
        return msgspec.structs.replace(folded, note=note)
    return _frontier(folded)


def _spread(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Thinned:
    """Groups are not drawn: an arrow to one goes to its first tasks, one from it comes from its last."""
    members: dict[str, list[str]] = {}
    for node in nodes:
        if node.parent is not None:
            members.setdefault(node.parent, []).append(node.id)
    groups = {node.id for node in nodes if node.kind == "group" and node.id in members}
    plain = [(edge.previous, edge.next) for edge in edges]
    has_before = {after for _, after in plain}
    has_after = {before for before, _ in plain}

    def ends(node: str, inside: set[str]) -> list[str]:
        if node not in groups:
            return [node]
        theirs = members[node]
        outer = [one for one in theirs if one not in inside] or theirs
        return [leaf for one in outer for leaf in ends(one, inside)]

    drawn: Edges = []
    for before, after in plain:
        drawn += [(first, then) for first in ends(before, has_after) for then in ends(after, has_before)]
    return Thinned([node for node in nodes if node.id not in groups], list(dict.fromkeys(drawn)))


def _folded(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Thinned:
    """Outermost groups as one node each, and of the others those that are alike."""
    by_id = {node.id: node for node in nodes}

    def outermost(node: GraphNode) -> GraphNode:
        while node.parent in by_id:
            node = by_id[node.parent]
        return node

    heads: dict[str, list[GraphNode]] = {}
    stands_for: dict[str, str] = {}
    first_alike: dict[str, str] = {}
    for node in nodes:
        top = outermost(node)
        head = top.id if top.kind in ("group", "map") else first_alike.setdefault(top.alike, top.id)
        stands_for[node.id] = head
        if node.id == top.id:
            heads.setdefault(head, []).append(node)
    drawn = [_as_one(some) if len(some) > 1 else some[0] for some in heads.values()]
    found = dict.fromkeys((stands_for[edge.previous], stands_for[edge.next]) for edge in edges if _known(edge, by_id))
    return Thinned(drawn, [(before, after) for before, after in found if before != after], "", stands_for)


def _known(edge: GraphEdge, by_id: Mapping[str, GraphNode]) -> bool:
    return edge.previous in by_id and edge.next in by_id


def _as_one(some: Sequence[GraphNode]) -> GraphNode:
    counts: dict[str, int] = {}
    for node in some:
        for status, count in (node.counts or {node.status: node.count}).items():
            counts[status] = counts.get(status, 0) + count
    merged = {("OPEN" if status in ("PENDING", "QUEUED", "SCHEDULED") else status): 0 for status in counts}
    for status, count in counts.items():
        merged["OPEN" if status in ("PENDING", "QUEUED", "SCHEDULED") else status] += count
    return msgspec.structs.replace(
        some[0], kind="tasks", count=sum(node.count for node in some), counts=merged, status=status_of(merged)
    )


def _frontier(whole: Thinned) -> Thinned:
    """What is at work or went wrong, and its neighbours."""
    rank = {status: place for place, status in enumerate(_ORDER)}
    live = [node for node in whole.nodes if rank.get(node.status, 99) <= rank["SCHEDULED"]] or whole.nodes[:EACH_LIMIT]
    live = sorted(live, key=lambda node: rank.get(node.status, 99))[:EACH_LIMIT]
    wanted = {node.id for node in live}
    beside = {other for edge in whole.edges if wanted & set(edge) for other in edge}
    wanted |= set(_first(beside - wanted, EACH_LIMIT))
    nodes = [node for node in whole.nodes if node.id in wanted]
    note = f"only the frontier is drawn, {len(nodes):,} of {len(whole.nodes):,} nodes: what runs, failed or is in line"
    edges = [edge for edge in whole.edges if set(edge) <= wanted]
    return Thinned(nodes, edges, note, whole.stands_for)


def _first(some: Iterable[str], limit: int) -> list[str]:
    return sorted(some, key=lambda one: (len(one), one))[:limit]
