"""Cron against a walk through real time, minute by minute, that shares nothing with it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aaiclick_queue.cron import Cron

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
Values = list[set[int]]


def values(expression: str) -> Values:
    found = []
    for text, (low, high) in zip(expression.split(), BOUNDS, strict=True):
        allowed = set()
        for item in text.split(","):
            span, _, step = item.partition("/")
            first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
            allowed |= set(range(int(first), int(last or (high if step else first)) + 1, int(step or 1)))
        found.append(allowed)
    return found


def matcher(expression: str) -> Callable[[datetime], bool]:
    _, _, day, _, weekday = expression.split()
    minutes, hours, days, months, weekdays = values(expression)
    # As croniter has it: all values of a day field are `*` where the other one has a star.
    either = not (
        day == "*" or weekday == "*" or ("*" in weekday and len(days) == 31) or ("*" in day and len(weekdays) == 7)
    )

    def matches(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        by_day, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        return by_day or by_weekday if either else by_day and by_weekday

    return matches


def walk(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[datetime]:
    hour = expression.split()[1]
    twice = "*" in hour or "/" in hour
    matches = matcher(expression)
    seen: set[datetime] = set()
    before = start.astimezone(zone).replace(tzinfo=None) - MINUTE
    while start < end:
        wall = start.astimezone(zone).replace(tzinfo=None, fold=0)
        skipped = [before + n * MINUTE for n in range(1, (wall - before) // MINUTE)]
        if any(matches(one) for one in skipped) or (matches(wall) and (twice or wall not in seen)):
            yield start
        seen.add(wall)
        before = wall
        start += MINUTE


def change_days(zone: ZoneInfo, year: int) -> list[datetime]:
    days = [datetime(year, 1, 1, tzinfo=UTC) + n * DAY for n in range(366)]
    offsets = [day.astimezone(zone).utcoffset() for day in days]
    return [days[n] for n in range(365) if offsets[n] != offsets[n + 1]]


def field(low: int, high: int, often: int) -> st.SearchStrategy[str]:
    number = st.integers(low, often) | st.integers(low, high)
    span = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    stepped = st.tuples(st.just("*") | span | number.map(str), st.integers(1, high // 2)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    return st.lists(number.map(str) | span | stepped, min_size=1, max_size=3).map(",".join)


STAR = st.just("*")
EXPRESSIONS = st.tuples(
    STAR | field(0, 59, 59), STAR | field(0, 23, 4), STAR | STAR | field(1, 28, 28), STAR, STAR | STAR | field(0, 6, 6)
).map(" ".join)
ZONES = sorted(available_timezones() - {"localtime"})
# Zones that do something odd, drawn half of the time.
ODD = [
    "Africa/Casablanca", "Africa/El_Aaiun", "America/Nuuk", "Antarctica/Troll", "Asia/Gaza", "Australia/Lord_Howe",
    "Europe/Berlin", "Europe/Dublin", "Pacific/Apia", "Pacific/Chatham", "Pacific/Kiritimati", "Pacific/Kwajalein",
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, st.sampled_from(ODD) | st.sampled_from(ZONES), st.integers(1975, 2060), st.data())
def test_cron_fires_as_a_walk_through_real_time_says(
    expression: str, name: str, year: int, data: st.DataObject
) -> None:
    zone = ZoneInfo(name)
    days = change_days(zone, 2011 if name == "Pacific/Apia" else year)
    assume(days)
    middle = data.draw(st.sampled_from(days))
    start, end = middle - DAY, middle + 36 * HOUR
    cron = Cron.parse(expression, name)
    # No zone goes back by more than a day: the walk has seen what comes twice.
    expected = list(walk(expression, zone, start, end))
    assert list(cron.between(start, end)) == expected
    for n in range(20):
        moment = start + n * 179 * MINUTE + timedelta(seconds=n)
        following = cron.after(moment)
        here = bisect_right(expected, moment)
        if here < len(expected):
            assert following == expected[here]
        else:
            assert following is None or following >= end
