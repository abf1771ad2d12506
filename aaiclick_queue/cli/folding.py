"""Which nodes of a graph are drawn each, which as one, and which are only counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from .lines import MARKS
from .shapes import Unit, base_name

if TYPE_CHECKING:
    from ..job_graphs import GraphNode

UNITS_SHOWN = 40  # of one level
FIRST, LAST = 8, 4  # of those, whatever they are
SIDE_BY_SIDE = 10  # tasks of one unit that are shown each
INTERESTING = ("FAILED", "RUNNING", "SCHEDULED", "CANCELLED", "QUEUED", "UPSTREAM_FAILED")
WAITING = ("PENDING", "QUEUED", "SCHEDULED")


def folded(nodes: Sequence[GraphNode]) -> GraphNode:
    """Several tasks as one node."""
    from ..job_graphs import status_of

    counts: Counter[str] = Counter()
    for node in nodes:
        counts.update(node.counts or {node.status: node.count})
    told = {status: counts[status] for status in MARKS if counts[status]}
    waiting = counts["OPEN"] + sum(counts[status] for status in WAITING)
    starts = [node.started_at for node in nodes if node.started_at]
    ends = [node.finished_at for node in nodes if node.finished_at]
    return msgspec.structs.replace(
        nodes[0],
        kind="tasks",
        name=base_name(nodes[0].name),
        count=sum(node.count for node in nodes),
        counts=told,
        status=status_of({status: n for status, n in told.items() if status not in WAITING} | {"OPEN": waiting}),
        attempt=None,
        started_at=min(starts, default=None),
        finished_at=None if waiting or counts["RUNNING"] else max(ends, default=None),
    )


def worth_a_look(nodes: Sequence[GraphNode]) -> set[str]:
    """Ids of the few among many side by side that are shown: what failed, what runs, then the first ones."""
    by_need = sorted(nodes, key=lambda node: _need(node.status))
    return {node.id for node in by_need[: SIDE_BY_SIDE - 1]}


def hidden(units: Sequence[Unit]) -> set[str]:
    """Units of a long level that are not shown: the ordinary ones in its middle."""
    if len(units) <= UNITS_SHOWN:
        return set()
    kept = {*range(FIRST), *range(len(units) - LAST, len(units))}
    needs = {number: min(_need(node.status) for node in unit.nodes) for number, unit in enumerate(units)}
    for number in sorted(needs, key=lambda one: (needs[one], one)):
        if len(kept) >= UNITS_SHOWN or needs[number] == len(INTERESTING):
            break
        kept |= {max(0, number - 1), number}
    return {unit.key for number, unit in enumerate(units) if number not in kept}


def _need(status: str) -> int:
    return INTERESTING.index(status) if status in INTERESTING else len(INTERESTING)
