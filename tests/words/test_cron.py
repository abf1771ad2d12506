"""When cron expressions fire: by hand, rule by rule."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from aaiclick_queue.cron import Cron
from aaiclick_queue.errors import BadSchedule


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, zone: str, moment: str, count: int) -> list[str]:
    """The next fires in UTC as month-day hour:minute, by repeated after()."""
    cron, here, found = Cron.parse(expression, zone), at(moment), []
    for _ in range(count):
        fire = cron.after(here)
        assert fire is not None
        assert fire > here
        assert fire.tzinfo is UTC
        found.append(f"{fire:%Y-%m-%d %H:%M}" + (f":{fire:%S}" if fire.second else ""))
        here = fire
    return found


@pytest.mark.parametrize(
    ("expression", "moment", "expected"),
    [
        ("15 8 * * *", "2027-01-01", ["2027-01-01 08:15", "2027-01-02 08:15"]),
        ("15 8 * * *", "2027-01-01 08:14:59.999999", ["2027-01-01 08:15"]),
        ("15 8 * * *", "2027-01-01 08:15", ["2027-01-02 08:15"]),
        ("*/7 * * * *", "2027-01-01 00:45", ["2027-01-01 00:49", "2027-01-01 00:56", "2027-01-01 01:00"]),
        (
            "5/20 * * * *",
            "2027-01-01",
            ["2027-01-01 00:05", "2027-01-01 00:25", "2027-01-01 00:45", "2027-01-01 01:05"],
        ),
        ("59/5 * * * *", "2027-01-01", ["2027-01-01 00:59", "2027-01-01 01:59"]),
        ("0 0 * * sat/2", "2027-01-01", ["2027-01-02 00:00", "2027-01-09 00:00"]),
        ("0 0 * * mon-7/3", "2027-01-01", ["2027-01-03 00:00", "2027-01-04 00:00", "2027-01-07 00:00"]),
        ("0 22-2 * * *", "2027-01-01 22:00", ["2027-01-01 23:00", "2027-01-02 00:00", "2027-01-02 01:00"]),
        ("0 9-17/4,12 * * *", "2027-01-01", ["2027-01-01 09:00", "2027-01-01 12:00", "2027-01-01 13:00"]),
        ("0 0 29 2 *", "2027-01-01", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 2 *", "2097-01-01", ["2104-02-29 00:00"]),
        ("0 0 * feb mon#5", "2027-01-01", ["2044-02-29 00:00", "2072-02-29 00:00", "2112-02-29 00:00"]),
        ("0 0 31 * *", "2027-01-31", ["2027-03-31 00:00", "2027-05-31 00:00", "2027-07-31 00:00"]),
        ("0 0 L * *", "2028-01-31", ["2028-02-29 00:00", "2028-03-31 00:00", "2028-04-30 00:00"]),
        ("0 0 15,L * *", "2027-02-01", ["2027-02-15 00:00", "2027-02-28 00:00", "2027-03-15 00:00"]),
        ("0 0 30-L * *", "2027-01-31", ["2027-03-30 00:00", "2027-03-31 00:00", "2027-04-30 00:00"]),
        ("0 0 * * fri#2", "2027-01-01", ["2027-01-08 00:00", "2027-02-12 00:00", "2027-03-12 00:00"]),
        ("0 0 * * L5", "2027-01-01", ["2027-01-29 00:00", "2027-02-26 00:00", "2027-03-26 00:00"]),
        ("0 0 * * 5L", "2027-01-01", ["2027-01-29 00:00", "2027-02-26 00:00", "2027-03-26 00:00"]),
        ("0 0 * * mon#1,L5", "2027-01-01", ["2027-01-04 00:00", "2027-01-29 00:00", "2027-02-01 00:00"]),
        (
            "0 0 13 * fri",
            "2027-08-07",
            ["2027-08-13 00:00", "2027-08-20 00:00", "2027-08-27 00:00", "2027-09-03 00:00"],
        ),
        ("0 0 13 * fri#2", "2027-01-01", ["2027-01-08 00:00", "2027-01-13 00:00", "2027-02-12 00:00"]),
        ("0 0 ? * MON-wed", "2027-01-01", ["2027-01-04 00:00", "2027-01-05 00:00", "2027-01-06 00:00"]),
        ("0 0 * * sat-sun", "2027-01-01", ["2027-01-02 00:00", "2027-01-03 00:00", "2027-01-09 00:00"]),
        ("0 0 * * 7", "2027-01-01", ["2027-01-03 00:00", "2027-01-10 00:00"]),
        ("0 0 1 Jan,JUL *", "2027-01-01", ["2027-07-01 00:00", "2028-01-01 00:00"]),
        ("15 8 * * * 30", "2027-01-01", ["2027-01-01 08:15:30", "2027-01-02 08:15:30"]),
        ("59 23 31 12 7 */30", "2028-12-31 23:59", ["2028-12-31 23:59:30", "2029-12-02 23:59"]),
        ("@yearly", "2027-01-01", ["2028-01-01 00:00"]),
        ("@annually", "2027-01-01", ["2028-01-01 00:00"]),
        ("@monthly", "2027-01-01", ["2027-02-01 00:00"]),
        ("@weekly", "2027-01-01", ["2027-01-03 00:00"]),
        ("@daily", "2027-01-01", ["2027-01-02 00:00"]),
        (" @Midnight ", "2027-01-01", ["2027-01-02 00:00"]),
        ("@hourly", "2027-01-01", ["2027-01-01 01:00"]),
    ],
)
def test_an_expression_fires_at_these_times(expression: str, moment: str, expected: list[str]) -> None:
    assert fires(expression, "UTC", moment, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "moment", "expected"),
    [
        # 28 March 2027: 02:00 becomes 03:00 at 01:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2027-03-27", ["2027-03-27 01:30", "2027-03-28 01:00", "2027-03-29 00:30"]),
        ("0,20,40 2 * * *", "Europe/Berlin", "2027-03-27 12:00", ["2027-03-28 01:00", "2027-03-29 00:00"]),
        ("30 2,3 * * *", "Europe/Berlin", "2027-03-27 12:00", ["2027-03-28 01:00", "2027-03-28 01:30"]),
        ("0 2,3 * * *", "Europe/Berlin", "2027-03-27 12:00", ["2027-03-28 01:00", "2027-03-29 00:00"]),
        ("0 */2 * * *", "Europe/Berlin", "2027-03-27 23:30", ["2027-03-28 01:00", "2027-03-28 02:00"]),
        (
            "0 * * * *",
            "Europe/Berlin",
            "2027-03-27 23:30",
            ["2027-03-28 00:00", "2027-03-28 01:00", "2027-03-28 02:00"],
        ),
        (
            "7 * * * *",
            "Europe/Berlin",
            "2027-03-28 00:00",
            ["2027-03-28 00:07", "2027-03-28 01:00", "2027-03-28 01:07"],
        ),
        ("30 2 * * * 15", "Europe/Berlin", "2027-03-27 12:00", ["2027-03-28 01:00", "2027-03-29 00:30:15"]),
        ("30 2 28 3 *", "Europe/Berlin", "2026-12-01", ["2027-03-28 01:00", "2028-03-28 00:30"]),
        ("30 3 * * *", "America/New_York", "2027-03-13 12:00", ["2027-03-14 07:30", "2027-03-15 07:30"]),
        ("30 2 * * *", "America/New_York", "2027-03-13 12:00", ["2027-03-14 07:00", "2027-03-15 06:30"]),
        # Half an hour: 02:00 becomes 02:30 at 15:30 UTC.
        ("15 2 * * *", "Australia/Lord_Howe", "2027-10-02", ["2027-10-02 15:30", "2027-10-03 15:15"]),
        ("*/15 * * * *", "Australia/Lord_Howe", "2027-10-02 15:10", ["2027-10-02 15:15", "2027-10-02 15:30"]),
        # 30 December 2011 never was: the day after began at 10:00 UTC.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29", ["2011-12-29 22:00", "2011-12-30 10:00", "2011-12-30 22:00"]),
        ("0 0 * * *", "Pacific/Apia", "2011-12-29", ["2011-12-29 10:00", "2011-12-30 10:00", "2011-12-31 10:00"]),
        ("0 12 30 12 *", "Pacific/Apia", "2011-01-01", ["2011-12-30 10:00", "2012-12-29 22:00"]),
        # Ramadan of 2027: back on 7 February, ahead again on 14 March.
        ("30 2 * * *", "Africa/Casablanca", "2027-03-13", ["2027-03-13 02:30", "2027-03-14 02:00", "2027-03-15 01:30"]),
        # Until 1937 Amsterdam was 19 minutes and 32 seconds ahead.
        ("0 12 * * *", "Europe/Amsterdam", "1937-01-01", ["1937-01-01 11:40:28", "1937-01-02 11:40:28"]),
    ],
)
def test_a_time_that_does_not_exist_fires_at_the_first_instant_after_the_gap(
    expression: str, zone: str, moment: str, expected: list[str]
) -> None:
    assert fires(expression, zone, moment, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "moment", "expected"),
    [
        # 31 October 2027: 03:00 becomes 02:00 at 01:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2027-10-30", ["2027-10-30 00:30", "2027-10-31 00:30", "2027-11-01 01:30"]),
        (
            "30 1-3 * * *",
            "Europe/Berlin",
            "2027-10-30 23:00",
            ["2027-10-30 23:30", "2027-10-31 00:30", "2027-10-31 02:30"],
        ),
        ("30 1,2 * * *", "Europe/Berlin", "2027-10-30 23:30", ["2027-10-31 00:30", "2027-11-01 00:30"]),
        ("30 0-23 * * *", "Europe/Berlin", "2027-10-31 00:30", ["2027-10-31 02:30"]),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            "2027-10-30 12:00",
            ["2027-10-31 00:00", "2027-10-31 00:30", "2027-11-01 01:00"],
        ),
        (
            "30 * * * *",
            "Europe/Berlin",
            "2027-10-30 23:30",
            ["2027-10-31 00:30", "2027-10-31 01:30", "2027-10-31 02:30"],
        ),
        (
            "30 */2 * * *",
            "Europe/Berlin",
            "2027-10-30 23:30",
            ["2027-10-31 00:30", "2027-10-31 01:30", "2027-10-31 03:30"],
        ),
        ("30 1 * * *", "America/New_York", "2027-11-07", ["2027-11-07 05:30", "2027-11-08 06:30"]),
        ("0 2 * * *", "America/New_York", "2027-11-07", ["2027-11-07 07:00", "2027-11-08 07:00"]),
        # Half an hour: 02:00 becomes 01:30 at 15:00 UTC.
        ("45 1 * * *", "Australia/Lord_Howe", "2027-04-03", ["2027-04-03 14:45", "2027-04-04 15:15"]),
        (
            "45 * * * *",
            "Australia/Lord_Howe",
            "2027-04-03 14:00",
            ["2027-04-03 14:45", "2027-04-03 15:15", "2027-04-03 16:15"],
        ),
        ("30 2 * * *", "Africa/Casablanca", "2027-02-06", ["2027-02-06 01:30", "2027-02-07 01:30", "2027-02-08 02:30"]),
        ("30 * * * *", "Africa/Casablanca", "2027-02-07 01:00", ["2027-02-07 01:30", "2027-02-07 02:30"]),
    ],
)
def test_a_time_that_comes_twice_fires_once_when_the_hour_is_fixed(
    expression: str, zone: str, moment: str, expected: list[str]
) -> None:
    assert fires(expression, zone, moment, len(expected)) == expected


def test_from_inside_the_repeated_hour_a_fixed_time_waits_for_the_next_day() -> None:
    cron = Cron.parse("30 2 * * *", "Europe/Berlin")
    assert cron.after(at("2027-10-31 01:10")) == at("2027-11-01 01:30")
    assert cron.after(at("2027-10-31 00:29:59")) == at("2027-10-31 00:30")


def test_between_takes_its_start_and_leaves_its_end() -> None:
    cron = Cron.parse("0 * * * *")
    found = list(cron.between(at("2027-01-01 01:00"), at("2027-01-01 04:00")))
    assert found == [at("2027-01-01 01:00"), at("2027-01-01 02:00"), at("2027-01-01 03:00")]
    assert list(cron.between(at("2027-01-01 01:00"), at("2027-01-01 01:00"))) == []


def test_a_moment_of_any_time_zone_is_taken_and_one_without_is_refused() -> None:
    cron = Cron.parse("0 8 * * *")
    there = timezone(timedelta(hours=5))
    assert cron.after(datetime(2027, 1, 1, 12, 59, tzinfo=there)) == at("2027-01-01 08:00")
    with pytest.raises(BadSchedule, match="has no time zone"):
        cron.after(datetime(2027, 1, 1))  # noqa: DTZ001


def test_the_last_years_end_in_none_and_the_first_are_taken() -> None:
    cron = Cron.parse("0 0 1 1 *", "Europe/Berlin")
    assert cron.after(at("9998-06-01")) is None
    assert cron.after(datetime.max.replace(tzinfo=UTC)) is None
    assert cron.after(at("9990-06-01")) == at("9990-12-31 23:00")
    assert Cron.parse("@daily").after(datetime.min.replace(tzinfo=UTC)) == at("0002-01-02")


def test_equal_words_are_an_equal_cron_that_travels() -> None:
    cron = Cron.parse("0 8 * * *", "Europe/Berlin")
    assert {cron, Cron.parse("0 8 * * *", "Europe/Berlin")} == {cron}
    assert cron != Cron.parse("0 8 * * *")
    assert pickle.loads(pickle.dumps(cron)) == cron
    with pytest.raises(AttributeError):
        cron.timezone = "UTC"  # type: ignore[misc]
