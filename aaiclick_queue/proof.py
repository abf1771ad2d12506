"""Whether a value arrives as it was sent: what JSON changes, what jsonb refuses, what a type drops.

typed.py asks about each text that it writes, and about the value that it reads back from it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect as kinds

from .errors import ArgumentsDoNotFit

DEPTH_LIMIT = 200
TIMES = (datetime, time)
ROWS = (list, tuple)
ATOMS = frozenset({str, int, float, bool, type(None), bytes, UUID, date, timedelta})
# For these msgspec checks every value when it takes it, and JSON carries every one: no proof by reading back.
PROVEN = (
    kinds.NoneType | kinds.BoolType | kinds.IntType | kinds.FloatType | kinds.StrType | kinds.BytesType
    | kinds.UUIDType | kinds.DecimalType | kinds.DateType | kinds.LiteralType | kinds.EnumType
)  # fmt: skip

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_EXPONENT = re.compile(rb"\d[eE]\+?\d")
_STRING_OR_EXPONENT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?[eE]\+?\d+')


class Written:
    """A value taken by a stand-in, with its JSON (no dataclass: msgspec would write the two fields)."""

    __slots__ = ("plain", "value")

    def __init__(self, value: Any, plain: Any) -> None:
        self.value = value
        self.plain = plain


def is_proven(info: kinds.Type) -> bool:
    """Whether every value of this type arrives as it was sent, so that none needs to be read back."""
    match info:
        case kinds.UnionType(types=members):
            some = [member for member in members if not isinstance(member, kinds.NoneType)]
            return len(some) == 1 and is_proven(some[0])
        case kinds.ListType() | kinds.SetType() | kinds.FrozenSetType() | kinds.VarTupleType():
            return is_proven(info.item_type)
        case kinds.TupleType(item_types=items):
            return all(map(is_proven, items))
        case kinds.DictType(key_type=key, value_type=value):
            return isinstance(key, kinds.StrType | kinds.IntType | kinds.UUIDType) and is_proven(value)
        case _:
            return isinstance(info, PROVEN)


def difference(sent: Any, got: Any, depth: int = 0) -> list[Any] | None:
    """What would arrive changed: a sentence, then the path to it from the inside out."""
    sent = _bare(sent)
    cls = type(sent)
    if cls is not type(got):
        return [f"a {class_name(sent)} that would arrive as a {class_name(got)}: annotate it with its type"]
    if cls in ATOMS or (parts := _parts(sent, got)) is None:
        return None if _is_same(sent, got) else [_CHANGED]
    if depth > DEPTH_LIMIT:
        return [f"nested deeper than {DEPTH_LIMIT} levels, or contains itself: pass something flatter"]
    for where, one, other in parts:
        if found := difference(one, other, depth + 1):
            return [*found, where]
    return None


_CHANGED = "of a value that JSON does not carry unchanged: pass it as a string, or in a type of your own"


def _parts(sent: Any, got: Any) -> Iterable[tuple[Any, Any, Any]] | None:
    if isinstance(sent, dict) and len(sent) == len(got):
        pairs = zip(sent.items(), got.items(), strict=True)
        # The key is looked at like a value, because 1 and "1" are the same key in JSON.
        return (part for (k, v), (key, value) in pairs for part in ((k, k, key), (k, v, value)))
    if isinstance(sent, ROWS) and len(sent) == len(got):
        return zip(range(len(sent)), sent, got, strict=True)
    names = _fields(_type(sent))
    if names is None:
        return None
    return ((name, getattr(sent, name, None), getattr(got, name, None)) for name in names.values())


def _is_same(sent: Any, got: Any) -> bool:
    if type(sent) in ATOMS:
        return bool(sent == got)
    if isinstance(sent, TIMES) and isinstance(got, TIMES):
        # Not ==: in the hour that a clock change repeats, Python calls equal times of two zones different.
        return sent.utcoffset() == got.utcoffset() and sent.replace(tzinfo=None) == got.replace(tzinfo=None)
    if isinstance(sent, Decimal):
        return str(sent) == str(got)
    if isinstance(sent, (set, frozenset)):
        return {(type(_bare(one)), _bare(one)) for one in sent} == {(type(one), one) for one in got}
    equality: Any = type(sent).__eq__
    return equality is object.__eq__ or bool(sent == got)


def dropped(given: Any, taken: Any) -> list[Any] | None:
    """A key of a given dict that the type it was taken as does not have."""
    if given is taken or type(taken) is Written or hasattr(taken, "__pydantic_fields__"):
        return None
    if isinstance(given, Mapping):
        kept = taken
        if not isinstance(taken, dict):
            kept = {name: getattr(taken, field) for name, field in (_fields(_type(taken)) or {}).items()}
        for key, value in given.items():
            if key not in kept:
                return ["not among the fields of its type: remove it or add the field", key]
            if found := dropped(value, kept[key]):
                return [*found, key]
    elif isinstance(given, ROWS) and isinstance(taken, ROWS):
        for index, (value, inner) in enumerate(zip(given, taken, strict=True)):
            if found := dropped(value, inner):
                return [*found, index]
    return None


@functools.lru_cache(maxsize=1024)
def _fields(cls: Any) -> dict[str, str] | None:
    """Fields of a class by their name in JSON; None where it has none of its own."""
    if issubclass(cls, msgspec.Struct):
        return dict(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
    if dataclasses.is_dataclass(cls):
        return {field.name: field.name for field in dataclasses.fields(cls)}
    if (attributes := getattr(cls, "__attrs_attrs__", None)) is not None:
        return {attribute.name: attribute.name for attribute in attributes}
    if (fields := getattr(cls, "__pydantic_fields__", None)) is not None:
        return {name: name for name in (*fields, "model_extra")}
    return None


def _type(value: Any) -> Any:
    return type(value)


def _bare(value: Any) -> Any:
    return value.value if type(value) is Written else value


def class_name(value: Any) -> str:
    """The name of a value's class, for people."""
    return type(value).__qualname__


def shown_path(path: list[Any]) -> str:
    """A path from the inside out as people write it: `order.lines[2]`."""
    steps = (f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in path[::-1])
    return "".join(steps).removeprefix(".") or "it"


def holds_nul(text: bytes) -> bool:
    """Whether U+0000 is written anywhere in the JSON text."""
    return _NUL.search(text) is not None


def keep_floats(text: bytes) -> bytes:
    """The text with large floats written out: jsonb makes the int 10000000000000000 of 1e16."""
    if not _EXPONENT.search(text):
        return text
    return _STRING_OR_EXPONENT.sub(_written_out, text)


def _written_out(match: re.Match[bytes]) -> bytes:
    token = match.group()
    return token if token.startswith(b'"') else f"{Decimal(token.decode()):f}.0".encode()


def _nodes(plain: Any) -> Iterator[tuple[Any, int]]:
    """Every value in plain JSON types, with its depth."""
    waiting = [(plain, 0)]
    while waiting:
        value, depth = waiting.pop()
        yield value, depth
        if isinstance(value, dict):
            waiting += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif isinstance(value, ROWS):
            waiting += [(inner, depth + 1) for inner in value]


def holds_nan(plain: Any) -> bool:
    """Whether NaN or an infinity is anywhere inside."""
    return any(isinstance(value, float) and not math.isfinite(value) for value, _ in _nodes(plain))


def refuse_depth(plain: Any) -> None:
    """Raise for plain JSON types nested too deep."""
    if any(depth > DEPTH_LIMIT for _, depth in _nodes(plain)):
        raise ArgumentsDoNotFit(f"it is nested deeper than {DEPTH_LIMIT} levels: return something flatter")
