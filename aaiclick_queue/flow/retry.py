"""Retry: puts tasks that ended FAILED or CANCELLED back in line. Before: a person. After: the claim.

Those of jobs are left to flow/job_retry.py: their ends have been counted.
The ended run moves to `attempts`, attempts start anew, the checkpoint is kept, run_epoch is never used again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..schema import Transaction
from .outbox import append_from
from .place import enter_line

_RETRY = """
ended AS MATERIALIZED (
    SELECT id, worker_id, ready_at, started_at, run_epoch, attempt, status, error FROM aaiclick_queue.tasks
    WHERE id = ANY(ARRAY({ids})) AND status IN ('FAILED', 'CANCELLED') AND job_id IS NULL ORDER BY id
    FOR UPDATE SKIP LOCKED
), history AS (
    INSERT INTO aaiclick_queue.attempts (task_id, worker_id, ready_at, started_at, run_epoch, attempt, outcome, error)
    SELECT id, worker_id, ready_at, started_at, coalesce(run_epoch, 0), coalesce(attempt, 0), status, error FROM ended
), open AS (
    UPDATE aaiclick_queue.tasks t
    SET status = NULL, attempt = NULL, worker_id = NULL, result = NULL, error = NULL, ready_at = NULL,
        started_at = NULL, finished_at = NULL, run_epoch = NULL, expires_at = NULL, eta = NULL
    FROM ended WHERE t.id = ended.id
    RETURNING t.id AS task_id, coalesce(t.job_id, t.id) AS order_key, coalesce(ended.run_epoch, 0) + 1 AS run_epoch,
              0 AS attempt, 0 AS lost_count, 0 AS snoozes, t.queue, -t.priority::int AS rank, t.entrypoint,
              t.concurrency_key, t.order_by, t.job_id, t.crowd,
              CASE WHEN t.order_by IS NULL THEN 0 ELSE 4 END | CASE WHEN t.order_stops THEN 8 ELSE 0 END
              | CASE WHEN t.hooks IS NULL THEN 0 ELSE 16 END
              | CASE t.keep WHEN 'none' THEN 32 WHEN 'failed' THEN 64 ELSE 0 END AS flags
), timers AS (
    DELETE FROM aaiclick_queue.timers WHERE task_id = ANY(ARRAY(SELECT task_id FROM open))
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, run_epoch, type, data)
    SELECT task_id, run_epoch, 'TASK_RETRIED', jsonb_build_object('by', {by}) FROM open
), {enter}, told AS (
    {told}
)"""


def retry_ended(ids: str, *, by: str) -> str:
    """CTEs that put those of the tasks that have ended back in line; `open` has them."""
    return _RETRY.format(ids=ids, by=by, enter=enter_line("open"), told=append_from("entered"))


RETRY_TASKS = f"""
WITH {retry_ended("SELECT unnest($1::bigint[])", by="$2::text")}
SELECT task_id FROM open
"""
# One whose failure stopped those behind it: they go on without it.
UNBLOCK = """
WITH freed AS (
    DELETE FROM aaiclick_queue.slots s USING aaiclick_queue.tasks t
    WHERE s.limit_id = 0 AND s.stopping = 0 AND s.task_id = ANY($1::bigint[]) AND t.id = s.task_id
      AND t.status IS NOT NULL
    RETURNING s.task_id, s.key
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, type, data)
    SELECT task_id, 'TASK_UNBLOCKED', jsonb_build_object('by', $2::text, 'order_by', key) FROM freed
)
SELECT task_id FROM freed
"""


async def retry_tasks(tx: Transaction, ids: Sequence[int], *, by: str) -> set[int]:
    """Run ended tasks again from their first attempt; returns those that had FAILED or were CANCELLED."""
    return {row["task_id"] for row in await tx.fetch(RETRY_TASKS, list(ids), by)}


async def unblock(tx: Transaction, ids: Sequence[int], *, by: str) -> set[int]:
    """Let what waits behind these failed tasks in strict order go on; returns those that something waited for."""
    return {row["task_id"] for row in await tx.fetch(UNBLOCK, list(ids), by)}
