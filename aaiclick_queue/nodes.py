"""Nodes: what calling a task in a job's body gives, groups of them, and the arrows between them. After: building.py.

A node stands for a result that is not there yet. Passed to another task it makes a dependency and, when that one runs,
becomes the result; anything else one does with a value cannot be done with it, and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from .errors import BadJob
from .flow.graph import Kind, Previous
from .spec import Options, Rule

if TYPE_CHECKING:
    from .building import Frame
    from .tasks import Task

numbers = itertools.count(1)  # of this process; ids take their place when the nodes are written


class Joint:
    """What nodes and groups have in common: a number, and what they wait for."""

    __slots__ = ("_edge", "_edges", "before", "frame", "group", "id", "is_named", "name", "number", "previous", "rule")

    kind: Kind

    def __init__(self, name: str, *, frame: Frame | None, is_named: bool, rule: Rule | None) -> None:
        self.number = next(numbers)
        self.id: int | None = None  # once it is written
        self.name = name
        self.is_named = is_named
        self.frame = frame
        self.group: Group | None = frame.group if frame is not None else None
        self.rule: Rule = rule or "all_success"
        self.previous: list[Previous] = []
        self.before: list[Joint] = []  # what it waits for, kept where no job collects the nodes
        self._edge: Previous | None = None
        self._edges: dict[tuple[Kind, int], int] | None = None  # where in `previous`, once edges are added one by one

    @property
    def edge(self) -> Previous:
        """What others have among their `previous` that wait for this."""
        if self._edge is None:
            self._edge = Previous(self.number, self.kind)
        return self._edge

    def depends_on(self, *others: Any, all_of: Any = (), any_of: Any = ()) -> Self:
        """Wait for these: all of them, and with `any_of` also for one success among those. Gives itself."""
        for one in (*listed(others), *listed(all_of)):
            self.wait_for(one)
        for one in listed(any_of):
            self.wait_for(one, any_of=True)
        return self

    def wait_for(
        self, other: Any, *, any_of: bool = False, choices: tuple[str, ...] = (), known: tuple[str, ...] = ()
    ) -> None:
        """One more that this waits for; with `choices` it is skipped unless the other's result is one of them."""
        other = same_job(other, self)
        if other is self:
            raise BadJob(f"{self.name} >> {self.name}: what waits for itself never starts; take the arrow out")
        if self._edges is None:
            self._edges = {(one.kind, one.number): at for at, one in enumerate(self.previous)}
        new = Previous(other.number, other.kind, choices, known, any_of)
        at = self._edges.setdefault((other.kind, other.number), len(self.previous))
        if at == len(self.previous):
            self.previous.append(new)
            if self.frame is None:
                self.before.append(other)
            return
        old = self.previous[at]
        if old.any_of is not any_of:
            raise BadJob(
                f"{self.name} waits for {other.name} in any case and as one of several: leave one of them away"
            )
        if choices:
            both, all_known = (tuple(sorted({*a, *b})) for a, b in ((old.choices, choices), (old.known, known)))
            self.previous[at] = old._replace(choices=both, known=all_known)

    def __rshift__(self, other: Any) -> Any:
        for one in listed(other):
            _joint(one).wait_for(self)
        return other

    def __lshift__(self, other: Any) -> Self:
        return self.depends_on(other)

    def __rrshift__(self, other: Any) -> Self:
        return self.depends_on(other)

    def __rlshift__(self, other: Any) -> Any:
        return self.__rshift__(other)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what Python and tools look for
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.misused(f".{name}", _PART)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | float | str | bytes | list | tuple | dict | None):
            self.misused("==", "use when(…) or branch(…) to decide by a result")
        return self is other

    def __hash__(self) -> int:
        return self.number

    def misused(self, how: str, instead: str) -> NoReturn:
        """Raise, because it was taken for a value."""
        raise BadJob(f"{self.name} has no value yet, it is a {self.kind} of a job, so {how} cannot work: {instead}")


# What one does with values, and what to do instead: set as methods, so that Python asks for them.
_PART = "take the part in a task that gets all of it"
_LOOK = "look into it in a task that takes it"
_MISUSE = {
    "__bool__": ("if", "use when(…) or branch(…) to decide by a result"),
    "__iter__": ("for", "use map(task, …) to run a task for each item"),
    "__len__": ("len()", _LOOK),
    "__contains__": ("in", _LOOK),
    "__getitem__": ("[…]", _PART),
    "__format__": ("f'{…}'", "make the text in a task that takes it"),
    "__call__": ("(…)", "call it in a task that takes it"),
    "__await__": ("await", "pass it to another task, or return it from the job and await the job's result()"),
}
_ARITHMETIC = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^", "neg": "-", "pos": "+", "abs": "abs()", "invert": "~", "int": "int()",
    "float": "float()", "index": "a number", "round": "round()", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
