"""Tasks: the decorator, the registry of what a worker may run, and the ways to enqueue."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from .building import frame_here
from .builtin_calls import BUILTIN
from .client import Client, default_client
from .codec import Signature, encode_json
from .errors import ArgumentsDoNotFit, BadTask, PayloadTooLarge, WrongContext
from .flags import HOOKED, KEEP_FAILED, KEEP_NONE, STOPS
from .flow.dedupe import Key
from .flow.enqueue import NewTask, Spec
from .handles import Handle, blocking_client, check_blocking
from .middleware import HEADERS
from .nodes import Node
from .retry import seconds
from .rows import PART, Rows
from .settings import Settings
from .spec import HOOKS, NO_TEXT, Options, filled_in, hooks_text
from .wiring import node_of

if TYPE_CHECKING:
    from .canvas import Many
    from .fan import Mapped
    from .signatures import Signature as Call

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_QUEUE = "default"
Isolation = Literal["process"]


class Registry(dict[str, "Task[Any, Any]"]):
    """Entrypoint → task. Only what imported modules have put here can run: a row in the database cannot import code.

    The builtin tasks are found and not listed: they come with every worker, and are nobody's reason to start one.
    """

    def __missing__(self, entrypoint: str) -> Task[Any, Any]:
        if entrypoint not in BUILTIN:
            raise KeyError(entrypoint)
        from .builtin import tasks

        return tasks[entrypoint]

    def __contains__(self, entrypoint: object) -> bool:
        return super().__contains__(entrypoint) or entrypoint in BUILTIN

    def get(self, entrypoint: str, default: Any = None, /) -> Task[Any, Any] | None:  # type: ignore[override]
        """The task of that name, or None."""
        return self[entrypoint] if entrypoint in self else default  # noqa: SIM401 - this is it


registry = Registry()


class Task(Generic[P, R]):
    """A function that can be enqueued. Calling it runs it here and now, as if it were not decorated.

    In the body of a job, and in a task of a job, calling it makes a node of that job instead.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        entrypoint: str,
        options: Options,
        heartbeat: float | None,
        isolation: Isolation | None = None,
    ) -> None:
        self.function = function
        self.entrypoint = entrypoint
        self.signature = Signature.of(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.heartbeat_timeout = heartbeat
        self.isolation = isolation
        self._learn(options)
        self._client: Client | None = None
        self._connection: Any = None
        self.is_here = function is not _by_name
        self.is_node_named = False  # by `.options(name=…)`: the name of one node, and not of all of this task's
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now; where a job is built, make a node of it."""
        if frame_here.get() is None:
            return self.function(*args, **kwargs)
        return node_of(self, args, kwargs)

    def node(self, *args: Any, **kwargs: Any) -> Node:
        """This call as a node of the job that is built here, or of none yet, to be given to `apply`."""
        return node_of(self, args, kwargs)

    @property
    def kind(self) -> Literal["async", "thread", "process"]:
        """Where a worker runs it."""
        return self.isolation or ("async" if self.is_async else "thread")

    def __repr__(self) -> str:
        return f"<task {self.entrypoint}>"

    def options(self, *, connection: Any = None, client: Client | None = None, **options: Any) -> Task[P, R]:
        """The same task with other options, for one enqueue or for many."""
        given = _for_one_enqueue(options, below=self.defaults)
        other = copy.copy(self)
        merged = given.over(self.defaults)
        if given.countdown is not None or given.eta is not None:
            merged = msgspec.structs.replace(merged, countdown=given.countdown, eta=given.eta)
        other._learn(merged)  # noqa: SLF001 - our copy
        other._connection = connection if connection is not None else self._connection  # noqa: SLF001
        other._client = client or self._client  # noqa: SLF001
        other.is_node_named = self.is_node_named or given.name is not None
        return other

    async def enqueue(self, *args: Any, **kwargs: Any) -> Handle[R]:
        """Enqueue one call. `connection=` and `client=` are ours unless the function has such a parameter."""
        connection, client = self._reserved(kwargs)
        client = client or await default_client()
        task, key = self._new_task(self.signature.encode(args, kwargs), client.settings)
        spec = self._spec(client.settings)
        [task_id] = await client.write(spec, [task], key=key, connection=connection, wait=self._waits(connection))
        return self._handle(task_id, client, connection)

    async def enqueue_many(
        self, rows: Iterable[Mapping[str, Any]], *, connection: Any = None, client: Client | None = None
    ) -> list[int]:
        """Enqueue many calls, each a mapping of keyword arguments, in one transaction; gives ids in order."""
        client = client or self._client or await default_client()
        connection = connection if connection is not None else self._connection
        tasks = self._new_tasks(list(rows), client.settings)
        if not tasks:
            return []
        # All of them before anything is written in a transaction that is not ours.
        tasks.make(PART if connection is None else len(tasks))
        wait = self._waits(connection)
        return await client.write(self._spec(client.settings), tasks, connection=connection, wait=wait)

    def map(self, items: Any, /, *, max_parallel: int | None = None, **constant: Any) -> Mapped:
        """In a job: one node for each of the items, a list or what another node gives; the rest is the same for all."""
        from .fan import map as map_over

        return map_over(self, items, max_parallel=max_parallel, **constant)

    def s(self, *args: Any, **kwargs: Any) -> Call:
        """A call that has not happened, for chains, groups and callbacks; more arguments come before these."""
        from .signatures import Signature as Call

        return Call(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Call:
        """The same with these arguments alone, whatever comes before it."""
        from .signatures import Signature as Call

        return Call(self, args, kwargs, immutable=True)

    def starmap(self, items: Any = None) -> Call:
        """One task that runs the function for each tuple of arguments; its result is the list of theirs."""
        from .canvas import starmap

        return starmap(self, items)

    def chunks(self, items: Iterable[Any], size: int) -> Many:
        """A group of tasks that each run the function for `size` tuples of arguments; the result is a list of lists."""
        from .canvas import chunks

        return chunks(self, items, size)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue from synchronous code."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Handle[R]:
        """Enqueue from synchronous code with options, by Celery's name and in Celery's shape."""
        if "link" in options or "link_error" in options:
            return cast("Handle[R]", self.s(*args, **kwargs or {}).apply_async(**options))
        if options:
            return self.options(**options).apply_async(args, kwargs)
        if not isinstance(args, list | tuple):
            raise ArgumentsDoNotFit(f"apply_async({args!r}): give the arguments as a tuple, ({args!r},), or use delay")
        client = blocking_client(self._client)
        task, key = self._new_task(self.signature.encode(tuple(args), kwargs or {}), client.settings)
        connection = self._connection
        check_blocking(client, connection, self.function.__name__)
        spec, wait = self._spec(client.settings), self._waits(connection)
        [task_id] = client.write_blocking(spec, [task], key=key, connection=connection, wait=wait)
        return self._handle(task_id, None, connection)

    def prepare(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Settings
    ) -> tuple[Spec, NewTask, Key | None]:
        """What one call would write, for a run that writes its children itself."""
        task, key = self._new_task(self.signature.encode(args, kwargs), settings)
        return self._spec(settings), task, key

    def _learn(self, defaults: Options) -> None:
        self.defaults = defaults
        self.node_name = defaults.name or self.entrypoint.rpartition(".")[2]
        self.has_templates = any("{" in (key or "") for key in (defaults.concurrency_key, defaults.order_by))
        self._specs: dict[int | None, Spec] = {}  # by the attempts that settings name

    def node_spec(self, settings: Settings | None, *, queue: str | None, priority: int | None) -> Spec:
        """What its nodes share: its own options, over those of the job. Without settings its worker's decide."""
        given = self.defaults
        return msgspec.structs.replace(
            self._spec(settings),
            name=None,
            queue=given.queue or queue or DEFAULT_QUEUE,
            priority=priority or 0 if given.priority is None else given.priority,
            keep=None,
        )

    def new_task(self, payload: str) -> NewTask:
        """What is written of one call, without its dedupe key; without a payload its templates are not filled in."""
        given = self.defaults
        if given.metadata and HEADERS in given.metadata:
            raise BadTask(f"metadata={{{HEADERS!r}: …}}: that name is kept for the headers of middleware: take another")
        keys = {"concurrency_key": given.concurrency_key, "order_by": given.order_by}
        if payload and self.has_templates:
            keys = {option: filled_in(option, key, payload, self.entrypoint) for option, key in keys.items()}
        return NewTask(
            payload,
            countdown=given.countdown,
            eta=given.eta,
            expires=given.expires,
            correlation_id=given.correlation_id,
            metadata=encode_json(given.metadata, "metadata") if given.metadata else None,
            **keys,
        )

    def refuse_templates_of(self, parameters: Iterable[str]) -> None:
        """Raise where a key is to be filled in from arguments that are not known yet."""
        if not self.has_templates:
            return
        for option in ("concurrency_key", "order_by"):
            template = getattr(self.defaults, option) or ""
            if named := _fields(template) & set(parameters):
                raise BadTask(
                    f"{option}={template!r} of {self.entrypoint} names {min(named)!r}, which is the result of "
                    f"another task here and not known yet: give .options({option}=…) for this node"
                )

    def _waits(self, connection: Any) -> bool:
        waits = self.defaults.on_full == "wait"
        if waits and connection is not None:
            raise WrongContext(
                "on_full='wait' inside your transaction would keep it open while the queue is full: "
                "enqueue without connection=, or catch QueueFull"
            )
        return waits

    def _reserved(self, kwargs: dict[str, Any]) -> tuple[Any, Client | None]:
        found: dict[str, Any] = {"connection": self._connection, "client": self._client}
        for name in found:
            if name in kwargs and name not in self.signature.parameters:
                found[name] = kwargs.pop(name)
        return found["connection"], found["client"]

    def _spec(self, settings: Settings | None) -> Spec:
        # Of a task by name its worker knows the number.
        attempts = settings.max_attempts if settings and self.is_here else None
        if attempts not in self._specs:
            self._specs[attempts] = self._made_spec(attempts)
        return self._specs[attempts]

    def _made_spec(self, max_attempts: int | None) -> Spec:
        given = self.defaults
        return Spec(
            entrypoint=self.entrypoint,
            queue=given.queue or DEFAULT_QUEUE,
            priority=given.priority or 0,
            name=given.name,
            max_attempts=given.max_attempts or max_attempts,
            retry=given.retry.text() if given.retry else None,
            timeout=given.timeout,
            flags=_flags(given),
            keep=None if given.keep == "all" else given.keep,
            hooks=_hooks(given),
        )

    def _new_task(self, payload: str, settings: Settings) -> tuple[NewTask, Key | None]:
        given = self.defaults
        _check_size(payload, settings, self.entrypoint)
        task = self.new_task(payload)
        if given.dedupe_key is None:
            return task, None
        mode = given.dedupe or "raise"
        if mode == "debounce" and given.countdown is None:
            raise BadTask("dedupe='debounce' needs countdown=: the quiet time after which the task runs")
        return task, Key(given.dedupe_key, mode, given.dedupe_until, given.debounce_max)

    def _new_tasks(self, rows: Sequence[Mapping[str, Any]], settings: Settings) -> Rows:
        if self.defaults.dedupe_key is not None:
            raise BadTask(
                "enqueue_many with one dedupe_key for all of them: enqueue them one by one with keys of their own"
            )
        if self.has_templates:

            def made_one_by_one(some: Sequence[Mapping[str, Any]], first: int) -> list[NewTask]:
                return [self._new_task(payload, settings)[0] for payload in self.signature.encode_many(some, first)]

            return Rows(rows, made_one_by_one)
        template, _ = self._new_task("{}", settings)
        same = msgspec.structs.astuple(template)[1:]  # a copy of the template for each would take four times as long

        def made(some: Sequence[Mapping[str, Any]], first: int) -> list[NewTask]:
            payloads = self.signature.encode_many(some, first)
            if max(map(len, payloads), default=0) * 4 > settings.payload_max_bytes:
                for payload in payloads:
                    _check_size(payload, settings, self.entrypoint)
            return [NewTask(payload, *same) for payload in payloads]

        return Rows(rows, made)

    def _handle(self, task_id: int, client: Client | None, connection: Any) -> Handle[R]:
        return Handle(
            task_id,
            decode=self.signature.decode_result,
            client=client or self._client,
            in_callers_transaction=connection is not None,
        )


class Decorator(Protocol):
    """What `@task(…)` gives: it makes a task of the function below it."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    entrypoint: str | None = None,
    aliases: Sequence[str] = (),
    heartbeat_timeout: float | None = None,
    isolation: Isolation | None = None,
    **options: Any,
) -> Decorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    entrypoint: str | None = None,
    aliases: Sequence[str] = (),
    heartbeat_timeout: float | None = None,
    isolation: Isolation | None = None,
    **options: Any,
) -> Any:
    """Make a function a task, bare or with options; it is registered under `module.function`."""
    given = Options.given(options)
    if given.dedupe_key is not None or given.eta is not None:
        raise BadTask("dedupe_key and eta belong to one enqueue: give them to .options(…)")
    _check_isolation(isolation)
    silence = None if heartbeat_timeout is None else seconds("heartbeat_timeout", heartbeat_timeout, least=0.05)

    def decorate(function: Callable[..., Any]) -> Task[Any, Any]:
        if not callable(function):
            raise BadTask(f"@task takes a function, not {function!r}: write @task or @task(queue=…)")
        made: Task[Any, Any] = Task(function, entrypoint or entrypoint_of(function), given, silence, isolation)
        _check_templates(made)
        for name in (made.entrypoint, *aliases):
            register(name, made)
        return made

    return decorate if function is None else decorate(function)


def _check_templates(made: Task[Any, Any]) -> None:
    """Refuse a key that no call could fill in, where it is written and not at the first enqueue."""
    for option in ("concurrency_key", "order_by"):
        template = getattr(made.defaults, option)
        if template is None or "{" not in template:
            continue
        known = inspect.signature(made.function).parameters
        try:
            fields = _fields(template)
        except ValueError as error:
            raise BadTask(
                f"{option}={template!r} cannot be filled in ({error}): write it as tenant-{{tenant}}"
            ) from None
        for name in sorted(fields):
            if name not in known:
                what = f"{option}={template!r} cannot be filled in, {made.entrypoint} has no parameter {name!r}"
                raise BadTask(f"{what}: name one that it has, as tenant-{{tenant}}")


def _fields(template: str) -> set[str]:
    """The parameters that a template names."""
    return {re.split(r"[.\[]", field)[0] for _, field, _, _ in Formatter().parse(template) if field is not None}


def entrypoint_of(function: Callable[..., Any]) -> str:
    """`module.function`; for a script the name under which a worker would import it."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}.{function.__qualname__}"


async def enqueue(
    entrypoint: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    connection: Any = None,
    client: Client | None = None,
    **options: Any,
) -> Handle[Any]:
    """Enqueue by name, without importing the function; the worker checks the arguments."""
    client = client or await default_client()
    named = by_name(entrypoint, **options)
    task, key = named._new_task(encode_json(dict(kwargs or {})), client.settings)  # noqa: SLF001 - the same module
    spec = named._spec(client.settings)  # noqa: SLF001
    wait = named._waits(connection)  # noqa: SLF001
    [task_id] = await client.write(spec, [task], key=key, connection=connection, wait=wait)
    return Handle(task_id, client=client, in_callers_transaction=connection is not None)


def by_name(entrypoint: str, **options: Any) -> Task[..., Any]:
    """A task whose function is known to the workers only."""
    if not isinstance(entrypoint, str) or not entrypoint or not NO_TEXT.isdisjoint(entrypoint):
        raise BadTask(f"entrypoint {entrypoint!r}: name the task as module.function")
    given = _for_one_enqueue(options)
    if given.on_give_up is not None and given.max_attempts is None:
        raise BadTask("on_give_up of a task by name needs max_attempts: its own number is known to its worker alone")
    return Task(_by_name, entrypoint, given, None)


def _check_isolation(given: object) -> None:
    if given not in (None, "process"):
        raise BadTask(
            f"isolation={given!r}: give 'process' for a child process of its own, or leave it away "
            "(`async def` then runs on the worker's event loop, `def` in one of its threads)"
        )


def _for_one_enqueue(options: Mapping[str, Any], *, below: Options | None = None) -> Options:
    given = Options.given(options, below=below)
    if given.retry_on is not None or given.give_up_on is not None:
        raise BadTask(
            "retry_on and give_up_on are read from the code that runs, not from the row: give them to @task(…)"
        )
    return given


def _flags(given: Options) -> int:
    flags = STOPS if given.order_on_failure == "stop" else 0
    flags |= HOOKED if _hooks(given) else 0
    return flags | {"none": KEEP_NONE, "failed": KEEP_FAILED}.get(given.keep or "all", 0)


def _hooks(given: Options) -> str | None:
    return hooks_text({name: getattr(given, f"on_{name}") for name in HOOKS})


def _by_name() -> None:
    """Stands for a function that is known to the workers only."""


def register(name: str, made: Task[Any, Any]) -> None:
    """Let workers of this process run it under that name."""
    known = registry.get(name)
    if known is not None and not _same_source(known.function, made.function):
        raise BadTask(
            f"two tasks are called {name!r} ({_where(known.function)} and {_where(made.function)}): "
            "give one of them entrypoint='…'"
        )
    registry[name] = made


def _same_source(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    # A module that is imported twice (as a script and by its name, or reloaded) is no second task.
    return _where(one)[0] == _where(other)[0] and one.__qualname__ == other.__qualname__


def _where(function: Callable[..., Any]) -> tuple[str, int]:
    code = inspect.unwrap(function).__code__
    return str(Path(code.co_filename).absolute()), code.co_firstlineno


def _check_size(payload: str, settings: Settings, entrypoint: str) -> None:
    limit = settings.payload_max_bytes
    if len(payload) > limit or (len(payload) * 4 > limit and len(payload.encode()) > limit):
        raise PayloadTooLarge(
            f"the arguments of {entrypoint} take {len(payload.encode()):,} bytes, the limit is {limit:,}: "
            "store the data elsewhere and pass a reference, or raise AAICLICK_QUEUE_PAYLOAD_MAX_BYTES"
        )
