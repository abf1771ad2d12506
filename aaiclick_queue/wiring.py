"""Wiring: nodes inside arguments and return values become references in their JSON, and dependencies. Before: a call.

A parameter that holds no node is checked and written by its annotation, as at an enqueue; one that does is written as
it stands, and checked by the worker when the results have taken the places of the references.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from . import references
from .building import frame_here
from .codec import encode_json
from .errors import ArgumentsDoNotFit, BadJob
from .nodes import Joint, Node
from .typed import write_natural

if TYPE_CHECKING:
    from .tasks import Task

MANY = 50  # nodes in a list: from here on one reference for all of them
PLAIN = frozenset({
    NoneType, bool, int, float, str, bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID, range,
})  # fmt: skip


class Found:
    """The nodes in a value, in the order of their first place, and how many references stand for them."""

    __slots__ = ("count", "joints", "may_look_alike")

    def __init__(self) -> None:
        self.joints: dict[int, Joint] = {}
        self.count = 0
        self.may_look_alike = False  # something that is neither a node nor plain: a dict of the user's may be in it

    def reference(self, one: Joint) -> dict[str, Any]:
        """What stands for the node in JSON."""
        self.joints[one.number] = one
        self.count += 1
        return references.node(one.number) if type(one) is Node else references.group(one.number)

    def many(self, nodes: Any, write: Callable[[Sequence[int]], dict[str, Any]] = references.nodes) -> dict[str, Any]:
        """What stands for a list of nodes."""
        self.joints.update((one.number, one) for one in nodes)
        self.count += 1
        return write([one.number for one in nodes])


def node_of(task: Task[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Node:
    """The call as a node: of the job that is built here, or of none yet."""
    frame = frame_here.get()
    signature = task.signature
    given = signature.bound(args, kwargs) if args else kwargs
    found, written = written_nodes(given, task)
    if not written:
        text = signature.encode((), given)
        if found.may_look_alike:
            refuse_look_alikes(text, 0, f"an argument of {task.node_name}")
        node = Node(task, text, [], frame)
    else:
        text = signature.encode_around({k: v for k, v in given.items() if k not in written}, written)
        node = _behind(task, text, found, written)
    return node if frame is None else frame.building.add_node(node)


def node_by_name(task: Task[Any, Any], kwargs: Mapping[str, Any]) -> Node:
    """The same for a task whose function is known to the workers only: they check the arguments."""
    frame = frame_here.get()
    found, written = written_nodes(kwargs, task)
    plain = encode_json({name: value for name, value in kwargs.items() if name not in written})
    parts = [plain[1:-1], *(f"{encode_json(name)}:{text}" for name, text in written.items())]
    node = _behind(task, "{" + ",".join(part for part in parts if part) + "}", found, written)
    return node if frame is None else frame.building.add_node(node)


def _behind(task: Task[Any, Any], text: str, found: Found, written: Mapping[str, str]) -> Node:
    if found.may_look_alike:
        refuse_look_alikes(text, found.count, f"an argument of {task.node_name}")
    frame = frame_here.get()
    node = Node(task, text, [one.edge for one in found.joints.values()], frame)
    if frame is None:
        node.before = list(found.joints.values())
    if written:
        check_inputs(node, found, written)
    return node


def written_nodes(given: Mapping[str, Any], task: Task[Any, Any]) -> tuple[Found, dict[str, str]]:
    """The nodes in the arguments, and the JSON of those arguments that hold some."""
    found = Found()
    written: dict[str, str] = {}
    for name, value in given.items():
        kind = type(value)
        if kind in PLAIN:
            continue
        if kind is Node:  # the commonest, a hundred thousand times
            found.joints[value.number] = value
            found.count += 1
            written[name] = f'{{"$node":{value.number}}}'
            continue
        before = found.count
        found.may_look_alike = True
        try:
            shown = replaced(value, found)
            if found.count > before:
                written[name] = write_natural(shown)
        except BadJob:
            raise
        except Exception as error:
            why = "it contains itself, or a key that is no text" if isinstance(error, RecursionError) else error
            raise ArgumentsDoNotFit(
                f"parameter {name!r} of {task.entrypoint} holds something that JSON cannot carry: {why}", parameter=name
            ) from error
    return found, written


def check_inputs(node: Node, found: Found, parameters: Iterable[str]) -> None:
    """Raise where the node cannot take these."""
    task = node.task
    task.refuse_templates_of(parameters)
    if node.rule == "always":
        raise BadJob(
            f"{node.name} has rule='always' and takes {_names(found)}: it starts at once, when there is no "
            "result to give it; use rule='all_done', or an arrow instead of an argument"
        )
    building = None if node.frame is None else node.frame.building
    for one in found.joints.values():
        if (None if one.frame is None else one.frame.building) is not building:
            raise BadJob(
                f"{node.name} takes {one.name}, which belongs to another job or to none: "
                "build both in one body, or pass its result"
            )


def holds_nodes(value: Any) -> bool:
    """Whether there are nodes in it."""
    found = Found()
    replaced(value, found)
    return found.count > 0


def write_value(value: Any, *, what: str) -> tuple[str, list[Joint]]:
    """JSON of a value that may hold nodes, and those nodes: of what a body or a task returns."""
    found = Found()
    try:
        text = write_natural(replaced(value, found))
    except BadJob:
        raise
    except Exception as error:
        raise BadJob(f"{what} cannot be stored: {error}; return nodes, or lists and dicts of them") from error
    refuse_look_alikes(text, found.count, what)
    return text, list(found.joints.values())


def refuse_look_alikes(text: str, placed: int, name: str) -> None:
    """Raise where the text holds more references than were placed in it."""
    if '{"$' in text and references.count(text) != placed:
        raise BadJob(
            f"{name} holds a dict like {{'$node': 1}}, which is how a job names its nodes in JSON: use another key"
        )


def _names(found: Found) -> str:
    names = [one.name for one in found.joints.values()]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def replaced(value: Any, found: Found) -> Any:
    """The value with references in the places of nodes; itself where it holds none."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, Joint):
        return found.reference(value)
    if kind is list or isinstance(value, list | tuple | set | frozenset):
        return _rows(value, found)
    before = found.count
    parts = _parts(value)
    if parts is None:
        return value
    shown = {key: replaced(part, found) for key, part in parts.items()}
    if found.count == before:
        return value
    if any(isinstance(key, Joint) for key in shown):
        raise BadJob("a node is the key of a dict: its result is not known yet, so make it a value")
    return _struct_with(value, shown)


def _rows(value: Any, found: Found) -> Any:
    if len(value) > MANY and all(type(one) is Node for one in value):
        return found.many(value)
    before = found.count
    if isinstance(value, set | frozenset):
        value = sorted(value, key=lambda one: one.number if isinstance(one, Joint) else 0)
    shown = [replaced(one, found) for one in value]
    return value if found.count == before else shown


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """The fields of something that has some."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    fields = getattr(type(value), "model_fields", None)
    if isinstance(fields, Mapping):
        return {name: getattr(value, name) for name in fields}
    return None


def _struct_with(value: Any, shown: dict[Any, Any]) -> Any:
    config = getattr(value, "__struct_config__", None)
    if config is None:
        return shown
    tag = {config.tag_field: config.tag} if config.tag is not None else {}
    return [*tag.values(), *shown.values()] if config.array_like else {**tag, **shown}
