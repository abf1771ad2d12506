"""Clear: a task of a job runs again, with everything behind it. Before: a person. After: the line, the resolver.

One transaction, in the lock order: the job's row, its gates by id, places and leases by SKIP LOCKED, tasks. What holds:
- Under the job's row the graph stands still: who adds to the job shares that row.
- Under the gates nothing of the job is folded or opened, so what waits at a gate stays there, or is cancelled.
- A task is reset only by who owns it: it had ended, and nothing but a holder of the job's row un-ends it; or its place
  row was taken here, and then nobody else can have it. A running one loses its lease; its worker hears of that with the
  next heartbeat, and its slots stay taken until its code has stopped.
- Counts are made from one look at all tasks that also deletes all arrivals that it sees (flow/job_graph.py).
A running task that adds to the job holds its lease and waits for the job: then this one lets go of all and comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from ..errors import TasksBusy, UnknownTask, WrongContext
from ..outcome import Error
from ..postgres import Connection, Database
from ..schema import Transaction
from .cancel import FINAL, TAKE_LEASED, TAKE_WAITING, take_from
from .closure import Closure, downstream, trim
from .job_graph import hold_job, load_graph, see_ends
from .reenter import recount_reset
from .reset import LEFT, Reset, drop, pages, write_back

JOB_OF_TASK = "SELECT job_id, member_gate FROM aaiclick_queue.tasks WHERE id = $1"
AT_GATES = """
SELECT w.task_id FROM unnest($1::bigint[]) AS wanted(id) JOIN aaiclick_queue.tasks t ON t.id = wanted.id
JOIN aaiclick_queue.waiting w ON w.gate_id = t.wait_gate AND w.task_id = t.id
"""
TAKE_TO_CLEAR = tuple(take_from(place, "CLEARED") for place in ("held", "delayed", "ready", "leases"))
TAKE_TO_DROP = (*TAKE_WAITING, TAKE_LEASED)
CLEARED = Error("Cleared", "it was cleared, and runs again")
PASSES = 8  # with the job in our hands
TRIES = 10


class OnTheMove(Exception):
    """Tasks that were in no place and not final, pass after pass: somebody holds them who may wait for us."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = sorted(ids)


async def clear_task(db: Database, task_id: int, *, by: str) -> set[int]:
    """Run a task again, and everything behind it; gives all of these. `TasksBusy` when others hold some of them."""
    job_id = await job_of(db, task_id)
    for attempt in range(TRIES):
        try:
            async with db.transaction() as tx:
                return await _clear(tx, job_id, task_id, by)
        except OnTheMove as error:
            if attempt == TRIES - 1:
                raise TasksBusy(error.ids) from error
            await asyncio.sleep(0.01 * (attempt + 1))
    raise AssertionError("unreachable")


async def would_clear(db: Database, task_id: int) -> Closure:
    """What a clear would take with it, by the steps of the clear itself, all rolled back."""
    job_id = await job_of(db, task_id)
    async with db.connection() as connection:
        look = connection.raw.transaction()
        await look.start()
        try:
            await hold_job(connection, job_id)
            return downstream(await load_graph(connection, job_id), [task_id])
        finally:
            await look.rollback()


async def job_of(tx: Transaction, task_id: int) -> int:
    """The job that the task is a part of."""
    rows = await tx.fetch(JOB_OF_TASK, task_id)
    if not rows:
        raise UnknownTask(f"no task {task_id}: it was pruned, or its transaction is not committed")
    [row] = rows
    if row["job_id"] is None:
        raise WrongContext(f"task {task_id} is in no job: `aaiclick-queue task retry {task_id}` runs it again")
    if row["member_gate"] is None:
        raise _left(task_id)
    job_id: int = row["job_id"]
    return job_id


async def _clear(tx: Connection, job_id: int, task_id: int, by: str) -> set[int]:
    await hold_job(tx, job_id)
    graph = await load_graph(tx, job_id)
    if task_id not in graph.tasks:
        raise _left(task_id)
    closure = downstream(graph, [task_id])
    await _take(tx, closure.gone, TAKE_TO_DROP, LEFT)
    taken = await _take(tx, closure.again, TAKE_TO_CLEAR, CLEARED)
    trimmed = trim(graph, closure)
    seen = await see_ends(tx, trimmed.graph)
    recounted = await recount_reset(tx, trimmed.graph, seen, taken.keys())
    await drop(tx, trimmed, closure, job_id=job_id)
    types = dict.fromkeys(taken.keys() | recounted.lifted, "TASK_CLEARED")
    await write_back(tx, job_id, recounted, Reset(types, taken, forget=True), by=by)
    return closure.again


async def _take(
    tx: Transaction, ids: AbstractSet[int], statements: Sequence[str], error: Error
) -> dict[int, int | None]:
    """Make all of them ours: the run_epoch of those taken out of a place, None for those that had ended.

    Those to be cleared that wait at a gate are left there, for nobody but a cancel can take them.
    """
    found: dict[int, int | None] = {}
    left = sorted(ids)
    for attempt in range(PASSES):
        at_gates: set[int] = set()
        for some in pages(left):
            if statements is TAKE_TO_CLEAR:
                at_gates.update(row["task_id"] for row in await tx.fetch(AT_GATES, some))
            for statement in statements:
                found |= {row["task_id"]: row["run_epoch"] for row in await tx.fetch(statement, some, error.text())}
            for row in await tx.fetch(FINAL, some):
                found.setdefault(row["id"], None)
        left = [task_id for task_id in left if task_id not in found and task_id not in at_gates]
        if not left:
            return found
        await asyncio.sleep(0.002 * (attempt + 1))
    raise OnTheMove(left)


def _left(task_id: int) -> UnknownTask:
    return UnknownTask(
        f"task {task_id} has left its job: the task that had added it was cleared, and its new run adds others"
    )
