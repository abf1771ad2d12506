"""What is asked for of a registered job: when it runs, with what, and what becomes of late and overlapping ticks."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Self, get_args

import msgspec

from .codec import encode_json
from .cron import Cron
from .errors import ArgumentsDoNotFit, BadSchedule
from .fires import Schedule
from .intervals import Interval, parse_interval
from .job_options import DAY, days, refuse_unknown
from .retry import seconds
from .spec import CHECKS, NO_TEXT, checked, truth, whole
from .ticking import Misfire, Overlap
from .zones import check_zone

MISFIRES: tuple[Misfire, ...] = get_args(Misfire)
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)
MOST_CAUGHT_UP = 1000


class ScheduleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `register_job(…)`, and of `@job(schedule=…)`; those left away are inherited when it runs."""

    schedule: tuple[str, ...] = ()
    interval: float | None = None
    timezone: str = "UTC"
    default_kwargs: dict[str, Any] = {}
    enabled: bool = True
    queue: str | None = None
    priority: int | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    max_parallel: int | None = None
    retention: float | None = None  # seconds
    misfire: Misfire = "coalesce"
    misfire_limit: int = 100
    overlap: Overlap = "allow"
    jitter: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    description: str | None = None

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> Self:
        """Options from keywords; what cannot work is refused by name, with what to write instead."""
        refuse_unknown(options, cls.__struct_fields__, "a registered job", BadSchedule)
        made = cls(
            **{name: checked(_CHECKS[name], name, one, BadSchedule) for name, one in options.items() if one is not None}
        )
        if made.is_scheduled:
            made.on_clock(datetime.now(UTC))  # reads every expression
        return made

    @property
    def is_scheduled(self) -> bool:
        """Whether it runs by itself."""
        return bool(self.schedule) or self.interval is not None

    def refuse_unknown(self, entrypoint: str, parameters: Collection[str], *, name: str) -> None:
        """Raise BadSchedule for an argument that the function does not take."""
        if unknown := [one for one in self.default_kwargs if one not in parameters]:
            takes = ", ".join(parameters) or "nothing"
            raise BadSchedule(f"{name}: default_kwargs has {unknown[0]!r}, and {entrypoint} takes {takes}")

    def on_clock(self, anchor: datetime) -> Schedule:
        """Its schedule; an interval counts from its start, or from the anchor."""
        return Schedule(
            crons=tuple(Cron.parse(one, self.timezone) for one in self.schedule),
            interval=None if self.interval is None else Interval(self.interval, self.starts_at or anchor),
            starts_at=self.starts_at,
            ends_at=self.ends_at,
        )


def _expressions(name: str, value: Any) -> tuple[str, ...]:
    many = (value,) if isinstance(value, str) else value
    if not isinstance(many, list | tuple) or not many or not all(isinstance(one, str) for one in many):
        raise BadSchedule(f'{name}={value!r}: give a cron expression as "0 8 * * *", or a list of them')
    return tuple(dict.fromkeys(" ".join(one.split()) for one in many))


def _kwargs(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
        raise BadSchedule(f"{name}={value!r}: give the arguments by name, as {{'day': 'monday'}}")
    try:
        decoded: dict[str, Any] = msgspec.json.decode(encode_json(dict(value)))
    except ArgumentsDoNotFit as error:
        raise BadSchedule(f"{name}: {error}") from error
    return decoded


def _one_of(allowed: tuple[str, ...]) -> Any:
    def check(name: str, value: Any) -> str:
        if value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(allowed)}"
            raise BadSchedule(f"{name}={value!r}: {hint}")
        chosen: str = value
        return chosen

    return check


def _moment(name: str, value: Any) -> datetime:
    moment: datetime = CHECKS["eta"](name, value)
    return moment


def _description(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 2000 or not NO_TEXT.isdisjoint(value):
        raise BadSchedule(f"{name}: give a text of at most 2,000 characters without NUL or lone surrogates")
    return value


_CHECKS: dict[str, Any] = {
    "schedule": _expressions,
    "interval": lambda _, value: parse_interval(value),
    "timezone": lambda _, value: check_zone(value),
    "default_kwargs": _kwargs,
    "enabled": truth,
    **{name: CHECKS[name] for name in ("queue", "priority", "timeout", "max_attempts")},
    "max_parallel": whole(1, 2**31 - 1),
    "retention": days,
    "misfire": _one_of(MISFIRES),
    "misfire_limit": whole(1, MOST_CAUGHT_UP),
    "overlap": _one_of(OVERLAPS),
    "jitter": lambda name, value: seconds(name, value, most=DAY),
    "starts_at": _moment,
    "ends_at": _moment,
    "description": _description,
}
_OF_JOB_TOO = {"queue", "priority", "timeout", "max_parallel", "retention"}
SCHEDULE_ONLY = frozenset(ScheduleOptions.__struct_fields__) - _OF_JOB_TOO
