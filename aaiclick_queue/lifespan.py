"""The life of a process that runs tasks: opens resources and runs `on_startup`, fills parameters in, closes it all.

Before: `resources` has the declarations. A worker starts it before it claims and closes it after its last run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from .errors import StartupFailed
from .resources import Asking, Declarations, Declared, Resource, declared, require
from .settings import Settings
from .threads import on_the_loop

log = logging.getLogger("aaiclick_queue.lifespan")

CLOSE_SECONDS = 10.0

Call = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]


class Lifespan:
    """What one process has opened: `async with Lifespan(settings) as lifespan: await lifespan.start(tasks)`."""

    def __init__(self, settings: Settings, given: Mapping[Any, Any] | None = None) -> None:
        """`given` are values by type, instead of what is declared: theirs is the closing."""
        self._given: dict[Any, Any] = {Settings: settings} | dict(given or {})
        self._declared: Declarations = declared
        self._keepers: dict[Any, Keeper] = {}
        self._opened: list[Keeper] = []
        self._ready: dict[Asking, dict[str, Any]] = {}
        self._started = False
        self._beginning = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(
        self, tasks: Iterable[Asking], *, elsewhere: Iterable[Asking] = (), unless: asyncio.Event | None = None
    ) -> bool:
        """Open what these tasks and the functions of startup ask for, then run those; False when `unless` came first.

        Tasks that run `elsewhere`, in processes of their own, are checked only. Raises BadResource or StartupFailed.
        """
        here = list(dict.fromkeys(tasks))
        self._declared.check([*here, *elsewhere], self._given)
        starting = asyncio.create_task(self._start(here), name="aaiclick-queue startup")
        told = asyncio.create_task(unless.wait() if unless else asyncio.Event().wait())
        try:
            await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
        finally:
            for one in (starting, told):
                one.cancel()
            await asyncio.wait([starting, told])
        return self._started

    def must_open_for(self, task: Asking) -> bool:
        """Whether a run of the task has to wait for something to be opened, or for functions of startup."""
        return (not self._started and bool(self._declared.startup)) or (
            task.signature.injects and task not in self._ready
        )

    async def begin(self, task: Asking) -> None:
        """As `start` with this one task: for a child process, which learns what it runs from its runs."""
        async with self._beginning:
            if not self._started:
                await self.start([task])
            elif task.signature.injects and task not in self._ready:
                await self.arguments(task)

    def injecting(self, task: Asking, call: Call) -> Call:
        """The call of a task with its injected parameters filled in."""

        async def filled(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
            ready = self._ready.get(task)
            if ready is None:
                await on_the_loop()
                ready = await self.arguments(task)
            return await call(function, kwargs | ready)

        return filled

    async def arguments(self, task: Asking) -> dict[str, Any]:
        """The injected parameters of a task; opens what is not open, for tasks that came after the start."""
        who = f"task {task.entrypoint}"
        require(task.signature.injected, self._known(), who)
        values = {name: await self._value(key, f"{who}, {name!r}") for name, key in task.signature.injected.items()}
        self._ready[task] = values
        return values

    async def close(self) -> None:
        """Run `on_shutdown`, last declared first, and close resources, last opened first; what raises is logged."""
        if self._started:
            self._started = False
            for one in reversed(self._declared.shutdown):
                try:
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self._call(one)
                except Exception:
                    log.exception("on_shutdown: %s raised", one.name)
        self._ready.clear()
        for keeper in [one for one in self._keepers.values() if not one.value.done()]:
            await keeper.close()
        while self._opened:
            await self._opened.pop().close()
        self._keepers.clear()

    async def _start(self, tasks: Sequence[Asking]) -> None:
        for task in tasks:
            if task.signature.injects:
                await self.arguments(task)
        for one in self._declared.startup:
            try:
                await self._call(one)
            except StartupFailed:
                raise
            except Exception as error:
                raise StartupFailed(_sentence(f"on_startup: {one.name}", error)) from error
        self._started = True

    async def _call(self, one: Declared) -> None:
        answer = one.function(**await self._asked_by(one))
        if inspect.isawaitable(answer):
            await answer

    async def _asked_by(self, one: Declared) -> dict[str, Any]:
        known = self._known()
        require({name: key for name, key in one.asks.items() if name not in one.defaults}, known, one.name)
        there = {name: key for name, key in one.asks.items() if key in known}
        return {name: await self._value(key, f"{one.name}, {name!r}") for name, key in there.items()}

    def _known(self) -> dict[Any, Any]:
        return {**self._declared.providers(), **self._given}

    async def _value(self, key: Any, who: str) -> Any:
        if key in self._given:
            return self._given[key]
        keeper = self._keepers.get(key)
        if keeper is None:
            resource = self._declared.providers()[key]
            keeper = self._keepers[key] = Keeper(resource, lambda: self._asked_by(resource), self._opened)
        try:
            return await asyncio.shield(keeper.value)
        except Exception as error:
            if self._keepers.get(key) is keeper:
                del self._keepers[key]  # so that the next one who asks tries again
            if isinstance(error, StartupFailed):  # of what it needs itself
                raise
            what = f"resource {keeper.resource.name} (asked for by {who})"
            raise StartupFailed(_sentence(what, error)) from error


class Keeper:
    """One open resource, in an asyncio task of its own: what opens it closes it, as cancel scopes demand."""

    def __init__(
        self, resource: Resource, asked: Callable[[], Awaitable[dict[str, Any]]], opened: list[Keeper]
    ) -> None:
        self.resource = resource
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked = asked
        self._opened = opened
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=f"aaiclick-queue resource {resource.name}")

    async def close(self) -> None:
        """Close it, in bounded time; whatever that raises is logged."""
        self._closing.set()
        if not self.value.done():
            self._task.cancel()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        if not self._task.done():
            log.error("resource %s did not close within %g s: leaving it", self.resource.name, CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1)

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                value = await self._open(stack)
                self._opened.append(self)
                self.value.set_result(value)
                await self._closing.wait()
        except asyncio.CancelledError:
            if not self.value.done():
                self.value.set_exception(RuntimeError("it was cancelled while it opened"))
        except BaseException as error:  # of user code, which must not end the worker by itself
            if not self.value.done():
                self.value.set_exception(_as_exception(error))
            else:
                when = "closed" if self._closing.is_set() else "was open"
                log.exception("resource %s raised while it %s", self.resource.name, when)
        finally:
            if self.value.done() and not self.value.cancelled():
                self.value.exception()  # seen

    async def _open(self, stack: AsyncExitStack) -> Any:
        arguments = await self._asked()
        made = self.resource.open(**arguments)
        if inspect.isawaitable(made):
            made = await made
        if not self.resource.is_context:
            return made
        if hasattr(type(made), "__aenter__"):
            return await stack.enter_async_context(made)
        return stack.enter_context(made)


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    raised = RuntimeError(f"it raised {error!r}")
    raised.__cause__ = error
    return raised


def _sentence(what: str, error: Exception) -> str:
    return f"{what} raised {type(error).__qualname__} ({error}): mend it; -v shows the traceback"
