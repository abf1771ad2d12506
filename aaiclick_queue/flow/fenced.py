"""Fenced writes of a running task: progress, checkpoint, more time, children.

Each locks the run's lease row in its own statement (a look by EXISTS is no fence: the reaper could take the lease
between the look and the commit) and says whether it landed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..codec import decode_json
from ..errors import SpawnDiverged
from ..schema import Transaction
from .enqueue import NewTask, Spec, TakeIds, Written, insert_tasks

_LEASE = (
    "SELECT task_id, run_epoch FROM aaiclick_queue.leases WHERE task_id = $1 AND run_epoch = $2 AND worker_id + 0 = $3"
)
_KEEP = """INSERT INTO aaiclick_queue.{table} (task_id, run_epoch, data)
SELECT task_id, run_epoch, $4::text::jsonb FROM lease
ON CONFLICT (task_id) DO UPDATE SET run_epoch = excluded.run_epoch, data = excluded.data, updated_at = now()
RETURNING true"""
KEEP_PROGRESS = f"""
WITH lease AS ({_LEASE} FOR UPDATE)
{_KEEP.format(table="progress")}
"""
KEEP_CHECKPOINT = f"""
WITH lease AS ({_LEASE} FOR UPDATE), kept AS (
    {_KEEP.format(table="checkpoints")}
)
INSERT INTO aaiclick_queue.events (task_id, run_epoch, type, job_id, data)
SELECT task_id, run_epoch, 'TASK_CHECKPOINT', $5::bigint, jsonb_strip_nulls(jsonb_build_object('phase', $6::text))
FROM lease
RETURNING true
"""
EXTEND_DEADLINE = """
UPDATE aaiclick_queue.leases SET deadline_at = greatest(deadline_at, now() + make_interval(secs => $4::float8))
WHERE task_id = $1 AND run_epoch = $2 AND worker_id + 0 = $3 RETURNING true
"""
HOLD_LEASE = f"{_LEASE} FOR UPDATE"
CHECKPOINT = "SELECT data FROM aaiclick_queue.checkpoints WHERE task_id = $1"
CHILD_OF_KEY = """
SELECT id, entrypoint = $3::text AND kwargs = $4::text::jsonb AS same FROM aaiclick_queue.tasks
WHERE parent_id = $1::bigint AND spawn_key = $2::text
"""
KEY = "="  # before a key that was given by name


class Fence(msgspec.Struct, frozen=True):
    """What every write of one run carries."""

    task_id: int
    run_epoch: int
    worker_id: int


async def keep_progress(tx: Transaction, fence: Fence, data: str) -> bool:
    """Keep how far the run is; False when the run has lost its lease."""
    return bool(await tx.fetch(KEEP_PROGRESS, *_values(fence), data))


async def keep_checkpoint(
    tx: Transaction, fence: Fence, data: str, *, job_id: int | None = None, phase: str | None = None
) -> bool:
    """Keep where the next attempt can go on, and that it was kept; False when the run has lost its lease."""
    return bool(await tx.fetch(KEEP_CHECKPOINT, *_values(fence), data, job_id, phase))


async def load_checkpoint(tx: Transaction, task_id: int) -> Any:
    """The last checkpoint of the task, of whichever attempt; None when there is none."""
    rows = await tx.fetch(CHECKPOINT, task_id)
    return decode_json(rows[0]["data"]) if rows else None


async def extend(tx: Transaction, fence: Fence, seconds: float) -> bool:
    """Move the reaper's deadline out to `seconds` from now; False when the run has lost its lease."""
    return bool(await tx.fetch(EXTEND_DEADLINE, *_values(fence), seconds))


async def hold_lease(tx: Transaction, fence: Fence) -> bool:
    """Lock the lease until the transaction ends; False when the run has lost it."""
    return bool(await tx.fetch(HOLD_LEASE, *_values(fence)))


async def spawn(tx: Transaction, spec: Spec, task: NewTask, take_ids: TakeIds) -> Written:
    """Insert a child once: a repeated attempt gets the id of the child that an earlier one has written."""
    while (found := await child_of_key(tx, spec, task)) is None:
        # Not in: the id is taken, or a run that has lost its lease by now wrote the child since we looked.
        if (written := await insert_tasks(tx, spec, [task], take_ids(1))).ids:
            return written
    return Written([found], [])


async def child_of_key(tx: Transaction, spec: Spec, task: NewTask) -> int | None:
    """The child that an earlier attempt has written; SpawnDiverged where its key was given and it is another one."""
    rows = await tx.fetch(CHILD_OF_KEY, spec.parent_id, task.spawn_key, spec.entrypoint, task.kwargs)
    if not rows:
        return None
    if not rows[0]["same"] and (task.spawn_key or "").startswith(KEY):
        raise SpawnDiverged(diverged(spec, task, rows[0]["id"]))
    task_id: int = rows[0]["id"]
    return task_id


def diverged(spec: Spec, task: NewTask, task_id: int | None = None) -> str:
    """What is wrong with a child of a known key that is not the same."""
    which = "this run" if task_id is None else f"an earlier attempt, as task {task_id},"
    return (
        f"key={(task.spawn_key or '').removeprefix(KEY)!r}: {which} wrote a child of that key with another task or "
        f"other arguments than {spec.entrypoint} has now: give what does not change, or another key"
    )


def _values(fence: Fence) -> tuple[int, int, int]:
    return fence.task_id, fence.run_epoch, fence.worker_id
