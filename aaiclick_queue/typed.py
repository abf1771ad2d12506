"""Values of one annotation as JSON text and back; `codec` makes arguments and results of them.

msgspec reads and writes what it knows. A `StandIn` takes the place of what it does not: unions that JSON cannot
tell apart, enums of other values, and what only pydantic knows (foreign.py). proof.py says what would be lost.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect as kinds

from .errors import ArgumentsDoNotFit
from .foreign import CONTAINERS, Foreign, class_of, foreign_class, is_for_pydantic, is_pydantic_word, plain_of
from .proof import (
    DEPTH_LIMIT,
    Written,
    class_name,
    difference,
    dropped,
    holds_nan,
    holds_nul,
    is_proven,
    keep_floats,
    refuse_depth,
    shown_path,
)

__all__ = ["DEPTH_LIMIT", "StandIn", "Typed", "readable", "refuse_what_jsonb_loses", "write_natural"]

# Told to msgspec as "these come as themselves": a text where a datetime is asked for does not fit.
NATIVE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
ALIASES = (typing.NewType, *filter(None, [getattr(typing, "TypeAliasType", None)]))  # the second from Python 3.12 on
AS, VALUE = "$as", "value"

_ENCODER = msgspec.json.Encoder(enc_hook=plain_of)


class Typed:
    """What one annotation takes, as JSON text and back."""

    def __init__(self, annotation: Any, *, proven: bool | None = None) -> None:
        self.type = readable(annotation)
        self.proven = is_proven(kinds.type_info(self.type)) if proven is None else proven
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self.type, dec_hook=_read)

    def write(self, value: Any) -> str:
        """JSON text from which the same value will be read, in type and content; raises where there is none."""
        taken = msgspec.convert(value, self.type, builtin_types=NATIVE, dec_hook=_take)
        text = _ENCODER.encode(taken)
        # msgspec writes NaN as null without a word, so a null is where to look; \u0000 is what jsonb refuses.
        if b"null" in text or b"\\u0000" in text:
            refuse_what_jsonb_loses(text, taken)
        if self.proven:
            return text.decode()
        text = keep_floats(text)
        lost = difference(taken, self._decoder.decode(text)) or dropped(value, taken)
        if lost:
            what, *path = lost
            raise ArgumentsDoNotFit(f"{shown_path(path)} is {what}")
        return text.decode()

    def read(self, text: str | bytes) -> Any:
        """The value from its JSON text."""
        return self._decoder.decode(text)


def write_natural(value: Any) -> str:
    """JSON text of a value by its own type, which is not kept."""
    text = keep_floats(_ENCODER.encode(value))
    if b"null" in text or b"\\u0000" in text:
        refuse_what_jsonb_loses(text, value)
    # Brackets are counted first because nearly every result has too few to be deep.
    if text.count(b"[") + text.count(b"{") > DEPTH_LIMIT:
        refuse_depth(msgspec.json.decode(text))
    return text.decode()


def refuse_what_jsonb_loses(text: bytes, value: Any) -> None:
    """Raise for NaN, an infinity or U+0000 anywhere inside."""
    if holds_nul(text):
        raise ArgumentsDoNotFit(
            "it holds the character U+0000, which Postgres does not store: remove it, or annotate with bytes"
        )
    if b"null" in text and holds_nan(msgspec.to_builtins(value, enc_hook=plain_of)):
        raise ArgumentsDoNotFit("it holds NaN or an infinity, which JSON has no word for: pass None or a string")


def readable(annotation: Any) -> Any:
    """The annotation as msgspec can read it, with stand-ins for the parts it cannot."""
    if annotation is object:
        return Any
    if isinstance(annotation, ALIASES):
        return _renamed(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated and not any(map(is_pydantic_word, args[1:])):
        return Annotated[(readable(args[0]), *args[1:])]
    if origin is Union or origin is types.UnionType:
        return _union(args)
    if origin in CONTAINERS and args:
        inside = tuple(arg if arg is ... else readable(arg) for arg in args)
        return CONTAINERS[origin][inside]
    return _leaf(annotation)


def _renamed(alias: Any) -> Any:
    if isinstance(alias, typing.NewType):
        return readable(alias.__supertype__)
    try:
        return readable(alias.__value__)
    except RecursionError:  # an alias that names itself
        return _foreign(alias)


class StandIn(type):
    """A class that msgspec hands to the hooks in place of an annotation it cannot read."""

    take: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


def _stand_in(name: str, take: Callable[[Any], Any], read: Callable[[Any], Any]) -> StandIn:
    return StandIn(name, (), {"take": staticmethod(take), "read": staticmethod(read)})


def _union(members: tuple[Any, ...]) -> Any:
    try:
        union = _joined(map(readable, members))
        kinds.type_info(union)
    except TypeError:
        some = tuple(member for member in members if member is not type(None))
        return _one_of(some) if len(some) == len(members) else _joined([_one_of(some), None])
    return union


def _joined(members: Iterable[Any]) -> Any:
    return functools.reduce(operator.or_, members)


def _one_of(members: tuple[Any, ...]) -> StandIn:
    """A union by trial; a value whose JSON reads as another member is written with the name of its own."""
    # `str` reads every text and a dict every object, so they are tried after whatever is choosier.
    choosy = sorted(members, key=lambda member: member is str or class_of(member) in (dict, Mapping))
    names = [member.__qualname__ if isinstance(member, type) else str(member) for member in choosy]
    names = names if len(set(names)) == len(names) else [str(member) for member in choosy]
    named = {name: Typed(member) for name, member in zip(names, choosy, strict=True)}

    def take(value: Any) -> Written:
        fits: list[tuple[str, str, Any]] = []
        reasons: list[str] = []
        for name, typed in named.items():
            try:
                text = typed.write(value)
                fits.append((name, text, typed.read(text)))
            except Exception as error:  # whatever a member's own checks raise means: not this one
                reasons.append(f"as {name}: {error}")
        if not fits:
            raise ArgumentsDoNotFit("; ".join(reasons))
        name, text, arriving = max(fits, key=lambda fit: type(fit[2]) is type(value))
        plain = msgspec.json.decode(text)
        return Written(arriving, {AS: name, VALUE: plain} if difference(arriving, read(plain)) else plain)

    def read(plain: Any) -> Any:
        if type(plain) is dict and plain.keys() == {AS, VALUE} and plain[AS] in named:
            return named[plain[AS]].read(msgspec.json.encode(plain[VALUE]))
        text = msgspec.json.encode(plain)
        for typed in named.values():
            try:
                return typed.read(text)
            except Exception:  # noqa: S112 - as in take
                continue
        raise ArgumentsDoNotFit(f"it reads as none of {', '.join(named)}")

    return _stand_in(f"one of {', '.join(named)}", take, read)


def _leaf(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, enum.Flag):
        return _flag(annotation)
    if is_for_pydantic(annotation, set()):
        return _foreign(annotation)
    try:
        kinds.type_info(annotation)
    except (TypeError, RecursionError):
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return _members(annotation, list(annotation))
        if get_origin(annotation) is typing.Literal:
            return _members(annotation, get_args(annotation))
        return _foreign(annotation)
    return annotation


def a_or_an(name: str) -> str:
    """The name with its article."""
    return f"{'an' if name[:1].lower() in tuple('aeiou') else 'a'} {name}"


def _members(annotation: Any, members: Collection[Any]) -> StandIn:
    """One of some enum members or constants; a member is written by its name, as JSON may not carry its value."""
    named = {member.name if isinstance(member, enum.Enum) else member: member for member in members}

    def take(value: Any) -> Written:
        for name, member in named.items():
            if type(value) is type(member) and value == member:
                return Written(value, name)
        raise ArgumentsDoNotFit(f"{a_or_an(class_name(value))} that is none of {annotation}")

    def read(plain: Any) -> Any:
        try:
            return named[plain]
        except (KeyError, TypeError):
            raise ArgumentsDoNotFit(f"it is none of {annotation}") from None

    return _stand_in(str(annotation), take, read)


def _flag(cls: type[enum.Flag]) -> StandIn:
    """Flags, any number of them at once, by their number."""

    def take(value: Any) -> Written:
        if not isinstance(value, cls):
            raise ArgumentsDoNotFit(f"{a_or_an(class_name(value))} is no {cls.__qualname__}")
        return Written(value, value.value)

    return _stand_in(cls.__qualname__, take, cls)


def _foreign(annotation: Any) -> StandIn:
    foreign = Foreign(annotation)

    def take(value: Any) -> Written:
        taken = foreign.take(value)
        return Written(taken, foreign.plain(taken))

    return _stand_in("what pydantic reads", take, foreign.read)


def _take(kind: Any, value: Any) -> Any:
    return kind.take(value) if isinstance(kind, StandIn) else foreign_class(kind).take(value)


def _read(kind: Any, plain: Any) -> Any:
    return kind.read(plain) if isinstance(kind, StandIn) else foreign_class(kind).read(plain)
