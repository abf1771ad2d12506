"""Values that nobody should pass, and some that one may: what the fuzz tests of this folder draw from."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# The same examples in every run: what fails here fails everywhere, and nothing fails now and then.
BOUNDED = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Silent:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


class Touchy:
    """An object that cannot be compared, counted, hashed or asked whether it is true."""

    def __eq__(self, other: object) -> NoReturn:
        raise RuntimeError("not to be compared")

    def __hash__(self) -> NoReturn:
        raise RuntimeError("not to be hashed")

    def __bool__(self) -> NoReturn:
        raise RuntimeError("neither true nor false")

    def __len__(self) -> NoReturn:
        raise RuntimeError("not to be counted")


class Elusive:
    """An object whose attributes cannot be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no look at {name}")


class SilentList(list[Any]):
    """A list that cannot be gone through."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError("not to be gone through")


class SilentText(str):
    """A text that cannot be shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")

    __str__ = __repr__


def deep(levels: int) -> list[Any]:
    """A list in a list in a list …"""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless_list() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = [1]
    value.append(value)
    return value


def endless_dict() -> dict[str, Any]:
    """A dict that holds itself."""
    value: dict[str, Any] = {"a": 1}
    value["me"] = [value]
    return value


FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - one more trap
ODD: list[Any] = [
    math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308,
    2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**400, 10**5000,
    "\x00", "a\x00b", "\ud800", "a\udfff", "\U0010ffff", "\u2028", "x" * 201, "{", "{}", "{0}", "{x.__class__}", "%s",
    "",
    b"", b"\xff\x00", bytearray(b"ab"), memoryview(b"ab"), 1j, Decimal("NaN"), Decimal("sNaN"), Decimal("1e999999"),
    FIRST, LAST, FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC),
    LAST.replace(tzinfo=timezone(timedelta(hours=-23))), FIRST.replace(tzinfo=timezone(timedelta(hours=23))),
    datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), date.max, time(1, 2, tzinfo=UTC),
    timedelta.max, timedelta.min, timedelta(microseconds=1), UUID(int=0), object(), type, print, ..., NotImplemented,
    Silent(), Touchy(), Elusive(), [Silent()], {"a": Touchy()}, (Elusive(),), SilentList([1]), SilentText("hidden"),
    ValueError, [ValueError], RuntimeError("one"), range(3), iter([1]), {1: 2}, {"a": {2: 3}}, {None: 1}, {(1, 2): 3},
    {"\x00": 1}, {"\ud800": 1}, {"$secret": "x"}, {"$ref": 1}, {"$as": 1, "value": 2}, {1, 2}, frozenset({"a"}),
    deep(40), deep(300), deep(100_000), endless_list(), endless_dict(),
]  # fmt: skip


# Texts for settings, and for whatever is given on a command line.
GARBAGE = [
    "nan", "inf", "1e400", "9" * 5000, "-1", "0x10", "1_0", "\ud800", "\x00", "{", "[]", "null", " ", "é" * 300,
    "postgresql://[", "redis://h:abc", "redis://:%zz@[::1", "https://[x", "~nobody/y", "%", "٣", "2026-13-45", "=",
]  # fmt: skip


def _odd(number: int) -> Any:
    return ODD[number]


odd = st.integers(0, len(ODD) - 1).map(_odd)  # by number: Hypothesis shows what it draws from
texts = st.text(st.characters(codec=None, categories=("L", "N", "P", "S", "Z", "C", "Cs")), max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=8) | odd
values = st.recursive(
    leaves,
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.dictionaries(texts | st.integers(), inside, max_size=4)
        | st.tuples(inside, inside)
    ),
    max_leaves=8,
)
