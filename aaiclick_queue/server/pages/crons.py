"""Cron in words: what an expression means, as a sentence beside it. Before: cron_words.py, which reads it."""

from __future__ import annotations

from collections.abc import Sequence

from ...cron_fields import LAST, Days, Fields
from ...cron_words import read
from ...errors import BadSchedule

WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
TIMES_TOLD = 6  # beyond that minutes and hours are told for themselves
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def in_words(expressions: Sequence[str]) -> str:
    """What these mean, each a sentence; nothing where this version cannot read one."""
    try:
        return "; ".join(_sentence(read(one)) for one in expressions)
    except (BadSchedule, TypeError):  # a hostile client may have written no text at all
        return ""


def _sentence(fields: Fields) -> str:
    days = _days(fields.days)
    months = "" if len(fields.months) == 12 else f"in {_and([MONTHS[one - 1] for one in fields.months])}"
    repeated = _repeated(fields)
    parts = [repeated, days, months] if repeated else [f"{days or 'every day'} at {_times(fields)}", months]
    words = ", ".join(part for part in parts if part)
    return words[0].upper() + words[1:]


def _repeated(fields: Fields) -> str:
    """What comes again within a day; nothing for times that can be named."""
    all_day = len(fields.hours) == 24
    if fields.seconds != (0,):
        within = "" if all_day and len(fields.minutes) == 60 else f" of {_minutes_and_hours(fields)}"
        return (_every(fields.seconds, 60, "second") or f"at second {_and(fields.seconds)}") + within
    often = _every(fields.minutes, 60, "minute")
    if often:
        return often if all_day else f"{often} {_within(fields.hours)}"
    if all_day:
        return f"every hour at {_and([f':{one:02d}' for one in fields.minutes])}"
    hourly = _every(fields.hours, 24, "hour")
    if hourly:
        return f"{hourly} at {_and([f':{one:02d}' for one in fields.minutes])}"
    return "" if len(fields.minutes) * len(fields.hours) <= TIMES_TOLD else f"at {_minutes_and_hours(fields)}"


def _minutes_and_hours(fields: Fields) -> str:
    minutes = "every minute" if len(fields.minutes) == 60 else f"minute {_and(fields.minutes)}"
    return minutes if len(fields.hours) == 24 else f"{minutes} {_within(fields.hours)}"


def _within(hours: Sequence[int]) -> str:
    if len(hours) > 1 and hours[-1] - hours[0] == len(hours) - 1:
        return f"from {hours[0]:02d}:00 to {hours[-1]:02d}:59"
    return f"in the hour{'s' if len(hours) > 1 else ''} from {_and([f'{one:02d}:00' for one in hours])}"


def _times(fields: Fields) -> str:
    return _and([f"{hour:02d}:{minute:02d}" for hour in fields.hours for minute in fields.minutes])


def _every(values: Sequence[int], size: int, unit: str) -> str:
    """Whether these come every so many, around the clock."""
    if len(values) == size:
        return f"every {unit}"
    step = values[1] - values[0] if len(values) > 1 else 0
    is_even = step and size % step == 0 and tuple(values) == tuple(range(0, size, step))
    return f"every {step} {unit}s" if is_even else ""


def _days(days: Days) -> str:
    found = [_of_week(days.of_week)] if days.of_week is not None else []
    if days.of_month is not None:
        found.insert(0, f"on {_and([_ordinal(one) for one in sorted(days.of_month, key=_last_is_last)])} of the month")
    return " or ".join(found)


def _of_week(found: frozenset[tuple[int, int]]) -> str:
    each = sorted((day for day, nth in found if nth == 0), key=_monday_first)
    if len(each) == len(found) > 2 and _monday_first(each[-1]) - _monday_first(each[0]) == len(each) - 1:
        return f"{WEEKDAYS[each[0]]} to {WEEKDAYS[each[-1]]}"
    names = [f"every {WEEKDAYS[day]}" for day in each]
    names += [f"{_nth(nth)} {WEEKDAYS[day]} of the month" for day, nth in sorted(found) if nth]
    return _and(names)


def _nth(number: int) -> str:
    return "the last" if number == LAST else f"the {number}{_ENDINGS.get(number, 'th')}"


def _ordinal(day: int) -> str:
    if day == LAST:
        return "the last day"
    return f"the {day}{'th' if 10 < day < 14 else _ENDINGS.get(day % 10, 'th')}"


def _last_is_last(day: int) -> int:
    return 32 if day == LAST else day


def _monday_first(weekday: int) -> int:
    return (weekday + 6) % 7


def _and(words: Sequence[object]) -> str:
    *others, last = map(str, words)
    return f"{', '.join(others)} and {last}" if others else last
