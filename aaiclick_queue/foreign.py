"""What only pydantic knows how to check, write and read, and how to tell such an annotation or value.

pydantic is imported when the first such type is met. After: typed.py makes stand-ins of it.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections import abc
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args, get_origin

import msgspec

from .errors import ArgumentsDoNotFit, BadTask
from .proof import ROWS, Written, shown_path

# Not foreign as a whole: whose parts are looked at one by one, and what it is read as; the abstract ones as msgspec
# reads them.
CONTAINERS: dict[Any, Any] = {cls: cls for cls in (list, tuple, set, frozenset, dict)} | {
    abc.Iterable: list, abc.Collection: list, abc.Sequence: list, abc.MutableSequence: list,
    abc.Set: set, abc.MutableSet: set, abc.Mapping: dict, abc.MutableMapping: dict,
}  # fmt: skip
PYDANTIC_WORDS = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")
MASK = b'"**********"'


_INSTEAD = "pass an id, a path or the data itself (a dataclass, a pydantic model, JSON types)"


class Foreign:
    """What only pydantic knows how to check, write and read."""

    def __init__(self, annotation: Any) -> None:
        from pydantic import TypeAdapter

        bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        self._is_container = class_of(bare) in CONTAINERS
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except Exception as error:
            instead = getattr(annotation, "instead_of_json", _INSTEAD)
            shown = getattr(annotation, "__qualname__", annotation)
            raise BadTask(f"{shown} is not a type that JSON can carry: {instead}") from error

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
            said = [(shown_path([*detail["loc"]][::-1]), detail["msg"]) for detail in error.errors(include_input=False)]
            raise ArgumentsDoNotFit("; ".join(f"{where}: {what}" for where, what in said[:3])) from None
        except PydanticSerializationError as error:
            raise ArgumentsDoNotFit(str(error).partition(" [")[0]) from None


def _unmasked(shown: Any, held: Any) -> Any:
    """`shown` with the secrets that pydantic masked: an argument has to arrive."""
    if hasattr(held, "get_secret_value"):
        secret = held.get_secret_value()
        return secret.decode() if isinstance(secret, bytes) else msgspec.to_builtins(secret, enc_hook=plain_of)
    if isinstance(shown, dict) and isinstance(held, dict):
        return {key: _unmasked(value, inner) for (key, value), inner in zip(shown.items(), held.values(), strict=True)}
    if isinstance(shown, list) and isinstance(held, ROWS):
        return [_unmasked(value, inner) for value, inner in zip(shown, held, strict=True)]
    return shown


@functools.lru_cache(maxsize=1024)
def foreign_class(cls: Any) -> Foreign:
    """The one Foreign of a class."""
    return Foreign(cls)


def plain_of(value: Any) -> Any:
    """JSON types of a value that msgspec does not write by itself."""
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
            cls: Any = type(value)
            return foreign_class(cls).plain(value)


def is_for_pydantic(annotation: Any, seen: set[Any]) -> bool:
    """Whether pydantic's rules are written somewhere inside, where msgspec would pass them over."""
    if get_origin(annotation) is Annotated and any(map(is_pydantic_word, get_args(annotation)[1:])):
        return True
    inner: Iterable[Any] = get_args(annotation) if get_origin(annotation) is not typing.Literal else ()
    cls = class_of(annotation)
    if isinstance(cls, type) and cls not in seen:
        seen.add(cls)
        # Models are handed to pydantic by msgspec's hooks; not so what is no class of its values, as AwareDatetime.
        if hasattr(cls, "__get_pydantic_core_schema__") and not hasattr(cls, "model_fields"):
            return True
        if dataclasses.is_dataclass(cls) and hasattr(cls, "__pydantic_validator__"):
            return True
        if dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or hasattr(cls, "_field_defaults"):
            inner = [*inner, *typing.get_type_hints(cls, include_extras=True).values()]
    return any(is_for_pydantic(part, seen) for part in inner)


def class_of(annotation: Any) -> Any:
    """`list` of `list[int]`; the annotation itself where it has no arguments."""
    origin: Any = get_origin(annotation)
    return origin or annotation


def is_pydantic_word(word: Any) -> bool:
    """Whether this part of an Annotated is meant for pydantic."""
    cls = word if isinstance(word, type) else type(word)
    return cls.__module__.partition(".")[0] in PYDANTIC_WORDS or hasattr(word, "__get_pydantic_core_schema__")
