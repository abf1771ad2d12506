"""Middleware: code around every enqueue and every execution. First installed is outermost.

`client` and `context` call `enqueue_through`, `slots` calls `execute_through`; without middleware neither is called.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from .codec import decode_json, encode_json
from .errors import BadTask
from .flow.enqueue import NewTask, Spec
from .flow.execute import Run
from .outcome import Outcome
from .spec import Options

log = logging.getLogger("aaiclick_queue.middleware")

T = TypeVar("T")
Proceed = Callable[[], Awaitable[T]]
Part = Literal["whole", "worker", "child"]

HEADERS = "$headers"  # where headers travel in a task's metadata
OF_ALL = frozenset({"queue", "priority", "name", "max_attempts", "timeout"})
OF_EACH = frozenset({"countdown", "eta", "expires", "correlation_id"})
LOG_SECONDS = 60.0


class Enqueuing:
    """One call that enqueues tasks of one kind, before it is written; `headers` and `metadata` may be changed."""

    __slots__ = ("_metadata", "dedupe_key", "headers", "in_callers_transaction", "spec", "tasks")

    def __init__(
        self, spec: Spec, tasks: Sequence[NewTask], *, dedupe_key: str | None = None, connection: Any = None
    ) -> None:
        self.spec = spec
        self.tasks = tasks
        self.dedupe_key = dedupe_key
        self.in_callers_transaction = connection is not None
        self.headers: dict[str, str] = {}
        self._metadata: dict[str, Any] | None = None

    @property
    def entrypoint(self) -> str:
        """Which task."""
        return self.spec.entrypoint

    @property
    def queue(self) -> str:
        """Where it goes; `change(queue=…)` sends it elsewhere."""
        return self.spec.queue

    @property
    def priority(self) -> int:
        """Its priority."""
        return self.spec.priority

    @property
    def parent_id(self) -> int | None:
        """The task whose run enqueues this one by `current().enqueue`."""
        return self.spec.parent_id

    @property
    def count(self) -> int:
        """How many: one, or the rows of `enqueue_many`."""
        return len(self.tasks)

    @property
    def kwargs(self) -> list[str]:
        """The arguments of each, as JSON text."""
        return [task.kwargs for task in self.tasks]

    @property
    def correlation_id(self) -> str | None:
        """What ties tasks together that belong together."""
        return self.tasks[0].correlation_id

    @property
    def metadata(self) -> dict[str, Any]:
        """What is kept with each of them: the metadata of their options, to be added to."""
        if self._metadata is None:
            self._metadata = decode_json(self.tasks[0].metadata) or {}
        return self._metadata

    def change(self, **options: Any) -> None:
        """Other options for this call: queue, priority, name, max_attempts, timeout, countdown, eta, expires, …"""
        if unknown := set(options) - OF_ALL - OF_EACH:
            raise BadTask(f"change({', '.join(sorted(unknown))}): known are {', '.join(sorted(OF_ALL | OF_EACH))}")
        given = Options.given(options)
        for_all = {name: getattr(given, name) for name in OF_ALL & set(options)}
        for_each = {name: getattr(given, name) for name in OF_EACH & set(options)}
        if "countdown" in for_each or "eta" in for_each:
            for_each = {"countdown": None, "eta": None} | for_each
        self.spec = msgspec.structs.replace(self.spec, **for_all)
        self.tasks = [msgspec.structs.replace(task, **for_each) for task in self.tasks] if for_each else self.tasks

    def sealed(self) -> Sequence[NewTask]:
        """The tasks with headers and metadata written into them."""
        if not self.headers and self._metadata is None:
            return self.tasks
        metadata = self.metadata | ({HEADERS: self.headers} if self.headers else {})
        text = encode_json(metadata) if metadata else None
        return [msgspec.structs.replace(task, metadata=text) for task in self.tasks]


class Running:
    """One run of a task, before and after it is executed."""

    __slots__ = ("_run", "error")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.error: Exception | None = None  # what the task raised, once it has; not known of a task in a process

    @property
    def task_id(self) -> int:
        """The task's id."""
        return self._run.claimed.task_id

    @property
    def entrypoint(self) -> str:
        """Which task."""
        return self._run.claimed.entrypoint

    @property
    def name(self) -> str | None:
        """The name that it was given, if any."""
        return self._run.claimed.name

    @property
    def queue(self) -> str:
        """Where it came from."""
        return self._run.claimed.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._run.claimed.attempt

    @property
    def max_attempts(self) -> int:
        """How many there can be."""
        return self._run.max_attempts

    @property
    def job_id(self) -> int | None:
        """The job that it belongs to."""
        return self._run.claimed.job_id

    @property
    def group_id(self) -> int | None:
        """The group of its job that it belongs to."""
        return self._run.claimed.group_id

    @property
    def run_epoch(self) -> int:
        """Which run this is, snoozed, lost and released ones included."""
        return self._run.claimed.run_epoch

    @property
    def worker_id(self) -> int:
        """The worker that runs it."""
        return self._run.worker_id

    @property
    def correlation_id(self) -> str | None:
        """What ties tasks together that belong together."""
        return self._run.claimed.correlation_id

    @property
    def waited(self) -> float:
        """Seconds in line, from ready to claimed."""
        return max(0.0, self._run.claimed.waited)  # the claiming transaction may have begun before the enqueuing one

    @property
    def age(self) -> float:
        """Seconds since it was enqueued, by the clocks of this host and the database."""
        return max(0.0, time.time() - (self.task_id >> 22) / 1000)

    @property
    def kwargs(self) -> str:
        """The arguments as JSON text."""
        return self._run.claimed.kwargs

    @property
    def metadata(self) -> dict[str, Any]:
        """What was kept with it at the enqueue."""
        return metadata_of(self._run.claimed.metadata)

    @property
    def headers(self) -> dict[str, str]:
        """What middleware sent along at the enqueue."""
        return headers_of(self._run.claimed.metadata)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts in its arguments that may stand in nothing that others read."""
        return self._run.secrets


class Middleware:
    """Code around enqueue and execute: override one or both. It is shared by all runs of a process."""

    in_child: ClassVar[bool] = False  # a run in a process of its own: executed around there, not in the worker

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:  # noqa: ARG002 - for those that override it
        """Around the writing of tasks; `proceed()` writes them and gives their ids. Raise to refuse."""
        return await proceed()

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:  # noqa: ARG002
        """Around the execution of a run; `proceed()` executes it and gives what it came to, and raises nothing."""
        return await proceed()

    def submitting(self, name: str, headers: dict[str, str]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Around the writing of a whole job, outside the calls of `enqueue`; `headers` are kept with the job."""
        return nullcontext()


