"""Charts as SVG, written by hand: bars for systems, lines for what grows. They need no library and no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, ROW, LEFT, RIGHT, TOP = 760, 26, 210, 90, 44
OWN = "aaiclick-queue"
OURS, LIMIT, OTHERS = "#2563eb", "#9ca3af", "#d97706"
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626")
STYLE = """<style>text { font: 13px system-ui, sans-serif; fill: #1f2937 } .t { font-weight: 600 } .n { fill: #4b5563 }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb } .n { fill: #9ca3af } .g { stroke: #374151 } }
.g { stroke: #e5e7eb }</style>"""


def bars(title: str, values: Mapping[str, float]) -> str:
    """One bar a system, in the order given; the length is in proportion, from zero."""
    most = max(values.values())
    height = TOP + ROW * len(values) + 10
    parts = [_head(title, height)]
    for i, (name, value) in enumerate(values.items()):
        y, length = TOP + ROW * i, (WIDTH - LEFT - RIGHT) * value / most
        colour = OURS if name.startswith(OWN) else LIMIT if name.startswith("bare") else OTHERS
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{max(length, 1):.1f}" height="20" rx="2" fill="{colour}"/>')
        parts.append(f'<text class="n" x="{LEFT + length + 6:.1f}" y="{y + 15}">{number(value)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def lines(title: str, across: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line a curve: across on a scale of powers where it spans more than a factor of 50, up from zero."""
    points = [point for curve in curves.values() for point in curve]
    xs, top = [x for x, _ in points], max(y for _, y in points) or 1.0
    powers = min(xs) > 0 and max(xs) / min(xs) > 50
    low, high = (math.log10(min(xs)), math.log10(max(xs))) if powers else (min(xs), max(xs))
    span = (high - low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        at = math.log10(x) if powers else x
        return 70 + (WIDTH - 120) * (at - low) / span, 300 - 240 * y / top

    parts = [_head(title, 360)]
    for i in range(5):
        y = 300 - 60 * i
        parts.append(f'<line class="g" x1="70" x2="{WIDTH - 50}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="n" x="62" y="{y + 4}" text-anchor="end">{number(top * i / 4)}</text>')
    named = sorted(set(xs)) if len(set(xs)) <= 12 else [min(xs), max(xs)]
    parts += [
        f'<text class="n" x="{place(x, 0)[0]:.1f}" y="318" text-anchor="middle">{number(x)}</text>' for x in named
    ]
    parts.append(f'<text class="n" x="{WIDTH / 2}" y="340" text-anchor="middle">{escape(across)}</text>')
    for i, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (place(*at) for at in curve)]
        parts.append(f'<text x="{72 + 134 * i}" y="44" style="fill:{colour}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def number(value: float) -> str:
    """A number as short as it can be read."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _head(title: str, height: int) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    shown = f'<text class="t" x="10" y="24">{escape(title)}</text>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" {size}>\n{STYLE}\n{shown}'
