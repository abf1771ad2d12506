"""Jobs written by the flow's own steps, as plans by number, for tests that look below the public door."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aaiclick_queue import Task
from aaiclick_queue.codec import encode_json
from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, Previous
from aaiclick_queue.flow.submit import NewJob, Submitted, submit_job
from aaiclick_queue.postgres import Database
from tests.tools import ENTRYPOINT, row, until


def planned(number: int, task: Task[Any, Any] | str = ENTRYPOINT, /, **given: Any) -> PlannedTask:
    """A task to be written: `after` are numbers of tasks, `kwargs` plain values and references; the rest as it is."""
    previous = [Previous(one) if isinstance(one, int) else one for one in given.pop("after", ())]
    entrypoint = task if isinstance(task, str) else task.entrypoint
    spec = Spec(entrypoint, "default", **given.pop("spec", {}))
    new = NewTask(encode_json(given.pop("kwargs", {})), **given.pop("task", {}))
    return PlannedTask(number=number, name=f"t{number}", spec=spec, task=new, previous=previous, **given)


async def write_job(
    db: Database, tasks: Sequence[PlannedTask], groups: Iterable[PlannedGroup] = (), **job: Any
) -> Submitted:
    """Write a job of these and commit."""
    async with db.transaction() as tx:
        plan = Plan(list(tasks), list(groups))
        return await submit_job(tx, NewJob(**({"name": "job"} | job)), plan, (await id_source(tx)).take)


async def status_of_job(db: Database, job_id: int) -> str:
    """What the job's row says."""
    status: str = await db.fetchval("SELECT status FROM aaiclick_queue.jobs WHERE id = $1", job_id)
    return status


async def ended(db: Database, job_id: int) -> str:
    """The final status of the job, when it has one."""
    open_ones = ("PENDING", "RUNNING")
    await until(lambda: _is_over(db, job_id, open_ones))
    return await status_of_job(db, job_id)


async def _is_over(db: Database, job_id: int, open_ones: Sequence[str]) -> bool:
    return await status_of_job(db, job_id) not in open_ones


async def result_of(db: Database, task_id: int) -> str | None:
    """The stored text of a task's result."""
    text: str | None = (await row(db, "tasks", task_id))["result"]
    return text


async def tasks_of(db: Database, job_id: int) -> list[dict[str, Any]]:
    """The rows of the job's tasks in the order of their ids."""
    rows = await db.fetch("SELECT * FROM aaiclick_queue.tasks WHERE job_id = $1 ORDER BY id", job_id)
    return [dict(one) for one in rows]
