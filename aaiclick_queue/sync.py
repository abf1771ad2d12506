"""For code without an event loop: the same calls, each waiting for its answer. `delay` and `get` need none of this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, overload

from .client import default_client
from .handles import Handle
from .portal import run_blocking, submit
from .results import as_completed as as_completed_async
from .results import gather as gather_async
from .status import Status
from .tasks import Task
from .tasks import enqueue as enqueue_by_name

R = TypeVar("R")


def enqueue(entrypoint: str, kwargs: Mapping[str, Any] | None = None, **options: Any) -> Handle[Any]:
    """Enqueue by name, without importing the function."""
    task_id = submit(enqueue_by_name(entrypoint, kwargs, **options)).id
    return Handle(task_id)


def enqueue_many(task: Task[Any, Any], rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Enqueue many calls of one task in one transaction; gives ids in order."""
    return submit(task.enqueue_many(rows))


def status(task_id: int) -> Status:
    """Where the task is now."""
    return submit(Handle[Any](task_id).status())


def result(task_id: int, timeout: float | None = None) -> Any:
    """Wait for the task's end; gives its result as plain JSON, or raises what became of it instead."""
    return run_blocking(Handle[Any](task_id).result(timeout), instead="await handle(id).result()")


def wait(task_id: int, timeout: float | None = None) -> Status:
    """Wait for the task's end, whatever it is."""
    return run_blocking(Handle[Any](task_id).wait(timeout), instead="await handle(id).wait()")


@overload
def gather(*handles: Handle[R], return_exceptions: Literal[False] = False, timeout: float | None = None) -> list[R]: ...
@overload
def gather(*handles: Handle[R], return_exceptions: bool, timeout: float | None = None) -> list[R | Exception]: ...
def gather(*handles: Handle[Any], return_exceptions: bool = False, timeout: float | None = None) -> list[Any]:
    """The results of all, in order; one that failed raises what became of it, and the others go on."""
    waiting = gather_async(*handles, return_exceptions=return_exceptions, timeout=timeout)
    return run_blocking(waiting, instead="await aaiclick_queue.gather(…)")


def as_completed(handles: Iterable[Handle[R]], timeout: float | None = None) -> Iterator[Handle[R]]:
    """Each handle as soon as its task has ended."""
    ended = as_completed_async(handles, timeout=timeout)

    async def following() -> Handle[R] | None:
        return await anext(ended, None)

    try:
        while one := run_blocking(following(), instead="async for … in aaiclick_queue.as_completed(…)"):
            yield one
    finally:
        submit(ended.aclose())


def cancel(*task_ids: int) -> set[int]:
    """End tasks as CANCELLED wherever they are; returns those that were not final before."""
    return submit(_cancel(task_ids))


async def _cancel(task_ids: tuple[int, ...]) -> set[int]:
    return await (await default_client()).cancel(task_ids)
