"""Tasks: enqueue one, cancel, retry, clear, move, run it now."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import Field

from ...flow.clear import would_clear
from ...flow.kick import kick_claimers
from ...flow.move import move_tasks
from ...flow.reaper import ensure_partitions
from ...operations import moving, unblock
from ...recovery import clear_task as clear
from ...recovery import retry_task as retry
from ...sealing import sealed_by_name
from ...tasks import enqueue
from ..answers import Answer, Api, Asked, Done, Kwargs, Name, audits_itself
from ..auditing import audit
from ..desk import AtDesk
from ..idempotency import IdempotencyKey, Once
from ..problems import Problem
from ..roles import Writer
from .job_acts import Again, Made, Perhaps, again, encoded_body, made, would_run_again
from .tasks import Task, found_task

api = Api("tasks")

RUN_NOW = """
UPDATE aaiclick_queue.delayed SET not_before = least(not_before, now()) WHERE task_id = $1::bigint RETURNING task_id
"""
Seconds = Annotated[float, Field(ge=0, le=366 * 86400)]


class EnqueueTask(Asked):
    """A task to be enqueued by its name; the worker checks its arguments."""

    entrypoint: Name = Field(examples=["shop.mail.send"])
    kwargs: Kwargs = Field(default_factory=dict, examples=[{"to": "ada@example.com"}])
    queue: Name | None = None
    priority: Annotated[int, Field(ge=-32768, le=32767)] | None = None
    countdown: Seconds | None = Field(None, description="Not before so many seconds have passed.")
    eta: datetime | None = Field(None, description="Not before this moment; with its zone.")
    expires: Seconds | datetime | None = Field(None, description="Not after: seconds from now, or a moment.")
    timeout: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    dedupe_key: Name | None = None
    dedupe: Literal["raise", "skip", "replace", "debounce"] | None = None
    concurrency_key: Name | None = None
    correlation_id: Name | None = None
    order_by: Name | None = None
    metadata: dict[str, Any] | None = None

    def options(self) -> dict[str, Any]:
        """What is given to it besides its name and arguments."""
        return {name: value for name, value in self.given().items() if name not in ("entrypoint", "kwargs")}


class MoveTask(Asked):
    """Where a task goes."""

    queue: Name


@api.post("/tasks", status_code=201)
async def enqueue_task(
    body: EnqueueTask, request: Request, desk: AtDesk, who: Writer, idempotency_key: IdempotencyKey = None
) -> Answer[Made]:
    """Enqueue a task by its name; 200 with the first one for a key that was sent before."""

    kwargs = await sealed_by_name(desk.db, body.entrypoint, body.kwargs)

    async def make(connection: Any = None) -> int:
        handle = await enqueue(body.entrypoint, kwargs, client=desk.client, connection=connection, **body.options())
        return handle.id

    once = Once(desk, who, idempotency_key, "task", encoded_body(body)) if idempotency_key else None
    return await made(request, once, make)


@api.post("/tasks/{task_id}/cancel")
async def cancel_task(task_id: Task, desk: AtDesk, who: Writer) -> Done:  # noqa: ARG001 - needed for its role
    """End a task as CANCELLED, wherever it is; one that runs is stopped by its worker."""
    found = await found_task(desk, task_id)
    done = task_id in await desk.client.cancel([task_id])
    return Done(done, f"task {task_id} is cancelled" if done else f"task {task_id} has ended {found.status} already")


@api.post("/tasks/{task_id}/retry")
async def retry_task(task_id: Task, desk: AtDesk, who: Writer) -> Done:
    """Run a task that FAILED or was CANCELLED again, from its checkpoint."""
    done = await retry(task_id, client=desk.client, by=who.name)
    return Done(done, f"task {task_id} is in line again" if done else f"task {task_id} was retried meanwhile")


@api.post("/tasks/{task_id}/clear")
@audits_itself
async def clear_task(task_id: Task, desk: AtDesk, who: Writer, body: Perhaps | None = None) -> Again:
    """Run a task of a job again, whatever became of it, and everything behind it."""
    if body and body.dry_run:
        return would_run_again(await would_clear(desk.db, task_id))
    await audit(desk, who, "clear_task", target={"task_id": str(task_id)})
    return again(await clear(task_id, client=desk.client, by=who.name))


@api.post("/tasks/{task_id}/run-now")
async def run_task_now(task_id: Task, desk: AtDesk, who: Writer) -> Done:  # noqa: ARG001 - needed for its role
    """Let a task that waits for its time run at once."""
    found = await found_task(desk, task_id)
    if found.status != "SCHEDULED":
        raise Problem(409, f"task {task_id} is {found.status}: only one that waits for its time can be run now")
    done = bool(await desk.db.fetch(RUN_NOW, task_id))
    kick_claimers()
    return Done(done, f"task {task_id} is due" if done else f"task {task_id} went on meanwhile")


@api.post("/tasks/{task_id}/move")
async def move_task(task_id: Task, body: MoveTask, desk: AtDesk, who: Writer) -> Done:  # noqa: ARG001 - its role
    """Put a waiting task into another queue; one that runs is left alone."""
    await found_task(desk, task_id)
    change = moving(body.queue, {}, everything=True)
    await ensure_partitions(desk.db)
    done = task_id in await move_tasks(desk.db, [task_id], change.arguments)
    kick_claimers()
    return Done(done, f"task {task_id} is in {body.queue}" if done else "it does not wait, or is there already")


@api.post("/tasks/{task_id}/unblock")
async def unblock_task(task_id: Task, desk: AtDesk, who: Writer) -> Done:
    """Let the tasks behind a failed one go on, where a strict order has stopped them."""
    await found_task(desk, task_id)
    done = task_id in await unblock([task_id], client=desk.client, by=who.name)
    return Done(done, f"task {task_id} is not waited for any more" if done else f"task {task_id} stops no order")
