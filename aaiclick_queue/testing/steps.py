"""The attempts of one task in line, and what `current()` is inside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal, TypeVar, assert_never, cast

from ..around import Call, execute_through
from ..callers import run_sync
from ..codec import decode_json, encode_json
from ..context import Current, Services, SyncCurrent, enter, how_far, where
from ..each import definition_of
from ..errors import QueueError, WrongContext
from ..flow.enqueue import NewTask, Spec, TakeIds
from ..flow.execute import Run, Stop, call_plainly, encoded_result, execute, timed_out
from ..flow.graph import PlannedTask
from ..growing import Adds, TaskResult, added_alone
from ..lifespan import Lifespan
from ..middleware import around_execute
from ..outcome import Cancelled, Failed, Later, Lost, Outcome, Released, Skipped, Succeeded
from ..status import Status
from ..tasks import Task, registry
from ..transaction import TaskTransaction, close_engines
from .records import Record

if TYPE_CHECKING:
    from .inline import EagerClient

T = TypeVar("T")


class Attempts:
    """Runs one task until it is final."""

    def __init__(self, client: EagerClient, record: Record) -> None:
        self.client = client
        self.record = record
        self.definition = definition_of(registry[record.spec.entrypoint], record.task.kwargs)
        self.raised: Exception | None = None

    async def run(self) -> None:
        """One attempt after the other, without the waits in between."""
        while not self.record.status.is_final:
            run = Run(self.record.claimed(), self.definition, self.client.settings, 0)
            context = EagerCurrent(run, EagerServices(self.client), self)
            run.context = context
            self.raised = None
            self._added: list[PlannedTask] = []
            try:
                outcome = await (self._on_loop(run) if needs_loop(self.definition) else self._plainly(run))
            finally:
                if not run.committed:
                    context.drop_children()
            if run.committed:
                self.record.ended(Status.COMPLETED, result=encoded_result(run, context.take_result()))
                await context.run_children()
            else:
                self._settle(outcome)
            for one in self._added if self.record.status is Status.COMPLETED else ():
                await self.client.run(self.client.record(one.spec, one.task))
            for hook in self._hooks(run):
                await self.client.run(hook)

    def _settle(self, outcome: Outcome | None) -> None:
        match outcome:
            case Succeeded(result):
                self.record.ended(Status.COMPLETED, result=result)
            case Failed(error):
                self.record.ended(Status.FAILED, error=error)
            case Cancelled(error):
                self.record.ended(Status.CANCELLED, error=error)
            case Skipped(error):
                self.record.ended(Status.SKIPPED, error=error)
            case Later(kind, error):
                self.record.status, self.record.error = Status.SCHEDULED, error
                if kind != "RETRYING":
                    self.record.attempt -= 1
                    self.record.snoozes += 1
            case Lost() | Released() | None:
                raise QueueError(f"a run in line came to {outcome!r}, which only a worker can come to")
            case _:
                assert_never(outcome)

    def _hooks(self, run: Run) -> list[Record]:
        """What the task's hooks enqueue after this run."""
        fired = {Status.COMPLETED: {"success"}, Status.SCHEDULED: {"retry"}, Status.FAILED: {"failure"}}
        names = fired.get(self.record.status, set())
        if "failure" in names and run.claimed.attempt >= run.max_attempts:
            names |= {"give_up"}
        if "retry" in names and self.record.attempt < run.claimed.attempt:
            names = set()  # snoozed
        hooks = decode_json(self.record.spec.hooks) or {}
        return [self.record.hook(self.client.record, hooks[name]) for name in hooks if name.split(".")[0] in names]

    async def _on_loop(self, run: Run) -> Outcome | None:
        task = asyncio.create_task(self._attempt(run), name=f"aaiclick-queue eager {self.record.spec.entrypoint}")
        run.asyncio_task = cast("asyncio.Task[None]", task)  # to be cancelled, whatever it gives
        _rearm(run)
        try:
            return await task
        finally:
            if run.timer is not None:
                run.timer.cancel()
            if self.client.database_given is not None:
                await close_engines()

    async def _attempt(self, run: Run) -> Outcome | None:
        enter(run, run.context._services)  # noqa: SLF001 - our own
        run.started = time.monotonic()
        if chain := around_execute(()):
            return await execute_through(chain, run, lambda watched: self._execute(run, watched))
        return await self._execute(run)

    async def _execute(self, run: Run, watched: Callable[[Call], Call] | None = None) -> Outcome | None:
        if not self.definition.signature.injects:
            call = self._adding(run, self._call)
            return await execute(run, watched(call) if watched else call)
        async with Lifespan(self.client.settings, self.client.resources) as lifespan:
            call = self._adding(run, lifespan.injecting(self.definition, self._call))
            return await execute(run, watched(call) if watched else call)

    def _adding(self, run: Run, call: Call) -> Call:
        async def called(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
            value = await call(function, kwargs)
            if not isinstance(value, TaskResult):
                return value
            self._added = added_alone(run, value, self.client.settings)
            return value.data

        return called

    async def _plainly(self, run: Run) -> Outcome | None:
        # In a context of its own: what `current()` is inside is not what it is after it.
        return copy_context().run(run_sync, self._attempt(run))

    async def _call(self, function: Any, kwargs: dict[str, Any]) -> Any:
        try:
            if self.definition.is_async:
                return await function(**kwargs)
            if loop_runs_here():  # because resources are open on it
                return await asyncio.to_thread(call_plainly, function, kwargs)
            return call_plainly(function, kwargs)
        except Exception as error:
            self.raised = error
            raise


def needs_loop(definition: Task[Any, Any]) -> bool:
    """Whether running the task needs an event loop: its own code, or the resources that it asks for."""
    return definition.is_async or bool(definition.signature.injects)


def loop_runs_here() -> bool:
    """Whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class EagerServices(Services):
    """What a run in line has of a worker's services: its settings."""

    def __init__(self, client: EagerClient) -> None:  # not the base's: there is no database
        self.client = client
        self.settings = client.settings
        self.dsn = client.database_given or ""
        self.rearm = _rearm
        self.made_ready = _nobody
        self.committing = lambda _: None
        self.modules = ()


class EagerCurrent(Current):
    """`current()` of a run in line; what a worker would write is kept with the task's record."""

    def __init__(self, run: Run, services: EagerServices, attempts: Attempts) -> None:
        super().__init__(run, services)
        self._record = attempts.record
        self._client = attempts.client
        self._after_commit: list[Record] = []

    async def progress(
        self, done: float | dict[str, Any], total: float | None = None, message: str | None = None
    ) -> bool:
        """Keep how far the task is."""
        self._record.progress = decode_json(encode_json(how_far(done, total, message)))
        return True

    async def checkpoint(self, *kept: Any) -> bool:
        """Keep a JSON value from which the next attempt can go on."""
        self._record.checkpoint = encode_json(where(kept)[0])
        return True

    async def load_checkpoint(self) -> Any:
        """What an earlier attempt kept, or None."""
        return decode_json(self._record.checkpoint)

    async def extend(self, timeout: float) -> bool:  # noqa: ASYNC109 - the run's, not the call's
        """Give this run `timeout` seconds from now."""
        if not 0 < timeout <= 366 * 86400:
            raise ValueError(f"extend(timeout={timeout!r}): give seconds, more than 0 and at most a year")
        self._run.timeout = time.monotonic() - self._run.started + timeout
        _rearm(self._run)
        return True

    def transaction(self, driver: Literal["sqlalchemy", "asyncpg"] = "sqlalchemy") -> TaskTransaction:
        """A transaction on the database that `eager(database=…)` was given."""
        if not self._services.dsn:
            raise WrongContext(
                "current().transaction() needs a database: give one by eager(database=url), or use the fixture `queue`"
            )
        return EagerTransaction(self, driver)

    @property
    def sync(self) -> SyncCurrent:
        """The same for `def` tasks."""
        return EagerSyncCurrent(self)

    async def run_children(self) -> None:
        """Run what was enqueued inside the transaction, now that it is committed."""
        waiting, self._after_commit = self._after_commit, []
        for record in waiting:
            await self._client.run(record)

    def drop_children(self) -> None:
        """Forget what was enqueued inside a transaction that was rolled back."""
        for record in self._after_commit:
            self._client.forget(record)
        self._after_commit.clear()

    async def _write_child(self, spec: Spec, child: NewTask) -> int:
        if self._block is not None:
            record = self._client.record(spec, child)
            self._after_commit.append(record)
            return record.id
        record = self._client.record(spec, child)
        if record.runs == 0:
            await self._client.run(record)
        return record.id


class EagerSyncCurrent(SyncCurrent):
    """`current().sync` of a run in line: there is nothing to wait for."""

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_sync(coroutine)


class EagerTransaction(TaskTransaction):
    """The block's own commit, without the row that a worker would complete in it."""

    async def _complete(self, adds: Adds, take: TakeIds) -> None:
        """Nothing: the record is ended when the block is over."""

    async def _was_committed(self, error: Exception) -> bool:  # noqa: ARG002
        return False


def _rearm(run: Run) -> None:
    if run.timer is not None:
        run.timer.cancel()
    if run.asyncio_task is None:
        return  # a `def` task: a thread cannot be stopped from outside
    left = run.timeout - (time.monotonic() - run.started if run.started else 0.0)
    run.timer = asyncio.get_running_loop().call_later(max(0.0, left), _time_out, run)


def _time_out(run: Run) -> None:
    if run.asyncio_task is not None and not run.committing and not run.committed:
        run.stop = Stop(timed_out(run))
        run.asyncio_task.cancel()


def _nobody() -> None:
    """Nobody waits for wake-ups here."""
