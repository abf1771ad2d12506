"""The life of a whole job, changed by hand: cancelled, paused, resumed. Before: a person. After: operations, admission.

A cancel is two steps. The first writes the job's status and an operation, in one commit: from then on nothing is added
to the job, for who adds shares its row and looks, and no gate of it lets a task start. The second is that operation,
worked in bounded pages by anybody until a whole pass meets no open task; a crash goes on where it was. A job that fails
at once, for fail_fast or for its deadline, is `failing_at` instead, and ends FAILED by its gate when nothing is open.
"""

from __future__ import annotations

from ..errors import JobEnded
from ..postgres import Database
from ..schema import Transaction
from .job_graph import STOP_CANCELLING, hold_job
from .limits import NewLimit, drop_limit_in, set_limit_in

CANCEL_JOB = """
WITH ended AS (
    UPDATE aaiclick_queue.jobs
    SET status = 'CANCELLED', finished_at = now(), paused_at = NULL, paused_by = NULL, reason = NULL,
        error = jsonb_build_object('type', 'Cancelled', 'message', 'cancelled by ' || $2::text)
    WHERE id = $1 AND status IN ('PENDING', 'RUNNING') RETURNING id
), freed AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d
        WHERE d.until IS NULL AND d.task_id = ANY(ARRAY(SELECT id FROM ended)) FOR UPDATE SKIP LOCKED))
), noted AS (
    INSERT INTO aaiclick_queue.events (job_id, type, data)
    SELECT id, 'JOB_CANCELLED', jsonb_build_object('by', $2::text) FROM ended
)
INSERT INTO aaiclick_queue.operations (kind, filter, up_to, made_by)
SELECT 'cancel_job', jsonb_build_object('job', id::text), 9223372036854775807, $2::text FROM ended
RETURNING id
"""
PAUSE_JOB = """
WITH paused AS (
    UPDATE aaiclick_queue.jobs SET paused_at = now(), paused_by = $2::text, reason = $3::text
    WHERE id = $1 AND paused_at IS NULL RETURNING id
)
INSERT INTO aaiclick_queue.events (job_id, type, data)
SELECT id, 'JOB_PAUSED', jsonb_strip_nulls(jsonb_build_object('by', $2::text, 'reason', $3::text)) FROM paused
RETURNING job_id
"""
RESUME_JOB = """
WITH resumed AS (
    UPDATE aaiclick_queue.jobs SET paused_at = NULL, paused_by = NULL, reason = NULL
    WHERE id = $1 AND paused_at IS NOT NULL RETURNING id
)
INSERT INTO aaiclick_queue.events (job_id, type, data)
SELECT id, 'JOB_RESUMED', jsonb_build_object('by', $2::text) FROM resumed
RETURNING job_id
"""


async def cancel_job(db: Database, job_id: int, *, by: str) -> int:
    """End an open job as CANCELLED; gives the number of the operation that ends its tasks."""
    async with db.transaction() as tx:
        return await cancel_job_in(tx, job_id, by=by)


async def cancel_job_in(tx: Transaction, job_id: int, *, by: str) -> int:
    """The same in a transaction that is there."""
    await _hold_open(tx, job_id)
    await tx.fetch(STOP_CANCELLING, job_id)
    await drop_limit_in(tx, _pause(job_id), by=by)
    [row] = await tx.fetch(CANCEL_JOB, job_id, by)
    operation_id: int = row["id"]
    return operation_id


async def pause_job(db: Database, job_id: int, *, by: str, reason: str | None = None) -> int | None:
    """Let no task of the job start any more; gives the operation that takes those in line out of it, None if it was
    paused already.
    """
    async with db.transaction() as tx:
        return await pause_job_in(tx, job_id, by=by, reason=reason)


async def pause_job_in(tx: Transaction, job_id: int, *, by: str, reason: str | None = None) -> int | None:
    """The same in a transaction that is there."""
    await _hold_open(tx, job_id)
    if not await tx.fetch(PAUSE_JOB, job_id, by, reason):
        return None
    return await set_limit_in(tx, _pause(job_id, reason), by=by)


async def resume_job(db: Database, job_id: int, *, by: str) -> bool:
    """Let its tasks start again, by the next admission; False when it was not paused."""
    async with db.transaction() as tx:
        return await resume_job_in(tx, job_id, by=by)


async def resume_job_in(tx: Transaction, job_id: int, *, by: str) -> bool:
    """The same in a transaction that is there."""
    await hold_job(tx, job_id)
    if not await tx.fetch(RESUME_JOB, job_id, by):
        return False
    await drop_limit_in(tx, _pause(job_id), by=by)
    return True


async def _hold_open(tx: Transaction, job_id: int) -> None:
    status = (await hold_job(tx, job_id))["status"]
    if status not in ("PENDING", "RUNNING"):
        raise JobEnded(f"job {job_id} has ended {status} already", job_id=job_id, status=status)


def _pause(job_id: int, reason: str | None = None) -> NewLimit:
    return NewLimit("job", str(job_id), "pause", reason=reason)
