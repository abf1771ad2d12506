"""By hand: jobs and nodes without a body: made one by one, tied by arrows, and written into a job that is there.

Before: application code, or a task. After: flow/submit.py. A node that is made where no job is built belongs to none
until `apply` or `create_job` has written it; then it knows its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .building import plan_of
from .client import Client, default_client
from .errors import BadJob
from .flow.graph import Plan, Previous
from .flow.submit import Adding
from .handles import Handle
from .job_handles import JobHandle
from .job_options import JobOptions
from .jobs import Job, key_of, new_job
from .nodes import Group, Joint, Node, listed
from .references import renumbered
from .starting import run_job
from .tasks import Task, by_name
from .wiring import node_by_name, node_of

GROUPS_AMONG = "SELECT id FROM aaiclick_queue.groups WHERE id = ANY($1::bigint[])"


def create_task(task: Task[Any, Any] | str, kwargs: Mapping[str, Any] | None = None, **options: Any) -> Node:
    """A node of a task or of an entrypoint, in the job that is built here or in none yet."""
    if isinstance(task, Task):
        return node_of(task.options(**options) if options else task, (), kwargs or {})
    if not isinstance(task, str):
        raise BadJob(f"create_task({task!r}): give a task, or the entrypoint of one as module.function")
    node = node_by_name(by_name(task, **options), dict(kwargs or {}))
    node.is_named = "name" in options
    return node


async def create_job(
    name: str, entry: Any, *, connection: Any = None, client: Client | None = None, **options: Any
) -> JobHandle[Any]:
    """A job of one node, task or entrypoint, or of a list of them; an item may be {"entrypoint": …, "kwargs": {…}}."""
    given = JobOptions.given({**options, "name": name})
    if isinstance(entry, Job):
        return await run_job(name, entry.entrypoint, connection=connection, client=client, **options)
    client = client or await default_client()
    joints = _loose([_made(one) for one in listed(entry)])
    if not joints:
        raise BadJob(f"create_job({name!r}, {entry!r}): give at least one task")
    if given.queue is not None or given.priority is not None:
        raise BadJob("create_job(queue=…, priority=…): its nodes are made already; give them to create_task")
    plan = _plan(joints, client, correlation_id=given.correlation_id)
    new = new_job(name, given, client.settings, entrypoint=None, kwargs="{}")
    if len(plan.tasks) == 1:
        new.returns = f'{{"$node":{plan.tasks[0].number}}}'
    submitted = await client.submit(new, plan, key=key_of(given), connection=connection)
    _set_ids(joints, submitted.ids)
    return JobHandle(submitted.job_id, client=client, in_callers_transaction=connection is not None, ids=submitted.ids)


async def apply(items: Any, job_id: int, *, client: Client | None = None) -> Any:
    """Write nodes and groups, with their arrows, into a job that has not ended; gives them back with their ids.

    In a transaction of its own: what it locks of the job is what the job's own tasks wait for.
    """
    client = client or await default_client()
    joints = _loose(listed(items))
    submitted = await client.add_to_job(Adding(job_id), _plan(joints, client))
    _set_ids(joints, submitted.ids)
    return items


async def add_task_to_job(  # noqa: PLR0913 - one value a fact
    job_id: int,
    task: Node | Task[Any, Any] | str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    group: int | Group | None = None,
    depends_on: Iterable[Any] = (),
    client: Client | None = None,
) -> Handle[Any]:
    """Write one more task into a job that has not ended, behind tasks and groups that are there, by ids or handles."""
    client = client or await default_client()
    if isinstance(task, Node) and kwargs is not None:
        raise BadJob(f"add_task_to_job(…, {task!r}, kwargs): a node has its arguments already")
    node = task if isinstance(task, Node) else create_task(task, kwargs)
    joints = _loose([node])
    if not joints:
        raise BadJob(f"add_task_to_job(…, {node!r}): it is written already, as task {node.id}; make another node")
    plan = _plan(joints, client)
    behind = [_id(one) for one in listed(depends_on)]
    groups = await _groups_among(behind, client)
    plan.tasks[0].previous += [Previous(one, "group" if one in groups else "task") for one in behind]
    if group is not None:
        plan.tasks[0].group = _id(group)
    submitted = await client.add_to_job(Adding(job_id), plan)
    _set_ids(joints, submitted.ids)
    return Handle(submitted.ids[node.number], client=client)


def _made(given: Any) -> Joint:
    if isinstance(given, Joint):
        return given
    if isinstance(given, Mapping):
        known = {"entrypoint", "kwargs"}
        if not isinstance(given.get("entrypoint"), str) or not known >= given.keys():
            raise BadJob(f'{given!r}: an item of a job is {{"entrypoint": "module.function", "kwargs": {{…}}}}')
        return create_task(given["entrypoint"], given.get("kwargs"))
    return create_task(given)


def _loose(items: Sequence[Any]) -> list[Joint]:
    """The nodes and groups that are to be written, with what is in their groups and the groups they are in."""
    found: dict[int, Joint] = {}
    left = list(reversed(items))
    while left:
        one = left.pop()
        if not isinstance(one, Joint):
            raise BadJob(f"{one!r} is no node: make one with create_task(…), or a Group of some")
        if one.frame is not None:
            raise BadJob(f"{one.name} was built in the body of a job and is written with it")
        if one.number in found or one.id is not None:
            continue
        found[one.number] = one
        left += [joint for joint in (one.group, *(one.members if isinstance(one, Group) else ())) if joint is not None]
    for one in found.values():
        for before in one.before:
            if before.number not in found and before.id is None:
                raise BadJob(f"{one.name} waits for {before.name}, which is neither given here nor written: give both")
    return list(found.values())


def _plan(joints: Sequence[Joint], client: Client, *, correlation_id: str | None = None) -> Plan:
    nodes = [one for one in joints if isinstance(one, Node)]
    groups = [one for one in joints if isinstance(one, Group)]
    plan = plan_of(nodes, groups, client.settings, correlation_id=correlation_id)
    ids = {before.number: before.id for one in joints for before in one.before if before.id is not None}
    ids |= {one.group.number: one.group.id for one in joints if one.group is not None and one.group.id is not None}
    if ids:
        for task in plan.tasks:
            task.previous = [one._replace(number=ids.get(one.number, one.number)) for one in task.previous]
            task.group = None if task.group is None else ids.get(task.group, task.group)
            task.task.kwargs = renumbered(task.task.kwargs, ids)
        for group in plan.groups:
            group.previous = [one._replace(number=ids.get(one.number, one.number)) for one in group.previous]
            group.parent = None if group.parent is None else ids.get(group.parent, group.parent)
    return plan


def _set_ids(joints: Iterable[Joint], ids: Mapping[int, int]) -> None:
    for one in joints:
        one.id = ids.get(one.number)


async def _groups_among(ids: Sequence[int], client: Client) -> set[int]:
    if not ids:
        return set()
    return {row["id"] for row in await (await client.database()).fetch(GROUPS_AMONG, ids)}


def _id(given: Any) -> int:
    found = given if isinstance(given, int) and not isinstance(given, bool) else getattr(given, "id", None)
    if not isinstance(found, int) or not 0 < found < 2**63:
        raise BadJob(f"{given!r}: give the id of a task or group that is written, a handle, or a node that has its id")
    return found
