"""Marks: where in the JSON of an annotation its secrets stand. Before: a signature. After: redaction.py reads them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .foreign import CONTAINERS, class_of
from .redaction import KEY, Secret
from .typed import ALIASES, AS, VALUE


class Marks:
    """What of a value is secret: all of it, some of its fields, something in each of its items, or what one of several
    kinds of it says.
    """

    __slots__ = ("also", "each", "fields", "whole")

    def __init__(self, *, whole: bool = False) -> None:
        self.whole = whole
        self.fields: dict[str, Marks] = {}
        self.each: list[Marks] = []
        self.also: list[Marks] = []

    @property
    def is_all(self) -> bool:
        """Whether nothing of it may be shown."""
        return self.whole or any(one.is_all for one in self.also)

    def seal(self, value: Any) -> Any:
        """The JSON value with its secrets marked."""
        if value is None:
            return None
        if self.whole:
            return {KEY: value}
        if isinstance(value, dict) and value.keys() == {AS, VALUE}:
            return {AS: value[AS], VALUE: self.seal(value[VALUE])}
        sealed = value
        if isinstance(value, dict):
            sealed = {key: _seal(inner, [*self._of(key), *self.each]) for key, inner in value.items()}
        elif isinstance(value, list):
            sealed = [_seal(inner, self.each) for inner in value]
        return _seal(value, self.also) if sealed == value else sealed

    def mean_anything(self, seen: set[int] | None = None) -> bool:
        """Whether there is a secret in it at all."""
        seen = set() if seen is None else seen
        if id(self) in seen:
            return False
        seen.add(id(self))
        return self.whole or any(one.mean_anything(seen) for one in (*self.each, *self.also, *self.fields.values()))

    def _of(self, key: str) -> list[Marks]:
        return [self.fields[key]] if key in self.fields else []


def _seal(value: Any, marks: Iterable[Marks]) -> Any:
    for one in marks:
        sealed = one.seal(value)
        if sealed != value:
            return sealed
    return value


def marks_of(annotation: Any) -> Marks | None:
    """Where the secrets of such a value stand; None where there are none."""
    marks = _marks(annotation, {})
    return marks if marks.mean_anything() else None


def _marks(annotation: Any, known: dict[Any, Marks]) -> Marks:
    """Of a class that holds itself there is one, found in `known`."""
    if not isinstance(annotation, (type, *ALIASES)):
        marks = Marks()
        _collect(annotation, marks, known)
        return marks
    if annotation not in known:
        known[annotation] = Marks()
        _collect(annotation, known[annotation], known)
    return known[annotation]


def _collect(annotation: Any, marks: Marks, known: dict[Any, Marks]) -> None:
    origin, args, cls = get_origin(annotation), get_args(annotation), class_of(annotation)
    if isinstance(annotation, ALIASES):
        marks.also.append(_marks(getattr(annotation, "__supertype__", None) or annotation.__value__, known))
    elif origin is Annotated:
        marks.whole = any(map(_is_mark, args[1:]))
        marks.also.append(_marks(args[0], known))
    elif origin is Union or origin is types.UnionType:
        marks.also += [_marks(member, known) for member in args]
    elif hasattr(cls, "get_secret_value"):
        marks.whole = True
    elif cls in CONTAINERS:
        inner = args[-1:] if CONTAINERS[cls] is dict else args
        marks.each += [_marks(arg, known) for arg in inner if arg is not ...]
    elif isinstance(cls, type):
        marks.fields = {name: _marks(inner, known) for name, inner in _fields(cls)}
        if _is_listed(cls):
            marks.each = list(marks.fields.values())


def _fields(cls: type) -> list[tuple[str, Any]]:
    """Names as JSON has them, with what is annotated there."""
    if hasattr(cls, "model_fields"):
        fields: dict[str, Any] = cls.model_fields
        return [
            (name, Annotated[(one.annotation, *one.metadata)] if one.metadata else one.annotation)
            for name, one in fields.items()
        ]
    struct: Any = cls if issubclass(cls, msgspec.Struct) else None
    if not (struct or dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or hasattr(cls, "_field_defaults")):
        return []
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # what cannot be looked up is told where the argument is written
        return []
    names = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)) if struct else {}
    return [(names.get(name, name), inner) for name, inner in hints.items()]


def _is_listed(cls: type) -> bool:
    """Whether its fields are written as a list: then each of them is taken for the secret one."""
    config = getattr(cls, "__struct_config__", None)
    return hasattr(cls, "_field_defaults") or bool(config and config.array_like)


def _is_mark(word: Any) -> bool:
    return isinstance(word, Secret) or word is Secret
