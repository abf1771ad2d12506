"""Intervals and schedules: no drift, no fire twice, none outside the bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aaiclick_queue.cron import Cron
from aaiclick_queue.errors import BadSchedule
from aaiclick_queue.fires import Schedule
from aaiclick_queue.intervals import Interval, parse_interval

ANCHOR = datetime(2027, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("15m", 900), ("1h30m", 5400), ("90s", 90), (" 2d ", 172800), ("90", 90), (90, 90), (1.5, 1.5), (HOUR, 3600)],
)
def test_an_interval_is_read_as_people_write_it(value: Any, seconds: float) -> None:
    assert parse_interval(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "5x", "1h 30m", True, None, []])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(BadSchedule, match="is no duration: write 90s, 30m, 1h30m or 2d, seconds or a timedelta"):
        parse_interval(value)


@pytest.mark.parametrize("value", ["0s", "0.9s", 0.999, -5, timedelta(0), "400d", float("nan"), float("inf")])
def test_an_interval_is_a_second_at_least(value: Any) -> None:
    with pytest.raises(BadSchedule, match="is not from 1 second to 366 days; for example 15m"):
        parse_interval(value)
    with pytest.raises(BadSchedule, match="interval"):
        Interval(value, ANCHOR)


def test_an_interval_does_not_drift() -> None:
    every = Interval(1.1, ANCHOR)
    far = ANCHOR + 10_000_000 * timedelta(seconds=1.1)
    assert every.after(far - timedelta(microseconds=1)) == far
    assert every.after(far) == far + timedelta(seconds=1.1)
    thirds = list(Interval(10 / 3, ANCHOR).between(ANCHOR, ANCHOR + HOUR))
    assert thirds[1000] == ANCHOR + 1000 * timedelta(microseconds=3333333)


def test_the_anchor_sets_the_beat_also_before_it() -> None:
    every = Interval(3600, ANCHOR + timedelta(minutes=10))
    assert every.after(ANCHOR - HOUR) == ANCHOR - timedelta(minutes=50)
    assert list(every.between(ANCHOR, ANCHOR + 2 * HOUR)) == [
        ANCHOR + timedelta(minutes=10),
        ANCHOR + timedelta(minutes=70),
    ]
    assert every.after(datetime.max.replace(tzinfo=UTC)) is None


def test_crons_that_fire_together_fire_once() -> None:
    schedule = Schedule(
        crons=(Cron.parse("0 8,9 * * *"), Cron.parse("0 9,10 * * *"), Cron.parse("0 10 * * *", "Europe/Berlin"))
    )
    found = list(schedule.between(ANCHOR, ANCHOR + timedelta(days=1)))
    assert [fire.hour for fire in found] == [8, 9, 10]
    assert schedule.after(ANCHOR) == found[0]
    assert schedule.after(found[0]) == found[1]
    assert schedule.after(found[2]) == found[0] + timedelta(days=1)


@pytest.mark.parametrize("part", [{"crons": (Cron.parse("@hourly"),)}, {"interval": Interval(3600, ANCHOR)}])
def test_bounds_take_the_start_and_leave_the_end(part: dict[str, Any]) -> None:
    schedule = Schedule(**part, starts_at=ANCHOR + 2 * HOUR, ends_at=ANCHOR + 4 * HOUR)
    expected = [ANCHOR + 2 * HOUR, ANCHOR + 3 * HOUR]
    assert list(schedule.between(ANCHOR, ANCHOR + 9 * HOUR)) == expected
    assert schedule.after(ANCHOR) == expected[0]
    assert schedule.after(expected[0]) == expected[1]
    assert schedule.after(expected[1]) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "either cron expressions or an interval"),
        ({"crons": (Cron("@daily"),), "interval": Interval(60, ANCHOR)}, "either cron expressions or an interval"),
        ({"crons": (Cron("@daily"),), "starts_at": ANCHOR, "ends_at": ANCHOR}, "nothing could fire"),
        ({"crons": (Cron("@daily"),), "starts_at": datetime(2027, 1, 1)}, "has no time zone"),  # noqa: DTZ001
    ],
)
def test_a_schedule_that_cannot_work_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSchedule, match=why):
        Schedule(**given)
