"""Fan: one task over many items, and one value from many results. Written as tasks of builtin_calls.py where needed.

Over a list that is there the nodes are made at once; over what another node gives an expander makes them when it runs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from . import references
from .building import Frame, frame_here
from .builtin_calls import EXPAND, FOLD, HOWS, Expand
from .errors import ArgumentsDoNotFit, BadJob
from .nodes import Group, Joint, Node, listed
from .wiring import Found, check_inputs, node_of, refuse_look_alikes, written_nodes

if TYPE_CHECKING:
    from .tasks import Task


class Mapped(Group):
    """The group of a map's nodes: passed to a task it is the list of their results, in the order of the items."""

    __slots__ = ("nodes", "task")

    def __init__(self, task: Task[Any, Any], *, name: str, max_parallel: int | None) -> None:
        super().__init__(name, max_parallel=max_parallel, mapped=True)
        self.is_named = False
        self.task = task
        self.nodes: list[Node] = []  # those that are there already

    def collect(self, **options: Any) -> Any:
        """All results in a list."""
        return fan_in(self, "collect", **options)

    def concat(self, **options: Any) -> Any:
        """Lists joined to one."""
        return fan_in(self, "concat", **options)

    def sum(self, **options: Any) -> Any:
        """The sum of numbers, or of the `value` of dicts."""
        return fan_in(self, "sum", **options)

    def first(self, **options: Any) -> Any:
        """The first result."""
        return fan_in(self, "first", **options)

    def last(self, **options: Any) -> Any:
        """The last result."""
        return fan_in(self, "last", **options)

    def merge(self, **options: Any) -> Any:
        """Dicts as one; the later ones win."""
        return fan_in(self, "merge", **options)

    def reduce(self, task: Task[Any, Any], **options: Any) -> Any:
        """What a task makes of the list of results, which it takes as its first argument."""
        return fan_in(self, task, **options)


def map(task: Task[Any, Any], items: Any, /, *, max_parallel: int | None = None, **constant: Any) -> Mapped:  # noqa: A001 - its name everywhere
    """One node of the task for each of the items, a list or what another node gives; the rest is the same for all."""
    frame = _frame("map")
    task = _task(task, "map")
    if task.defaults.dedupe_key is not None:
        raise BadJob(f"map of {task.node_name} with one dedupe_key for all of them: leave it away")
    parameter = next((name for name in task.signature.parameters if name not in constant), None)
    if parameter is None:
        raise BadJob(f"map of {task.node_name}: it has no parameter left that could take an item")
    name = frame.building.map_name(task.node_name)
    if isinstance(items, Joint):
        mapped = Mapped(task, name=name, max_parallel=max_parallel)
        _add_expander(mapped, parameter, items, constant)
    else:
        rows = _items(items, task)
        mapped = Mapped(task, name=name, max_parallel=max_parallel)
        _add_children(mapped, parameter, rows, constant)
    return mapped


def fan_in(parts: Any, how: str | Task[Any, Any], /, **options: Any) -> Any:
    """One value from the results of a map, a group or a list of nodes, in order.

    By name: collect, concat, sum, first, last, merge; or a task, which takes them as a list in its first argument.
    What failed or was skipped is left out where the rule lets it come so far.
    """
    from .tasks import by_name

    frame = _frame("fan_in")
    if not isinstance(how, str):
        return node_of(_task(how, "fan_in").options(**options) if options else _task(how, "fan_in"), (parts,), {})
    if how not in HOWS:
        near = difflib.get_close_matches(how, HOWS, n=1)
        raise BadJob(f"fan_in(…, {how!r}): " + (f"did you mean {near[0]!r}?" if near else f"give {', '.join(HOWS)}"))
    found = Found()
    if isinstance(parts, Joint):
        items = found.reference(parts)
    else:
        nodes = listed(parts)
        if not all(isinstance(one, Node) for one in nodes):
            raise BadJob(f"fan_in({parts!r}, …): give a map, a group, or a list of nodes")
        items = found.many(nodes, references.completed)
    task = by_name(FOLD, **{"queue": _queue_of(found), **options})
    text = msgspec.json.encode({"how": how, "items": items}).decode()
    return _add(Node(task, text, [one.edge for one in found.joints.values()], frame), found, name=how)


def _frame(what: str) -> Frame:
    frame = frame_here.get()
    if frame is None:
        raise BadJob(f"{what}(…) is for the body of a job, and for tasks of one: here there is none to add nodes to")
    return frame


def _task(given: Any, what: str) -> Task[Any, Any]:
    from .tasks import Task

    if not isinstance(given, Task):
        raise BadJob(f"{what} of {given!r}: give a task, a function with @task")
    return given


def _items(items: Any, task: Task[Any, Any]) -> Iterable[Any]:
    if isinstance(items, str | bytes | bytearray | Mapping) or not isinstance(items, Iterable):
        raise BadJob(f"map of {task.node_name} over {type(items).__name__}: give a list, or a node that gives one")
    return items


def _add_children(mapped: Mapped, parameter: str, items: Iterable[Any], constant: Mapping[str, Any]) -> None:
    with mapped:
        for index, item in enumerate(items):
            try:
                node = node_of(mapped.task, (), {**constant, parameter: item})
            except ArgumentsDoNotFit as error:
                raise ArgumentsDoNotFit(f"item {index}: {error}", parameter=error.parameter) from error
            node.name = f"{mapped.name}[{index}]"
            node.is_named = False
            node.map_index = index
            mapped.nodes.append(node)


def _add_expander(mapped: Mapped, parameter: str, items: Joint, constant: Mapping[str, Any]) -> None:
    from .tasks import by_name

    task = mapped.task
    frame = cast("Frame", mapped.frame)
    found, written = written_nodes(constant, task)
    plain = {name: value for name, value in constant.items() if name not in written}
    text = task.signature.encode_around(plain, {**written, parameter: "null"})
    refuse_look_alikes(text, found.count, f"an argument of {task.node_name}")
    others = msgspec.json.decode(references.deferred(text), type=dict[str, msgspec.Raw])
    del others[parameter]
    call = Expand(
        spec=task.node_spec(None, queue=frame.queue, priority=frame.priority),
        task=task.new_task(""),
        name=mapped.name,
        parameter=parameter,
        items=msgspec.Raw(msgspec.json.encode(found.reference(items))),
        constant=others,
        critical=task.defaults.critical is not False,
        is_secret=task.signature.marked(parameter, "") != "",
    )
    task.refuse_templates_of(written)
    expander = by_name(EXPAND, queue=task.defaults.queue, priority=task.defaults.priority)
    previous = [one.edge for one in found.joints.values()]
    node = Node(expander, msgspec.json.encode(call).decode(), previous, frame)
    node.group = mapped
    _add(node, found, name=f"{mapped.name}[*]")


def _add(node: Node, found: Found, *, name: str) -> Node:
    if node.task.defaults.name is None:
        node.name = name
    else:
        node.is_named = True
    check_inputs(node, found, ())
    return cast("Frame", node.frame).building.add_node(node)


def _queue_of(found: Found) -> str | None:
    """Where the first of them is sent by its task: somebody works there."""
    for one in found.joints.values():
        task: Task[Any, Any] | None = one.task if isinstance(one, Node | Mapped) else None
        return task.defaults.queue if task is not None else None
    return None
