"""Time zones as changes of their offset from UTC. Instants and offsets are whole seconds here.

zoneinfo gives offsets but not the changes, so they are looked for, 256 days at a time, and kept.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from .errors import BadSchedule

DAY = 86400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# One probe a day finds them all: in all of tzdata no two changes of a zone are less than 95 hours apart.
STRETCH = 256 * DAY


class Change(NamedTuple):
    """From the instant `at` on, the offset is another."""

    at: int
    offset: int


def check_zone(name: str) -> str:
    """The name, if there is a time zone of that name; BadSchedule tells the nearest ones."""
    known = _names()
    meant = str(name)[:100].lower()
    if known.get(meant) == name:
        return name
    near = [meant] if meant in known else difflib.get_close_matches(meant, known, n=3)
    hint = f"did you mean {' or '.join(known[one] for one in near)}?" if near else "write it as Europe/Berlin, or UTC"
    raise BadSchedule(f"time zone {str(name)[:100]!r} is not known: {hint}")


def offset_at(zone: str, instant: int) -> int:
    """Seconds by which local time is ahead of UTC."""
    offset = (EPOCH + timedelta(0, instant)).astimezone(_zone(zone)).utcoffset()
    assert offset is not None
    return offset.days * DAY + offset.seconds


def changes(zone: str, start: int, end: int) -> list[Change]:
    """The changes after start, up to and with end."""
    if zone == "UTC":
        return []
    first, last = (start - 1) // STRETCH, (end - 1) // STRETCH
    return [one for part in range(first, last + 1) for one in _changes(zone, part) if start < one.at <= end]


def stretches(zone: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Start to end (without it) in pieces of one offset: begin, end, offset."""
    begin, offset = start, offset_at(zone, start)
    for change in changes(zone, start, end - 1):
        yield begin, change.at, offset
        begin, offset = change
    yield begin, end, offset


@lru_cache(maxsize=16384)
def _changes(zone: str, part: int) -> tuple[Change, ...]:
    found = []
    start = part * STRETCH
    before = offset_at(zone, start)
    for day in range(start, start + STRETCH, DAY):
        offset = offset_at(zone, day + DAY)
        if offset != before:
            found.append(Change(_first_with(zone, offset, day, day + DAY), offset))
            before = offset
    return tuple(found)


def _first_with(zone: str, offset: int, before: int, there: int) -> int:
    while there - before > 1:
        middle = (before + there) // 2
        if offset_at(zone, middle) == offset:
            there = middle
        else:
            before = middle
    return there


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """What people may mean by a name, in small letters, and the name."""
    # `localtime` is another zone on each machine.
    return {name.lower(): name for name in sorted(available_timezones() - {"localtime"})}
