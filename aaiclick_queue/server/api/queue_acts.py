"""Queues: pause, purge, move, limit; how many workers one wants."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from pydantic import Field

from ...flow.pause import pause_queue as pause
from ...flow.pause import resume_queue as resume
from ...flow.reaper import ensure_partitions
from ...operations import moving, purging
from ...queue_views import list_queues
from ..answers import Answer, Api, Asked, Done, Name, Reasoned, audits_itself
from ..desk import AtDesk
from ..roles import Admin, Writer
from .bulk import Outlook, carry_out
from .limits import LimitOut, LimitsOf, change_limits, limits_of
from .queues import Queue

api = Api("queues")

SOON_SECONDS = 30.0  # more than any scaler waits between two looks
SLOTS = 10  # of a worker, where none serves the queue
SET_OBJECTIVE = """
INSERT INTO aaiclick_queue.queues (name, objective_seconds) VALUES ($1::text, $2::float8)
ON CONFLICT (name) DO UPDATE SET objective_seconds = excluded.objective_seconds
"""
SCALE = """
SELECT (SELECT max(w.slots) FROM aaiclick_queue.workers w WHERE w.status = 'ACTIVE' AND w.lease_expires_at > now()
        AND ($1::text = ANY(w.queues) OR '*' = ANY(w.queues))) AS slots,
       (SELECT q.objective_seconds FROM aaiclick_queue.queues q WHERE q.name = $1::text) AS objective,
       EXISTS (SELECT FROM (SELECT d.queue FROM aaiclick_queue.delayed d
                            WHERE d.not_before < now() + make_interval(secs => $2::float8)
                            ORDER BY d.not_before LIMIT 10000) AS soon WHERE soon.queue = $1::text) AS soon
"""


class Scale(msgspec.Struct, frozen=True):
    """What a scaler needs: `desired_workers` is 0 only when nothing is ready, runs, or is due soon."""

    queue: str
    ready: int
    running: int
    slots_per_worker: int
    oldest_ready_age_seconds: float
    objective_seconds: float | None
    desired_workers: int


class QueueLimits(LimitsOf):
    """Limits of a queue; null takes one away, what is left out stays."""

    fair: bool | None = None
    max_depth: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    objective_seconds: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None


class Purge(Asked):
    """Which of the waiting tasks are meant."""

    where: dict[str, Any] = Field(default_factory=dict)
    dry_run: bool = False


class MoveQueue(Purge):
    """Where they go."""

    to: Name


@api.get("/queues/{name}/scale")
async def queue_scale(name: Queue, desk: AtDesk) -> Scale:
    """How many workers a queue wants, for KEDA and the like; an unknown queue wants none."""
    [row] = await desk.db.fetch(SCALE, name, SOON_SECONDS)
    found = await list_queues(desk.db, limit=1, name=name)
    slots, objective = row["slots"] or SLOTS, row["objective"]
    if not found:
        return Scale(name, 0, 0, slots, 0.0, objective, int(row["soon"]))
    [queue] = found
    waits = 0 if queue.paused_at else queue.ready
    desired = math.ceil((waits + queue.running) / slots)
    oldest = queue.oldest_seconds or 0.0
    if objective is not None and oldest > objective and waits:
        desired *= 2
    if not desired and (row["soon"] or queue.held) and not queue.paused_at:
        desired = 1  # what a limit holds is let in by a worker's loops
    return Scale(name, queue.ready, queue.running, slots, oldest, objective, desired)


@api.post("/queues/{name}/pause")
async def pause_queue(name: Queue, desk: AtDesk, who: Writer, body: Reasoned | None = None) -> Done:
    """Claim no more tasks of a queue; those that run go on."""
    await ensure_partitions(desk.db)
    done = await pause(desk.db, name, by=who.name, reason=body.reason if body else None)
    return Done(done, f"{name} is paused" if done else f"{name} was paused already")


@api.post("/queues/{name}/resume")
async def resume_queue(name: Queue, desk: AtDesk, who: Writer) -> Done:
    """Claim tasks of a paused queue again."""
    await ensure_partitions(desk.db)
    done = await resume(desk.db, name, by=who.name)
    return Done(done, f"{name} goes on" if done else f"{name} was not paused")


@api.post("/queues/{name}/purge", status_code=202)
@audits_itself
async def purge_queue(name: Queue, desk: AtDesk, who: Admin, body: Purge | None = None) -> Answer[Outlook]:
    """End whatever waits in a queue as CANCELLED; what runs goes on."""
    body = body or Purge()
    return await carry_out(desk, who, "purge_queue", purging(name, body.where), dry_run=body.dry_run)


@api.post("/queues/{name}/move", status_code=202)
@audits_itself
async def move_queue(name: Queue, body: MoveQueue, desk: AtDesk, who: Writer) -> Answer[Outlook]:
    """Put what waits in a queue into another one, in its order."""
    change = moving(body.to, {**body.where, "queue": name})
    return await carry_out(desk, who, "move_queue", change, dry_run=body.dry_run)


@api.put("/queues/{name}/limits")
async def limit_queue(name: Queue, body: QueueLimits, desk: AtDesk, who: Admin) -> list[LimitOut]:
    """Limit a queue; tasks in line are taken out of it under a new limit, and nobody claims from it meanwhile."""
    await change_limits(desk, who, "queue", name, body, depth="max_depth")
    if "objective_seconds" in body.model_fields_set:
        await desk.db.fetch(SET_OBJECTIVE, name, body.objective_seconds)
    return await limits_of(desk, "queue", name)
