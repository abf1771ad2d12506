"""Cron expressions as people write them. What is refused is named with its place, and with one that is right."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from .cron_fields import LAST, Days, Fields
from .errors import BadSchedule

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
DAILY = '"15 8 * * *" is 08:15 every day'


class Field(NamedTuple):
    """One of the six: its bounds, its names in order from the lower bound, and an expression that is right."""

    name: str
    low: int
    high: int
    names: tuple[str, ...]
    example: str

    @property
    def allowed(self) -> str:
        """The bounds for people."""
        names = f" or {self.names[0]}–{self.names[-1]}" if self.names else ""
        return f"{self.low}–{self.high}{names}"


WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MINUTE = Field("minute", 0, 59, (), DAILY)
HOUR = Field("hour", 0, 23, (), DAILY)
DAY_OF_MONTH = Field("day of month", 1, 31, (), '"0 6 1,L * *" is 06:00 on the first and the last day of each month')
MONTH = Field("month", 1, 12, MONTHS, '"0 6 1 jan,jul *" is 06:00 on 1 January and 1 July')
WEEKDAY = Field("weekday", 0, 7, WEEKDAYS, '"0 6 * * mon-fri" is 06:00 from Monday to Friday')
SECOND = Field("second", 0, 59, (), '"15 8 * * * 30" is 08:15:30 every day')
FIELDS = (MINUTE, HOUR, DAY_OF_MONTH, MONTH, WEEKDAY, SECOND)


@lru_cache(maxsize=4096)
def read(expression: str) -> Fields:
    """The fields of an expression; BadSchedule says what is wrong with it."""
    words = _words(expression)
    texts = [
        _Reader(expression, field).read(word.group(), word.start() + 1)
        for field, word in zip(FIELDS, words, strict=False)
    ]
    expanded, nth = _expanded(expression, texts)
    minutes, hours, days, months, weekdays, seconds = expanded
    fields = Fields(
        seconds=_values(SECOND, seconds) if len(texts) == 6 else (0,),
        minutes=_values(MINUTE, minutes),
        hours=_values(HOUR, hours),
        months=_values(MONTH, months),
        days=Days(_of_month(days), _of_week(weekdays, nth)),
        every_hour="*" in words[1].group() or "/" in words[1].group(),
    )
    if not fields.ever():
        raise BadSchedule(
            f'"{expression}" never fires: day of month {texts[2]} (at position {words[2].start() + 1}) is in none of '
            f"its months; for example {DAY_OF_MONTH.example}"
        )
    return fields


def _words(expression: str) -> list[re.Match[str]]:
    if len(expression) > 500:
        raise BadSchedule(f'"{expression[:50]}…" has more than 500 characters: for example {DAILY}')
    text = expression.lower().strip()
    if not text:
        raise BadSchedule(f"the cron expression is empty; for example {DAILY}")
    if text.startswith("@") and text not in ALIASES:
        _refuse_alias(expression, text)
    words = list(re.finditer(r"\S+", ALIASES.get(text, expression.lower())))
    if len(words) == 7:
        raise BadSchedule(
            f'"{expression}" has a seventh field, years (at position {words[6].start() + 1}): '
            f"give the schedule an end instead; for example {DAILY}"
        )
    if len(words) not in (5, 6):
        raise BadSchedule(
            f'"{expression}" has {len(words)} {"field" if len(words) == 1 else "fields"}: write minute, hour, '
            f"day of month, month, weekday and, if wanted, second; for example {DAILY}"
        )
    return words


def _refuse_alias(expression: str, text: str) -> NoReturn:
    if text == "@reboot":
        raise BadSchedule(
            f'"{expression}" is no time: run it when a worker starts with on_startup; for example {DAILY}'
        )
    near = difflib.get_close_matches(text, ALIASES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(ALIASES)}"
    raise BadSchedule(f'"{expression}" is not known: {hint}')


class _Reader(NamedTuple):
    """Checks one field, each value with its position in the expression, and gives it as croniter reads it right."""

    expression: str
    field: Field

    def read(self, text: str, at: int) -> str:
        if text == "?" and self.field in (DAY_OF_MONTH, WEEKDAY):
            return text
        items = text.split(",")
        special = [item for item in items if self.field is WEEKDAY and re.search(r"#|l", item)]
        if special and len(special) < len(items):
            self._refuse(text, at, "mixes plain weekdays with # or L: write two expressions")
        plain = []
        for item in items:
            plain.append(self._item(item, at))
            at += len(item) + 1
        return ",".join(plain)

    def _item(self, item: str, at: int) -> str:
        body, slash, step = item.partition("/")
        if item[:1] in ("h", "r"):
            self._refuse(item, at, f"is {'hashed' if item[0] == 'h' else 'random'}, which is not taken: write a number")
        if self.field is DAY_OF_MONTH and re.fullmatch(r"[0-9]+w|w[0-9]+", body):
            self._refuse(item, at, "asks for the nearest working day, which is not taken: write a number or L")
        most = self.field.high - (self.field is WEEKDAY)
        if slash:
            self._number(step, at + len(body) + 1, most - self.field.low + 1, what="step ")
        elif self._is_special(body, at):
            return re.sub(r"^([0-7])l$", r"l\1", body)
        if "-" in body[1:]:
            self._range(item, at)
        elif body != "*" and self._value(body, at) == most and slash:
            return body  # croniter takes 59/5 for */5
        return item

    def _range(self, item: str, at: int) -> None:
        body, _, step = item.partition("/")
        low, _, high = body.partition("-")
        to_last = self.field is DAY_OF_MONTH and high == "l"
        first, last = self._value(low, at), 31 if to_last else self._value(high, at + len(low) + 1)
        if first == last:  # croniter takes 9-9 for every hour
            self._refuse(body, at, f"is a range of one: write {low}, or * for all")
        if first > last and step and int(step) > 1:  # croniter takes 22-4/3 for 22 and 2
            self._refuse(item, at, "goes around the end with a step: write its values as a list")

    def _is_special(self, body: str, at: int) -> bool:
        if self.field is DAY_OF_MONTH:
            return body == "l"
        if self.field is not WEEKDAY:
            return False
        weekday, hash_, nth = body.partition("#")
        if hash_:
            self._value(weekday, at)
            self._number(nth, at + len(weekday) + 1, 5, what="after # ")
        return bool(hash_) or re.fullmatch(r"l[0-7]|[0-7]l", body) is not None

    def _value(self, text: str, at: int) -> int:
        """The value of a number or a name."""
        if text in self.field.names:
            return self.field.names.index(text) + self.field.low
        if not re.fullmatch(r"[0-9]{1,9}", text):
            self._refuse(
                text, at, f"is no {'number or name' if self.field.names else 'number'} in {self.field.allowed}"
            )
        if not self.field.low <= int(text) <= self.field.high:
            self._refuse(text, at, f"is not in {self.field.allowed}")
        return int(text)

    def _number(self, text: str, at: int, most: int, *, what: str) -> None:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            self._refuse(text, at, f"is not in 1–{most}", what=what)

    def _refuse(self, text: str, at: int, why: str, *, what: str = "") -> NoReturn:
        shown = text if text.isdigit() else f'"{self.expression[at - 1 : at - 1 + len(text)]}"'
        raise BadSchedule(
            f'{self.field.name} {what}{shown} (at position {at} of "{self.expression}") {why}'
            f"{';' if ':' in why else ':'} for example {self.field.example}"
        )


def _expanded(expression: str, texts: list[str]) -> tuple[list[list[Any]], dict[Any, set[Any]]]:
    """The values as croniter expands them: lists that may hold `*` and `l`, and weekdays counted in the month."""
    from croniter import CroniterError, croniter  # it costs 30 ms that only schedules need

    try:
        expanded, nth = croniter.expand(" ".join(texts[:5]))
        # Seconds as minutes: with six fields croniter takes no weekday 7, and day 0 for day 1.
        seconds, _ = croniter.expand(f"{texts[5]} * * * *" if len(texts) == 6 else "* * * * *")
    except CroniterError as error:
        raise BadSchedule(f'"{expression}" cannot be read ({error}); for example {DAILY}') from None
    return [*expanded, seconds[0]], nth


def _values(field: Field, expanded: list[Any]) -> tuple[int, ...]:
    return tuple(range(field.low, field.high + 1)) if "*" in expanded else tuple(sorted(expanded))


def _of_month(expanded: list[Any]) -> frozenset[int] | None:
    return None if "*" in expanded else frozenset(LAST if day == "l" else day for day in expanded)


def _of_week(expanded: list[Any], nth: dict[Any, set[Any]]) -> frozenset[tuple[int, int]] | None:
    if nth:
        return frozenset((weekday, LAST if n == "l" else n) for weekday, many in nth.items() for n in many)
    return None if "*" in expanded else frozenset((weekday, 0) for weekday in expanded)
