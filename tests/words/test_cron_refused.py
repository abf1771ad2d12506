"""What is refused in a cron expression, in a time zone's name and in an interval: every word of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aaiclick_queue.cron import Cron
from aaiclick_queue.errors import BadSchedule, BadTask

DAILY = 'for example "15 8 * * *" is 08:15 every day'
MONTHLY = 'for example "0 6 1,L * *" is 06:00 on the first and the last day of each month'
YEARLY = 'for example "0 6 1 jan,jul *" is 06:00 on 1 January and 1 July'
WEEKLY = 'for example "0 6 * * mon-fri" is 06:00 from Monday to Friday'
TO_SECONDS = 'for example "15 8 * * * 30" is 08:15:30 every day'
NEAREST = 'day of month "15W" (at position 5) asks for the nearest working day, which is not taken: write a number or L'


@pytest.mark.parametrize(
    ("expression", "why", "example"),
    [
        ("61 * * * *", "minute 61 (at position 1) is not in 0–59", DAILY),
        ("  5-70 * * * *", "minute 70 (at position 5) is not in 0–59", DAILY),
        ("1,2,60 * * * *", "minute 60 (at position 5) is not in 0–59", DAILY),
        ("1,,2 * * * *", 'minute "" (at position 3) is no number in 0–59', DAILY),
        ("-1 * * * *", 'minute "-1" (at position 1) is no number in 0–59', DAILY),
        ("*5 * * * *", 'minute "*5" (at position 1) is no number in 0–59', DAILY),
        ("Foo * * * *", 'minute "Foo" (at position 1) is no number in 0–59', DAILY),
        ("*/0 * * * *", "minute step 0 (at position 3) is not in 1–60", DAILY),
        ("*/90 * * * *", "minute step 90 (at position 3) is not in 1–60", DAILY),
        ("*/ * * * *", 'minute step "" (at position 3) is not in 1–60', DAILY),
        ("0 24 * * *", "hour 24 (at position 3) is not in 0–23", DAILY),
        ("0 9-9 * * *", 'hour "9-9" (at position 3) is a range of one: write 9, or * for all', DAILY),
        (
            "0 22-4/3 * * *",
            'hour "22-4/3" (at position 3) goes around the end with a step: write its values as a list',
            DAILY,
        ),
        ("0 0 31-L * *", 'day of month "31-L" (at position 5) is a range of one: write 31, or * for all', MONTHLY),
        ("0 ? * * *", 'hour "?" (at position 3) is no number in 0–23', DAILY),
        ("0 0 0 * *", "day of month 0 (at position 5) is not in 1–31", MONTHLY),
        ("0 0 0 * * 0", "day of month 0 (at position 5) is not in 1–31", MONTHLY),
        ("0 0 L-3 * *", 'day of month "L" (at position 5) is no number in 1–31', MONTHLY),
        ("0 0 15W * *", NEAREST, MONTHLY),
        ("0 0 1 13 *", "month 13 (at position 7) is not in 1–12 or jan–dec", YEARLY),
        ("0 0 1 janu *", 'month "janu" (at position 7) is no number or name in 1–12 or jan–dec', YEARLY),
        ("0 0 * * 8", "weekday 8 (at position 9) is not in 0–7 or sun–sat", WEEKLY),
        ("0 0 * * L", 'weekday "L" (at position 9) is no number or name in 0–7 or sun–sat', WEEKLY),
        ("0 0 * * fri#6", "weekday after # 6 (at position 13) is not in 1–5", WEEKLY),
        (
            "0 0 * * mon,fri#2",
            'weekday "mon,fri#2" (at position 9) mixes plain weekdays with # or L: write two expressions',
            WEEKLY,
        ),
        ("0 0 * * * 60", "second 60 (at position 11) is not in 0–59", TO_SECONDS),
        ("H 8 * * *", 'minute "H" (at position 1) is hashed, which is not taken: write a number', DAILY),
        ("0 H(0-6)/2 * * *", 'hour "H(0-6)/2" (at position 3) is hashed, which is not taken: write a number', DAILY),
        ("0 8 R * *", 'day of month "R" (at position 5) is random, which is not taken: write a number', MONTHLY),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_an_expression_that_is_right(
    expression: str, why: str, example: str
) -> None:
    with pytest.raises(BadSchedule) as caught:
        Cron.parse(expression)
    placed = re.sub(r"at position \d+", lambda at: f'{at.group()} of "{expression}"', why)
    assert str(caught.value) == f"{placed}{';' if ':' in why else ':'} {example}"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", f"the cron expression is empty; {DAILY}"),
        (" \n", f"the cron expression is empty; {DAILY}"),
        (None, f"None is no cron expression: write a text; {DAILY}"),
        (["0 8 * * *"], f"['0 8 * * *'] is no cron expression: write a text; {DAILY}"),
        ("@reboot", f'"@reboot" is no time: run it when a worker starts with on_startup; {DAILY}'),
        ("@dayly", '"@dayly" is not known: did you mean @daily?'),
        (
            "@x",
            '"@x" is not known: known are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly',
        ),
        (
            "daily",
            '"daily" has 1 field: write minute, hour, day of month, month, weekday and, if wanted, second; ' + DAILY,
        ),
        (
            "* * * *",
            '"* * * *" has 4 fields: write minute, hour, day of month, month, weekday and, if wanted, second; ' + DAILY,
        ),
        (
            "0 0 30 2 *",
            f'"0 0 30 2 *" never fires: day of month 30 (at position 5) is in none of its months; {MONTHLY}',
        ),
        (
            "0 0 31 apr,jun *",
            f'"0 0 31 apr,jun *" never fires: day of month 31 (at position 5) is in none of its months; {MONTHLY}',
        ),
        ("1," * 300 + "1 * * * *", f'"{"1," * 25}…" has more than 500 characters: {DAILY}'),
        (
            "0 8 * * * 0 2027",
            '"0 8 * * * 0 2027" has a seventh field, years (at position 13): give the schedule an end instead; '
            + DAILY,
        ),
    ],
)
def test_what_is_no_expression_is_refused_with_a_sentence(expression: Any, message: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        Cron.parse(expression)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Berln", "did you mean Europe/Berlin or "),
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("localtime", "write it as Europe/Berlin, or UTC"),
        ("../../etc/passwd", "write it as Europe/Berlin, or UTC"),
        ("", "write it as Europe/Berlin, or UTC"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_nearest_names(zone: str, hint: str) -> None:
    with pytest.raises(BadSchedule) as caught:
        Cron.parse("0 8 * * *", zone)
    assert str(caught.value).startswith(f"time zone {zone!r} is not known: {hint}")


def test_a_bad_schedule_is_a_bad_task() -> None:
    with pytest.raises(BadTask):
        Cron("0 25 * * *")
