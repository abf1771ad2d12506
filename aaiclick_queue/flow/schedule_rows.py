"""A registered job's row as a schedule. Times of schedules are kept in UTC, without a zone: they are names."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, overload

from ..cron import Cron
from ..fires import Schedule
from ..intervals import Interval


@overload
def aware(moment: None) -> None: ...
@overload
def aware(moment: datetime) -> datetime: ...
def aware(moment: datetime | None) -> datetime | None:
    """A time as the table has it, with its zone."""
    return None if moment is None else moment.replace(tzinfo=UTC)


@overload
def naive(moment: None) -> None: ...
@overload
def naive(moment: datetime) -> datetime: ...
def naive(moment: datetime | None) -> datetime | None:
    """A time as the table has it."""
    return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None)


def schedule_of(row: Any) -> Schedule:
    """The schedule of a row that has one."""
    return _schedule(
        tuple(row["schedule"]),
        row["timezone"],
        row["interval_seconds"],
        None if row["interval_seconds"] is None else aware(row["anchor_at"]),
        aware(row["starts_at"]),
        aware(row["ends_at"]),
    )


@lru_cache(maxsize=10_000)
def _schedule(  # noqa: PLR0913, PLR0917 - the columns
    crons: tuple[str, ...],
    timezone: str,
    seconds: float | None,
    anchor: datetime | None,  # of an interval: crons that are alike are one
    starts_at: datetime | None,
    ends_at: datetime | None,
) -> Schedule:
    return Schedule(
        crons=tuple(Cron.parse(one, timezone) for one in crons),
        interval=None if seconds is None or anchor is None else Interval(seconds, anchor),
        starts_at=starts_at,
        ends_at=ends_at,
    )
