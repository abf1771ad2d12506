"""Arguments and results of tasks as JSON text, driven by the function's annotations.

`enqueue` writes them, `execute` reads them. Nothing is pickled and no name in the data is ever imported.
Postgres keeps the text as jsonb: numbers and types survive, the order of keys in a dict does not.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from .errors import ArgumentsDoNotFit, BadTask, ResultDoesNotEncode
from .injection import injected_types
from .marks import Marks, marks_of
from .redaction import KEY, MARKED, opened, secrets_in
from .typed import DEPTH_LIMIT, Typed, a_or_an, write_natural

RETURN = "return"
REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values: take one list instead",
    inspect.Parameter.VAR_KEYWORD: "takes any names: take one dict instead",
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but arguments travel by name: remove the '/'",
}


class Signature:
    """How one function's arguments and result are written and read.

    What arrives is what was sent, in type and content, or it is refused. Taken besides the annotated type: an int or
    Decimal for a float, a dict for a class with fields, a value for its enum member, a list for a tuple or set.
    Aware datetimes keep their offset and not the name of their zone. Annotations are resolved at the first use.
    """

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
        self._function = inspect.unwrap(function)
        self._names = tuple(signature.parameters)
        self._keyword_only = {p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
        self._required = {p.name for p in signature.parameters.values() if p.default is p.empty}

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """The signature of a plain function; raises BadTask for one whose arguments cannot travel by name."""
        target = inspect.unwrap(function)
        if not inspect.isfunction(target):
            raise BadTask(
                f"{function!r} is {a_or_an(type(target).__qualname__)}, not a function: a worker has only its "
                "name to call, so write a def at the top of a module that does the call"
            )
        signature = signature_of(function)
        for index, parameter in enumerate(signature.parameters.values()):
            about = f"parameter {parameter.name!r} of {target.__module__}.{target.__qualname__}"
            if parameter.kind in REFUSED:
                raise BadTask(f"{about} {REFUSED[parameter.kind]}")
            if index == 0 and parameter.name in ("self", "cls"):
                raise BadTask(f"{about} is an instance or a class, which a worker does not have: use a function")
        return cls(function, signature)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """JSON object of the arguments; raises ArgumentsDoNotFit with the parameter's name.

        Defaults are not written: they apply when the function is called.
        """
        given = self.bound(args, kwargs) if args else kwargs
        row = self._row
        try:
            text = row.write(given)
        except Exception as error:
            raise self._unfit(given, error) from error
        return self._sealed(text)

    def encode_around(self, given: Mapping[str, Any], written: Mapping[str, str]) -> str:
        """The same where some arguments are JSON already: they stand in it unchecked."""
        names = {*given, *written}
        if not self._needed <= names <= self._taken:
            misnamed = self._misnamed(dict.fromkeys((*given, *written)), "")
            raise misnamed or ArgumentsDoNotFit(f"{self.name} does not take this")
        types = self._types
        try:
            parts = [f'"{name}":{types[name].write(value)}' for name, value in given.items()]
        except Exception as error:
            raise self._unfit(given, error, is_part=True) from error
        parts = [self._sealed("{" + ",".join(parts) + "}")[1:-1]] if parts else []
        parts += [f'"{name}":{self.marked(name, text)}' for name, text in written.items()]
        return "{" + ",".join(parts) + "}"

    def marked(self, name: str, text: str) -> str:
        """JSON of an argument that is not known yet, marked where all of it is a secret."""
        marks = self._secret.get(name)
        return f'{{"{KEY}":{text}}}' if marks is not None and marks.is_all else text

    def sealed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as JSON types with their secrets marked, for what keeps them unchecked."""
        return {name: self._secret[name].seal(one) if name in self._secret else one for name, one in given.items()}

    def secrets_in(self, text: str, more_names: str | None) -> tuple[str, ...]:
        """The texts in arguments that nobody may see, also where whoever wrote them has marked none of them."""
        found = secrets_in(text, more_names)
        if not self.secret_parameters():
            return found
        try:
            given = json.loads(opened(text))
        except ValueError:
            return found
        own = json.dumps(self.sealed(given)) if isinstance(given, dict) else None
        return tuple(sorted({*found, *secrets_in(own)}, key=len, reverse=True))

    def secret_parameters(self) -> list[str]:
        """The parameters in which something is a secret; none where annotations cannot be looked up."""
        try:
            return list(self._secret)
        except Exception:  # whoever calls it is told why
            return []

    def _sealed(self, text: str) -> str:
        if MARKED in text:
            raise ArgumentsDoNotFit(
                f"an argument of {self.name} holds a dict like {{'{KEY}': …}}, which is how a secret is marked in "
                "JSON: use another key"
            )
        if not self._secret:
            return text
        return json.dumps(self.sealed(json.loads(text)), ensure_ascii=False, separators=(",", ":"))

    def encode_many(self, rows: Iterable[Mapping[str, Any]], first: int = 0) -> list[str]:
        """The same for many; an error names the row, whose numbers begin with `first`, and the parameter."""
        write = self._row.write
        texts: list[str] = []
        for number, given in enumerate(rows, first):
            try:
                texts.append(write(given))
            except Exception as error:
                raise self._unfit(given, error, f"rows[{number}]: ") from error
        if not self._secret and not any(MARKED in text for text in texts):
            return texts
        return [self._sealed(text) for text in texts]

    def decode(self, payload: str) -> dict[str, Any]:
        """Arguments ready to call with; raises ArgumentsDoNotFit where they no longer fit the function."""
        row = self._row
        if MARKED in payload:
            payload = opened(payload)
        try:
            values = msgspec.structs.astuple(row.read(payload))
        except Exception as error:
            raise self._outdated(payload, error) from error
        given = dict(zip(self.parameters, values, strict=True))
        if len(self._needed) == len(given):
            return given
        return {name: value for name, value in given.items() if value is not UNSET}

    def check(self, name: str, text: str | bytes) -> None:
        """Raise ArgumentsDoNotFit unless the function has this parameter and takes this JSON for it."""
        if name not in self.parameters:
            near = ", ".join(self.parameters) or "nothing"
            raise ArgumentsDoNotFit(f"{self.name} has no parameter {name!r}: it takes {near}", parameter=name)
        try:
            self._types[name].read(opened(text if isinstance(text, str) else text.decode()))
        except Exception as error:
            annotation = _shown(self._hints.get(name, Any))
            raise ArgumentsDoNotFit(
                f"parameter {name!r} of {self.name} (annotated {annotation}) does not take this: {_reason(error)}",
                parameter=name,
            ) from error

    def encode_result(self, value: Any) -> str | None:
        """JSON of a result: by the return annotation where it fits, else by the value's own type."""
        if value is None:
            return None
        if self._result is not None:
            try:
                return self._result.write(value)
            except Exception:  # noqa: S110 - a result that breaks its annotation is still a result
                pass
        try:
            return write_natural(value)
        except Exception as error:
            raise ResultDoesNotEncode(
                f"the result of {self.name}, {a_or_an(type(value).__qualname__)}, cannot be stored: "
                f"{_reason(error)}; return JSON types, a dataclass or a pydantic model, or store the data yourself "
                "and return where it is"
            ) from error

    def decode_result(self, payload: str | None) -> Any:
        """The result as the return annotation says, or as plain JSON where it was not of that type."""
        if payload is None:
            return None
        if self._result is not None:
            try:
                return self._result.read(payload)
            except Exception:  # noqa: S110 - as in encode_result
                pass
        return decode_json(payload)

    @functools.cached_property
    def injected(self) -> dict[str, Any]:
        """The parameters that the worker fills in, with the type that each asks for: no arguments of the task."""
        return injected_types(self._hints, self.name)

    @functools.cached_property
    def injects(self) -> bool:
        """Whether there are any; False too where annotations cannot be looked up, which decoding tells."""
        try:
            return bool(self.injected)
        except BadTask:
            return False

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments."""
        return tuple(name for name in self._names if name not in self.injected)

    @functools.cached_property
    def _taken(self) -> frozenset[str]:
        return frozenset(self.parameters)

    @functools.cached_property
    def _needed(self) -> frozenset[str]:
        return self._taken & self._required

    @functools.cached_property
    def _by_position(self) -> list[str]:
        return [name for name in self.parameters if name not in self._keyword_only]

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return resolved(self._function, self.name)

    @functools.cached_property
    def _types(self) -> dict[str, Typed]:
        found: dict[str, Typed] = {}
        hints = self._hints
        for name in self.parameters:
            annotation = hints.get(name, Any)
            try:
                found[name] = Typed(annotation)
            except Exception as error:
                raise BadTask(f"parameter {name!r} of {self.name}, annotated {_shown(annotation)}: {error}") from error
        return found

    @functools.cached_property
    def _secret(self) -> dict[str, Marks]:
        found = {name: marks_of(self._hints.get(name, Any)) for name in self.parameters}
        return {name: marks for name, marks in found.items() if marks is not None}

    @functools.cached_property
    def _row(self) -> Typed:
        fields = [
            (name, typed.type) if name in self._required else (name, typed.type, UNSET)
            for name, typed in self._types.items()
        ]
        row = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True, gc=False)
        return Typed(row, proven=all(typed.proven for typed in self._types.values()))

    @functools.cached_property
    def _result(self) -> Typed | None:
        annotation = self._hints.get(RETURN, Any)
        if annotation is Any:
            return None
        try:
            return Typed(annotation)
        except Exception:
            return None

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        if len(args) > len(self._by_position):
            raise ArgumentsDoNotFit(
                f"{self.name} takes {_count(len(self._by_position), 'positional argument')} and "
                f"{len(args)} {'was' if len(args) == 1 else 'were'} given"
            )
        given = dict(zip(self._by_position, args, strict=False))
        for name in given:
            if name in kwargs:
                raise ArgumentsDoNotFit(
                    f"parameter {name!r} of {self.name} was given twice, by position and by name: give it once",
                    parameter=name,
                )
        return {**given, **kwargs}

    def _unfit(self, given: Any, error: Exception, where: str = "", *, is_part: bool = False) -> ArgumentsDoNotFit:
        """The sentence for arguments that were refused, found by trying them one by one."""
        if not isinstance(given, Mapping):
            return ArgumentsDoNotFit(
                f"{where}give a dict of arguments by name, not {a_or_an(type(given).__qualname__)}"
            )
        if not is_part and (misnamed := self._misnamed(given, where)):
            return misnamed
        for name, value in given.items():
            try:
                self._types[name].write(value)
            except Exception as cause:
                annotation = f" (annotated {_shown(self._hints[name])})" if name in self._hints else ""
                return ArgumentsDoNotFit(
                    f"{where}parameter {name!r} of {self.name}{annotation} does not take this: {_reason(cause)}",
                    parameter=name,
                )
        return ArgumentsDoNotFit(f"{where}{self.name} does not take this: {_reason(error)}")

    def _outdated(self, payload: str, error: Exception) -> ArgumentsDoNotFit:
        """The sentence for arguments that do not fit, from JSON that may have waited for long."""
        try:
            given = decode_json(payload)
        except Exception:
            return ArgumentsDoNotFit(f"the arguments of {self.name} are not JSON: {_reason(error)}")
        if not isinstance(given, dict):
            return ArgumentsDoNotFit(f"the arguments of {self.name} are not a JSON object: give them by name")
        if misnamed := self._misnamed(given, "the arguments do not fit: "):
            return misnamed
        for name, value in given.items():
            try:
                self._types[name].read(msgspec.json.encode(value))
            except Exception as cause:
                return ArgumentsDoNotFit(
                    f"the arguments do not fit: parameter {name!r} of {self.name} (annotated "
                    f"{_shown(self._hints.get(name, Any))}): {_reason(cause)}",
                    parameter=name,
                )
        return ArgumentsDoNotFit(f"the arguments of {self.name} do not fit: {_reason(error)}")

    def _misnamed(self, given: Mapping[str, Any], where: str) -> ArgumentsDoNotFit | None:
        for name in given:
            if name in self.injected:
                return ArgumentsDoNotFit(
                    f"{where}parameter {name!r} of {self.name} is filled in by the worker: leave it away",
                    parameter=name,
                )
            if name not in self.parameters:
                near = difflib.get_close_matches(str(name), self.parameters, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(self.parameters) or 'nothing'}"
                return ArgumentsDoNotFit(f"{where}{self.name} has no parameter {name!r}: {hint}", parameter=str(name))
        for name in self.parameters:
            if name in self._required and name not in given:
                return ArgumentsDoNotFit(
                    f"{where}parameter {name!r} of {self.name} is missing: give it, or give it a default",
                    parameter=name,
                )
        return None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def encode_json(value: Any, name: str | None = None) -> str:
    """Plain JSON for metadata, progress and checkpoints: JSON types only. An error begins with the name."""
    try:
        return _ANYTHING.write(value)
    except Exception as error:
        raise ArgumentsDoNotFit(
            f"{f'{name}: ' if name else ''}{a_or_an(type(value).__qualname__)} that is not plain JSON: "
            f"{_reason(error)} (dict with str keys, list, str, int, float, bool, None)",
            parameter=name,
        ) from error


def decode_json(text: str | None) -> Any:
    """The value of plain JSON text; None for no text."""
    return None if text is None else msgspec.json.decode(text)


_ANYTHING = Typed(Any)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a function, whether or not its annotations can be looked up yet."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def resolved(function: types.FunctionType, shown_name: str) -> dict[str, Any]:
    """Annotations of a function with their names looked up, one by one so that an error can say which."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        written = get_annotations(function, format=Format.FORWARDREF)
    else:
        written = function.__annotations__
    enclosing = inspect.getclosurevars(function).nonlocals if function.__closure__ else {}
    found: dict[str, Any] = {}
    for name, annotation in written.items():
        one = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= typing.get_type_hints(one, function.__globals__, dict(enclosing), include_extras=True)
        except Exception as error:
            what = "the return value" if name == RETURN else f"parameter {name!r}"
            raise BadTask(
                f"{what} of {shown_name} is annotated {_shown(annotation)}, which cannot be looked up ({error}): "
                "import the name at the top of the module, outside `if TYPE_CHECKING`, and not inside a function"
            ) from error
    return found


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


def _reason(error: Exception) -> str:
    match error:
        case UnicodeEncodeError():
            return "a text with a lone surrogate, which is no Unicode: decode its bytes with errors='replace'"
        case RecursionError():
            return f"it is nested deeper than {DEPTH_LIMIT} levels, or contains itself: pass something flatter"
        case msgspec.ValidationError():
            return str(error).replace("`object`", "its type").replace(" - at `$", " at `")
        case _:
            return str(error) or type(error).__qualname__