# Of this process: what modules have declared with `use`, and how often each has raised where it must not.
installed: list[Middleware] = []
failures: Counter[str] = Counter()
_logged: dict[str, float] = {}

# A worker says here what it was given, so that what its tasks enqueue goes through it too.
middleware_here: ContextVar[Sequence[Middleware]] = ContextVar("aaiclick_queue_middleware", default=())


def use(*middleware: Middleware) -> None:
    """Install middleware for every client and worker of this process, around those given to them."""
    checked(middleware)
    installed.extend(one for one in middleware if one not in installed)


def checked(given: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The same, once all are instances of Middleware."""
    for one in given:
        if isinstance(one, type):
            raise BadTask(f"middleware {one.__name__} is a class: give an instance, {one.__name__}()")
        if not isinstance(one, Middleware):
            raise BadTask(f"{one!r} is no middleware: derive its class from aaiclick_queue.Middleware")
    return tuple(given)


def checked_for_worker(given: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """The same, once a worker can have all of them to itself: its children know only what modules install."""
    for one in checked(given):
        if one.in_child:
            name = type(one).__qualname__
            raise BadTask(
                f"middleware {name} belongs into child processes (in_child), which do not know what a worker is given: "
                f"install it with use({name}()) in a module with tasks"
            )
    return tuple(given)


def around_enqueue(own: Sequence[Middleware]) -> list[Middleware]:
    """Those that have something to do around an enqueue, outermost first."""
    return [one for one in (*installed, *own) if _overrides(one, "enqueue")]


def around_execute(own: Sequence[Middleware], part: Part = "whole") -> list[Middleware]:
    """Those that have something to do around an execution, outermost first.

    Of a run in a process of its own the worker sees one part and the child the other.
    """
    both = [one for one in (*installed, *own) if _overrides(one, "execute")]
    return both if part == "whole" else [one for one in both if one.in_child is (part == "child")]


def _overrides(one: Middleware, method: str) -> bool:
    return getattr(type(one), method) is not getattr(Middleware, method)


def metadata_of(text: str | None) -> dict[str, Any]:
    """A task's metadata without what is ours."""
    found = decode_json(text)
    return {name: value for name, value in found.items() if name != HEADERS} if isinstance(found, Mapping) else {}


def headers_of(text: str | None) -> dict[str, str]:
    """The headers in a task's metadata; what is no text, as SQL may have written it, is left out."""
    found = decode_json(text)
    headers = found.get(HEADERS) if isinstance(found, Mapping) else None
    if not isinstance(headers, Mapping):
        return {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def report_failure(middleware: Middleware, error: BaseException) -> None:
    """Log and count an error that changes nothing any more; one line a minute and class."""
    name = type(middleware).__qualname__
    failures[name] += 1
    now = time.monotonic()
    if now - _logged.get(name, -LOG_SECONDS) >= LOG_SECONDS:
        _logged[name] = now
        log.error(
            "middleware %s raised after its task was written or had run, which stands (%d times so far)",
            name,
            failures[name],
            exc_info=error,
        )
