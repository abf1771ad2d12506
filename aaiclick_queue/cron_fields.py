"""Which wall times fit the fields of a cron expression. No time zone is known here.

Wall times are whole seconds since 1970-01-01 00:00 on the wall; cron_words makes the fields, cron maps to instants.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from datetime import date
from functools import lru_cache

import msgspec

DAY = 86400
ORDINAL_1970 = date(1970, 1, 1).toordinal()
LAST_YEAR = 9998
NEVER = 1 << 60
LAST = -1


class Days(msgspec.Struct, frozen=True):
    """Which days of a month fit: by number, by weekday, or by either where both are given."""

    of_month: frozenset[int] | None
    of_week: frozenset[tuple[int, int]] | None  # weekday from Sunday, and which one of the month (0: each of them)

    def fits(self, day: int, weekday: int, length: int) -> bool:
        """Whether this day of a month of that length fits."""
        if self.of_month is None and self.of_week is None:
            return True
        numbers, weekdays = self.of_month or (), self.of_week or ()
        return (
            day in numbers
            or (LAST in numbers and day == length)
            or (weekday, 0) in weekdays
            or (weekday, (day + 6) // 7) in weekdays
            or ((weekday, LAST) in weekdays and day > length - 7)
        )


class Fields(msgspec.Struct, frozen=True):
    """An expression as the values of its fields, each in order."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days: Days
    every_hour: bool
    """Whether the hour is `*` or has a step: then an hour that comes twice counts twice."""

    def first(self, wall: int) -> int:
        """The first wall time from this one on that fits, NEVER after the year 9998."""
        day, second = divmod(wall, DAY)
        found = self._day(day)
        if found == day:
            time = self._time(second)
            if time is not None:
                return day * DAY + time
            found = self._day(day + 1)
        return NEVER if found == NEVER else found * DAY + self._at(self.hours[0], self.minutes[0], self.seconds[0])

    def ever(self) -> bool:
        """Whether any day fits: 30 February never does."""
        # In 28 years every month, also a leap February, has begun on every weekday.
        years = range(2000, 2028)
        return any(_days(self.days, *_month(year, month)) for year in years for month in self.months)

    def _day(self, least: int) -> int:
        start = date.fromordinal(ORDINAL_1970 + least)
        year, month, day = start.year, start.month, start.day
        while year <= LAST_YEAR:
            if month in self.months:
                days = _days(self.days, *_month(year, month))
                here = bisect_left(days, day)
                if here < len(days):
                    return date(year, month, days[here]).toordinal() - ORDINAL_1970
            year, month, day = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return NEVER

    def _time(self, least: int) -> int | None:
        """The first second of a day, from this one on, that fits."""
        hour, minute, second = least // 3600, least // 60 % 60, least % 60
        if hour in self.hours:
            if minute in self.minutes and (here := bisect_left(self.seconds, second)) < len(self.seconds):
                return self._at(hour, minute, self.seconds[here])
            if (here := bisect_left(self.minutes, minute + 1)) < len(self.minutes):
                return self._at(hour, self.minutes[here], self.seconds[0])
        if (here := bisect_left(self.hours, hour + 1)) < len(self.hours):
            return self._at(self.hours[here], self.minutes[0], self.seconds[0])
        return None

    @staticmethod
    def _at(hour: int, minute: int, second: int) -> int:
        return hour * 3600 + minute * 60 + second


@lru_cache(maxsize=4096)
def _month(year: int, month: int) -> tuple[int, int]:
    """The weekday, from Sunday, of its first day, and its length."""
    weekday, length = monthrange(year, month)
    return (weekday + 1) % 7, length


@lru_cache(maxsize=8192)
def _days(days: Days, weekday: int, length: int) -> tuple[int, ...]:
    return tuple(day for day in range(1, length + 1) if days.fits(day, (weekday + day - 1) % 7, length))
