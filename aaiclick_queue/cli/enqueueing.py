"""`task enqueue`: writes one task by its name and, if asked to, waits for its end."""

from __future__ import annotations

import asyncio
from typing import Any

from ..client import Client, connect
from ..errors import TaskCancelled, TaskFailed
from ..handles import Handle
from ..queue_views import list_queues
from ..sealing import sealed_by_name
from ..tasks import enqueue as enqueue_by_name
from ..views import get_task
from .output import to_json
from .program import FAILED, echo, fail

PATIENCE_SECONDS = 3.0


async def enqueue_task(
    entrypoint: str, kwargs: dict[str, Any], options: dict[str, Any], *, wait: bool, as_json: bool
) -> int:
    """Write the task and print its id or, with `wait`, its result; returns the exit code."""
    async with connect() as client:
        kwargs = await sealed_by_name(await client.database(), entrypoint, kwargs)
        handle = await enqueue_by_name(entrypoint, kwargs, client=client, **options)
        if not wait:
            echo(to_json({"id": str(handle.id)}) if as_json else str(handle.id))
            return 0
        echo(f"enqueued {handle.id}, waiting for its end (Ctrl-C: it goes on without us)", err=True)
        return await _await(client, handle, as_json=as_json)


async def _await(client: Client, handle: Handle[Any], *, as_json: bool) -> int:
    impatient = asyncio.create_task(_say_why(client, handle.id))
    end: dict[str, Any] = {"id": str(handle.id)}
    code = 0
    try:
        value = await handle.result()
        end |= {"status": "COMPLETED", "result": value}
    except TaskFailed as error:
        code = FAILED
        end |= {"status": "FAILED", "error": {"type": error.error_type, "message": error.error_message}}
        if not as_json:
            if error.traceback:
                echo(error.traceback.rstrip(), err=True)
            fail(str(error), f"aaiclick-queue task get {handle.id}", code=FAILED)
    except TaskCancelled as error:
        code = FAILED
        end |= {"status": "CANCELLED", "error": {"message": str(error)}}
        if not as_json:
            fail(str(error), code=FAILED)
    finally:
        impatient.cancel()
    echo(to_json(end if as_json else end["result"]))
    return code


async def _say_why(client: Client, task_id: int) -> None:
    """Now and then a line on what the wait is for."""
    said = ""
    while True:
        await asyncio.sleep(PATIENCE_SECONDS)
        why = await why_it_waits(client, task_id)
        if not why:
            return
        if why != said:
            said = why
            echo(f"still {why}", err=True)


async def why_it_waits(client: Client, task_id: int) -> str:
    """Its status, and what it waits for; nothing for a task that is not there."""
    db = await client.database()
    now = await get_task(db, task_id)
    if now is None:
        return ""
    why = f"{now.status}" + (f", {now.reason}" if now.reason else "")
    if now.status == "QUEUED":
        [*queues] = await list_queues(db, limit=1, name=now.queue)
        if queues and queues[0].paused_at:
            why += f": the queue {now.queue!r} is paused"
        elif queues and not queues[0].workers:
            why += f": no worker serves the queue {now.queue!r}"
    return why
