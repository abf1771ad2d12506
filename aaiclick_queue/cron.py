"""When a cron expression fires in a time zone.

A wall time that does not exist fires at the first instant after the gap. A wall time that comes twice fires once,
at the first, when the hour is fixed, and both times when the hour is `*` or has a step. Instants never repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from .cron_fields import NEVER
from .cron_words import DAILY, read
from .errors import BadSchedule
from .zones import DAY, EPOCH, changes, check_zone, offset_at, stretches

# A change of offset moves fires by a day at most (Apia skipped one): beyond two days of it nothing is special.
REACH = 2 * DAY
FIRST = (datetime(2, 1, 1, tzinfo=UTC) - EPOCH).days * DAY
END = (datetime(9999, 1, 1, tzinfo=UTC) - EPOCH).days * DAY
TICK = timedelta(microseconds=1)


class Cron(msgspec.Struct, frozen=True):
    """An expression in a time zone; made by parse()."""

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise BadSchedule(f"{self.expression!r} is no cron expression: write a text; for example {DAILY}")
        read(self.expression)
        check_zone(self.timezone)

    @classmethod
    def parse(cls, expression: str, timezone: str = "UTC") -> Cron:
        """The schedule of these words; BadSchedule says what is wrong with them."""
        return cls(expression, timezone)

    def after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after the moment, in UTC; None where none comes before the year 9999."""
        found = self._after(max((utc(moment) - EPOCH) // timedelta(seconds=1), FIRST))
        return None if found is None else EPOCH + timedelta(0, found)

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """All fires from start on and before end, in order."""
        fire = self.after(start - TICK)
        while fire is not None and fire < end:
            yield fire
            fire = self.after(fire)

    def _after(self, start: int) -> int | None:
        zone, fields = self.timezone, read(self.expression)
        while start < END:
            if not changes(zone, start - REACH, start + REACH):
                offset = offset_at(zone, start)
                wall = fields.first(start + 1 + offset)
                if wall == NEVER:
                    return None
                guess = wall - offset
                if not changes(zone, guess - REACH, guess + REACH):
                    return wall - offset_at(zone, guess)
                start = max(start, guess - 2 * REACH)
            found = self._first(start, start + 4 * REACH)
            if found is not None:
                return found
            start += 4 * REACH
        return None

    def _first(self, start: int, end: int) -> int | None:
        """The first fire after start, up to and with end, with an eye on every change of the offset."""
        fields = read(self.expression)
        reached: int | None = None  # the wall time that the stretch before went up to
        for begin, stop, offset in stretches(self.timezone, start - REACH, end + 1):
            least = max(begin, start + 1) + offset
            if reached is not None and begin > start and fields.first(reached) < begin + offset:
                return begin
            if reached is not None and not fields.every_hour:
                least = max(least, reached)
            wall = fields.first(least)
            if wall < stop + offset:
                return wall - offset
            reached = stop + offset
        return None


def utc(moment: datetime) -> datetime:
    """The moment in UTC; one without a time zone is refused."""
    if moment.tzinfo is None:
        raise BadSchedule(
            f"{moment!r} has no time zone, so it could mean any hour: "
            "use datetime.now(UTC), or .astimezone() for local time"
        )
    return moment.astimezone(UTC)
