"""Growing: a run whose end adds to its job, both in one commit. Before: execute. After: the resolver, the claimers.

Inside a task of a job the tasks that it calls are nodes. When it returns they are written with its end or not at all,
so that an attempt which is repeated adds nothing twice. What it returned may name them: then they continue it, its
result is theirs, and whoever waits for it waits for them. In a transaction of its own: the completer's others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from .around import Call
from .around_plans import plan_through
from .building import Building
from .errors import BadJob, Cancel, Fail, LeaseLost, PostgresUnavailable, UnknownJob, WrongContext
from .flow.complete import complete
from .flow.enqueue import TakeIds, enqueue
from .flow.execute import Run, checked_result, encoded_result
from .flow.fenced import Fence, hold_lease
from .flow.graph import Plan, PlannedTask, Previous
from .flow.submit import Adding, Submitted, add_to_job
from .middleware import Middleware, around_enqueue, installed
from .nodes import Group, Node, listed
from .outcome import Ended, Succeeded
from .postgres import DATA_ERRORS, Database
from .references import renumbered, replaced
from .schema import Transaction
from .settings import Settings
from .threads import on_the_loop
from .wiring import holds_nodes, write_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .context import Services

log = logging.getLogger("aaiclick_queue.worker")

# Lease there: not committed. Lease gone and the end is mine: committed.
WAS_COMMITTED = """
SELECT status = 'COMPLETED' AND run_epoch = $2 AND worker_id = $3 AS mine FROM aaiclick_queue.tasks WHERE id = $1
"""
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0


class TaskResult(msgspec.Struct, frozen=True):
    """What a task returns to give a result and to add tasks: `TaskResult(data=…, tasks=[other(1), other(2)])`.

    They join its job; of a task without a job they are enqueued for themselves.
    """

    data: Any = None
    tasks: Sequence[Any] = ()


class Adds(msgspec.Struct):
    """What the end of a run adds: tasks by their numbers, which the result may name; `returned` continue the task."""

    result: str | None
    plan: Plan = msgspec.field(default_factory=lambda: Plan([], []))
    returned: tuple[Previous, ...] = ()
    kept: frozenset[int] = frozenset()  # numbers that are ids already: of children that were told of before
    before: Submitted | None = None  # what an earlier try would have written, whose commit got no answer

    @property
    def writes_tasks(self) -> bool:
        """Whether there is more to write than the end."""
        return bool(self.plan.tasks or self.plan.groups)


def growing(run: Run, services: Services, call: Call) -> Call:
    """The call of a task whose end may add tasks."""
    return _in_job(run, services, call) if run.claimed.job_id is not None else _without_job(run, services, call)


def _in_job(run: Run, services: Services, call: Call) -> Call:
    async def built(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        claimed = run.claimed
        run.building = building = Building(
            queue=claimed.queue, priority=claimed.priority, correlation_id=claimed.correlation_id
        )
        with building:
            value = await call(function, kwargs)
        if run.committed:
            return value
        adds = added_by(run, value, services.settings)
        if adds is None:
            return value.data if isinstance(value, TaskResult) else value
        await on_the_loop()
        await end_with(run, services, adds)
        return None

    return built


def _without_job(run: Run, services: Services, call: Call) -> Call:
    async def called(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        value = await call(function, kwargs)
        if TaskResult not in type(value).__mro__ or run.committed:  # isinstance of a struct takes four times as long
            return value
        if not value.tasks:
            return value.data
        plan = Plan(added_alone(run, value, services.settings), [])
        await on_the_loop()
        await end_with(run, services, Adds(encoded_result(run, value.data), plan))
        return None

    return called


def added_alone(run: Run, value: TaskResult, settings: Settings) -> list[PlannedTask]:
    """The tasks that a run without a job adds, each for itself."""
    return [_alone(node, run, settings) for node in _nodes(value.tasks)]


def added_by(run: Run, value: Any, settings: Settings, *, kept: Sequence[PlannedTask] = ()) -> Adds | None:
    """What the run adds to its job by ending with this value; None where that is nothing."""
    if isinstance(value, Adds):
        return value
    building: Building = run.building
    data = value.data if isinstance(value, TaskResult) else value
    if isinstance(value, TaskResult):
        for node in _nodes(value.tasks):
            building.adopt(node)
    if not (building.nodes or building.groups or kept):
        return None
    plan = building.finish(settings)
    plan.tasks += kept
    adds = Adds(None, plan, kept=frozenset(task.number for task in kept))
    if not holds_nodes(data):
        adds.result = encoded_result(run, data)
        return adds
    text, joints = write_value(data, what=f"what {run.claimed.entrypoint} returns")
    checked_result(run, replaced(text, lambda _: ""))
    for one in joints:
        if one.frame is None or one.frame.building is not building:
            raise BadJob(f"{one.name} was returned and belongs to another job: return nodes that this run has built")
    empty = _empty_groups(plan)
    adds.result = replaced(text, lambda one: "[]" if one.kind == "group" and one.ids[0] in empty else str(one))
    adds.returned = tuple(one.edge for one in joints if one.number not in empty)
    return adds


async def end_with(run: Run, services: Services, adds: Adds) -> None:
    """End the run COMPLETED and write what it adds, in one commit, through the middleware of enqueues."""
    await through(services.middleware, run, adds, lambda: _insist(run, services, adds))
    services.made_ready()


async def through(
    own: Sequence[Middleware],
    run: Run,
    adds: Adds,
    write: Callable[[], Awaitable[Submitted]],
    *,
    connection: Any = None,
) -> None:
    """Write what is added as an enqueue is written; children that were told of before have been through."""
    chain = around_enqueue(own) if adds.writes_tasks and (installed or own) else ()
    if not chain:
        await write()
        return
    new = Plan([task for task in adds.plan.tasks if task.number not in adds.kept], [])
    for task in new.tasks:
        task.spec = msgspec.structs.replace(task.spec, parent_id=run.claimed.task_id)
    await plan_through(chain, new, write, connection=connection)


async def _insist(run: Run, services: Services, adds: Adds) -> Submitted:
    """Write the end until there is an answer: it is given up only when the lease is gone."""
    pause, answered = FIRST_PAUSE, True
    with committing(run, services):
        while True:
            try:
                take = (await services.ids()).take
                async with services.adding_db.transaction() as tx:
                    written = await write_end(tx, run, adds, take)
                break
            except PostgresUnavailable as error:
                if answered:
                    log.warning("what task %d adds waits: %s", run.claimed.task_id, error)
                answered = False
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except LeaseLost as error:
                # A commit whose answer was lost has ended the run, and with it the lease.
                if answered or adds.before is None or not await _was_committed(services.adding_db, run):
                    raise Cancel(str(error)) from error
                written = adds.before
                break
            except UnknownJob as error:
                raise BadJob(str(error)) from error
            except DATA_ERRORS as error:
                raise Fail(f"Postgres refused what the task adds: {error}") from error
        run.committed = True
    return written


async def write_end(tx: Transaction, run: Run, adds: Adds, take: TakeIds) -> Submitted:
    """Write the end and what it adds; raises LeaseLost, and then nothing may be committed."""
    claimed = run.claimed
    fence = Fence(claimed.task_id, claimed.run_epoch, run.worker_id)
    result, written = adds.result, Submitted(claimed.job_id or 0, {}, [])
    if claimed.job_id is not None and adds.writes_tasks:
        to = Adding(claimed.job_id, fence, claimed.group_id, adds.returned)
        written = await add_to_job(tx, to, adds.plan, _keeping(adds, take), before=adds.before)
        result = renumbered(result, written.ids) if adds.returned and result is not None else result
    elif adds.writes_tasks:
        if not await hold_lease(tx, fence):
            raise LeaseLost(f"task {claimed.task_id} is not this run's any more: the tasks it adds were not written")
        for one in adds.plan.tasks:
            [written.ids[one.number]] = (await enqueue(tx, one.spec, [one.task], take)).ids
    ended = Ended(
        *(claimed.task_id, claimed.run_epoch, Succeeded(result), run.started, time.monotonic()), flags=claimed.flags
    )
    if not await complete(tx, [ended], worker_id=run.worker_id):
        raise LeaseLost(
            f"task {claimed.task_id}: this run lost its lease, so everything in its transaction was rolled back"
        )
    adds.before = written
    return written


@contextmanager
def committing(run: Run, services: Services) -> Iterator[None]:
    """While this lasts the run is not to be stopped: nobody could say what became of its commit."""
    run.committing = True
    services.committing(run)
    try:
        yield
    finally:
        run.committing = False
        services.committing(run)


async def was_committed(db: Database, run: Run) -> bool:
    """Whether this run ended its task; PostgresUnavailable where there is no answer."""
    return bool(await db.fetchval(WAS_COMMITTED, run.claimed.task_id, run.claimed.run_epoch, run.worker_id))


async def _was_committed(db: Database, run: Run) -> bool:
    while True:
        try:
            return await was_committed(db, run)
        except PostgresUnavailable:
            await asyncio.sleep(LONGEST_PAUSE)


def _nodes(tasks: Any) -> list[Node]:
    nodes = list(listed(tasks))
    for one in nodes:
        if not isinstance(one, Node):
            what = "a group, whose nodes join by themselves" if isinstance(one, Group) else f"{one!r}, which is no node"
            raise BadJob(
                f"TaskResult(tasks=[…]) has {what}: give what calling a task gives in a job, or create_task(…)"
            )
    return nodes


def _alone(node: Node, run: Run, settings: Settings) -> PlannedTask:
    """The node as a task of its own, with what it takes over from the run that adds it."""
    if node.previous or node.group is not None:
        raise BadJob(
            f"{node.name} waits for other tasks or is in a group, and the task that adds it has no job: "
            "enqueue a job, or add tasks that stand for themselves"
        )
    claimed, given = run.claimed, node.task.defaults
    if given.dedupe_key is not None:
        raise WrongContext("a child is written once, with the end of its parent: leave dedupe_key away")
    spec = node.task.node_spec(settings, queue=claimed.queue, priority=claimed.priority)
    task = node.task.new_task(node.kwargs)
    task.correlation_id = task.correlation_id or claimed.correlation_id
    keep = None if given.keep == "all" else given.keep
    spec = msgspec.structs.replace(spec, name=given.name, keep=keep, parent_id=claimed.task_id)
    return PlannedTask(number=node.number, name=node.name, spec=spec, task=task)


def _empty_groups(plan: Plan) -> set[int]:
    parents = {group.number: group.parent for group in plan.groups}
    empty = set(parents)
    for task in plan.tasks:
        at = task.group
        while at is not None and at in empty:
            empty.discard(at)
            at = parents[at]
    return empty


def _keeping(adds: Adds, take: TakeIds) -> TakeIds:
    """Ids for the plan's numbers, in submit's order, where some have theirs already."""

    def ids(count: int) -> list[int]:
        taken = take(count)
        for at, task in enumerate(adds.plan.tasks, start=len(adds.plan.groups)):
            if task.number in adds.kept:
                taken[at] = task.number
        return taken

    return ids if adds.kept else take
