"""Eager: an enqueue runs its task at once, in this process and without a database.

Arguments and results go through the codec, outcomes through the same decisions as in a worker; a retry follows at
once. What needs rows in Postgres (leases, races, the transaction of an enqueue) is not shown.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from ..callers import run_sync
from ..client import Client, default_from
from ..errors import BadTask, DuplicateTask, Fail, TaskFailed, WrongContext
from ..flow.dedupe import Key
from ..flow.enqueue import NewTask, Spec
from ..outcome import Error
from ..portal import portal_loop
from ..postgres import Database
from ..settings import Settings
from ..status import Status
from ..tasks import Task, registry
from ..transaction import close_engines
from ..waiting import Waiting
from .records import Record
from .seen import SeenTask, entrypoint_named, require_enqueued, require_not_enqueued
from .servers import in_thread
from .steps import Attempts, loop_runs_here, needs_loop

T = TypeVar("T")

DEPTH_LIMIT = 100
_depth: ContextVar[int] = ContextVar("aaiclick_queue_eager_depth", default=0)


class NoEnd(Fail):
    """Tasks that enqueue each other without end; no task on the way tries it again."""

    def __init__(self, entrypoint: str) -> None:
        super().__init__(
            f"{entrypoint} is the {DEPTH_LIMIT}th task inside each other: one that enqueues itself has no end in line, "
            "use the fixture `queue` and run_one()"
        )


class Eager:
    """What ran in line in one block."""

    def __init__(self, client: EagerClient) -> None:
        self._client = client

    def tasks(
        self, entrypoint: Task[Any, Any] | str | None = None, *, status: Status | str | None = None
    ) -> list[SeenTask]:
        """The tasks that were enqueued, in their order, all or those of one entrypoint or status."""
        name = entrypoint_named(entrypoint)
        seen = [record.seen() for record in self._client.records.values()]
        return [
            task
            for task in seen
            if (name is None or task.entrypoint == name) and (status is None or task.status == Status(status))
        ]

    def assert_enqueued(self, task: Task[Any, Any] | str, /, **kwargs: Any) -> list[SeenTask]:
        """The calls of the task that had these arguments; if there is none, shows what was enqueued instead."""
        return require_enqueued(self.tasks(), task, kwargs)

    def assert_not_enqueued(self, task: Task[Any, Any] | str, /, **kwargs: Any) -> None:
        """That no call of the task had these arguments."""
        require_not_enqueued(self.tasks(), task, kwargs)


@contextmanager
def eager(
    *, raising: bool = False, database: str | None = None, resources: Mapping[Any, Any] | None = None
) -> Iterator[Eager]:
    """Run every task of this block in line when it is enqueued.

    Errors are raised by `result()`, with `raising` by the enqueue itself. `database` is a Postgres URL for
    `current().transaction()`, which is refused without one; `resources` are values by type instead of those declared.
    """
    client = EagerClient(Settings.load(), raising=raising, database=database, resources=resources)
    try:
        with default_from(client):
            yield Eager(client)
    finally:
        if database is not None:
            in_thread(close_engines)  # those of `def` tasks; async ones were closed with their run


class EagerWaiting(Waiting):
    """Whoever waits for a task in line has it already."""

    def __init__(self, client: EagerClient) -> None:
        super().__init__(client.database)
        self._client = client

    async def finished(self, task_id: int, *, once: bool = False) -> Any:  # noqa: ARG002 - there is no second look
        """The final row of the task."""
        if (row := self._client.known(task_id)) is None:
            raise WrongContext(f"task {task_id} has not ended in this block: eager knows only what ran inside it")
        return row


class EagerClient(Client):
    """A client that runs what it is given instead of writing it."""

    def __init__(
        self, settings: Settings, *, raising: bool, database: str | None, resources: Mapping[Any, Any] | None
    ) -> None:
        super().__init__(settings)
        self.resources = resources
        self.waiting = EagerWaiting(self)
        self.records: dict[int, Record] = {}
        self.database_given = database
        self._raising = raising
        self._numbers = itertools.count(1)
        self._keys: dict[tuple[str, str], tuple[int, float | None]] = {}
        self._children: dict[tuple[int, str], int] = {}

    async def database(self) -> Database:
        """There is none."""
        raise WrongContext("eager runs tasks without a database: use the fixture `queue` for what asks the database")

    def lives_on(self, loop: asyncio.AbstractEventLoop) -> bool:  # noqa: ARG002
        """On any: it has no connections."""
        return True

    async def cancel(self, ids: Sequence[int]) -> set[int]:  # noqa: ARG002
        """Nothing: whatever was enqueued has ended."""
        return set()

    def known(self, task_id: int) -> Mapping[str, Any] | None:
        """The final row of a task that ran here."""
        record = self.records.get(task_id)
        return record.row() if record is not None and record.status.is_final else None

    def write_blocking(
        self, spec: Spec, tasks: Sequence[NewTask], *, key: Key | None, connection: Any, wait: bool = False
    ) -> list[int]:
        """As `write`, for synchronous code: a `def` task runs in the caller's own thread."""

        async def write() -> list[int]:
            return await self.write(spec, tasks, key=key, connection=connection, wait=wait)

        definition = registry.get(spec.entrypoint)
        return _blocking(write, needs_loop=definition is not None and needs_loop(definition))

    async def _write(
        self,
        spec: Spec,
        tasks: Sequence[NewTask],
        key: Key | None,
        _connection: Any,
        *,
        wait: bool,  # noqa: ARG002 - there is always room
    ) -> list[int]:
        records = [self.record(spec, task, key) for task in tasks]
        for record in records:
            if record.runs == 0:
                await self.run(record)
        return [record.id for record in records]

    def record(self, spec: Spec, task: NewTask, key: Key | None = None) -> Record:
        """A new task, or the one that holds its key."""
        if spec.entrypoint not in registry:
            raise BadTask(
                f"no task is registered as {spec.entrypoint!r}: import the module that defines it, eager runs it here"
            )
        if key is not None and (holder := self._holder(spec.entrypoint, key)) is not None:
            return self.records[holder]
        child = (spec.parent_id or 0, task.spawn_key or "")
        if task.spawn_key is not None and child in self._children:
            return self.records[self._children[child]]
        record = Record(next(self._numbers), spec, task)
        self.records[record.id] = record
        if task.spawn_key is not None:
            self._children[child] = record.id
        if key is not None:
            until = None if key.for_seconds is None else time.monotonic() + key.for_seconds
            self._keys[spec.entrypoint, key.key] = (record.id, until)
        return record

    def forget(self, record: Record) -> None:
        """Its transaction was rolled back: it never was."""
        del self.records[record.id]
        self._children = {child: task_id for child, task_id in self._children.items() if task_id != record.id}

    async def run(self, record: Record) -> None:
        """Run a task to its end: a `def` task in this thread if no loop runs here, else in another as in a worker."""
        attempts = Attempts(self, record)

        async def to_the_end() -> None:
            await self._to_the_end(attempts)

        with_loop = needs_loop(attempts.definition)
        if not loop_runs_here():
            if not with_loop and self.database_given is None:
                await to_the_end()
            else:
                _in_thread(to_the_end, needs_loop=with_loop).result()
        elif with_loop and asyncio.get_running_loop() is not portal_loop():
            await to_the_end()
        else:  # the portal's loop is where what the task enqueues by `delay` has to get through
            await asyncio.wrap_future(_in_thread(to_the_end, needs_loop=with_loop))

    async def _to_the_end(self, attempts: Attempts) -> None:
        record = attempts.record
        depth = _depth.get()
        if depth >= DEPTH_LIMIT:
            record.ended(Status.FAILED, error=Error.of(NoEnd(record.spec.entrypoint)))
            raise NoEnd(record.spec.entrypoint)
        reset = _depth.set(depth + 1)
        try:
            await attempts.run()
        finally:
            _depth.reset(reset)
        if self._raising and record.status is Status.FAILED:
            raise attempts.raised or _failure(record)

    def _holder(self, entrypoint: str, key: Key) -> int | None:
        holder, until = self._keys.get((entrypoint, key.key), (0, None))
        if not holder or (until is not None and until <= time.monotonic()):
            return None
        if until is None and self.records[holder].status.is_final:
            return None
        if key.mode == "raise":
            raise DuplicateTask(key.key, holder)
        return holder if key.mode == "skip" else None


def _blocking(work: Callable[[], Coroutine[Any, Any, T]], *, needs_loop: bool) -> T:
    """The result of the work, waited for here: in this thread, unless a loop runs in it."""
    if loop_runs_here():
        return _in_thread(work, needs_loop=needs_loop).result()
    return asyncio.run(work()) if needs_loop else run_sync(work())


def _in_thread(work: Callable[[], Coroutine[Any, Any, T]], *, needs_loop: bool) -> Future[T]:
    """The work in a thread of its own, with this one's context: tasks inside each other would use up a pool."""
    future: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(asyncio.run, work()) if needs_loop else context.run(run_sync, work()))
        except BaseException as error:  # handed over to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name="aaiclick-queue eager", daemon=True).start()
    return future


def _failure(record: Record) -> TaskFailed:
    error = record.error
    assert error is not None
    return TaskFailed(
        f"task {record.id} failed in attempt {record.attempt}: {error.type}: {error.message}",
        task_id=record.id,
        error_type=error.type,
        error_message=error.message,
        traceback=error.traceback,
        attempts=record.attempt,
    )
