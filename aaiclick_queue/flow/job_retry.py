"""Retry in a job: tasks that FAILED or were CANCELLED run again, and what they had kept from starting waits again.

Before: a person, an operation. After: the line. The locks and the one look of flow/job_graph.py; nothing is taken out
of a place here, for whatever is reset had ended. What has run behind such a task stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..schema import Transaction
from .job_graph import hold_job, hold_job_if_free, load_graph, see_ends
from .reenter import recount_reset
from .reset import Reset, write_back

ENDED_BADLY = ("FAILED", "CANCELLED")
# Under the job's row nothing that ended badly becomes anything else, so this is worth asking before all is held.
ANY_BAD = """
SELECT id FROM aaiclick_queue.tasks WHERE job_id = $1 AND status IN ('FAILED', 'CANCELLED') AND member_gate IS NOT NULL
LIMIT 1
"""
BAD_TASKS = """
SELECT id FROM aaiclick_queue.tasks
WHERE job_id = $1 AND status IN ('FAILED', 'CANCELLED') AND member_gate IS NOT NULL ORDER BY id LIMIT $2
"""
JOBS_OF_TASKS = """
SELECT id, job_id FROM aaiclick_queue.tasks
WHERE id = ANY($1::bigint[]) AND job_id IS NOT NULL AND member_gate IS NOT NULL AND status IN ('FAILED', 'CANCELLED')
"""


async def jobs_of(tx: Transaction, ids: Sequence[int]) -> dict[int, set[int]]:
    """Those of the tasks that are of jobs and can be retried there, by job."""
    jobs: dict[int, set[int]] = {}
    for row in await tx.fetch(JOBS_OF_TASKS, list(ids)):
        jobs.setdefault(row["job_id"], set()).add(row["id"])
    return jobs


async def would_retry(tx: Transaction, job_id: int, *, limit: int) -> list[int]:
    """The first tasks of the job that FAILED or were CANCELLED, which a retry would run again."""
    return [row["id"] for row in await tx.fetch(BAD_TASKS, job_id, limit)]


async def retry_in_job(tx: Transaction, job_id: int, ids: Collection[int] | None = None, *, by: str) -> set[int]:
    """Run those of the tasks again, or all of the job, that FAILED or were CANCELLED; gives them."""
    await hold_job(tx, job_id)
    return await _retry(tx, job_id, ids, by)


async def retry_in_job_if_free(tx: Transaction, job_id: int, ids: Collection[int], *, by: str) -> set[int] | None:
    """The same without waiting for the job; None when somebody holds it."""
    if not await hold_job_if_free(tx, job_id):
        return None
    return await _retry(tx, job_id, ids, by)


async def _retry(tx: Transaction, job_id: int, ids: Collection[int] | None, by: str) -> set[int]:
    if not await tx.fetch(ANY_BAD, job_id):
        return set()
    graph = await load_graph(tx, job_id)
    seen = await see_ends(tx, graph)
    bad = {task_id for task_id, status in seen.statuses.items() if status in ENDED_BADLY}
    seeds = bad if ids is None else bad.intersection(ids)
    recounted = await recount_reset(tx, graph, seen, seeds)
    types = dict.fromkeys(recounted.lifted, "TASK_LIFTED") | dict.fromkeys(seeds, "TASK_RETRIED")
    await write_back(tx, job_id, recounted, Reset(types, {}, forget=False), by=by)
    return seeds
