"""Workers: what they do, where one hangs, stopping one from afar."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import msgspec
from fastapi import Path, Query

from ...flow.heartbeat import Counters, set_status
from ...queue_views import PLACE, WorkerView, get_worker, list_workers
from ...stacks import READ_STACKS, ask_for_stacks
from ...status import WorkerStatus
from ..answers import Api, Done, Id, Limit, Page
from ..desk import AtDesk, Desk
from ..problems import Problem
from ..roles import Writer

api = Api("workers")
WorkerId = Annotated[Id, Path(description="Its id.")]
Place = Annotated[str, Query(pattern=PLACE, description="`after` of the page before.")]
LOOK_SECONDS = 0.2


class Stacks(msgspec.Struct, frozen=True):
    """Where every run, thread and asyncio task of a worker is."""

    id: str
    stacks: str


@api.get("/workers", operation_id="list_workers")
async def list_all_workers(desk: AtDesk, limit: Limit = 100, after: Place | None = None) -> Page[WorkerView]:
    """Workers, those that live first; those that stopped or were lost are kept for an hour."""
    found = await list_workers(desk.db, limit=limit, after=after)
    return Page(found, after=found[-1].place if len(found) >= limit else None)


@api.get("/workers/{worker_id}", operation_id="get_worker")
async def get_one_worker(worker_id: WorkerId, desk: AtDesk) -> WorkerView:
    """One worker."""
    return await found_worker(desk, worker_id)


@api.post("/workers/{worker_id}/stop")
async def stop_worker(worker_id: WorkerId, desk: AtDesk, who: Writer) -> Done:  # noqa: ARG001 - needed for its role
    """Have a worker finish what it runs and end; it learns so with its next heartbeat."""
    found = await found_worker(desk, worker_id)
    done = found.status == WorkerStatus.ACTIVE
    if done:
        await set_status(desk.db, worker_id, WorkerStatus.STOPPING, Counters())
    return Done(done, f"worker {worker_id} is {'STOPPING' if done else found.status}")


@api.post("/workers/{worker_id}/stacks")
async def worker_stacks(
    worker_id: WorkerId,
    desk: AtDesk,
    who: Writer,  # noqa: ARG001 - needed for its role
    timeout: Annotated[float, Query(ge=0.1, le=60, description="Seconds to wait for it.")] = 30.0,  # noqa: ASYNC109
) -> Stacks:
    """What a worker hangs in; it answers with its next heartbeat."""
    found = await found_worker(desk, worker_id)
    if not await ask_for_stacks(desk.db, worker_id):
        raise Problem(409, f"worker {worker_id} is {found.status}: it cannot answer")
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        rows = await desk.db.fetch(READ_STACKS, worker_id)
        if rows and rows[0]["stacks_at"] is not None:
            return Stacks(str(worker_id), str(rows[0]["stacks"]))
        await asyncio.sleep(LOOK_SECONDS)
    raise Problem(504, f"worker {worker_id} did not answer within {timeout:g} s: kill -USR1 {found.pid} there")


async def found_worker(desk: Desk, worker_id: int) -> WorkerView:
    """The worker; a problem when there is none."""
    found = await get_worker(desk.db, worker_id)
    if found is not None:
        return found
    raise Problem(404, f"no worker {worker_id}: those that ended are forgotten after an hour")
