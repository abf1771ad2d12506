"""Gantt: for each task when it waited for others, stood in line and ran, each attempt a segment of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from markupsafe import Markup

from .graphs import brief
from .svg import clip, picture, tag, text, title

WIDTH, NAMES, ROW, AXIS = 760.0, 160.0, 24.0, 22.0
LETTERS = 21
LETTER = 7.0  # as wide as one of an axis is at most
TICKS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)


class Segment(msgspec.Struct, frozen=True):
    """A stretch of one kind: wait, queue, run, or retry for a run that was not the last; None ends now."""

    kind: str
    start: datetime
    end: datetime | None
    note: str = ""


class Lane(msgspec.Struct, frozen=True):
    """One task."""

    id: str
    name: str
    status: str
    segments: list[Segment]


def draw_gantt(
    lanes: Sequence[Lane], link: Callable[[Lane], str], *, now: datetime, critical: Iterable[str] = ()
) -> Markup:
    """All lanes on one axis of time, from the first moment to the last."""
    starts = [part.start for lane in lanes for part in lane.segments]
    ends = [part.end or now for lane in lanes for part in lane.segments]
    first, last = min(starts, default=now), max(ends, default=now)
    whole = max((last - first).total_seconds(), 0.001)
    scale = (WIDTH - NAMES - 12) / whole
    on_way = set(critical)

    def x_of(moment: datetime) -> float:
        return NAMES + (moment - first).total_seconds() * scale

    height = AXIS + ROW * len(lanes) + 6
    drawn = [_axis(whole, scale, height)]
    for place, lane in enumerate(lanes):
        drawn.append(_lane(lane, AXIS + place * ROW, x_of, now, link(lane), is_critical=lane.id in on_way))
    label = f"Timeline of {len(lanes)} tasks over {brief(whole)}"
    return picture(*drawn, width=WIDTH, height=height, label=label, class_="gantt", is_image=False)


def _axis(whole: float, scale: float, height: float) -> str:
    step = next((one for one in TICKS if whole / one <= 8), TICKS[-1])
    if whole < 4:
        step_seconds = max(0.05, round(whole / 4, 2))
        moments = [n * step_seconds for n in range(4)]
    else:
        moments = [float(n) for n in range(0, int(whole) + 1, step)]
    parts, free = [], 0.0  # where the words before have ended
    for moment in moments:
        x = NAMES + moment * scale
        parts.append(tag("line", x1=x, x2=x, y1=AXIS - 4, y2=height, class_="grid"))
        words = f"+{brief(moment)}" if moment else "0"
        wide = 3 + LETTER * len(words)
        is_last = x + wide > WIDTH
        if x - (wide if is_last else 0) >= free:
            parts.append(
                text(words, x=x - 3 if is_last else x + 3, y=AXIS - 8, class_="axis end" if is_last else "axis")
            )
            free = x if is_last else x + wide
    return "".join(parts)


def _lane(  # noqa: PLR0913 - one value a fact
    lane: Lane, y: float, x_of: Callable[[datetime], float], now: datetime, href: str, *, is_critical: bool
) -> str:
    inner = [
        tag("rect", x=0.0, y=y, width=WIDTH, height=ROW, class_="row"),
        tag("use", href=f"#i-{lane.status}", x=4.0, y=y + 6, width=12.0, height=12.0, class_=f"ink-{lane.status}"),
        text(clip(lane.name, LETTERS), x=22.0, y=y + 16, class_="name"),
    ]
    for part in lane.segments:
        start, end = x_of(part.start), x_of(part.end or now)
        told = f"{part.kind} {brief(((part.end or now) - part.start).total_seconds())}"
        thin = part.kind in ("wait", "queue")
        inner.append(
            tag(
                "rect",
                title(f"{lane.name}: {told}{' · ' + part.note if part.note else ''}"),
                x=start,
                y=y + (9 if thin else 5),
                width=max(1.5, end - start),
                height=ROW - (18 if thin else 10),
                rx=0.0 if thin else 2.0,
                class_=f"g-{part.kind} s-{lane.status}",
            )
        )
    if is_critical and lane.segments:
        start, end = x_of(lane.segments[0].start), x_of(lane.segments[-1].end or now)
        inner.append(tag("rect", x=start - 2, y=y + 3, width=max(4.0, end - start + 4), height=ROW - 6, rx=3.0,
                         class_="outline"))  # fmt: skip
    return tag("a", *inner, href=href, class_="lane", data_select=lane.id, data_status=lane.status)


def critical_path(
    ends: Mapping[str, datetime], edges: Iterable[tuple[str, str]], *, starts: Mapping[str, datetime]
) -> list[str]:
    """The chain that decided when the job ended: from the last to end, back over whom each waited for longest."""
    before: dict[str, list[str]] = {}
    for first, then in edges:
        if first in ends:
            before.setdefault(then, []).append(first)
    at = max(ends, key=lambda node: ends[node], default=None)
    path: list[str] = []
    while at is not None and at not in path:
        path.append(at)
        at = max(before.get(at, ()), key=lambda node: ends[node], default=None)
    return [node for node in reversed(path) if node in starts or node in ends]


def busy_share(path: Sequence[str], starts: Mapping[str, datetime], ends: Mapping[str, datetime]) -> float:
    """Which part of the time from the first start to the last end the tasks of the path ran."""
    if not path or not starts:
        return 0.0
    ran = sum(((ends[node] - starts[node]) for node in path if node in starts and node in ends), timedelta(0))
    whole = max(ends.values()) - min(starts.values())
    return min(1.0, ran / whole) if whole else 1.0
