"""Each: a task that runs its function for many items, one after another; `starmap` and `chunks` write such rows.

A row has the entrypoint of the task itself, so that its limits, pauses and retries hold, and {"$each": […]} for its
arguments: of each call those by name, or by position where another task has given them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .codec import Signature, decode_json, signature_of
from .context import current
from .errors import ArgumentsDoNotFit, Cancel, WrongContext

if TYPE_CHECKING:
    from .tasks import Task

EACH = "$each"
_START = f'{{"{EACH}":'


def each_of(task: Task[Any, Any]) -> Task[Any, Any]:
    """The same task for many items: its one argument is their list, its result that of theirs."""
    other = copy.copy(task)
    other.function = (_one_by_one_async if task.is_async else _one_by_one)(task.function)
    other.signature = EachSignature(task.signature)
    return other


def definition_of(task: Task[Any, Any], kwargs: str) -> Task[Any, Any]:
    """What runs a row of this task that has these arguments."""
    return _registered_each(task) if kwargs.startswith(_START) else task


_registered_each = functools.cache(each_of)  # as many as a worker has tasks


class EachSignature(Signature):
    """How many calls of one function are written and read."""

    def __init__(self, one: Signature) -> None:
        super().__init__(_takes, signature_of(_takes))
        self.name = one.name
        self._one = one

    @property
    def injected(self) -> dict[str, Any]:
        """What the worker fills in, once for all of them."""
        return self._one.injected

    @property
    def parameters(self) -> tuple[str, ...]:
        """The one argument."""
        return ("items",)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """JSON object with the arguments of all calls; an error names the item, counted from 0, and the parameter."""
        given = self.bound(args, kwargs)
        if misnamed := self._misnamed(given, ""):
            raise misnamed
        items = given["items"]
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
            raise ArgumentsDoNotFit(f"starmap over {items!r:.100}: give a list of argument tuples", parameter="items")
        return f"{_START}[{','.join(self._encode_item(n, item) for n, item in enumerate(items))}]}}"

    def encode_around(self, given: Mapping[str, Any], written: Mapping[str, str]) -> str:
        """The same where the items are JSON already, because they are or hold results of other tasks."""
        if misnamed := self._misnamed({**given, **written}, ""):
            raise misnamed
        return f"{_START}{written['items']}}}"

    def encode_many(self, rows: Iterable[Mapping[str, Any]], first: int = 0) -> list[str]:  # noqa: ARG002
        """The same for many lists."""
        return [self.encode((), given) for given in rows]

    def decode(self, payload: str) -> dict[str, Any]:
        """Arguments ready to call with."""
        try:
            items = msgspec.json.decode(payload, type=dict[str, list[msgspec.Raw]])[EACH]
        except msgspec.ValidationError:
            raise ArgumentsDoNotFit(
                f"starmap of {self.name} was given {payload[len(_START) : -1].strip():.100}, which is no list of "
                "arguments: the task before it has to give one"
            ) from None
        return {EACH: [self._decode_item(number, item) for number, item in enumerate(items)]}

    def encode_result(self, value: Any) -> str | None:
        """JSON list of the results."""
        return f"[{','.join(self._one.encode_result(one) or 'null' for one in value)}]"

    def decode_result(self, payload: str | None) -> Any:
        """The results, each as the function's annotation says."""
        if payload is None or not payload.startswith("["):
            return decode_json(payload)
        texts = (bytes(raw).decode() for raw in msgspec.json.decode(payload, type=list[msgspec.Raw]))
        return [None if text == "null" else self._one.decode_result(text) for text in texts]

    def _encode_item(self, number: int, item: Any) -> str:
        try:
            if isinstance(item, Mapping):
                return self._one.encode((), item)
            if isinstance(item, list | tuple):
                return self._one.encode(tuple(item), {})
        except ArgumentsDoNotFit as error:
            raise ArgumentsDoNotFit(f"items[{number}]: {error}", parameter=error.parameter) from error
        raise ArgumentsDoNotFit(f"items[{number}] is {item!r:.100}: {_ONE_ITEM}", parameter="items")

    def _decode_item(self, number: int, item: msgspec.Raw) -> dict[str, Any]:
        text = bytes(item).decode()
        try:
            if text.startswith("["):
                values = msgspec.json.decode(item, type=list[msgspec.Raw])
                text = msgspec.json.encode(self._one.bound(tuple(values), {})).decode()
            if text.startswith("{"):
                return self._one.decode(text)
        except ArgumentsDoNotFit as error:
            raise ArgumentsDoNotFit(f"items[{number}]: {error}", parameter=error.parameter) from error
        raise ArgumentsDoNotFit(f"items[{number}] is {text:.100}: {_ONE_ITEM}", parameter="items")


_ONE_ITEM = "give a tuple of arguments for each call, (x,) for a single one, or a dict of them by name"


def _takes(items: Any) -> None:
    """Stands for the parameters of a task for many."""


def _one_by_one(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    def each(*args: Any, **given: Any) -> list[Any]:
        items = _items(args, given)
        results = []
        for number, item in enumerate(items):
            _stop_if_told()
            try:
                results.append(_call(function, item, given))
            except Exception as error:
                error.add_note(_where(number, items))
                raise
        return results

    return each


def _one_by_one_async(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[list[Any]]]:
    async def each(*args: Any, **given: Any) -> list[Any]:
        items = _items(args, given)
        results = []
        for number, item in enumerate(items):
            try:
                results.append(await _call(function, item, given))
            except Exception as error:
                error.add_note(_where(number, items))
                raise
        return results

    return each


def _items(args: tuple[Any, ...], given: dict[str, Any]) -> list[Any]:
    """What a worker gives by the name that JSON has, and somebody who calls it by position or as `items`."""
    return list(args[0] if args else given.pop(EACH) if EACH in given else given.pop("items"))


def _call(function: Callable[..., Any], item: Any, injected: Mapping[str, Any]) -> Any:
    if isinstance(item, Mapping):
        return function(**item, **injected)
    return function(*item, **injected)


def _where(number: int, items: list[Any]) -> str:
    return f"raised by items[{number}] of {len(items)}"


def _stop_if_told() -> None:
    """A thread cannot be stopped from outside, but between two items it can look."""
    try:
        stopping = current().stopping
    except WrongContext:
        return
    if stopping:
        raise Cancel("told to stop")
