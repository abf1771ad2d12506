"""The queue of one test: a database of its own, real workers in this process, and what became of the tasks."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

from ..client import default_from, forget_clients
from ..errors import BadTask, TaskFailed
from ..postgres import Database
from ..settings import PREFIX, Settings
from ..status import Status
from ..tasks import Task
from ..worker import Worker
from .ageing import Clock
from .crew import Crew, OneRunWorker
from .draining import Remainder
from .faults import Fault, Faults, When, kill_at, wakeups_lost
from .seen import SEEN_TASKS, SeenTask, entrypoint_named, require_enqueued, require_not_enqueued

LOOK_SECONDS = 0.01


class QueueUnderTest:
    """The queue of one test, as the fixture `queue` gives it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = Clock(settings)
        self.resources: dict[Any, Any] = {}  # values by type for the workers of this test, instead of those declared
        self._faults = Faults()
        self._killed: set[int] = set()

    @property
    def url(self) -> str:
        """The database of this test, for your own engine."""
        assert self.settings.postgres_url is not None
        return self.settings.postgres_url

    @classmethod
    @contextmanager
    def opened(cls, given: Mapping[str, Any]) -> Iterator[QueueUnderTest]:
        """The queue of a migrated database; environment and default client of this process point to it meanwhile."""
        environ = {name: value for name, value in os.environ.items() if name != PREFIX + "REDIS_URL"}
        settings = Settings.load(environ, **given)
        shown = {
            PREFIX + name.upper(): str(getattr(settings, name)) for name, value in given.items() if value is not None
        }
        with mock.patch.dict(os.environ, shown), default_from(settings):
            if "redis_url" not in given:
                os.environ.pop(PREFIX + "REDIS_URL", None)  # mock.patch.dict puts it back
            try:
                yield cls(settings)
            finally:
                _close_clients(settings)

    @contextmanager
    def also(self, **given: Any) -> Iterator[QueueUnderTest]:
        """The same queue with other settings on top."""
        with self.opened(self.settings.model_dump(exclude_unset=True) | given) as other:
            yield other

    # Looking.

    async def tasks(
        self, entrypoint: Task[Any, Any] | str | None = None, *, status: Status | str | None = None
    ) -> list[SeenTask]:
        """The tasks of the test's database in the order of their ids, all or those of one entrypoint or status."""
        async with Database(self.settings, size=1) as db:
            wanted = str(Status(status)) if status is not None else None
            rows = await db.fetch(SEEN_TASKS, entrypoint_named(entrypoint), wanted)
        return [SeenTask.of(row) for row in rows]

    async def assert_enqueued(self, task: Task[Any, Any] | str, /, **kwargs: Any) -> list[SeenTask]:
        """The calls of the task that had these arguments; if there is none, shows what was enqueued instead."""
        return require_enqueued(await self.tasks(), task, kwargs)

    async def assert_not_enqueued(self, task: Task[Any, Any] | str, /, **kwargs: Any) -> None:
        """That no call of the task had these arguments."""
        require_not_enqueued(await self.tasks(), task, kwargs)

    # Running.

    async def drain(
        self,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - says what was left
        until: Callable[[], Any] | None = None,
        raising: bool = False,
    ) -> list[SeenTask]:
        """Run a worker on all queues until nothing is ready, due or running, or until `until()`; gives what ended."""
        before = {task.id for task in await self.tasks() if task.status.is_final}
        over = time.monotonic() + timeout
        async with self._remainder() as remainder, self._crew() as crew:
            while not await (_says(until) if until is not None else remainder.nothing(crew)):
                await self._pause(over, timeout)
                await crew.look_after()
        ended = [task for task in await self.tasks() if task.status.is_final and task.id not in before]
        await self._require_known()
        if raising:
            _raise_failure(ended)
        return ended

    async def run_one(self, *, timeout: float = 10.0) -> SeenTask | None:  # noqa: ASYNC109
        """Run the first task in line, once; None when nothing is in line."""
        before = {task.id: task for task in await self.tasks()}
        over = time.monotonic() + timeout
        async with self._remainder() as remainder, self._crew(OneRunWorker) as crew:
            worker = crew.worker
            assert isinstance(worker, OneRunWorker)
            while not worker.has_ended and (crew.busy or worker.slots.held or not worker.taken):
                # Asked last: while it was looked for what is left, the worker may have taken it and ended.
                if await remainder.nothing(crew) and not worker.taken:
                    return None
                await self._pause(over, timeout)
        changed = [task for task in await self.tasks() if task.id in before and task.runs > before[task.id].runs]
        return changed[0] if changed else None

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """A worker on all queues that runs beside the block."""
        async with self._crew() as crew:
            yield crew.worker

    # Faults.

    @contextmanager
    def kill_run(self, task: Task[Any, Any] | str, *, when: When = "after", times: int = 1) -> Iterator[Fault]:
        """Kill the worker as by kill -9 before a run of the task starts, or after it ended and before that is recorded.

        The lease stays behind: `clock.advance(minutes=1)` ends it, and the next `drain()` runs the task again.
        """
        with self._ordered(when, task, times) as fault:
            yield fault

    def kill_at(self, target: str, *, when: When = "after", times: int = 1) -> AbstractContextManager[Fault]:
        """Kill the worker of a run before or after it calls `target`, the dotted name of a function."""
        return kill_at(target, when, times)

    def lose_answer(self, task: Task[Any, Any] | str, *, times: int = 1) -> AbstractContextManager[Fault]:
        """Kill the worker when the outcome of a run is committed and the worker has not heard of it."""
        return self._ordered("recorded", task, times)

    def run_twice(self, task: Task[Any, Any] | str, *, times: int = 1) -> AbstractContextManager[Fault]:
        """Give a run that has been started to a second worker too, as after a long pause of the first."""
        return self._ordered("twice", task, times)

    def lose_wakeups(self) -> AbstractContextManager[None]:
        """Lose every wake-up of the block: workers find the work when they look again."""
        return wakeups_lost()

    # Inside.

    def _ordered(self, point: Any, task: Task[Any, Any] | str, times: int) -> AbstractContextManager[Fault]:
        return self._faults.ordered(point, entrypoint_named(task) or "", times)

    @asynccontextmanager
    async def _crew(self, kind: Any = None) -> AsyncIterator[Crew]:
        crew = Crew(self.settings, self._faults, self.resources, *([kind] if kind else []))
        try:
            async with crew:
                yield crew
        finally:
            self._killed |= crew.killed

    @asynccontextmanager
    async def _remainder(self) -> AsyncIterator[Remainder]:
        async with Database(self.settings, size=1) as db:
            yield Remainder(self.settings, db, self._killed)

    async def _pause(self, over: float, seconds: float) -> None:
        if time.monotonic() > over:
            left = [task for task in await self.tasks() if not task.status.is_final]
            lines = "\n".join(f"  {task}" for task in left[:20]) or "  nothing: the condition never became true"
            raise TimeoutError(f"not drained within {seconds:g} s; left are:\n{lines}")
        await asyncio.sleep(LOOK_SECONDS)

    async def _require_known(self) -> None:
        unknown = {task.entrypoint for task in await self.tasks() if task.reason == "unknown entrypoint"}
        if unknown:
            raise BadTask(
                f"no task is registered as {', '.join(sorted(unknown))}: import the module that defines it in the test"
            )


async def _says(condition: Callable[[], Any]) -> bool:
    said = condition()
    return bool(await said if inspect.isawaitable(said) else said)


def _raise_failure(ended: list[SeenTask]) -> None:
    for task in ended:
        if task.status is Status.FAILED and task.error is not None:
            raise TaskFailed(
                f"task {task.id} {task.entrypoint} failed in attempt {task.attempt}: {task.error.type}: "
                f"{task.error.message}\n{task.error.traceback}",
                task_id=task.id,
                error_type=task.error.type,
                error_message=task.error.message,
                traceback=task.error.traceback,
                attempts=task.attempt,
            )


def _close_clients(settings: Settings) -> None:
    """Close what the test has opened, where that can be done: a loop that runs here closes them when it ends."""
    here = _loop_here()
    for loop, client in forget_clients(settings):
        if loop.is_running() and loop is not here:
            asyncio.run_coroutine_threadsafe(client.close(), loop).result(10)
        elif here is None:
            loop.run_until_complete(client.close())


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
