"""How an enqueue and an execution go through middleware, and what an error of middleware can and cannot do.

Before a task is written or run, an error of middleware is the caller's or the run's; afterwards it is only logged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar, get_args

import msgspec

from .errors import WrongContext
from .flow.enqueue import NewTask, Spec
from .flow.execute import Run, decide
from .middleware import Enqueuing, Middleware, Running, report_failure
from .outcome import Error, Lost, Outcome, Released, Succeeded

T = TypeVar("T")

Call = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]
OUTCOMES = get_args(Outcome)
GONE = Lost(Error("LeaseLost", "the run lost its lease: nothing of it was recorded"))


class _Once(Generic[T]):
    """The way inward from one middleware, which can be gone once; afterwards it knows what came back."""

    def __init__(self, middleware: Middleware, inward: Callable[[], Awaitable[T]]) -> None:
        self._middleware = middleware
        self._inward = inward
        self.gone = False
        self.came_back: T | None = None

    async def __call__(self) -> T:
        if self.gone:
            raise WrongContext(f"{type(self._middleware).__qualname__} called proceed() twice: call it once")
        self.gone = True
        self.came_back = value = await self._inward()
        return value


async def enqueue_through(
    chain: Sequence[Middleware], call: Enqueuing, write: Callable[[Spec, Sequence[NewTask]], Awaitable[list[int]]]
) -> list[int]:
    """Write the tasks of a call through the middleware; an error after the write does not unwrite it: logged."""
    if not chain:
        return await write(call.spec, call.sealed())
    middleware = chain[0]
    proceed = _Once(middleware, lambda: enqueue_through(chain[1:], call, write))
    try:
        await middleware.enqueue(call, proceed)
    except Exception as error:
        if proceed.came_back is None:
            raise
        report_failure(middleware, error)
    if proceed.came_back is None:
        raise WrongContext(
            f"{type(middleware).__qualname__}.enqueue did not call proceed(), so nothing is enqueued: "
            "call it, or raise an error to refuse"
        )
    return proceed.came_back


async def execute_through(
    chain: Sequence[Middleware], run: Run, execute: Callable[[Callable[[Call], Call]], Awaitable[Outcome | None]]
) -> Outcome | None:
    """Execute a run through the middleware; None where there is nothing to record, whatever they say."""
    running = Running(run)
    ran: list[Outcome | None] = []

    async def innermost() -> Outcome:
        outcome = await execute(lambda call: _watched(call, running))
        ran.append(outcome)
        return (Succeeded(None) if run.committed else GONE) if outcome is None else outcome

    try:
        outcome = await _execute_through(chain, running, run, innermost)
    finally:
        running.error = None  # its traceback holds this frame
    return ran[0] if ran and (ran[0] is None or run.stop is not None) else outcome


async def _execute_through(
    chain: Sequence[Middleware], running: Running, run: Run, innermost: Callable[[], Awaitable[Outcome]]
) -> Outcome:
    if not chain:
        return await innermost()
    middleware = chain[0]
    proceed = _Once(middleware, lambda: _execute_through(chain[1:], running, run, innermost))
    said: Any = None
    try:
        said = await middleware.execute(running, proceed)
        if said is None or said is not proceed.came_back:
            _require_outcome(middleware, said)
    except Exception as error:
        if proceed.came_back is None:
            return decide(error, run) or Released()
        report_failure(middleware, error)
        return proceed.came_back
    except BaseException as error:  # told to stop after the task had run: what it came to stands
        if proceed.came_back is None or isinstance(error, KeyboardInterrupt):
            raise
        return proceed.came_back
    outcome: Outcome = said
    return outcome


def _require_outcome(middleware: Middleware, said: Any) -> None:
    name = type(middleware).__qualname__
    if not isinstance(said, OUTCOMES):
        raise TypeError(f"{name}.execute returned {said!r}: return what proceed() gave, or another outcome")
    if isinstance(said, Succeeded) and said.result is not None:
        msgspec.json.decode(said.result)  # what Postgres refuses would hold up the outcomes of others


def _watched(call: Call, running: Running) -> Call:
    async def watched(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        try:
            return await call(function, kwargs)
        except Exception as error:
            running.error = error
            raise

    return watched
