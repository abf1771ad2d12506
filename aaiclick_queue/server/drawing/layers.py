"""Layers of a graph: each node behind all that it waits for, then ordered so that few arrows cross."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

SWEEPS = 4


def layered(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The nodes in layers, left to right and in each from the top down; arrows that close a circle are left out."""
    forth, back = _neighbours(nodes, edges)
    layers: dict[int, list[str]] = defaultdict(list)
    for node, depth in _depths(nodes, forth, back).items():
        layers[depth].append(node)
    found = [layers[depth] for depth in sorted(layers)]
    for sweep in range(SWEEPS):
        _sweep(found, back) if sweep % 2 == 0 else _sweep(found[::-1], forth)
    return found


Neighbours = Mapping[str, Sequence[str]]


def _neighbours(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> tuple[Neighbours, Neighbours]:
    forth: dict[str, list[str]] = {node: [] for node in nodes}
    back: dict[str, list[str]] = {node: [] for node in nodes}
    for before, after in dict.fromkeys(edges):
        if before in forth and after in forth and before != after:
            forth[before].append(after)
            back[after].append(before)
    return forth, back


def _depths(nodes: Sequence[str], forth: Neighbours, back: Neighbours) -> dict[str, int]:
    """The length of the longest way to each node."""
    depth = dict.fromkeys(nodes, 0)
    left = {node: len(back[node]) for node in nodes}
    at_hand = [node for node in nodes if not left[node]]
    while at_hand:
        following: list[str] = []
        for node in at_hand:
            for after in forth[node]:
                depth[after] = max(depth[after], depth[node] + 1)
                left[after] -= 1
                if not left[after]:
                    following.append(after)
        at_hand = following
    return depth


def _sweep(layers: Sequence[list[str]], beside: Neighbours) -> None:
    """Each node at the mean place of those it hangs on, in the layer before."""
    for above, layer in pairwise(layers):
        place = {node: number for number, node in enumerate(above)}
        was = {node: float(number) for number, node in enumerate(layer)}
        mean = {}
        for node in layer:
            theirs = [place[other] for other in beside[node] if other in place]
            mean[node] = sum(theirs) / len(theirs) if theirs else was[node]
        layer.sort(key=lambda node: (mean[node], was[node]))
