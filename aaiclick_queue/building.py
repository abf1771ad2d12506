"""Building: collects the nodes of a job's body, or of a task that adds to its job, and makes a plan of them.

Before: a task is called where a Building is active. After: flow/submit.py writes the plan. One context, one Building:
`frame_here` says to tasks that are called whether they run or become nodes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from .errors import BadJob, PayloadTooLarge
from .flow.enqueue import NewTask, Spec
from .flow.graph import Plan, PlannedGroup, PlannedTask
from .nodes import Group, Joint, Node
from .references import replaced
from .settings import Settings

if TYPE_CHECKING:
    from .tasks import Task


class Frame(msgspec.Struct, frozen=True):
    """Where a node is built: in which job and group, and what it takes over where its task says nothing."""

    building: Building
    group: Group | None = None
    queue: str | None = None
    priority: int | None = None
    outer: Frame | None = None  # where the group was entered


frame_here: ContextVar[Frame | None] = ContextVar("aaiclick_queue_building", default=None)


class Building:
    """The nodes of one body: `with Building(): …` makes tasks that are called in this context nodes of it."""

    def __init__(
        self, *, queue: str | None = None, priority: int | None = None, correlation_id: str | None = None
    ) -> None:
        self.nodes: list[Node] = []
        self.groups: list[Group] = []
        self.correlation_id = correlation_id
        self.frame = Frame(self, None, queue, priority)
        self._keys: dict[str, Node] = {}
        self._maps: Counter[str] = Counter()
        self._entered: list[Token[Frame | None]] = []
        self._is_closed = False

    def seal(self, group: Group) -> None:
        """All of a job inside this one was built: its names are its own, and numbered where they come again."""
        for joints in (self.nodes, self.groups):
            inside = [one for one in joints if one is not group and _is_in(one, group)]
            _named(inside)
            for one in inside:
                one.is_named = False

    def __enter__(self) -> Self:
        self._entered.append(frame_here.set(self.frame))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        frame_here.reset(self._entered.pop())

    def add_node(self, node: Node) -> Node:
        """A node of this job; the one that is there already where it has the same dedupe key and is to be skipped."""
        self.refuse_if_closed(node.name)
        if (key := node.task.defaults.dedupe_key) is not None:
            held = self._keys.setdefault(key, node)
            mode = node.task.defaults.dedupe or "raise"
            if mode not in ("raise", "skip"):
                raise BadJob(f"dedupe={mode!r} of {node.name}: in a job a key can raise or skip")
            if held is not node and mode == "skip":
                return held
            if held is not node:
                raise BadJob(f"{held.name} and {node.name} have the dedupe key {key!r}: give dedupe='skip', or another")
        self.nodes.append(node)
        return node

    def adopt(self, node: Node) -> None:
        """Have a node that was built in no job, or here."""
        if node.frame is None:
            node.frame = self.frame
            self.add_node(node)
        elif node.frame.building is not self:
            raise BadJob(f"{node.name} belongs to another job: build it where it is used")

    def add_group(self, group: Group) -> None:
        """A group of this job."""
        self.refuse_if_closed(group.name)
        self.groups.append(group)

    def map_name(self, base: str) -> str:
        """What the next map of a task is called; its tasks are named after it."""
        self._maps[base] += 1
        return base if self._maps[base] == 1 else f"{base}#{self._maps[base]}"

    def refuse_if_closed(self, name: str) -> None:
        """Raise where the job is written and this node would come too late."""
        if self._is_closed:
            raise BadJob(f"{name} belongs to a job that is written already: build a new one, or use add_task_to_job")

    def value(self, value: Any, *, what: str) -> str:
        """JSON of a value with references in the places of this job's nodes."""
        from .wiring import write_value

        text, joints = write_value(value, what=what)
        for one in joints:
            if one.frame is None or one.frame.building is not self:
                raise BadJob(f"{what} holds {one.name}, which belongs to another job: return nodes that are built here")
        return text

    def finish(self, settings: Settings) -> Plan:
        """All of it as a plan; nothing can be added after that."""
        self._is_closed = True
        return plan_of(self.nodes, self.groups, settings, correlation_id=self.correlation_id)


