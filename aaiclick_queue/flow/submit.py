"""Submit: writes a job, or adds to one, in the caller's transaction, a few statements for any number of tasks.

Before: graph (the layout). After: the line for what can start, gates for the rest. A task that adds to its job does so
under its lease; the gates it counts at are raised in place, and one that has ended takes no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import GroupClosed, JobEnded, LeaseLost, QueueError, UnknownJob
from ..meters import METERS
from ..references import renumbered
from ..schema import Transaction
from .attach import LOOK_AT, Attacher, continue_after, lock_gates
from .cycles import refuse_cycles, refuse_cycles_in
from .dedupe import Key, take_key_of_job
from .enqueue import TakeIds, Told
from .fenced import Fence, hold_lease
from .graph import Layout, Plan, Previous, lay_out
from .plan_rows import INSERT_GATES, PlanWriter

INSERT_JOB = """
WITH made AS (
    INSERT INTO aaiclick_queue.jobs (id, name, run_type, entrypoint, kwargs, returns, priority, max_parallel, fail_fast,
                                     hooks, metadata, correlation_id, submitted_by, deadline_at, registered_job_id,
                                     retention_seconds)
    VALUES ($1, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text::jsonb, $7::int, $8::int, $9::boolean,
            $10::text::jsonb, $11::text::jsonb, $12::text, $13::text, now() + make_interval(secs => $14::float8),
            $15::bigint, $16::float8)
    ON CONFLICT (id) DO NOTHING RETURNING id
), noted AS (
    INSERT INTO aaiclick_queue.events (job_id, type, data)
    SELECT id, 'JOB_CREATED', jsonb_build_object('name', $2::text, 'kwargs', $5::text::jsonb) FROM made
)
SELECT id FROM made
"""
TAKEN_IDS = """
SELECT id FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[])
UNION ALL SELECT id FROM aaiclick_queue.gates WHERE id = ANY($1::bigint[])
UNION ALL SELECT id FROM aaiclick_queue.jobs WHERE id = ANY($1::bigint[])
"""
# Shared with other adders and waited for: a cancel in between would miss what is added.
HOLD_JOB = "SELECT status, max_parallel, pruned_at, failing_at FROM aaiclick_queue.jobs WHERE id = $1 FOR SHARE"
GROUPS_BEFORE = """
SELECT id, crowd, entry_gate FROM aaiclick_queue.groups WHERE id = ANY($1::bigint[]) AND job_id = $2::bigint
"""
# One by one: joined the obvious way, a plan made on an empty table reads all gates a level.
EMPTY_GROUPS = """
SELECT id FROM aaiclick_queue.gates
WHERE id = ANY($1::bigint[]) AND job_id = $2::bigint AND kind = 'GROUP' AND total = 0
"""
GATES_ABOVE = """
WITH RECURSIVE above AS (
    SELECT id AS parent_id, NULL::bigint AS id, n, 1 AS height FROM unnest($1::bigint[], $2::int[]) AS given(id, n)
    UNION ALL
    SELECT g.parent_id, g.id, above.n, above.height + 1 FROM above CROSS JOIN LATERAL (
        SELECT g.id, g.parent_id FROM aaiclick_queue.gates g WHERE g.id = above.parent_id OFFSET 0) AS g
    WHERE above.height < 10000  -- a circle of them ends too
)
SELECT id, sum(n)::int AS n FROM above WHERE id IS NOT NULL GROUP BY id ORDER BY id
"""
# In place and not as an arrival: the gate of another group could have ended before a negative one came.
RAISE_GATES = """
UPDATE aaiclick_queue.gates g SET total = g.total + given.n, remaining = g.remaining + given.n
FROM unnest($1::bigint[], $2::int[]) AS given(id, n) WHERE g.id = given.id
"""


class NewJob(msgspec.Struct, kw_only=True):
    """A job to be written."""

    name: str
    kwargs: str = "{}"
    returns: str | None = None  # what its body returned, naming nodes by reference
    entrypoint: str | None = None
    run_type: str = "MANUAL"
    priority: int = 0
    max_parallel: int | None = None
    fail_fast: bool = False
    hooks: str | None = None
    metadata: str | None = None
    correlation_id: str | None = None
    submitted_by: str | None = None
    timeout: float | None = None
    registered_job_id: int | None = None
    retention: float | None = None  # seconds


class Submitted(msgspec.Struct):
    """What was written: the job, the id of each node by its number, and the wake-ups."""

    job_id: int
    ids: dict[int, int]
    told: list[Told]
    is_another: bool = False  # the job that holds the key: nothing was written


class Adding(msgspec.Struct):
    """Who adds a plan to a job that is there: a running task by its fence, or somebody outside."""

    job_id: int
    by: Fence | None = None
    group: int | None = None  # that of the running task: where nodes without a group go
    returned: tuple[Previous, ...] = ()


async def submit_job(  # noqa: PLR0913 - one value a fact
    tx: Transaction,
    job: NewJob,
    plan: Plan,
    take_ids: TakeIds,
    *,
    key: Key | None = None,
    before: Submitted | None = None,
) -> Submitted:
    """Write the job and all its nodes; workers see them when the caller commits.

    `before` is what an earlier try would have written, whose commit got no answer: the same ids are not written twice.
    """
    refuse_cycles(plan)
    layout = lay_out(plan)
    if before is None:
        [job_id], ids = await _fresh_ids(tx, plan, layout, take_ids, more=1)
    else:
        job_id, ids = before.job_id, before.ids
        if await tx.fetch(TAKEN_IDS, [job_id]):  # before the key: it may be free again by now, or another's
            return Submitted(job_id, ids, [])
    if key is not None and (holder := await take_key_of_job(tx, job.name, key, job_id)) is not None:
        return Submitted(holder, {}, [], is_another=True)
    writer = PlanWriter(tx, job_id, ids, plan=plan, layout=layout)
    returns = renumbered(job.returns, ids) if job.returns else None
    made = await tx.fetch(
        INSERT_JOB, job_id, job.name, job.run_type, job.entrypoint, job.kwargs, returns, job.priority, job.max_parallel,
        job.fail_fast, job.hooks, job.metadata, job.correlation_id, job.submitted_by, job.timeout,
        job.registered_job_id, job.retention,
    )  # fmt: skip
    if not made:  # the earlier try was still on its way
        if before is None:
            raise QueueError(f"job {job_id}: its id was taken in the same moment, and nothing was written: try again")
        return Submitted(job_id, ids, [])
    if METERS.on:
        METERS.job_created(job.name)
    await tx.fetch(INSERT_GATES, job_id, [job_id], [None], [len(plan.tasks)], ["JOB"], ["whole"])
    await writer.write(crowd=None if job.max_parallel is None else f"{job_id}={job.max_parallel}")
    if not plan.tasks:
        await tx.fetch(LOOK_AT, [job_id])
    return Submitted(job_id, ids, writer.told)


async def add_to_job(
    tx: Transaction, to: Adding, plan: Plan, take_ids: TakeIds, *, before: Submitted | None = None
) -> Submitted:
    """Add nodes to a job: by one of its running tasks, which must hold its lease, or from outside.

    `before` as for `submit_job`.
    """
    if to.by is not None and not await hold_lease(tx, to.by):
        raise LeaseLost(f"task {to.by.task_id} is not this run's any more: what it adds to its job was not written")
    if before is not None and await tx.fetch(TAKEN_IDS, list(before.ids.values())):
        return Submitted(to.job_id, before.ids, [])
    job = await _open_job(tx, to)
    for task in plan.tasks:
        task.group = to.group if task.group is None else task.group
    for group in plan.groups:
        group.parent = to.group if group.parent is None else group.parent
    refuse_cycles(plan)  # before anything goes from group to group: in a circle of them it would never end
    groups = await _groups_before(tx, to, plan)
    entries = {row["id"]: row["entry_gate"] for row in groups.values() if row["entry_gate"] is not None}
    empty = await _empty_before(tx, to.job_id, plan)
    layout = lay_out(plan, returned=to.returned, entries=entries, empty=empty)
    ids = before.ids if before is not None else (await _fresh_ids(tx, plan, layout, take_ids))[1]
    crowds = {row["id"]: row["crowd"] for row in groups.values()}
    writer = PlanWriter(tx, to.job_id, ids, plan=plan, layout=layout, crowds=crowds)
    above = await _gates_above(tx, to.job_id, plan)
    locked = await _lock_gates(tx, to.job_id, above, layout, entries)
    if before is not None and await tx.fetch(TAKEN_IDS, list(ids.values())):
        return Submitted(to.job_id, ids, [])  # the earlier try was on its way until the gates were let go
    if _waits_before(layout, locked):
        returned = {to.by.task_id: to.returned} if to.by is not None and to.returned else {}
        await refuse_cycles_in(tx, to.job_id, plan, returned)
    if above:
        await tx.fetch(RAISE_GATES, list(above), list(above.values()))
    await Attacher(tx, to.job_id, locked).attach(layout.outside, ids)
    entered_at = {gate for gate in layout.waits.values() if gate > 0}
    opened = {gate for gate in entered_at if locked[gate]["state"] == "OPEN"}
    await writer.write(
        crowd=None if job["max_parallel"] is None else f"{to.job_id}={job['max_parallel']}",
        spawned_by=to.by.task_id if to.by else None,
        opened=opened,
    )
    if entered_at > opened:  # a resolver whose snapshot is older may open such a gate, and not see these tasks there
        await tx.fetch(LOOK_AT, sorted(entered_at - opened))
    if layout.after is not None and to.by is not None:
        await continue_after(tx, to.job_id, to.by.task_id, ids[layout.after])
    return Submitted(to.job_id, ids, writer.told)


async def _open_job(tx: Transaction, to: Adding) -> Any:
    rows = await tx.fetch(HOLD_JOB, to.job_id)
    if not rows or rows[0]["pruned_at"] is not None:
        raise UnknownJob(f"no job {to.job_id}: it was pruned, or its transaction is not committed")
    [job] = rows
    if to.by is not None:
        if job["status"] == "CANCELLED" or job["failing_at"] is not None:
            what = "was cancelled" if job["status"] == "CANCELLED" else "has failed"
            raise LeaseLost(f"job {to.job_id} {what}: its tasks add nothing more")
    elif job["status"] not in ("PENDING", "RUNNING") or job["failing_at"] is not None:
        status = job["status"] if job["failing_at"] is None else "FAILED"
        what = f"job {to.job_id} has ended {status}: clear one of its tasks to open it again, or make a new job"
        raise JobEnded(what, job_id=to.job_id, status=status)
    return job


async def _groups_before(tx: Transaction, to: Adding, plan: Plan) -> dict[int, Any]:
    new = {group.number for group in plan.groups}
    parents = {task.group for task in plan.tasks} | {group.parent for group in plan.groups}
    wanted = sorted(number for number in parents if number is not None and number not in new)
    found = {row["id"]: row for row in await tx.fetch(GROUPS_BEFORE, wanted, to.job_id)} if wanted else {}
    for number in wanted:
        if number not in found:
            raise UnknownJob(f"no group {number} in job {to.job_id}: give one of this job's")
    return found


async def _empty_before(tx: Transaction, job_id: int, plan: Plan) -> list[int]:
    """Groups that were written without a task, and so have ended: none will come."""
    new = {group.number for group in plan.groups}
    arrows = (*(task.previous for task in plan.tasks), *(group.previous for group in plan.groups))
    waited_for = {one.number for previous in arrows for one in previous if one.kind == "group"} - new
    rows = await tx.fetch(EMPTY_GROUPS, sorted(waited_for), job_id) if waited_for else []
    return [row["id"] for row in rows]


async def _gates_above(tx: Transaction, job_id: int, plan: Plan) -> dict[int, int]:
    """The gates there are that new tasks count at, and how many at each."""
    new = {group.number: group for group in plan.groups}
    under: dict[int, int] = {}
    for task in plan.tasks:
        at = task.group
        while at is not None and at in new:
            at = new[at].parent
        under[at or job_id] = under.get(at or job_id, 0) + 1
    rows = await tx.fetch(GATES_ABOVE, list(under), list(under.values())) if under else []
    return {row["id"]: row["n"] for row in rows}


async def _lock_gates(
    tx: Transaction, job_id: int, above: Mapping[int, int], layout: Layout, entries: Mapping[int, int]
) -> dict[int, Any]:
    """All that is added to or waited for, and the job's own: those who add to one job come one after the other."""
    waited_for = {one.previous.number for one in layout.outside if one.previous.kind != "task"}
    gates = await lock_gates(tx, job_id, [job_id, *above, *waited_for, *entries.values()])
    for group, entry in entries.items():
        if gates[entry]["state"] in ("FAIL", "SKIP"):
            raise GroupClosed(f"group {group} will not start: what it waits for did not complete, or was skipped")
    if closed := [gate_id for gate_id, row in gates.items() if gate_id in above and row["remaining"] == 0]:
        raise GroupClosed(
            f"{'job' if closed[0] == job_id else 'group'} {closed[0]} has ended: what waited for it may have started, "
            "so it takes no more tasks"
        )
    return gates


def _waits_before(layout: Layout, locked: Mapping[int, Any]) -> bool:
    """Whether anything of the plan waits for what was there: only then can a circle be closed."""
    entries = {gate for gate in layout.waits.values() if gate > 0}
    gates = entries | {one.previous.number for one in layout.outside if one.previous.kind == "gate"}
    waits = any(locked[gate]["state"] == "WAITING" for gate in gates)
    return waits or any(one.previous.kind != "gate" for one in layout.outside)


async def _fresh_ids(
    tx: Transaction, plan: Plan, layout: Layout, take_ids: TakeIds, *, more: int = 0
) -> tuple[list[int], dict[int, int]]:
    """Ids for all numbers; drawn again if another process with the same node id had drawn one of them."""
    numbers = dict.fromkeys([
        *(group.number for group in plan.groups),
        *(task.number for task in plan.tasks),
        *(gate.number for gate in layout.gates if gate.number < 0),
    ])  # fmt: skip
    for _ in range(5):
        ids = take_ids(more + len(numbers))
        if not await tx.fetch(TAKEN_IDS, ids):
            return ids[:more], dict(zip(numbers, ids[more:], strict=True))
    raise QueueError("every id that was drawn is taken: is this host's clock far behind the database's?")
