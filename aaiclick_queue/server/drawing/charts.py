"""Small charts: sparkline, columns and lines over time, histogram, state bar, strip of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from markupsafe import Markup

from .svg import number, picture, tag, text, title

WIDE, NARROW = 1120.0, 420.0
CHART_HEIGHT = 190.0
LEFT, BOTTOM, TOP = 44.0, 22.0, 8.0
MARK_TURNS = 0.8  # from here on the words of a mark stand before it


class Column(msgspec.Struct, frozen=True):
    """One stretch of time and how many of each there were."""

    start: datetime
    counts: Mapping[str, float]


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at a moment, drawn as a line through the chart."""

    at: datetime
    label: str


def sparkline(values: Sequence[float], *, label: str, width: float = 96, height: float = 22) -> Markup:
    """A line over time without axes; flat at the bottom when there is nothing."""
    most = max(values, default=0) or 1
    step = width / max(1, len(values) - 1)
    points = [(n * step, height - 1.5 - value / most * (height - 3)) for n, value in enumerate(values)]
    line = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    area = f"0,{number(height)} {line} {number(width)},{number(height)}" if points else ""
    return picture(
        title(label),
        tag("polygon", points=area, class_="spark-area"),
        tag("polyline", points=line, class_="spark-line"),
        width=width,
        height=height,
        label=label,
        class_="spark",
    )


def columns(
    found: Sequence[Column],
    kinds: Sequence[str],
    *,
    label: str,
    marks: Sequence[Mark] = (),
    width: float = WIDE,
) -> Markup:
    """Stacked columns over time, the first kind at the bottom, with an axis of round numbers and one of times."""
    most = nice(max((sum(one.counts.values()) for one in found), default=0))
    plot_width, plot_height = width - LEFT, CHART_HEIGHT - TOP - BOTTOM
    step = plot_width / max(1, len(found))
    drawn = [_grid(most, width, plot_height)]
    for place, one in enumerate(found):
        drawn.append(_column(one, kinds, x=LEFT + place * step, step=step, scale=plot_height / most))
    drawn += _times([one.start for one in found], step)
    if found:
        drawn += [_mark(mark, found[0].start, found[-1].start, plot_width) for mark in marks]
    return picture(*drawn, width=width, height=CHART_HEIGHT, label=label, class_="chart")


def line_chart(
    points: Sequence[tuple[datetime, float]], *, label: str, kind: str, unit: str = "", width: float = WIDE
) -> Markup:
    """One value over time."""
    most = nice(max((value for _, value in points), default=0))
    plot_width, plot_height = width - LEFT, CHART_HEIGHT - TOP - BOTTOM
    step = plot_width / max(1, len(points) - 1)
    where = [(LEFT + n * step, TOP + plot_height - value / most * plot_height) for n, (_, value) in enumerate(points)]
    line = " ".join(f"{number(x)},{number(y)}" for x, y in where)
    floor = number(TOP + plot_height)
    area = f"{number(LEFT)},{floor} {line} {number(where[-1][0])},{floor}" if where else ""
    return picture(
        _grid(most, width, plot_height, unit),
        tag("polygon", points=area, class_=f"area {kind}"),
        tag("polyline", points=line, class_=f"line {kind}"),
        *_times([at for at, _ in points], step),
        width=width,
        height=CHART_HEIGHT,
        label=label,
        class_="chart",
    )


def lines(
    starts: Sequence[datetime],
    found: Mapping[str, Sequence[float | None]],
    *,
    label: str,
    unit: str,
    width: float = WIDE,
) -> Markup:
    """Several values over time, each a line of its kind, broken where there is none."""
    most = nice(max((value for values in found.values() for value in values if value is not None), default=0))
    plot_width, plot_height = width - LEFT, CHART_HEIGHT - TOP - BOTTOM
    step = plot_width / max(1, len(starts) - 1)
    drawn = [_grid(most, width, plot_height, unit)]
    for kind, values in found.items():
        for stretch in _stretches(values):
            points = [(LEFT + n * step, TOP + plot_height * (1 - value / most)) for n, value in stretch]
            drawn.append(_stretch(points, kind))
    return picture(*drawn, *_times(starts, step), width=width, height=CHART_HEIGHT, label=label, class_="chart")


def histogram(bins: Sequence[tuple[str, float]], *, label: str, width: float = 320, height: float = 96) -> Markup:
    """Columns by size, the words of every bin under it where there is room."""
    most = max((count for _, count in bins), default=0) or 1
    step = width / max(1, len(bins))
    every = max(1, math.ceil(len(bins) / (width / 44)))
    drawn = []
    for place, (words, count) in enumerate(bins):
        tall = count / most * (height - 20)
        drawn.append(
            tag(
                "rect",
                title(f"{words}: {count:,.0f}"),
                x=place * step + 1,
                y=height - 16 - tall,
                width=max(1.0, step - 2),
                height=tall,
                class_="bar",
            )
        )
        if place % every == 0:
            drawn.append(text(words, x=place * step + step / 2, y=height - 3, class_="axis middle"))
    return picture(*drawn, width=width, height=height, label=label, class_="histogram")