def enter_group(group: Group) -> None:
    """What is built from now on in this context is built in the group."""
    frame = frame_here.get()
    if frame is None or group.frame is None or frame.building is not group.frame.building:
        raise BadJob(f"group {group.name} belongs to another job: make one in the body that uses it")
    frame_here.set(msgspec.structs.replace(frame, group=group, outer=frame))


def leave_group() -> None:
    """What is built from now on in this context is built where its last group was entered."""
    frame = frame_here.get()
    frame_here.set(None if frame is None else frame.outer)


def plan_of(
    nodes: Iterable[Node], groups: Iterable[Group], settings: Settings, *, correlation_id: str | None = None
) -> Plan:
    """The nodes as what is to be written: named, with their options, without what they were built from."""
    nodes, groups = list(nodes), list(groups)
    _name(nodes)
    _name(groups)
    make = _Kinds(settings, correlation_id).make
    return Plan(
        tasks=[
            PlannedTask(
                number=node.number,
                name=node.name,
                spec=(made := make(node))[0],
                task=made[1],
                group=None if node.group is None else node.group.number,
                rule=node.rule,
                critical=node.critical,
                previous=node.previous,
                map_index=node.map_index,
            )
            for node in nodes
        ],
        groups=[
            PlannedGroup(
                number=group.number,
                name=group.name,
                parent=None if group.group is None else group.group.number,
                rule=group.rule,
                previous=group.previous,
                max_parallel=group.max_parallel,
                mapped=group.mapped,
            )
            for group in groups
        ],
    )


def _is_in(one: Joint, group: Group) -> bool:
    above = one.group
    while above is not None and above is not group:
        above = above.group
    return above is group


def _named(joints: Iterable[Joint]) -> dict[str, Joint]:
    named: dict[str, Joint] = {}
    for one in joints:
        if one.is_named and named.setdefault(one.name, one) is not one:
            raise BadJob(f"two {one.kind}s of the job are called {one.name!r}: give one of them another name=")
    return named


def _name(joints: Iterable[Joint]) -> None:
    """The names that were given, each once; the others are numbered from the second of a name on."""
    named = _named(joints)
    counts: dict[str, int] = {}
    for one in joints:
        if one.is_named:
            continue
        base, name = one.name, one.name
        while True:
            counts[base] = number = counts.get(base, 0) + 1
            name = base if number == 1 else f"{base}#{number}"
            if name not in named:
                break
        one.name = name
        if number > 1:
            counts[name] = 1  # a task may be called so itself


class _Kinds:
    """Nodes of one task with one set of options share what is written of them but their arguments."""

    def __init__(self, settings: Settings, correlation_id: str | None) -> None:
        self._settings = settings
        self._limit = settings.payload_max_bytes
        self._correlation_id = correlation_id
        self._known: dict[tuple[int, str | None, int | None], tuple[Task[Any, Any], Spec, NewTask | None]] = {}

    def make(self, node: Node) -> tuple[Spec, NewTask]:
        task, frame = node.task, node.frame
        queue, priority = (frame.queue, frame.priority) if frame is not None else (None, None)
        key = (id(task), queue, priority)
        known = self._known.get(key)
        if known is None:
            spec = task.node_spec(self._settings, queue=queue, priority=priority)
            template = None if task.has_templates else task.new_task("")
            known = self._known[key] = (task, spec, template)
        _, spec, template = known
        if len(node.kwargs) * 4 > self._limit:
            self._check_size(node)
        new = copy.copy(template) if template is not None else task.new_task(node.kwargs)
        new.kwargs = node.kwargs
        if new.correlation_id is None:
            new.correlation_id = self._correlation_id
        return spec, new

    def _check_size(self, node: Node) -> None:
        """References to other nodes do not count: there may be a hundred thousand of them."""
        size = len(replaced(node.kwargs, lambda _: "").encode())
        if size > self._limit:
            raise PayloadTooLarge(
                f"the arguments of {node.name} take {size:,} bytes, the limit is {self._limit:,}: "
                "store the data elsewhere and pass a reference, or raise AAICLICK_QUEUE_PAYLOAD_MAX_BYTES"
            )
