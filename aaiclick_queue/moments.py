"""Moments as Postgres keeps them, for Python, whose years end at 9999: what lies outside is cut to what can be told.

One row that says `infinity`, or a year that no clock shows, would else keep every list that it is in from being read.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

# Two days inside: whoever shows one by the zone of a reader moves it by hours.
FIRST = datetime(1, 1, 3, tzinfo=UTC)
LAST = datetime(9999, 12, 29, tzinfo=UTC)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_LOWEST, _HIGHEST = (FIRST - _EPOCH) // _TICK, (LAST - _EPOCH) // _TICK
_MINUS_INFINITY, _INFINITY = -(2**63), 2**63 - 1
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def decoded(wire: tuple[int]) -> datetime:
    """A `timestamptz`, from microseconds since 2000."""
    return _EPOCH + timedelta(microseconds=min(max(wire[0], _LOWEST), _HIGHEST))


def encoded(moment: datetime) -> tuple[int]:
    """The other way; the ends of Python's calendar stand for those of time."""
    moment = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    if moment == _EARLIEST:
        return (_MINUS_INFINITY,)
    if moment == _LATEST:
        return (_INFINITY,)
    return ((moment - _EPOCH) // _TICK,)


def decoded_naive(wire: tuple[int]) -> datetime:
    """A `timestamp`: the same without a zone."""
    return decoded(wire).replace(tzinfo=None)


def encoded_naive(moment: datetime) -> tuple[int]:
    """The other way."""
    return encoded(moment.replace(tzinfo=UTC))