def state_bar(counts: Sequence[tuple[str, int]], *, label: str, width: float = 160, height: float = 8) -> Markup:
    """Parts of a whole beside each other; a part that is there is never thinner than two pixels."""
    there = [(kind, count) for kind, count in counts if count > 0]
    total = sum(count for _, count in there)
    drawn = [tag("rect", x=0.0, y=0.0, width=float(width), height=float(height), rx=3.0, class_="track")]
    x, least = 0.0, 2.0
    room = width - least * len(there)
    for kind, count in there:
        wide = least + room * count / total
        drawn.append(
            tag("rect", title(f"{count:,} {kind}"), x=x, y=0.0, width=wide, height=float(height), class_=f"s-{kind}")
        )
        x += wide
    return picture(*drawn, width=width, height=height, label=label, class_="state-bar", fills=True)


def strip(runs: Sequence[tuple[str, float, str]], *, label: str, height: float = 24) -> Markup:
    """Runs of the past as bars, oldest first: their class, how long (0 to 1) and the words of each."""
    step = 7.0
    drawn = [
        tag(
            "rect",
            title(words),
            x=place * step,
            y=height - max(4.0, share * height),
            width=step - 2,
            height=max(4.0, share * height),
            rx=1.0,
            class_=f"s-{kind}",
        )
        for place, (kind, share, words) in enumerate(runs)
    ]
    return picture(*drawn, width=max(step, len(runs) * step), height=height, label=label, class_="strip")


def nice(most: float) -> float:
    """The least round number that is not below, whose half is round too: 1, 1.5, 2, 3, 4 …"""
    if most <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(factor * power for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if factor * power >= most)


def short(value: float) -> str:
    """A number of an axis: 1.5k, 20M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _grid(most: float, width: float, plot_height: float, unit: str = "") -> str:
    lines = []
    for part in (0, 0.5, 1):
        y = TOP + plot_height * (1 - part)
        lines.append(tag("line", x1=LEFT, x2=width, y1=y, y2=y, class_="grid"))
        lines.append(text(short(most * part) + unit, x=LEFT - 6, y=y + 4, class_="axis end"))
    return "".join(lines)


def _column(one: Column, kinds: Sequence[str], *, x: float, step: float, scale: float) -> str:
    y, parts = CHART_HEIGHT - BOTTOM, []
    gap = 1.0 if step > 4 else 0.0
    for kind in kinds:
        tall = one.counts.get(kind, 0) * scale
        if tall > 0:
            y -= tall
            parts.append(tag("rect", x=x, y=y, width=max(0.5, step - gap), height=tall, class_=f"c-{kind}"))
    told = ", ".join(f"{one.counts.get(kind, 0):,.0f} {kind}" for kind in kinds)
    return tag("g", title(f"{one.start:%H:%M} UTC: {told}"), *parts)


def _times(starts: Sequence[datetime], step: float) -> list[str]:
    """Six moments at most, with room for each, as the browser's script then writes them in the reader's zone."""
    if not starts:
        return []
    every = max(1, round(80 / step), len(starts) // 6)
    style = "%H:%M" if starts[-1] - starts[0] < timedelta(days=2) else "%d %b"
    return [
        text(
            f"{starts[place]:{style}}",
            x=LEFT + place * step,
            y=CHART_HEIGHT - 6,
            class_="axis",
            data_at=starts[place].isoformat(),
            data_style="time" if style == "%H:%M" else "day",
        )
        for place in range(0, max(1, len(starts) - every // 2), every)
    ]


def _stretches(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Values that follow each other, with their places."""
    found: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is not None:
            found[-1].append((place, value))
        elif found[-1]:
            found.append([])
    return [one for one in found if one]


def _stretch(points: Sequence[tuple[float, float]], kind: str) -> str:
    if len(points) == 1:
        [(x, y)] = points
        return tag("circle", cx=x, cy=y, r=2.0, class_=f"dot {kind}")
    return tag("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=f"line {kind}")


def _mark(mark: Mark, first: datetime, last: datetime, plot_width: float) -> str:
    whole = (last - first).total_seconds() or 1.0
    share = (mark.at - first).total_seconds() / whole
    if not 0 <= share <= 1:
        return ""
    x = LEFT + share * plot_width
    is_late = share > MARK_TURNS
    words = text(mark.label, x=x - 4 if is_late else x + 4, y=TOP + 9, class_="marked end" if is_late else "marked")
    return tag("g", title(f"{mark.label} first ran at {mark.at:%d %b %H:%M} UTC"), words,
               tag("line", x1=x, x2=x, y1=TOP, y2=CHART_HEIGHT - BOTTOM, class_="mark"))  # fmt: skip
