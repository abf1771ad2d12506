"""Many results: all of them in order, or each as soon as it is there. Before: handles.py, one task's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeVar, overload

from .errors import ResultExpired, WrongContext
from .handles import Handle

R = TypeVar("R")


@overload
async def gather(
    *handles: Handle[R],
    return_exceptions: Literal[False] = False,
    timeout: float | None = None,  # noqa: ASYNC109 - as in every queue
) -> list[R]: ...
@overload
async def gather(
    *handles: Handle[R],
    return_exceptions: bool,
    timeout: float | None = None,  # noqa: ASYNC109
) -> list[R | Exception]: ...
async def gather(
    *handles: Handle[Any],
    return_exceptions: bool = False,
    timeout: float | None = None,  # noqa: ASYNC109
) -> list[Any]:
    """The results of all, in order; the first that fails raises what became of it, and the other tasks go on.

    With `return_exceptions` errors stand in their places, a TimeoutError for each task that has not ended in time.
    """
    waits = [asyncio.ensure_future(one.result(0 if timeout is not None and timeout <= 0 else None)) for one in handles]
    if not waits:
        return []
    when = asyncio.ALL_COMPLETED if return_exceptions else asyncio.FIRST_EXCEPTION
    limit = timeout if timeout is not None and timeout > 0 else None
    try:
        ended, open_waits = await asyncio.wait(waits, timeout=limit, return_when=when)
        if not return_exceptions:
            for failed in (wait for wait in ended if not wait.cancelled() and wait.exception()):
                failed.result()
            if open_waits:
                raise TimeoutError(
                    f"{len(open_waits)} of {len(waits)} tasks have not ended within {timeout:g} s; they go on"
                )
            return [wait.result() for wait in waits]
        return [_outcome(one, wait, timeout) for one, wait in zip(handles, waits, strict=True)]
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


def _outcome(handle: Handle[Any], wait: asyncio.Future[Any], timeout: float | None) -> Any:
    if not wait.done():
        return TimeoutError(f"task {handle.id} has not ended within {timeout:g} s; it goes on")
    error = wait.exception()
    return wait.result() if error is None else error


async def as_completed(
    handles: Iterable[Handle[R]],
    *,
    timeout: float | None = None,  # noqa: ASYNC109
) -> AsyncGenerator[Handle[R]]:
    """Each handle as soon as its task has ended, well or not; its `result()` is then there without a wait."""

    async def ended(one: Handle[R]) -> Handle[R]:
        with suppress(ResultExpired, WrongContext):  # `result` will say so
            await one.wait()
        return one

    waits = {asyncio.ensure_future(ended(one)) for one in handles}
    total, deadline = len(waits), None if timeout is None else asyncio.get_running_loop().time() + timeout
    pending = waits
    try:
        while pending:
            left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise TimeoutError(f"{len(pending)} of {total} tasks have not ended within {timeout:g} s; they go on")
            for wait in done:
                yield wait.result()
    finally:
        for wait in waits:
            wait.cancel()
        if waits:
            await asyncio.wait(waits)
