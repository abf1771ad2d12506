"""For code without an event loop: the same calls, each waiting for its answer. `delay` and `get` need none of this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .client import default_client
from .handles import Handle
from .portal import run_blocking, submit
from .status import Status
from .tasks import Task
from .tasks import enqueue as enqueue_by_name


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


def cancel(*task_ids: int) -> set[int]:
    """End tasks as CANCELLED wherever they are; returns those that were not final before."""
    return submit(_cancel(task_ids))


async def _cancel(task_ids: tuple[int, ...]) -> set[int]:
    return await (await default_client()).cancel(task_ids)
