"""Builtin: the two tasks that every worker knows, one over many items and one value from many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from . import references
from .builtin_calls import EXPAND, FOLD, Expand, How, empty
from .context import running
from .errors import ArgumentsDoNotFit, Fail
from .flow.graph import Plan, PlannedTask
from .growing import Adds
from .nodes import numbers
from .spec import Options
from .tasks import Task, registry

BULK = 1000  # children that are made before others have their turn
LARGEST = 1 << 28  # bytes: what many results come to in one is no payload, and Postgres has its own limit near this


async def expand(  # noqa: PLR0913 - as builtin_calls.Expand has them
    *,
    spec: Any,
    task: Any,
    name: str,
    parameter: str,
    items: Any,
    constant: Any = None,
    critical: bool = True,
    is_secret: bool = False,
) -> Adds:
    """One child for each of the items, in the group of this run, written with its end."""
    del spec, task, name, constant, critical, is_secret
    run, _ = running()
    if run.claimed.group_id is None:
        raise Fail(f"{EXPAND} writes the tasks of a map into its group, and this one is in no job's group")
    if not isinstance(items, list):
        shown = str(msgspec.json.encode(items)[:100], errors="replace")
        raise Fail(f"a map is over a list, and what it got is {_kind(items)}: {shown}; return a list from that task")
    call = msgspec.json.decode(run.claimed.kwargs, type=Expand)
    rows = msgspec.json.decode(call.items, type=list[msgspec.Raw])
    _refuse_look_alikes(call.items, rows)
    _check(call, parameter, rows)
    plan = Plan([], [])
    for start in range(0, len(rows), BULK):
        plan.tasks += [_child(call, index, item) for index, item in enumerate(rows[start : start + BULK], start)]
        await asyncio.sleep(0)
    return Adds(str(len(rows)), plan)


def _refuse_look_alikes(items: msgspec.Raw, rows: Sequence[msgspec.Raw]) -> None:
    """An item becomes an argument, where what looks like a reference would be taken for one."""
    if not references.count(bytes(items).decode()):
        return
    index = next(index for index, item in enumerate(rows) if references.count(bytes(item).decode()))
    raise Fail(
        f"item {index} of the map holds a dict like {{'$node': 1}}, which is how a job names its nodes in JSON: "
        "use another key"
    )


def _check(call: Expand, parameter: str, rows: Sequence[msgspec.Raw]) -> None:
    """Here if the code is known here; else the worker that runs a child tells."""
    known: Task[Any, Any] | None = registry.get(call.spec.entrypoint)
    if known is None:
        return
    for index, item in enumerate(rows):
        try:
            known.signature.check(parameter, bytes(item))
        except ArgumentsDoNotFit as error:
            raise Fail(f"item {index} of the map: {error}") from error


def _child(call: Expand, index: int, item: msgspec.Raw) -> PlannedTask:
    return PlannedTask(
        number=next(numbers),
        name=f"{call.name}[{index}]",
        spec=call.spec,
        task=call.task_of(item),
        critical=call.critical,
        map_index=index,
    )


async def fold(how: How, items: list[Any]) -> Any:
    """One value from many, in their order."""
    run, _ = running()
    run.result_max_bytes = max(run.result_max_bytes, LARGEST)
    return _FOLDS[how](items) if items else empty(how)


def _concat(items: Sequence[Any]) -> list[Any]:
    for index, item in enumerate(items):
        _require("concat", "a list", index, item, isinstance(item, list))
    return [one for item in items for one in item]


def _sum(items: Sequence[Any]) -> Any:
    values = [item.get("value") if isinstance(item, Mapping) else item for item in items]
    for index, value in enumerate(values):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        _require("sum", "a number, or a dict with one as its 'value'", index, items[index], is_number)
    return sum(values)


def _merge(items: Sequence[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for index, item in enumerate(items):
        _require("merge", "a dict", index, item, isinstance(item, dict))
        merged |= item
    return merged


_FOLDS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "collect": list,
    "concat": _concat,
    "sum": _sum,
    "first": lambda items: items[0],
    "last": lambda items: items[-1],
    "merge": _merge,
}


def _require(how: str, what: str, index: int, item: Any, fits: bool) -> None:
    if not fits:
        shown = str(msgspec.json.encode(item)[:100], errors="replace")
        raise Fail(f"{how} takes {what} from each task, and result {index} is {_kind(item)}: {shown}")


def _kind(value: Any) -> str:
    names = {dict: "a dict", str: "a text", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "None" if value is None else type(value).__name__)


tasks: dict[str, Task[Any, Any]] = {
    name: Task(function, name, Options(), None) for name, function in ((EXPAND, expand), (FOLD, fold))
}
