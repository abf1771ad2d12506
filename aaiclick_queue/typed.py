"""Values of one annotation as JSON text and back; `codec` makes arguments and results of them.

msgspec reads and writes what it knows. A `StandIn` takes the place of what it does not: unions that JSON cannot
tell apart, enums of other values, and what only pydantic knows (imported when the first such type is met).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
import re
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect as kinds

from .errors import ArgumentsDoNotFit, BadTask

DEPTH_LIMIT = 200
# Told to msgspec as "these come as themselves": a text where a datetime is asked for does not fit.
NATIVE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
TIMES = (datetime, time)
ROWS = (list, tuple)
ATOMS = frozenset({str, int, float, bool, type(None), bytes, UUID, date, timedelta})
# For these msgspec checks every value when it takes it, and JSON carries every one: no proof by reading back.
PROVEN = (
    kinds.NoneType | kinds.BoolType | kinds.IntType | kinds.FloatType | kinds.StrType | kinds.BytesType
    | kinds.UUIDType | kinds.DecimalType | kinds.DateType | kinds.LiteralType | kinds.EnumType
)  # fmt: skip
# What parts are looked at one by one, and what it is read as; the abstract ones as msgspec reads them.
CONTAINERS: dict[Any, Any] = {cls: cls for cls in (list, tuple, set, frozenset, dict)} | {
    abc.Iterable: list, abc.Collection: list, abc.Sequence: list, abc.MutableSequence: list,
    abc.Set: set, abc.MutableSet: set, abc.Mapping: dict, abc.MutableMapping: dict,
}  # fmt: skip
ALIASES = (typing.NewType, *filter(None, [getattr(typing, "TypeAliasType", None)]))  # the second from Python 3.12 on
PYDANTIC_WORDS = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")
MASK = b'"**********"'
AS, VALUE = "$as", "value"

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_EXPONENT = re.compile(rb"\d[eE]\+?\d")
_STRING_OR_EXPONENT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?[eE]\+?\d+')


class Typed:
    """What one annotation takes, as JSON text and back."""

    def __init__(self, annotation: Any, *, proven: bool | None = None) -> None:
        self.type = readable(annotation)
        self.proven = _is_proven(kinds.type_info(self.type)) if proven is None else proven
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
        lost = _difference(taken, self._decoder.decode(text)) or _dropped(value, taken)
        if lost:
            what, *path = lost
            raise ArgumentsDoNotFit(f"{_shown(path)} is {what}")
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
        _refuse_depth(msgspec.json.decode(text))
    return text.decode()


def refuse_what_jsonb_loses(text: bytes, value: Any) -> None:
    """Raise for NaN, an infinity or U+0000 anywhere inside."""
    if _NUL.search(text):
        raise ArgumentsDoNotFit(
            "it holds the character U+0000, which Postgres does not store: remove it, or annotate with bytes"
        )
    if b"null" in text and _holds_nan(msgspec.to_builtins(value, enc_hook=_plain)):
        raise ArgumentsDoNotFit("it holds NaN or an infinity, which JSON has no word for: pass None or a string")


def keep_floats(text: bytes) -> bytes:
    """The text with large floats written out: jsonb makes the int 10000000000000000 of 1e16."""
    if not _EXPONENT.search(text):
        return text
    return _STRING_OR_EXPONENT.sub(_written_out, text)


def readable(annotation: Any) -> Any:
    """The annotation as msgspec can read it, with stand-ins for the parts it cannot."""
    if annotation is object:
        return Any
    if isinstance(annotation, ALIASES):
        return _renamed(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated and not any(map(_is_pydantic_word, args[1:])):
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


class Written:
    """A value taken by a stand-in, with its JSON (no dataclass: msgspec would write the two fields)."""

    __slots__ = ("plain", "value")

    def __init__(self, value: Any, plain: Any) -> None:
        self.value = value
        self.plain = plain


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
    choosy = sorted(members, key=lambda member: member is str or _class(member) in (dict, Mapping))
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
        return Written(arriving, {AS: name, VALUE: plain} if _difference(arriving, read(plain)) else plain)

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
    if _is_for_pydantic(annotation, set()):
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


def _members(annotation: Any, members: Collection[Any]) -> StandIn:
    """One of some enum members or constants; a member is written by its name, as JSON may not carry its value."""
    named = {member.name if isinstance(member, enum.Enum) else member: member for member in members}

    def take(value: Any) -> Written:
        for name, member in named.items():
            if type(value) is type(member) and value == member:
                return Written(value, name)
        raise ArgumentsDoNotFit(f"a {_name(value)} that is none of {annotation}")

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
            raise ArgumentsDoNotFit(f"a {_name(value)} is no {cls.__qualname__}")
        return Written(value, value.value)

    return _stand_in(cls.__qualname__, take, cls)


def _foreign(annotation: Any) -> StandIn:
    foreign = Foreign(annotation)

    def take(value: Any) -> Written:
        taken = foreign.take(value)
        return Written(taken, foreign.plain(taken))

    return _stand_in("what pydantic reads", take, foreign.read)


class Foreign:
    """What only pydantic knows how to check, write and read."""

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter

        bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        self._is_container = _class(bare) in CONTAINERS
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except Exception as error:
            raise BadTask(
                f"{getattr(annotation, '__qualname__', annotation)} is not a type that JSON can carry: pass an id, "
                "a path or the data itself (a dataclass, a pydantic model, JSON types)"
            ) from error

    def take(self, value: Any) -> Any:
        """The value as pydantic has it."""
        # Strict, but a dict for a model is read by the model's own rules, as Model(**given) would.
        strict = None if isinstance(value, dict) and not self._is_container else True
        return self._said(self._adapter.validate_python, value, strict=strict, by_alias=True, by_name=True)

    def plain(self, value: Any) -> Any:
        """JSON types by field names, because aliases for writing and for reading may differ."""
        text = self._said(self._adapter.dump_json, value, round_trip=True, by_alias=False, warnings="error")
        plain = msgspec.json.decode(text)
        if MASK not in text:
            return plain
        return _unmasked(plain, self._adapter.dump_python(value, round_trip=True, by_alias=False))

    def read(self, plain: Any) -> Any:
        """The value from JSON types."""
        return self._said(self._adapter.validate_json, msgspec.json.encode(plain), by_alias=False, by_name=True)

    def _said(self, step: Callable[..., Any], value: Any, **options: Any) -> Any:
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            return step(value, **options)
        except ValidationError as error:
            # Not its own text: that repeats the input, and inputs do not belong into logs. Nor in the next.
            said = [(_shown([*detail["loc"]][::-1]), detail["msg"]) for detail in error.errors(include_input=False)]
            raise ArgumentsDoNotFit("; ".join(f"{where}: {what}" for where, what in said[:3])) from None
        except PydanticSerializationError as error:
            raise ArgumentsDoNotFit(str(error).partition(" [")[0]) from None


def _unmasked(shown: Any, held: Any) -> Any:
    """`shown` with the secrets that pydantic masked: an argument has to arrive."""
    if hasattr(held, "get_secret_value"):
        secret = held.get_secret_value()
        return secret.decode() if isinstance(secret, bytes) else msgspec.to_builtins(secret, enc_hook=_plain)
    if isinstance(shown, dict) and isinstance(held, dict):
        return {key: _unmasked(value, inner) for (key, value), inner in zip(shown.items(), held.values(), strict=True)}
    if isinstance(shown, list) and isinstance(held, ROWS):
        return [_unmasked(value, inner) for value, inner in zip(shown, held, strict=True)]
    return shown


@functools.lru_cache(maxsize=1024)
def _foreign_class(cls: Any) -> Foreign:
    return Foreign(cls)


def _take(kind: Any, value: Any) -> Any:
    return kind.take(value) if isinstance(kind, StandIn) else _foreign_class(kind).take(value)


def _read(kind: Any, plain: Any) -> Any:
    return kind.read(plain) if isinstance(kind, StandIn) else _foreign_class(kind).read(plain)


def _plain(value: Any) -> Any:
    if type(value) is Written:
        return value.plain
    match value:  # subclasses, where the annotation says str, int or float
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case _:
            return _foreign_class(_type(value)).plain(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def _is_for_pydantic(annotation: Any, seen: set[Any]) -> bool:
    """Whether pydantic's rules are written somewhere inside, where msgspec would pass them over."""
    if get_origin(annotation) is Annotated and any(map(_is_pydantic_word, get_args(annotation)[1:])):
        return True
    inner: Iterable[Any] = get_args(annotation) if get_origin(annotation) is not typing.Literal else ()
    cls = _class(annotation)
    if isinstance(cls, type) and cls not in seen:
        seen.add(cls)
        # Models are handed to pydantic by msgspec's hooks; not so what is no class of its values, as AwareDatetime.
        if hasattr(cls, "__get_pydantic_core_schema__") and not hasattr(cls, "model_fields"):
            return True
        if dataclasses.is_dataclass(cls) and hasattr(cls, "__pydantic_validator__"):
            return True
        if dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or hasattr(cls, "_field_defaults"):
            inner = [*inner, *typing.get_type_hints(cls, include_extras=True).values()]
    return any(_is_for_pydantic(part, seen) for part in inner)


