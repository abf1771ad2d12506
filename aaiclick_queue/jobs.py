"""Jobs: the decorator, and the ways to write one. Its body builds the nodes, here or on a worker.

`enqueue` runs the body where it is called and writes job, groups, tasks and dependencies in one transaction.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from .building import Building, Frame, frame_here
from .callers import run_sync
from .client import Client, default_client
from .codec import Signature, encode_json
from .errors import ArgumentsDoNotFit, BadJob, WrongContext
from .flow.dedupe import Key
from .flow.graph import Plan
from .flow.submit import NewJob, Submitted
from .handles import blocking_client, check_blocking
from .job_handles import JobHandle
from .job_options import JobOptions
from .limits import whoami
from .nodes import Group
from .portal import submit
from .schedule_options import SCHEDULE_ONLY, ScheduleOptions
from .settings import Settings
from .spec import Options
from .tasks import Task, entrypoint_of, register

P = ParamSpec("P")
R = TypeVar("R")

known_jobs: dict[str, list[Job[Any, Any]]] = {}  # by name: only what imported modules have put here


class Job(Generic[P, R]):
    """A function that builds the nodes of a job. Called in the body of another one it is a group of that."""

    def __init__(
        self,
        function: Callable[..., Any],
        entrypoint: str,
        options: JobOptions,
        schedule: ScheduleOptions | None = None,
    ) -> None:
        self.function = function
        self.entrypoint = entrypoint
        self.defaults = options
        self.schedule = schedule  # as its code declares it: workers write it down when they start
        self.signature = Signature.of(function)
        self.entry: Task[P, R] = Task(
            function, entrypoint, Options(queue=options.queue, priority=options.priority), None
        )
        self._client: Client | None = None
        self._connection: Any = None
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        """What its runs are called."""
        return self.defaults.name or self.entrypoint.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"<job {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In the body of another job: its nodes become a group there; gives what its body returns."""
        frame = frame_here.get()
        if frame is None:
            raise WrongContext(
                f"{self.name}(…) outside of a job builds nothing: await {self.name}.enqueue(…), in synchronous code "
                f"{self.name}.delay(…), or job_test({self.name}, …) to run it here and now"
            )
        group = Group(max_parallel=self.defaults.max_parallel)
        group.name = self.name
        if inspect.iscoroutinefunction(self.function):
            return self._inside(frame, group, args, kwargs)
        with group, _over(self.defaults):
            returned = self.function(*args, **kwargs)
        frame.building.seal(group)
        return returned

    async def _inside(self, frame: Frame, group: Group, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with group, _over(self.defaults):
            returned = await self.function(*args, **kwargs)
        frame.building.seal(group)
        return returned

    def options(self, *, connection: Any = None, client: Client | None = None, **options: Any) -> Job[P, R]:
        """The same job with other options, for one enqueue or for many."""
        other = copy.copy(self)
        other.defaults = JobOptions.given(options).over(self.defaults)
        other._connection = connection if connection is not None else self._connection  # noqa: SLF001 - our copy
        other._client = client or self._client  # noqa: SLF001
        return other

    async def enqueue(self, *args: Any, **kwargs: Any) -> JobHandle[R]:
        """Run the body here and write what it builds; `connection=` and `client=` are ours unless it has such names."""
        connection, client = self._reserved(kwargs)
        client = client or await default_client()
        plan, new = await self._built(args, kwargs, client.settings)
        submitted = await client.submit(new, plan, key=self._key(), connection=connection)
        return self._handle(submitted, client, connection)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue from synchronous code."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> JobHandle[R]:
        """Enqueue from synchronous code with options, in Celery's shape."""
        if options:
            return self.options(**options).apply_async(args, kwargs)
        if not isinstance(args, list | tuple):
            raise ArgumentsDoNotFit(f"apply_async({args!r}): give the arguments as a tuple, ({args!r},), or use delay")
        client, connection = blocking_client(self._client), self._connection
        check_blocking(client, connection, self.name)
        building = self._built(tuple(args), dict(kwargs or {}), client.settings)
        # A body without await runs in this thread: what it reads belongs here.
        plan, new = submit(building) if inspect.iscoroutinefunction(self.function) else run_sync(building)
        write = client.submit(new, plan, key=self._key(), connection=connection)
        submitted = submit(write) if connection is None else run_sync(write)
        return self._handle(submitted, None, connection)

    async def build(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Building, Any]:
        """What the body builds and returns."""
        given = self.defaults
        building = Building(queue=given.queue, priority=given.priority, correlation_id=given.correlation_id)
        with building:
            returned = self.function(*args, **kwargs)
            if inspect.iscoroutine(returned):
                returned = await returned
        return building, returned

    async def _built(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Settings) -> tuple[Plan, NewJob]:
        if self.signature.injects:
            raise BadJob(f"{self.name} takes what only a worker has: start it with run_job({self.name!r}, …)")
        arguments = self.signature.encode(args, kwargs)
        building, returned = await self.build(args, kwargs)
        returns = None if returned is None else building.value(returned, what=f"what {self.name} returns")
        new = new_job(self.name, self.defaults, settings, entrypoint=self.entrypoint, kwargs=arguments)
        new.returns = returns
        return building.finish(settings), new

    def _key(self) -> Key | None:
        return key_of(self.defaults)

    def _handle(self, submitted: Submitted, client: Client | None, connection: Any) -> JobHandle[R]:
        return JobHandle(
            submitted.job_id,
            decode=self.signature.decode_result,
            client=client or self._client,
            in_callers_transaction=connection is not None,
            ids=submitted.ids,
        )

    def _reserved(self, kwargs: dict[str, Any]) -> tuple[Any, Client | None]:
        found: dict[str, Any] = {"connection": self._connection, "client": self._client}
        for name in found:
            if name in kwargs and name not in self.signature.parameters:
                found[name] = kwargs.pop(name)
        return found["connection"], found["client"]


@contextmanager
def _over(given: JobOptions) -> Iterator[None]:
    """What is built inside takes over this job's queue and priority where it names them."""
    frame = frame_here.get()
    assert frame is not None
    queue = given.queue or frame.queue
    priority = frame.priority if given.priority is None else given.priority
    entered = frame_here.set(msgspec.structs.replace(frame, queue=queue, priority=priority))
    try:
        yield
    finally:
        frame_here.reset(entered)


class Decorator(Protocol):
    """What `@job(…)` gives: it makes a job of the function below it."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


@overload
def job(function: Callable[P, Awaitable[R]], /) -> Job[P, R]: ...
@overload
def job(function: Callable[P, R], /) -> Job[P, R]: ...
@overload
def job(name: str | None = None, /, *, entrypoint: str | None = None, **options: Any) -> Decorator: ...
def job(given: Any = None, /, *, entrypoint: str | None = None, **options: Any) -> Any:
    """Make a function the body of a job, bare, with a name or with options; workers that import it can run it too."""
    if isinstance(given, str):
        if "name" in options:
            raise BadJob(f"@job({given!r}, name={options['name']!r}): give one name")
        options["name"], given = given, None
    timed = {name: options.pop(name) for name in [*options] if name in SCHEDULE_ONLY}
    checked = JobOptions.given(options)
    if timed and not {"schedule", "interval"} & timed.keys():
        raise BadJob(f'@job({next(iter(timed))}=…) without a schedule: give schedule="0 8 * * *", or interval=')
    declared = ScheduleOptions.given(timed) if timed else None
    if checked.dedupe_key is not None or checked.correlation_id is not None:
        raise BadJob("dedupe_key and correlation_id belong to one enqueue: give them to .options(…)")

    def decorate(function: Callable[..., Any]) -> Job[Any, Any]:
        if not callable(function):
            raise BadJob(f"@job takes a function, not {function!r}: write @job, @job('name') or @job(queue=…)")
        made: Job[Any, Any] = Job(function, entrypoint or entrypoint_of(function), checked, declared)
        if declared is not None:
            declared.refuse_unknown(made.entrypoint, made.signature.parameters, name=f"@job {made.name}")
        register(made.entrypoint, made.entry)
        others = [one for one in known_jobs.get(made.name, ()) if one.entrypoint != made.entrypoint]
        known_jobs[made.name] = [*others, made]
        return made

    return decorate if given is None else decorate(given)


def known_job(name: str) -> Job[Any, Any] | None:
    """The job of that name or entrypoint, if its module was imported here."""
    if not isinstance(name, str) or not name:
        raise BadJob(f"run_job({name!r}): give the name of a job, or its entrypoint as module.function")
    named = known_jobs.get(name, [])
    if len(named) > 1:
        where = ", ".join(one.entrypoint for one in named)
        raise BadJob(f"{len(named)} jobs are called {name!r}: name the one you mean by its entrypoint, of {where}")
    for one in (*named, *(one for some in known_jobs.values() for one in some if one.entrypoint == name)):
        return one
    return None


def new_job(name: str, given: JobOptions, settings: Settings, *, entrypoint: str | None, kwargs: str) -> NewJob:
    """The job's row."""
    return NewJob(
        name=name,
        kwargs=kwargs,
        entrypoint=entrypoint,
        priority=given.priority or 0,
        max_parallel=given.max_parallel,
        fail_fast=given.fail_fast or False,
        hooks=given.hooks(),
        metadata=encode_json(given.metadata, "metadata") if given.metadata else None,
        correlation_id=given.correlation_id,
        submitted_by=whoami(),
        timeout=given.timeout or settings.job_timeout_seconds,
        retention=given.retention,
    )


def key_of(given: JobOptions) -> Key | None:
    """The dedupe key of one enqueue."""
    if given.dedupe_key is None:
        return None
    return Key(given.dedupe_key, given.dedupe or "raise", given.dedupe_until)
