"""Signatures: calls that have not happened, and what they share with chains and groups of them. After: canvas.py.

Nothing of them reaches a worker: they build nodes, all of them one job that is written at once. In the body of a job,
and in a task of one, calling such a canvas builds its nodes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from .building import frame_here
from .errbacks import hook_of
from .errors import ArgumentsDoNotFit, BadJob, BadTask
from .named import NamedSignature
from .nodes import Joint
from .spec import NAME_LIMIT, Hook, Options
from .tasks import Task, by_name, registry

if TYPE_CHECKING:
    from .canvas import Chain

WHERE = ("connection", "client")
STARTS = ("countdown", "eta")  # of a chain or group: for those alone with which it starts


class Before(NamedTuple):
    """What a step of a canvas comes after: the value that it gets first, and the nodes that it waits for."""

    value: Any
    joints: Sequence[Joint]
    has_all: bool = True  # whether the value holds all of these nodes, so that taking it is waiting for them


class Around:
    """What a canvas gives to the signatures in it: options where they have none of their own, error callbacks."""

    def __init__(self, options: Mapping[str, Any] | None = None, errbacks: tuple[Hook, ...] = ()) -> None:
        self.options = dict(options or {})
        self.errbacks = errbacks
        self._known: dict[Any, tuple[Task[Any, Any], Task[Any, Any]]] = {}

    def within(self, canvas: Canvas) -> Around:
        """The same inside of this chain or group."""
        if not canvas.given and not canvas.errbacks:
            return self
        return Around(_over(canvas.given, self.options), (*self.errbacks, *canvas.errbacks))

    def later(self) -> Around:
        """The same for steps with which nothing starts."""
        if not any(name in self.options for name in STARTS):
            return self
        return Around({name: value for name, value in self.options.items() if name not in STARTS}, self.errbacks)

    def task_of(self, signature: Signature, task: Task[Any, Any]) -> Task[Any, Any]:
        """The task with all options; the same object for the same options, as for a wide group."""
        options = _over(signature.given, self.options)
        hooks = (*self.errbacks, *signature.errbacks)
        if not options and not hooks:
            return task
        key = (id(task), *map(id, hooks), *(item for pair in options.items() for item in pair))
        try:
            known = self._known.get(key)
        except TypeError:  # an option that has no hash
            return _with_options(task, options, hooks)
        if known is None:
            known = self._known[key] = (task, _with_options(task, options, hooks))  # both: an id is not to come again
        return known[1]


class Canvas:
    """What signatures, chains, groups and chords have in common.

    A copy shares what it holds with the original, so all changes put something new in its place.
    """

    kind = "canvas"
    instead_of_json = (
        "a signature is a call and no value; pass results on by a chain, or in the body of a job by calling the task"
    )

    def __init__(self) -> None:
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.immutable = False
        self.where: dict[str, Any] = {}  # connection, client
        self.callbacks: list[Canvas] = []
        self.errbacks: list[Hook] = []

    def clone(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Self:
        """A copy; arguments come before those it has, keywords and options win over its own."""
        other = self.copy()
        if args or kwargs:
            other.take(listed_arguments(args), kwargs or {})
        return other.set(**options) if options else other

    def copy(self) -> Self:
        """One to be changed instead of this one, whatever is in it."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # copy.copy takes ten times as long, and a group may be wide
        return other

    def options(self, **options: Any) -> Self:
        """A copy with other options, as of a task."""
        return self.clone(**options)

    def set(self, *, immutable: bool | None = None, **options: Any) -> Self:
        """Set options on this one, as `queue` or `countdown`; gives itself."""
        options = {name: value for name, value in options.items() if value is not None}
        for name, add in (("link", self.link), ("link_error", self.link_error)):
            for one in _one_or_many(options.pop(name, ())):
                add(one)
        self.where = {**self.where, **{name: options.pop(name) for name in WHERE if name in options}}
        self._check(options)
        self.given = _over(options, self.given)
        if immutable is not None:
            self._set_immutable(immutable)
        return self

    def link(self, callback: Canvas) -> Canvas:
        """Have this run with the result when it is there, its own failure no matter; gives the callback, as Celery."""
        self.callbacks = [*self.callbacks, canvas_of(callback, "link").clone()]
        return callback

    def link_error(self, errback: Any) -> Any:
        """Have this enqueued for each task of it that fails, with `ended`, an EndedTask; gives the callback."""
        self.errbacks = [*self.errbacks, hook_of(errback)]
        return errback

    def on_error(self, errback: Any) -> Self:
        """As link_error; gives itself."""
        self.link_error(errback)
        return self

    def __or__(self, other: Canvas) -> Chain:
        from .canvas import Chain

        return Chain([*self.steps(), *canvas_of(other, "|").steps()])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Where a job is built: its nodes, of which it gives the last, or those of a group as a list. Else as delay."""
        if frame_here.get() is None:
            return self.delay(*args, **kwargs)
        return self.with_arguments(args, kwargs).build()

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue from synchronous code; arguments come before those it has."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Enqueue from synchronous code, with options."""
        raise NotImplementedError

    async def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue; `connection=` is your transaction, as for a task, and `client=` whose database."""
        raise NotImplementedError

    def with_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Self:
        """This one with arguments before its own."""
        return self.clone(args, kwargs) if args or kwargs else self

    def build(self) -> Any:
        """Nodes in the job that is built here; gives what stands for its result."""
        return self.build_after(None, Around()).value

    def build_after(self, before: Before | None, around: Around) -> Before:
        """The nodes of this, after what came before it in a chain; gives what comes before the next."""
        if self.where:
            raise BadJob(f"{min(self.where)}= belongs to the whole that is written: {self!r:.100} is a part of it")
        return self._call_back(self._build(before, around))

    @property
    def title(self) -> str:
        """What the job is called that it becomes."""
        title = f"{self.kind}: {self.shown()}"
        return title if len(title) <= NAME_LIMIT else title[: NAME_LIMIT - 1] + "…"

    def shown(self) -> str:
        """The tasks of it by their names."""
        raise NotImplementedError

    def steps(self) -> list[Canvas]:
        """This, to be part of a longer chain."""
        return [self.clone()]

    @property
    def takes(self) -> bool:
        """Whether it takes what comes before as an argument."""
        return not self.immutable

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """More arguments, before those that it has."""
        raise NotImplementedError

    def decode(self, text: str | None) -> Any:
        """The result from JSON, as the annotations of its tasks say."""
        raise NotImplementedError

    def _build(self, before: Before | None, around: Around) -> Before:
        raise NotImplementedError

    def _call_back(self, ended: Before) -> Before:
        """The nodes of its callbacks, whose failure is theirs alone."""
        for callback in self.callbacks:
            callback.build_after(ended, Around({"critical": False}))
        return ended

    def _set_immutable(self, immutable: bool) -> None:
        self.immutable = immutable

    def _check(self, options: Mapping[str, Any]) -> None:
        Options.given(options)


class Signature(Canvas):
    """A call of one task that has not happened: `add.s(2)`. The result of what comes before is its first argument."""

    kind = "task"

    def __init__(
        self,
        task: Task[Any, Any] | str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
    ) -> None:
        super().__init__()
        self.task = task
        self.args = tuple(args)
        self.kwargs = dict(kwargs or {})
        self.immutable = immutable

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now; where a job is built, make a node of it."""
        if frame_here.get() is not None:
            return super().__call__(*args, **kwargs)
        one = self.with_arguments(args, kwargs)
        if not (task := one.resolved()).is_here:
            raise BadTask(f"no task is registered as {one.task!r} here: import its module, or check the name")
        return task(*one.args, **one.kwargs)

    def apply_async(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Enqueue from synchronous code, with options."""
        one = self.clone(args, kwargs, **options)
        if one.callbacks:
            return one.in_chain().apply_async()
        return one.alone().apply_async(one.args, one.kwargs)

    async def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue this one task; `connection=` and `client=` as for a task."""
        own = self.resolved().signature.parameters
        where = {name: kwargs.pop(name) for name in WHERE if name in kwargs and name not in own}
        one = self.clone(args, kwargs, **where)
        if one.callbacks:
            return await one.in_chain().enqueue()
        return await one.alone().enqueue(*one.args, **one.kwargs)

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"{self.shown()}({', '.join(shown)})"

    def resolved(self) -> Task[Any, Any]:
        """The task itself, by now; a name that is not registered here stands for one that workers know."""
        if isinstance(self.task, Task):
            return self.task
        named: Task[Any, Any] | None = registry.get(self.task)
        if named is None:
            named = by_name(self.task)
            named.signature = NamedSignature(self.task)
        return named

    def shown(self) -> str:
        """The name of the task."""
        return self.task.node_name if isinstance(self.task, Task) else self.task.rpartition(".")[2]

    def decode(self, text: str | None) -> Any:
        """Its result as the function's annotation says."""
        return None if text in (None, "null") else self.resolved().signature.decode_result(text)

    def _build(self, before: Before | None, around: Around) -> Before:
        task = around.task_of(self, self.resolved())
        takes = before is not None and not self.immutable
        args = (before.value, *self.args) if before is not None and takes else self.args
        node = task.node(*args, **self.kwargs)
        if before is not None and not (takes and before.has_all):
            node.depends_on(*before.joints)
        return Before(node, [node])

    def copy(self) -> Self:
        """One to be changed instead of this one; its keyword arguments by whoever holds it."""
        other = super().copy()
        other.kwargs = dict(self.kwargs)
        return other

    def take(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """More arguments, before those that it has."""
        if self.immutable:
            raise ArgumentsDoNotFit(f"{self!r} is immutable, made by .si(…): it takes no more arguments; use .s(…)")
        self.args = (*args, *self.args)
        self.kwargs = {**self.kwargs, **kwargs}

    def alone(self) -> Task[Any, Any]:
        """The task with all that was set, for an enqueue without a job."""
        task = Around().task_of(self, self.resolved())
        return task.options(**self.where) if self.where else task

    def in_chain(self) -> Chain:
        """A chain of this alone, for the callbacks that it has."""
        from .canvas import Chain

        one = self.copy()
        one.where = {}
        whole = Chain([one])
        whole.where = self.where
        return whole

    def _check(self, options: Mapping[str, Any]) -> None:
        if options and isinstance(self.task, Task):
            self.task.options(**_over(options, self.given))
        else:
            super()._check(options)


def canvas_of(given: Any, what: str) -> Canvas:
    """The signature, chain or group that was given; raises where it is none."""
    if not isinstance(given, Canvas):
        refuse(given, what)
    return given


def refuse(given: Any, what: str) -> NoReturn:
    """Raise, because that is no signature."""
    if isinstance(given, Task):
        raise BadTask(f"{what}: {given.node_name} is a task and no signature: write {given.node_name}.s(…)")
    hint = "a list of signatures is group([…])" if isinstance(given, list | tuple) else "write task.s(…)"
    raise BadTask(f"{what}: {given!r:.100} is no signature: {hint}")


def listed_arguments(args: Any) -> tuple[Any, ...]:
    """Arguments by position, as Celery takes them."""
    if not isinstance(args, list | tuple):
        raise ArgumentsDoNotFit(f"{args!r:.100}: give the arguments as a tuple, ({args!r:.100},)")
    return tuple(args)


def _one_or_many(given: Any) -> Iterable[Any]:
    return given if isinstance(given, list | tuple) else (given,)


def _over(options: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """These options over those; one moment to start takes the place of the other."""
    if any(name in options for name in STARTS):
        below = {name: value for name, value in below.items() if name not in STARTS}
    return {**below, **options}


def _with_options(task: Task[Any, Any], options: dict[str, Any], hooks: tuple[Hook, ...]) -> Task[Any, Any]:
    changed = task.options(**options) if options else task
    return changed.options(on_failure=(*(changed.defaults.on_failure or ()), *hooks)) if hooks else changed