def _class(annotation: Any) -> Any:
    origin: Any = get_origin(annotation)
    return origin or annotation


def _is_pydantic_word(word: Any) -> bool:
    cls = word if isinstance(word, type) else type(word)
    return cls.__module__.partition(".")[0] in PYDANTIC_WORDS or hasattr(word, "__get_pydantic_core_schema__")


def _is_proven(info: kinds.Type) -> bool:
    match info:
        case kinds.UnionType(types=members):
            some = [member for member in members if not isinstance(member, kinds.NoneType)]
            return len(some) == 1 and _is_proven(some[0])
        case kinds.ListType() | kinds.SetType() | kinds.FrozenSetType() | kinds.VarTupleType():
            return _is_proven(info.item_type)
        case kinds.TupleType(item_types=items):
            return all(map(_is_proven, items))
        case kinds.DictType(key_type=key, value_type=value):
            return isinstance(key, kinds.StrType | kinds.IntType | kinds.UUIDType) and _is_proven(value)
        case _:
            return isinstance(info, PROVEN)


def _difference(sent: Any, got: Any, depth: int = 0) -> list[Any] | None:
    """What would arrive changed: a sentence, then the path to it from the inside out."""
    sent = _bare(sent)
    cls = type(sent)
    if cls is not type(got):
        return [f"a {_name(sent)} that would arrive as a {_name(got)}: annotate it with its type"]
    if cls in ATOMS or (parts := _parts(sent, got)) is None:
        return None if _is_same(sent, got) else [_CHANGED]
    if depth > DEPTH_LIMIT:
        return [f"nested deeper than {DEPTH_LIMIT} levels, or contains itself: pass something flatter"]
    for where, one, other in parts:
        if found := _difference(one, other, depth + 1):
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


def _dropped(given: Any, taken: Any) -> list[Any] | None:
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
            if found := _dropped(value, kept[key]):
                return [*found, key]
    elif isinstance(given, ROWS) and isinstance(taken, ROWS):
        for index, (value, inner) in enumerate(zip(given, taken, strict=True)):
            if found := _dropped(value, inner):
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


def _name(value: Any) -> str:
    return type(value).__qualname__


def _shown(path: list[Any]) -> str:
    steps = (f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]" for step in path[::-1])
    return "".join(steps).removeprefix(".") or "it"


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


def _holds_nan(plain: Any) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value, _ in _nodes(plain))


def _refuse_depth(plain: Any) -> None:
    if any(depth > DEPTH_LIMIT for _, depth in _nodes(plain)):
        raise ArgumentsDoNotFit(f"it is nested deeper than {DEPTH_LIMIT} levels: return something flatter")
