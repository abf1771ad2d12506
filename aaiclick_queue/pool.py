"""The pool: keeps child processes warm, replaces those that died or have served long enough. Before: children."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec

from .child_process import ChildProcess, start_child
from .context import Services
from .logs import shared
from .orders import Begin, Load, Loaded, Refused, Said
from .outcome import Error

log = logging.getLogger("aaiclick_queue.worker")

START_SECONDS = 120.0
LONGEST_BACKOFF = 30.0
AGEING = 0.8


class Recycling(msgspec.Struct, frozen=True):
    """When a child has served long enough."""

    tasks: int = 1000
    megabytes: int = 300


class Broken(Exception):
    """There is no child for the task here: none can be started, or it does not know the task."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


class Pool:
    """At most `size` children that wait or run, started when first needed and then kept."""

    def __init__(self, size: int, recycling: Recycling, services: Services) -> None:
        self._size = size
        self._recycling = recycling
        self._services = services
        self._modules = list(services.modules)
        self._all: set[ChildProcess] = set()  # whatever is not gone yet
        self._members: set[ChildProcess] = set()  # without those that leave
        self._idle: list[ChildProcess] = []
        self._waiting: deque[asyncio.Future[ChildProcess]] = deque()
        self._starting = 0
        self._ageing: set[ChildProcess] = set()  # near the end of their service: successors are started beside them
        self._target = 0  # how many are kept warm: as many as were wanted at once
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._broken: Error | None = None
        self._failures = 0
        self._again_at = 0.0
        self._told_of_memory = False

    def warm(self) -> None:
        """Start all of them now, one after another."""
        self._target = self._size
        self._keep()

    async def close(self) -> None:
        """End every child."""
        self._closed = True
        self._idle.clear()
        for waiter in self._waiting:
            waiter.cancel()
        while self._tasks:
            for task in self._tasks:
                task.cancel()  # those who wait for a child to leave kill it then
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(child.leave() for child in self._all))

    async def take(self, module: str, *, fresh: bool) -> ChildProcess:
        """A child that knows the module, and is the caller's until it is given back; `fresh`: one that nobody had."""
        if module not in self._modules:
            self._modules.append(module)
        child = await (self._start_fresh() if fresh else self._next())
        if module not in child.modules:
            await self._load(child, module)
        return child

    def give_back(self, child: ChildProcess, *, megabytes: float = 0.0, reusable: bool = True) -> None:
        """The child has no run any more."""
        worn = child.served >= self._recycling.tasks or megabytes > self._recycling.megabytes
        if worn or self._closed or not reusable or not child.is_alive:
            self._dismiss(child)
            return
        if child.served >= AGEING * self._recycling.tasks and child not in self._ageing:
            self._ageing.add(child)
            self._keep()
        self._offer(child)

    async def _next(self) -> ChildProcess:
        while self._idle:
            # The oldest: those that are all of one age would all have to be replaced at once.
            child = max(self._idle, key=lambda one: one.served)
            self._idle.remove(child)
            if child.is_alive:
                return child
            self._dismiss(child)
        self._refuse_while_broken()
        waiter: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._target = min(self._size, max(self._target, len(self._members - self._ageing) + 1))
        self._keep()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())
            raise

    async def _start_fresh(self) -> ChildProcess:
        self._refuse_while_broken()
        if self._idle and len(self._members) >= self._size:
            self._dismiss(self._idle.pop(0))
        return await self._start()

    def _refuse_while_broken(self) -> None:
        if self._broken is not None and time.monotonic() < self._again_at:
            raise Broken(self._broken)

    async def _load(self, child: ChildProcess, module: str) -> None:
        child.say(Load([module]))
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await child.said()
        except BaseException:
            self._dismiss(child)
            raise
        if isinstance(answer, Loaded):
            child.modules.add(module)
            return
        self._forget(module)
        error = await _told(answer, child)
        self.give_back(child)
        raise Broken(error)

    def _offer(self, child: ChildProcess) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(child)
                return
        self._idle.append(child)

    def _dismiss(self, child: ChildProcess) -> None:
        self._members.discard(child)
        self._ageing.discard(child)
        self._do(child.leave())
        self._keep()

    def _keep(self) -> None:
        """Start what is missing: one for each run that waits for a child, else one at a time."""
        if self._closed or time.monotonic() < self._again_at:
            return
        wanted = sum(not waiter.done() for waiter in self._waiting)
        lasting = self._members - self._ageing
        while self._starting < max(wanted, 1) and len(lasting) + self._starting < self._target:
            self._starting += 1
            self._do(self._start_member())

    async def _start_member(self) -> None:
        try:
            child = await self._start()
        except Broken as broken:
            while self._waiting:
                if not (waiter := self._waiting.popleft()).done():
                    waiter.set_exception(broken)
            return
        finally:
            self._starting -= 1
        self._offer(child)
        self._keep()

    async def _start(self) -> ChildProcess:
        modules = list(self._modules)
        try:
            child = await start_child(self._begin())
        except OSError as error:
            raise self._failed(Error.of(error)) from error
        self._all.add(child)
        self._members.add(child)
        child.when_gone(self._gone)
        child.say(Load(modules))
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await child.said()
        except TimeoutError:
            self._dismiss(child)
            raise self._failed(Error("TimedOut", f"importing took longer than {START_SECONDS:g} s")) from None
        except BaseException:
            self._dismiss(child)
            raise
        if not isinstance(answer, Loaded):
            self._dismiss(child)
            raise self._failed(await _told(answer, child))
        child.modules.update(modules)
        self._broken, self._failures, self._again_at = None, 0, 0.0
        self._tell_of_memory(answer.megabytes)
        return child

    def _gone(self, child: ChildProcess) -> None:
        self._all.discard(child)
        self._members.discard(child)
        self._ageing.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            self._do(child.leave())
            log.warning("child process %d, which had no run, %s", child.pid, child.how_it_ended())
        self._keep()

    def _failed(self, error: Error) -> Broken:
        """Nothing can be started now: ever later again, and without what only a single task has asked for."""
        self._modules = list(self._services.modules)
        seconds = min(LONGEST_BACKOFF, 2.0**self._failures)
        self._failures += 1
        self._broken, self._again_at = error, time.monotonic() + seconds
        asyncio.get_running_loop().call_later(seconds + 0.01, self._keep)
        log.error(
            "cannot start a child process (%s: %s): tasks with isolation='process' are left to others; "
            "mend the import, next try in %.0f s",
            error.type,
            error.message,
            seconds,
        )
        return Broken(error)

    def _forget(self, module: str) -> None:
        if module in self._modules and module not in self._services.modules:
            self._modules.remove(module)

    def _tell_of_memory(self, megabytes: float) -> None:
        if megabytes > self._recycling.megabytes and not self._told_of_memory:
            self._told_of_memory = True
            log.warning(
                "a child process takes %.0f MB before its first task, the limit is %d MB, so each task gets a new one: "
                "raise --max-memory-per-child",
                megabytes,
                self._recycling.megabytes,
            )

    def _begin(self) -> Begin:
        services = self._services
        settings = services.settings.model_dump(mode="json", exclude={"postgres_url"})
        return Begin(list(sys.path), os.environ.get("PYTHONPATH"), settings, services.dsn, shared())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _told(answer: Said | None, child: ChildProcess) -> Error:
    if isinstance(answer, Refused):
        return answer.error
    await child.ended()
    return Error("ChildLost", f"the process {child.how_it_ended()} before it was ready")
