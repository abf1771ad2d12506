"""When a schedule fires: by several cron expressions or by one interval, within bounds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby

import msgspec

from .cron import TICK, Cron, utc
from .errors import BadSchedule
from .intervals import Interval


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Crons or an interval, from starts_at on and before ends_at; what fires together fires once."""

    crons: tuple[Cron, ...] = ()
    interval: Interval | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        if bool(self.crons) == (self.interval is not None):
            raise BadSchedule("a schedule has either cron expressions or an interval: give one of them")
        starts_at, ends_at = (None if one is None else utc(one) for one in (self.starts_at, self.ends_at))
        if starts_at is not None and ends_at is not None and ends_at <= starts_at:
            raise BadSchedule(f"ends_at {ends_at} is not after starts_at {starts_at}: nothing could fire")

    def after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after the moment, in UTC; None: never again."""
        moment = utc(moment)
        if self.starts_at is not None and moment < self.starts_at:
            moment = self.starts_at - TICK
        fires = [fire for one in self._parts() if (fire := one.after(moment)) is not None]
        fire = min(fires, default=None)
        return None if fire is None or (self.ends_at is not None and fire >= self.ends_at) else fire

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """All fires from start on and before end, in order, none twice."""
        if self.starts_at is not None:
            start = max(start, self.starts_at)
        if self.ends_at is not None:
            end = min(end, self.ends_at)
        for fire, _ in groupby(heapq.merge(*(one.between(start, end) for one in self._parts()))):
            yield fire

    def _parts(self) -> tuple[Cron | Interval, ...]:
        return self.crons if self.interval is None else (self.interval,)
