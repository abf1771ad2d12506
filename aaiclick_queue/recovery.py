"""Jobs changed by hand, from Python: cancelled, paused, cleared from a task on, retried where they failed.

A job or a task is given by its id or by anything that has one, as a handle.
"""

from __future__ import annotations

from typing import Protocol

from .client import Client, default_client
from .errors import BadTask, UnknownTask, WrongContext
from .flow import job_control
from .flow.clear import clear_task as clear_one
from .flow.job_retry import retry_in_job
from .flow.kick import kick_claimers, tell_ended
from .flow.operate import work_once
from .flow.reaper import ensure_partitions
from .flow.retry import retry_tasks
from .limits import whoami
from .operations import work_to_end
from .postgres import Database

STATUS_OF_TASK = """
SELECT t.job_id, t.member_gate, s.status FROM aaiclick_queue.tasks t JOIN aaiclick_queue.task_status s ON s.id = t.id
WHERE t.id = $1
"""
TASKS_CALLED = """
SELECT id FROM aaiclick_queue.tasks WHERE job_id = $1 AND name = $2::text AND member_gate IS NOT NULL ORDER BY id
"""


class WithId(Protocol):
    """A handle, or whatever else stands for a job or a task, as a row that was read."""

    @property
    def id(self) -> int | str:
        """Its id, or the text of it."""
        ...


async def cancel_job(job: int | WithId, *, client: Client | None = None, by: str | None = None) -> int:
    """End an open job as CANCELLED: what runs is stopped, what waits never starts; gives how many tasks that were."""
    db, job_id = await _database(client), id_of("job", job)
    operation_id = await job_control.cancel_job(db, job_id, by=by or whoami())
    tell_ended([job_id])
    return (await work_to_end(db, operation_id)).done


async def pause_job(
    job: int | WithId, *, reason: str | None = None, client: Client | None = None, by: str | None = None
) -> bool:
    """Let no task of the job start until `resume_job`; what runs goes on. False when it was paused already."""
    db = await _database(client)
    operation_id = await job_control.pause_job(db, id_of("job", job), by=by or whoami(), reason=reason)
    while operation_id is not None:
        worked = await work_once(db, operation_id)
        if worked is None or worked.status != "OPEN" or worked.pause:
            break  # workers see to what was let in by transactions that are still open
    return operation_id is not None


async def resume_job(job: int | WithId, *, client: Client | None = None, by: str | None = None) -> bool:
    """Let the tasks of a paused job start again; False when it was not paused."""
    resumed = await job_control.resume_job(await _database(client), id_of("job", job), by=by or whoami())
    kick_claimers()
    return resumed


async def clear_task(task: int | WithId, *, client: Client | None = None, by: str | None = None) -> set[int]:
    """Run a task of a job again, whatever its status, and everything behind it; gives the ids of these.

    What is before it stays. Attempts start anew, checkpoints are deleted, runs are stopped; tasks that these had added
    to the job are cancelled and leave it. A job that had ended is RUNNING again.
    """
    cleared = await clear_one(await _database(client), id_of("task", task), by=by or whoami())
    kick_claimers()
    return cleared


async def rerun(
    job: int | WithId, *, from_: int | str | WithId, client: Client | None = None, by: str | None = None
) -> set[int]:
    """Run a job again from one of its tasks on, given by its id or its name: `clear_task` of that task."""
    task_id = await task_of_job(await _database(client), id_of("job", job), from_)
    return await clear_task(task_id, client=client, by=by)


async def task_of_job(db: Database, job_id: int, given: int | str | WithId) -> int:
    """The id of a task of that job that was given by it, or by its name in the job."""
    task_id = await _called(db, job_id, given) if isinstance(given, str) else id_of("task", given)
    rows = await db.fetch(STATUS_OF_TASK, task_id)
    if rows and rows[0]["job_id"] != job_id:
        raise UnknownTask(f"task {task_id} is not in job {job_id}: give one of its tasks")
    return task_id


async def retry_task(task: int | WithId, *, client: Client | None = None, by: str | None = None) -> bool:
    """Run a task that FAILED or was CANCELLED again, from its checkpoint.

    In a job, what it had kept from starting waits again.
    """
    db, task_id = await _database(client), id_of("task", task)
    rows = await db.fetch(STATUS_OF_TASK, task_id)
    if not rows:
        raise UnknownTask(f"no task {task_id}: it was pruned, or its transaction is not committed")
    [row] = rows
    if row["status"] not in ("FAILED", "CANCELLED") or (row["job_id"] is not None and row["member_gate"] is None):
        what = "has left its job" if row["member_gate"] is None and row["job_id"] else f"is {row['status']}"
        raise WrongContext(
            f"task {task_id} {what}: only those that FAILED or were CANCELLED are retried; clear_task() runs any task "
            "of a job again, with all behind it"
        )
    async with db.transaction() as tx:
        if row["job_id"] is None:
            retried = await retry_tasks(tx, [task_id], by=by or whoami())
        else:
            retried = await retry_in_job(tx, row["job_id"], [task_id], by=by or whoami())
    kick_claimers()
    return bool(retried)


async def retry_failed_tasks(job: int | WithId, *, client: Client | None = None, by: str | None = None) -> set[int]:
    """Run all tasks of a job that FAILED or were CANCELLED again, as `retry_task` does; gives them."""
    db = await _database(client)
    async with db.transaction() as tx:
        retried = await retry_in_job(tx, id_of("job", job), by=by or whoami())
    kick_claimers()
    return retried


def id_of(what: str, given: int | WithId) -> int:
    """The id of a job or a task that was given by it, or by something that has it."""
    number = getattr(given, "id", given)
    if isinstance(number, str) and number.isascii() and number.isdigit():
        number = int(number)  # as rows that people read have it
    if isinstance(number, bool) or not isinstance(number, int):
        raise BadTask(f"{given!r} is no {what}: give its id, int(…) of its text, or its handle")
    return number


async def _called(db: Database, job_id: int, name: str) -> int:
    rows = await db.fetch(TASKS_CALLED, job_id, name)
    if len(rows) != 1:
        found = "none" if not rows else f"{len(rows):,}"
        raise UnknownTask(f"{found} of the tasks of job {job_id} is called {name!r}: give the id of one")
    task_id: int = rows[0]["id"]
    return task_id


async def _database(client: Client | None) -> Database:
    db = await (client or await default_client()).database()
    await ensure_partitions(db)
    return db
