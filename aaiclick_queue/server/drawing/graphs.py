"""The graph of a job: boxes in layers, left to right, and arrows between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from markupsafe import Markup

from ...job_graphs import GraphNode
from .layers import layered
from .svg import clip, number, picture, tag, text, title
from .thinning import Thinned

WIDE, TALL, COLUMN, ROW, EDGE = 176.0, 44.0, 220.0, 58.0, 8.0
LETTERS = 21
KNOWN = {"OPEN": "pending"}


def draw_graph(thin: Thinned, link: Callable[[GraphNode], str], *, label: str, critical: Iterable[str] = ()) -> Markup:
    """The graph with every node a link to what it stands for; nodes of the critical path are outlined."""
    by_id = {node.id: node for node in thin.nodes}
    layers = layered([node.id for node in thin.nodes], thin.edges)
    tallest = max((len(layer) for layer in layers), default=1)
    where: dict[str, tuple[float, float]] = {}
    for column, layer in enumerate(layers):
        top = EDGE + (tallest - len(layer)) * ROW / 2
        where |= {node: (EDGE + column * COLUMN, top + place * ROW) for place, node in enumerate(layer)}
    on_way = set(critical)
    drawn = [_arrow(where[before], where[after], is_critical={before, after} <= on_way)
             for before, after in thin.edges if before in where and after in where]  # fmt: skip
    drawn += [_box(by_id[node], place, link(by_id[node]), is_critical=node in on_way) for node, place in where.items()]
    width = EDGE * 2 + WIDE + COLUMN * max(0, len(layers) - 1)
    height = EDGE * 2 + TALL + ROW * (tallest - 1)
    return picture(_head(), *drawn, width=width, height=height, label=label, class_="graph", is_image=False)


def _head() -> str:
    point = tag("path", d="M0,0 L7,3.5 L0,7", class_="arrow-head")
    marker = tag("marker", point, id="arrow", viewBox="0 0 7 7", refX="6.5", refY="3.5", markerWidth="7",
                 markerHeight="7", orient="auto")  # fmt: skip
    return tag("defs", marker)


def _arrow(start: tuple[float, float], end: tuple[float, float], *, is_critical: bool) -> str:
    x1, y1, x2, y2 = start[0] + WIDE, start[1] + TALL / 2, end[0] - 2, end[1] + TALL / 2
    bend = max(24.0, (x2 - x1) / 2)
    way = f"M{number(x1)},{number(y1)} C{number(x1 + bend)},{number(y1)} {number(x2 - bend)},{number(y2)} "
    return tag("path", d=f"{way}{number(x2)},{number(y2)}", marker_end="url(#arrow)",
               class_="edge critical" if is_critical else "edge")  # fmt: skip


def _box(node: GraphNode, place: tuple[float, float], href: str, *, is_critical: bool) -> str:
    x, y = place
    status = KNOWN.get(node.status, node.status.lower())
    words = _second_line(node)
    many = node.kind in ("tasks", "map", "group")
    inner = [
        title(f"{node.name}: {words}" + (f" ({node.reason})" if node.reason else "")),
        *([tag("rect", x=x + 4, y=y - 4, width=WIDE, height=TALL, rx=7.0, class_="box behind")] if many else []),
        tag("rect", x=x, y=y, width=WIDE, height=TALL, rx=7.0, class_="box"),
        tag("rect", x=x, y=y + 8, width=3.0, height=TALL - 16, rx=1.5, class_=f"s-{status}"),
        tag("use", href=f"#i-{status}", x=x + 12, y=y + 8, width=13.0, height=13.0, class_=f"ink-{status}"),
        text(clip(node.name, LETTERS), x=x + 31, y=y + 19, class_="name"),
        text(words, x=x + 12, y=y + 35, class_="under"),
    ]
    if node.counts:
        inner.append(_counts(node, x + 84, y + 29))
    return tag("a", *inner, href=href, class_="node critical" if is_critical else "node", data_select=node.id,
               data_status=status)  # fmt: skip


def _second_line(node: GraphNode) -> str:
    if node.kind in ("tasks", "map", "group"):
        done = sum(node.counts.get(status, 0) for status in ("COMPLETED", "SKIPPED"))
        return f"{done:,} of {node.count:,}"
    status = node.status.replace("_", " ").lower()
    if (node.attempt or 0) > 1:
        status += f" · attempt {node.attempt}"
    if node.started_at and node.finished_at:
        status += f" · {brief((node.finished_at - node.started_at).total_seconds())}"
    return status


def _counts(node: GraphNode, x: float, y: float) -> str:
    whole, parts, at = sum(node.counts.values()) or 1, [], x
    for status, count in node.counts.items():
        wide = (WIDE - 96) * count / whole
        kind = KNOWN.get(status, status.lower())
        parts.append(tag("rect", x=at, y=y, width=wide, height=6.0, class_=f"s-{kind}"))
        at += wide
    return "".join(parts)


def brief(seconds: float) -> str:
    """A duration in as few letters as can be: 0.4s, 12s, 4m 12s, 2h 05m, 3d 4h."""
    if seconds < 0.0995:
        return "<1ms" if 0 < seconds < 0.0005 else f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s".removesuffix(" 00s")
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m".removesuffix(" 00m")
    return f"{whole // 86400}d {whole % 86400 // 3600}h".removesuffix(" 0h")
