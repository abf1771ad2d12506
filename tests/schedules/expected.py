"""When schedules should fire, found by a walk through real time, minute by minute. Nothing of the product is used.

The rules: a wall time that does not exist fires at the first instant after the gap; one that comes twice fires once,
at the first, when the hour is fixed, and both times when it is `*` or has a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BEFORE, SPAN = 20 * HOUR, 36 * HOUR  # a schedule begins so long before the change of its zone, and is watched so long
SIXTY = frozenset(range(60))
ANY_HOUR = frozenset(range(24))


class Case(NamedTuple):
    """An expression, and what it means, written down by hand."""

    words: str
    minutes: frozenset[int]
    hours: frozenset[int]
    day: Callable[[datetime], bool] = lambda _: True
    seconds: frozenset[int] = frozenset({0})
    twice: bool = False


def _of(*values: int) -> frozenset[int]:
    return frozenset(values)


SEVENS = frozenset(range(0, 60, 7))
CASES = (
    Case("30 2 * * *", _of(30), _of(2)),
    Case("30 1 * * *", _of(30), _of(1)),
    Case("0 0 * * *", _of(0), _of(0)),
    Case("@daily", _of(0), _of(0)),
    Case("59 23 * * *", _of(59), _of(23)),
    Case("30 1,2 * * *", _of(30), _of(1, 2)),
    Case("15 */3 * * *", _of(15), frozenset(range(0, 24, 3)), twice=True),
    Case("0 * * * *", _of(0), ANY_HOUR, twice=True),
    Case("*/7 1-3 * * *", SEVENS, _of(1, 2, 3)),
    Case("*/7 */6 * * *", SEVENS, _of(0, 6, 12, 18), twice=True),
    Case("0 0 29 2 *", _of(0), _of(0), lambda wall: (wall.month, wall.day) == (2, 29)),
    Case("45 1 * * * 10,50", _of(45), _of(1), seconds=_of(10, 50)),
    Case("5 0-4 * * * */20", _of(5), frozenset(range(5)), seconds=_of(0, 20, 40)),
    Case("59 1 * * * */5", _of(59), _of(1), seconds=frozenset(range(0, 60, 5))),
    Case("0 12 * * sun", _of(0), _of(12), lambda wall: wall.isoweekday() == 7),
    Case("20 2 1 * sun", _of(20), _of(2), lambda wall: wall.day == 1 or wall.isoweekday() == 7),
    Case("*/10 2 * * *", frozenset(range(0, 60, 10)), _of(2)),
)
EVERY_SECOND = Case("* * * * * *", SIXTY, ANY_HOUR, seconds=SIXTY, twice=True)

# The zone, and a day before the change that its schedules cross; those without one cross 29 February.
ZONES = {
    "Europe/Berlin": datetime(2027, 3, 20, tzinfo=UTC),
    "America/New_York": datetime(2027, 11, 1, tzinfo=UTC),
    "Australia/Lord_Howe": datetime(2027, 3, 30, tzinfo=UTC),
    "Pacific/Apia": datetime(2011, 12, 20, tzinfo=UTC),
    "Africa/Casablanca": datetime(2027, 1, 20, tzinfo=UTC),
    "America/Sao_Paulo": datetime(2018, 10, 30, tzinfo=UTC),
    "Asia/Kolkata": datetime(2028, 2, 28, 18, 30, tzinfo=UTC),
    "UTC": datetime(2028, 2, 29, tzinfo=UTC),
}
WITHOUT_CHANGE = ("Asia/Kolkata", "UTC")
# By hand, from a calendar. Berlin: the last Sunday, whose 02:30 does not exist; New York: the first Sunday, whose 01:30
# comes twice; Apia: the last day of 2011, the day after the one that was left out.
BY_HAND = (
    ("Europe/Berlin", "30 2 * * L0", [datetime(2027, 3, 28, 1, 0, tzinfo=UTC)]),
    ("Europe/Berlin", "0 12 * * sun#4", [datetime(2027, 3, 28, 10, 0, tzinfo=UTC)]),
    ("America/New_York", "30 1 * * sun#1", [datetime(2027, 11, 7, 5, 30, tzinfo=UTC)]),
    ("Pacific/Apia", "0 12 L * *", [datetime(2011, 12, 30, 22, 0, tzinfo=UTC)]),
    ("UTC", "0 6 L * *", [datetime(2028, 2, 29, 6, 0, tzinfo=UTC)]),
)


@lru_cache
def change_of(zone: str) -> datetime:
    """The first minute of another offset, after the day of that zone; that day where there is none."""
    moment, there = ZONES[zone], ZoneInfo(zone)
    if zone in WITHOUT_CHANGE:
        return moment
    before = moment.astimezone(there).utcoffset()
    while moment.astimezone(there).utcoffset() == before:
        moment += MINUTE
    return moment


@lru_cache
def walls(zone: str) -> list[tuple[datetime, datetime, list[datetime], bool]]:
    """Every minute: its instant, the wall, walls that were left out before it, and whether the wall was seen before."""
    there, found, seen = ZoneInfo(zone), [], set()
    moment = change_of(zone) - BEFORE - 26 * HOUR
    before = moment.astimezone(there).replace(tzinfo=None) - MINUTE
    while moment < change_of(zone) - BEFORE + SPAN:
        wall = moment.astimezone(there).replace(tzinfo=None, fold=0)
        skipped = [before + n * MINUTE for n in range(1, (wall - before) // MINUTE)]
        found.append((moment, wall, skipped, wall in seen))
        seen.add(wall)
        before = wall
        moment += MINUTE
    return found


def fires(case: Case, zone: str) -> list[datetime]:
    """All of them in the time that the walk covers."""
    return sorted(_fires(case, zone))


def _fires(case: Case, zone: str) -> Iterator[datetime]:
    for moment, wall, skipped, again in walls(zone):
        own = case.seconds if _fits(case, wall) and (case.twice or not again) else frozenset[int]()
        if any(_fits(case, one) for one in skipped):
            own |= {0}
        yield from (moment + timedelta(seconds=second) for second in own)


def _fits(case: Case, wall: datetime) -> bool:
    return wall.minute in case.minutes and wall.hour in case.hours and case.day(wall)


def beats(anchor: datetime, microseconds: int, end: datetime) -> list[datetime]:
    """Those of an interval from its anchor on, one by one."""
    found, n = [], 0
    while (beat := anchor + timedelta(microseconds=n * microseconds)) <= end:
        found.append(beat)
        n += 1
    return found


def cut(moments: list[datetime], start: datetime, end: datetime) -> list[datetime]:
    """Those after the start, up to and with the end."""
    return moments[bisect_right(moments, start) : bisect_right(moments, end)]
