"""Words and signs of the pages: numbers, durations, times, states; each state has an icon, a word and a colour."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup, escape

from ..drawing.graphs import brief

SHOWN_DIGITS = 8
# What a status is called where its own word says too little.
CALLED = {
    "PENDING": "waiting",
    "UPSTREAM_FAILED": "upstream failed",
    "QUEUED": "in line",
    "OPEN": "working",
    "DONE": "done",
}
ICONS = {
    "OPEN": "running", "ACTIVE": "running", "DONE": "completed", "ENABLED": "completed", "FIRED": "completed",
    "LOST": "failed", "MISSED": "failed", "STOPPING": "cancelled", "STOPPED": "skipped", "DISABLED": "paused",
    "GONE": "cancelled", "OVER": "skipped", "SNOOZED": "retrying", "UNKNOWN": "retrying", "RETRIED": "retrying",
    "–": "skipped",
}  # fmt: skip


def number(value: float | None) -> str:
    """1284 → 1,284."""
    return "–" if value is None else f"{value:,.0f}"


def many(value: int, more: bool = False) -> str:
    """A count that may have been cut: 10,000+."""
    return f"{value:,}{'+' if more else ''}"


def counted_ago(seconds: float | None) -> str:
    """Behind a count that was not made now, how old it is."""
    return "" if seconds is None else f", counted {lasting(max(1.0, round(seconds)))} ago"


def lasting(value: float | timedelta | None) -> str:
    """A duration."""
    if value is None:
        return "–"
    return brief(value.total_seconds() if isinstance(value, timedelta) else value)


def rate(value: float | None) -> str:
    """So many a minute."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return ""


def percent(value: float | None) -> str:
    """0.713 → 71 %."""
    return "–" if value is None else f"{100 * value:.0f} %"


def moment(value: datetime | None, style: str = "ago") -> Markup:
    """A time element, relative (`ago`, `since`) or absolute (`moment`, `clock`); the script lets it tick."""
    if value is None:
        return Markup("–")
    value = value.astimezone(UTC)
    return Markup('<time datetime="{}" data-as="{}" title="{}">{}</time>').format(
        value.isoformat(), style, f"{value:%Y-%m-%d %H:%M:%S} UTC", _told(value, style)
    )


def _told(value: datetime, style: str) -> str:
    past = (datetime.now(UTC) - value).total_seconds()
    if style == "since":
        return brief(max(0.0, past))
    if style == "moment":
        return f"{value:%a %d %b %H:%M} UTC"
    if style == "clock":
        return f"{value:%H:%M:%S}"
    if style == "day":
        return f"{value:%d %b}"
    if abs(past) < 1:
        return "now"
    return f"{brief(past)} ago" if past > 0 else f"in {brief(-past)}"


def icon(name: str, cls: str = "") -> Markup:
    """A sign of the sprite, hidden from screen readers: a word stands beside it."""
    return Markup('<svg class="icon {}" aria-hidden="true"><use href="#i-{}"></use></svg>').format(cls, name)


def state(status: str | None, word: str | None = None) -> Markup:
    """A status as sign, word and colour."""
    status = status or "–"
    shown = word or CALLED.get(status, status.replace("_", " ").lower())
    return Markup('<span class="state ink-{}">{}{}</span>').format(
        status.lower(), icon(ICONS.get(status, status.lower())), shown
    )


def tail(number_of: object) -> str:
    """The last digits of an id, by which the command line finds it too."""
    text = str(number_of)
    return text if len(text) <= SHOWN_DIGITS else f"…{text[-SHOWN_DIGITS:]}"


def as_json(value: Any) -> str:
    """A value for people to read."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def packed(value: Any) -> str:
    """A value for an attribute."""
    return json.dumps(value, ensure_ascii=False, default=str)


def plain_name(entrypoint: str) -> Markup:
    """An entrypoint with its module in a lighter ink."""
    module, _, name = entrypoint.rpartition(".")
    before = Markup('<span class="soft">{}.</span><wbr>').format(module) if module else ""
    return Markup("{}{}").format(before, name)


def kept(values: Mapping[str, Any], **changes: Any) -> dict[str, str]:
    """The words of a query with some changed; what is empty is left out."""
    return {name: str(value) for name, value in {**values, **changes}.items() if value not in (None, "")}


FILTERS = {
    "number": number, "many": many, "lasting": lasting, "rate": rate, "size": size, "percent": percent,
    "counted_ago": counted_ago, "moment": moment, "tail": tail, "as_json": as_json, "packed": packed,
    "plain_name": plain_name,
}  # fmt: skip
GLOBALS = {"icon": icon, "state": state, "escape": escape, "kept": kept}