for _name, _symbol in _ARITHMETIC.items():
    for _method in (f"__{_name}__", f"__r{_name}__"):
        _MISUSE[_method] = (_symbol, "calculate in a task that takes it")


def _misuse(how: str, instead: str) -> Any:
    def misused(self: Joint, *_: Any, **__: Any) -> NoReturn:
        self.misused(how, instead)

    return misused


for _method, _words in _MISUSE.items():
    setattr(Joint, _method, _misuse(*_words))


class Node(Joint):
    """One task of a job that is being built."""

    __slots__ = ("critical", "kwargs", "map_index", "task")

    kind: Kind = "task"

    def __init__(self, task: Task[Any, Any], kwargs: str, previous: list[Previous], frame: Frame | None) -> None:
        given: Options = task.defaults
        super().__init__(task.node_name, frame=frame, is_named=task.is_node_named, rule=given.rule)
        self.task = task
        self.kwargs = kwargs
        self.previous = previous
        self.critical = given.critical is not False
        self.map_index: int | None = None


if TYPE_CHECKING:
    # Where a task takes a list, type checkers let a group through: it is the list of its tasks' results there.
    class _AnyJoint(Joint, Any): ...  # type: ignore[misc]
else:
    _AnyJoint = Joint


class Group(_AnyJoint):
    """Nodes that are waited for, wait, and are limited together; what is built `with` it is in it.

    `max_parallel` of its tasks run at once, those of groups in it included.
    """

    __slots__ = ("mapped", "max_parallel", "members")

    kind: Kind = "group"

    def __init__(  # noqa: PLR0913 - one value a fact
        self,
        name: str | None = None,
        nodes: Iterable[Any] = (),
        *,
        parent: Group | None = None,
        max_parallel: int | None = None,
        rule: Rule | None = None,
        mapped: bool = False,
    ) -> None:
        from .building import frame_here

        frame = frame_here.get()
        given = Options.given({"name": name, "rule": rule})
        super().__init__(given.name or "group", frame=frame, is_named=name is not None, rule=given.rule)
        self.max_parallel = whole_or_none("max_parallel", max_parallel)
        self.mapped = mapped
        self.members: list[Joint] = []  # those that were put into it by `add`
        if frame is not None:
            frame.building.add_group(self)
        if parent is not None:
            same_job(parent, self).add(self)
        self.add(*nodes)

    def add(self, *nodes: Any) -> Self:
        """Put nodes and groups into this one, from wherever they were."""
        for one in listed(nodes):
            same_job(one, self).group = self
            self.members.append(one)
        return self

    def __enter__(self) -> Self:
        from .building import enter_group

        if self.frame is None:
            raise BadJob(f"with Group({self.name!r}) is for the body of a job: here give its nodes, Group('…', [a, b])")
        enter_group(self)
        return self

    def __exit__(self, *_: object) -> None:
        from .building import leave_group

        leave_group()  # no token: several coroutines of one body may be in the same group


def listed(given: Any) -> Sequence[Any]:
    """One or many as a list, lists in it taken apart."""
    if not isinstance(given, list | tuple | set | frozenset):
        return (given,)
    return [one for some in given for one in listed(some)]


def _joint(given: Any) -> Joint:
    if isinstance(given, Joint):
        return given
    if callable(given):
        raise BadJob(f"{given!r} is not called yet: call it, so that it becomes a node of the job")
    raise BadJob(f"{given!r} is no node: an arrow goes from nodes and groups to nodes and groups")


def same_job(given: Any, other: Joint) -> Any:
    """The node or group, once it and the other one belong to the same job."""
    one = _joint(given)
    here, there = (joint.frame.building if joint.frame is not None else None for joint in (one, other))
    if here is not there:
        raise BadJob(
            f"{one.name} and {other.name} belong to different jobs: what is to wait for each other is built in one body"
        )
    if here is not None:
        here.refuse_if_closed(one.name)
    return one


def whole_or_none(name: str, value: Any) -> int | None:
    """The number, once it is one from 1 on."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31):
        raise BadJob(f"{name}={value!r}: give a whole number from 1 on, or leave it away")
    return value
