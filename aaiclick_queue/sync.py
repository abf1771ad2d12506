"""For code without an event loop: the same calls, each waiting for its answer. `delay` and `get` need none of this."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, Unpack, overload

from . import backfilling, by_hand, operations, reading, recovery, registered
from . import limits as limits_of
from .client import default_client
from .filters import Where
from .flow.limits import LimitView
from .handles import Handle
from .handles import handle as handle_of
from .job_figures import JobProgress, JobStats
from .job_handles import JobHandle, job_handle
from .job_views import JobRow, JobView
from .jobs import Job
from .operations import Operation, Progress
from .portal import run_blocking, submit
from .recovery import WithId
from .registered import RegisteredJob, TickView
from .results import as_completed as as_completed_async
from .results import gather as gather_async
from .starting import run_job as run_job_async
from .status import Status
from .tasks import Task
from .tasks import enqueue as enqueue_by_name
from .timelines import Timeline
from .views import TaskRow, TaskView

R = TypeVar("R")


def enqueue(entrypoint: str, kwargs: Mapping[str, Any] | None = None, **options: Any) -> Handle[Any]:
    """Enqueue by name, without importing the function."""
    task_id = submit(enqueue_by_name(entrypoint, kwargs, **options)).id
    return Handle(task_id)


def enqueue_many(task: Task[Any, Any], rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """Enqueue many calls of one task in one transaction; gives ids in order."""
    return submit(task.enqueue_many(rows))


def run_job(
    name: str,
    /,
    entrypoint: str | Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> JobHandle[Any]:
    """Start a job by its registered name, its own name or its entrypoint; a worker runs its body."""
    return job_handle(submit(run_job_async(name, entrypoint, kwargs, **options)).id)


def create_job(name: str, entry: Any, **options: Any) -> JobHandle[Any]:
    """A job of one node, task or entrypoint, or of a list of them."""
    return job_handle(submit(by_hand.create_job(name, entry, **options)).id)


def apply(items: Any, job_id: int) -> Any:
    """Write nodes and groups into a job that has not ended; gives them back with their ids."""
    return submit(by_hand.apply(items, job_id))


def add_task_to_job(job_id: int, task: Any, kwargs: Mapping[str, Any] | None = None, **where: Any) -> Handle[Any]:
    """Write one more task into a job that has not ended: `group`, `depends_on`."""
    return Handle(submit(by_hand.add_task_to_job(job_id, task, kwargs, **where)).id)


def status(task_id: int) -> Status:
    """Where the task is now."""
    return submit(handle_of(task_id).status())


def result(task_id: int, timeout: float | None = None) -> Any:
    """Wait for the task's end; gives its result as plain JSON, or raises what became of it instead."""
    return run_blocking(handle_of(task_id).result(timeout), instead="await handle(id).result()")


def wait(task_id: int, timeout: float | None = None) -> Status:
    """Wait for the task's end, whatever it is."""
    return run_blocking(handle_of(task_id).wait(timeout), instead="await handle(id).wait()")


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


def limit_queue(queue: str, **limits: Any) -> list[int]:
    """Limit a queue: `max_running`, `rate`, `per_key`, `per_key_rate`, `fair`, `max_depth`; None takes one away."""
    return submit(limits_of.limit_queue(queue, **limits))


def limit_task(entrypoint: str, **limits: Any) -> list[int]:
    """Limit a task wherever it is queued: `max_running`, `rate`, `per_key`, `per_key_rate`."""
    return submit(limits_of.limit_task(entrypoint, **limits))


def limit_key(key: str, **limits: Any) -> list[int]:
    """Limit one concurrency key over all queues: `max_running`, `rate`."""
    return submit(limits_of.limit_key(key, **limits))


def pause_task(entrypoint: str, *, lasts: float | timedelta | None = None, reason: str | None = None) -> list[int]:
    """Let no run of this task start, for so long or until `resume_task`; what runs goes on."""
    return submit(limits_of.pause_task(entrypoint, lasts=lasts, reason=reason))


def resume_task(entrypoint: str) -> bool:
    """Let the task run again; False when it was not paused."""
    return submit(limits_of.resume_task(entrypoint))


def list_limits() -> list[LimitView]:
    """Every limit there is, with what is taken of it."""
    return submit(limits_of.list_limits())


def purge(queue: str, /, *, progress: Progress | None = None, **where: Unpack[Where]) -> int:
    """End as CANCELLED whatever waits in a queue, narrowed by filter words; returns how many."""
    return _work(operations.purge(queue, progress=progress, **where), "purge")


def move(*, to: str, everything: bool = False, progress: Progress | None = None, **where: Unpack[Where]) -> int:
    """Put waiting tasks into another queue; returns how many."""
    return _work(operations.move(to=to, everything=everything, progress=progress, **where), "move")


def set_priority(
    new: int, /, *, everything: bool = False, progress: Progress | None = None, **where: Unpack[Where]
) -> int:
    """Give waiting tasks another priority; returns how many had a different one."""
    return _work(operations.set_priority(new, everything=everything, progress=progress, **where), "set_priority")


def cancel_where(
    *, running: bool = False, everything: bool = False, progress: Progress | None = None, **where: Unpack[Where]
) -> int:
    """End waiting tasks as CANCELLED, and running ones if asked to; returns how many."""
    work = operations.cancel_where(running=running, everything=everything, progress=progress, **where)
    return _work(work, "cancel_where")


def retry_where(*, everything: bool = False, progress: Progress | None = None, **where: Unpack[Where]) -> int:
    """Run tasks that FAILED before now again, or with `status="CANCELLED"` those; returns how many."""
    return _work(operations.retry_where(everything=everything, progress=progress, **where), "retry_where")


