"""Every so many seconds, counted from an anchor. Whole microseconds and one multiplication: nothing drifts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from .cron import TICK, utc
from .durations import EXAMPLES, duration
from .errors import BadSchedule

LEAST = 1.0
MOST = 366 * 86400.0


class Interval(msgspec.Struct, frozen=True):
    """Fires at anchor + n × seconds for every whole n, also below zero: the anchor sets the beat, not the start."""

    seconds: float
    anchor: datetime

    def __post_init__(self) -> None:
        parse_interval(self.seconds)
        utc(self.anchor)

    def after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after the moment, in UTC; None beyond the year 9999."""
        anchor, step = utc(self.anchor), timedelta(microseconds=round(self.seconds * 1_000_000))
        try:
            return anchor + ((utc(moment) - anchor) // step + 1) * step
        except OverflowError:
            return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """All fires from start on and before end, in order."""
        fire = self.after(start - TICK)
        while fire is not None and fire < end:
            yield fire
            fire = self.after(fire)


def parse_interval(value: str | float | timedelta) -> float:
    """Seconds of '15m', '1h30m', 90 or a timedelta, from 1 second to 366 days."""
    if isinstance(value, timedelta):
        number: float | None = value.total_seconds()
    elif isinstance(value, str):
        number = duration(value.strip())
    else:
        number = None if isinstance(value, bool) or not isinstance(value, int | float) else value
    if number is None:
        raise BadSchedule(f"interval {str(value)[:50]!r} is no duration: write {EXAMPLES}, seconds or a timedelta")
    if not LEAST <= number <= MOST:
        raise BadSchedule(f"interval {str(value)[:50]!r} is not from 1 second to 366 days; for example 15m")
    return float(number)