def retry(*task_ids: int) -> set[int]:
    """Run ended tasks again from their first attempt; returns those that had FAILED or were CANCELLED."""
    return submit(operations.retry(task_ids))


def unblock(*task_ids: int) -> set[int]:
    """Let what waits behind these failed tasks in strict order go on; returns those that something waited for."""
    return submit(operations.unblock(task_ids))


def cancel_job(job: int | WithId) -> int:
    """End an open job as CANCELLED: what runs is stopped, what waits never starts; gives how many tasks that were."""
    return run_blocking(recovery.cancel_job(job), instead="await aaiclick_queue.cancel_job(…)")


def pause_job(job: int | WithId, *, reason: str | None = None) -> bool:
    """Let no task of the job start until `resume_job`; what runs goes on. False when it was paused already."""
    return submit(recovery.pause_job(job, reason=reason))


def resume_job(job: int | WithId) -> bool:
    """Let the tasks of a paused job start again; False when it was not paused."""
    return submit(recovery.resume_job(job))


def clear_task(task: int | WithId) -> set[int]:
    """Run a task of a job again, whatever its status, and everything behind it; gives the ids of these."""
    return submit(recovery.clear_task(task))


def rerun(job: int | WithId, *, from_: int | str | WithId) -> set[int]:
    """Run a job again from one of its tasks on, given by its id or its name."""
    return submit(recovery.rerun(job, from_=from_))


def retry_task(task: int | WithId) -> bool:
    """Run a task that FAILED or was CANCELLED again, from its checkpoint."""
    return submit(recovery.retry_task(task))


def retry_failed_tasks(job: int | WithId) -> set[int]:
    """Run all tasks of a job that FAILED or were CANCELLED again; gives them."""
    return submit(recovery.retry_failed_tasks(job))


def get_job(job: Any) -> JobView:
    """One job with all that is known of it but its tasks, by its id, its handle, or the newest of that name."""
    return submit(reading.get_job(job))


def list_jobs(status: str | None = None, name_like: str | None = None, **page: Any) -> list[JobRow]:
    """Jobs, newest first: of that status, with that in their names; `limit`, `offset`, `before`."""
    return submit(reading.list_jobs(status, name_like, **page))


def count_jobs(status: str | None = None, name_like: str | None = None) -> int:
    """How many jobs there are of that kind, of the newest 100,000."""
    return submit(reading.count_jobs(status, name_like))


def get_tasks_for_job(job: Any, **page: Any) -> list[TaskRow]:
    """Tasks of a job in the order in which they were made; `status`, `limit`, `after`."""
    return submit(reading.get_tasks_for_job(job, **page))


def get_task(task: Any) -> TaskView:
    """One task with its attempts and its events, and its place in its job."""
    return submit(reading.get_task(task))


def job_progress(job: Any) -> JobProgress:
    """How far a job is and when it may end."""
    return submit(reading.job_progress(job))


def job_stats(job: Any) -> JobStats:
    """What the tasks of a job took, by name."""
    return submit(reading.job_stats(job))


def timeline(of: Any, **page: Any) -> Timeline:
    """What happened to a job or a task, oldest first; `types`, `limit`, `after`, `newest`."""
    return submit(reading.timeline(of, **page))


def register_job(name: str, entrypoint: str | Job[Any, Any] | Task[Any, Any], **options: Any) -> RegisteredJob:
    """Write a new registered job; one of that name is refused with JobExists."""
    return submit(registered.register_job(name, entrypoint, **options))


def upsert_registered_job(name: str, entrypoint: str | Job[Any, Any] | Task[Any, Any], **options: Any) -> RegisteredJob:
    """Write a registered job, or overwrite all of the one with that name."""
    return submit(registered.upsert_registered_job(name, entrypoint, **options))


def enable_job(name: str) -> RegisteredJob:
    """Let it run by its schedule again, from now on."""
    return submit(registered.enable_job(name))


def disable_job(name: str) -> RegisteredJob:
    """Let it not run by its schedule; what runs goes on, and run_job works."""
    return submit(registered.disable_job(name))


def reset_registered_job(name: str) -> RegisteredJob:
    """Give a schedule that was edited back to the code that declared it."""
    return submit(registered.reset_registered_job(name))


def get_registered_job(name: str) -> RegisteredJob:
    """The registered job of that name; UnknownJob where there is none."""
    return submit(registered.get_registered_job(name))


def list_registered_jobs(*, enabled_only: bool = False) -> list[RegisteredJob]:
    """All registered jobs, by name."""
    return submit(registered.list_registered_jobs(enabled_only=enabled_only))


def delete_registered_job(name: str) -> bool:
    """Forget a registered job and its history; its runs stay. False when there was none."""
    return submit(registered.delete_registered_job(name))


def tick_history(name: str, *, limit: int = 100, before: datetime | None = None) -> list[TickView]:
    """Its last ticks, the newest first."""
    return submit(registered.tick_history(name, limit=limit, before=before))


def backfill(
    name: str, start: datetime, end: datetime, *, max_running: int | None = None, progress: Progress | None = None
) -> Operation:
    """A run for each tick from `start` on and before `end` that has none; waits until all are written."""
    work = backfilling.backfill(name, start, end, max_running=max_running, progress=progress)
    return run_blocking(work, instead="await aaiclick_queue.backfill(…)")


def missing_ticks(name: str, start: datetime, end: datetime, *, limit: int = 1000) -> list[datetime]:
    """The first ticks that a backfill of the range would run."""
    return submit(backfilling.missing_ticks(name, start, end, limit=limit))


def _work(work: Coroutine[Any, Any, int], name: str) -> int:
    return run_blocking(work, instead=f"await operations.{name}(…)")


async def _cancel(task_ids: tuple[int, ...]) -> set[int]:
    return await (await default_client()).cancel(task_ids)
