"""`current()` in a task of a job: children that join it at once, how far it is, and where the next attempt goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from aaiclick_queue import Settings, current, task
from aaiclick_queue.errors import GroupClosed, LeaseLost, SpawnDiverged, UnknownJob, WrongContext
from aaiclick_queue.flow.graph import PlannedGroup, Previous
from aaiclick_queue.postgres import Database
from aaiclick_queue.references import node
from tests.dag.test_dynamic import in_job
from tests.dag.written import ended, planned, result_of, status_of_job, tasks_of, write_job
from tests.tools import changed, put_one, row, rows, running_worker, until

said: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    said.clear()


@task
async def say(value: Any) -> Any:
    said.append(value)
    return value


@task
async def where() -> dict[str, Any]:
    return {"job": str(current().job_id), "group": str(current().group_id)}


async def test_a_run_knows_its_job_and_its_group(db: Database, quick: Settings) -> None:
    groups = [PlannedGroup(number=10, name="g")]
    job = await in_job(db, quick, planned(1, where, group=10), planned(2, where), groups=groups)
    assert json.loads(await result_of(db, job.ids[1]) or "") == {"job": str(job.job_id), "group": str(job.ids[10])}
    assert json.loads(await result_of(db, job.ids[2]) or "") == {"job": str(job.job_id), "group": "None"}


# Children that are written at once.


@task
async def spawns(count: int) -> list[str]:
    children = [await current().enqueue(say, number) for number in range(count)]
    await current().enqueue(say.options(queue="other", priority=1, rule="all_done", critical=False), "elsewhere")
    return [str(child.id) for child in children]


@task
def spawns_in_thread(count: int) -> list[str]:
    children = [current().sync.enqueue(say, number) for number in range(count)]
    return [str(child.id) for child in children]


@task(isolation="process")
def spawns_in_process(count: int) -> list[str]:
    children = [current().sync.enqueue(say, number) for number in range(count)]
    return [str(child.id) for child in children]


@pytest.mark.parametrize("spawner", [spawns_in_thread, spawns_in_process], ids=str)
async def test_a_child_joins_the_job_from_wherever_its_parent_runs(db: Database, quick: Settings, spawner: Any) -> None:
    job = await in_job(db, quick, planned(1, spawner, kwargs={"count": 2}))
    assert sorted(said) == [0, 1]
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert len(await tasks_of(db, job.job_id)) == 3


async def test_a_child_joins_the_job_of_its_parent(db: Database, quick: Settings) -> None:
    job = await write_job(
        db,
        [
            planned(1, spawns, kwargs={"count": 2}, group=10, spec={"priority": 7}, task={"correlation_id": "c"}),
            planned(2, say, kwargs={"value": "after"}, after=[Previous(10, "group")]),
        ],
        [PlannedGroup(number=10, name="g")],
    )
    async with running_worker(quick):
        await until(lambda: sorted(said) == [0, 1])
        await until(lambda: _has_ended(db, job.ids[1]))
    [_, _, *children] = await tasks_of(db, job.job_id)
    assert [(one["name"], one["group_id"], one["parent_id"]) for one in children] == [
        ("say", job.ids[10], job.ids[1]),
        ("say#2", job.ids[10], job.ids[1]),
        ("say#3", job.ids[10], job.ids[1]),
    ]
    assert [(one["queue"], one["priority"], one["correlation_id"]) for one in children] == [
        ("default", 7, "c"),
        ("default", 7, "c"),
        ("other", 1, "c"),
    ]
    assert (children[2]["rule"], children[2]["critical"]) == ("all_done", False)
    assert "after" not in said  # the group has not ended: nobody serves the other queue
    async with running_worker(quick, queues={"default": 1, "other": 1}):
        assert await ended(db, job.job_id) == "COMPLETED"
    assert said[-2:] == ["elsewhere", "after"]


@task(max_attempts=3, retry_delay=0)
async def spawns_again() -> None:
    here = current()
    for value in ("a", "a", "b"):
        await here.enqueue(say, value)
    await here.enqueue(say, f"attempt {here.attempt}", key="mine" if here.attempt == 1 else "other")
    if here.attempt < 3:
        raise RuntimeError("again")


async def test_an_attempt_that_is_repeated_finds_the_children_of_the_first(db: Database, quick: Settings) -> None:
    job = await in_job(db, quick, planned(1, spawns_again, spec={"max_attempts": 2}))
    assert sorted(said) == ["a", "a", "attempt 1", "attempt 2", "b"]
    assert await status_of_job(db, job.job_id) == "FAILED"
    [gate] = [one for one in await rows(db, "gates") if one["id"] == job.job_id]
    assert (gate["total"], gate["remaining"]) == (6, 0)


@task(max_attempts=2, retry_delay=0)
async def diverges(has_job: bool) -> None:
    here = current()
    assert (here.job_id is not None) is has_job
    first = await here.enqueue(say, 1, key="k")
    assert (await here.enqueue(say, 1, key="k")).id == first.id
    for other in (say, where):
        with pytest.raises(SpawnDiverged, match="key='k'"):
            await here.enqueue(other, *([2] if other is say else []), key="k")
    said.append("refused")
    if here.attempt == 1:
        raise RuntimeError("again")


@pytest.mark.parametrize("has_job", [True, False])
async def test_a_key_stands_for_one_child_and_no_other(db: Database, quick: Settings, has_job: bool) -> None:
    if has_job:
        await in_job(db, quick, planned(1, diverges, kwargs={"has_job": True}, spec={"max_attempts": 2}))
    else:
        await put_one(db, '{"has_job": false}', entrypoint=diverges.entrypoint, max_attempts=2)
        async with running_worker(quick):
            await until(lambda: said.count("refused") == 2 and 1 in said)
    assert sorted(map(str, said)) == ["1", "refused", "refused"]


@task
async def spawns_behind(other: str) -> None:
    here = current()
    first = await here.enqueue(say, "first")
    second = await here.enqueue(say, "second", after=[first])
    await here.enqueue(say, "third", after=[second, first.id, str(second.id)])
    await here.enqueue(say, "behind one that has ended", after=other)
    for wrong in (5, "5", first.id + 1):
        with pytest.raises(UnknownJob):
            await here.enqueue(say, "never", after=wrong)
    for nonsense in (1.5, "x", None, True):
        if nonsense is not None:
            with pytest.raises(WrongContext, match="after="):
                await here.enqueue(say, "never", after=[nonsense])
    with pytest.raises(WrongContext, match="is written when this run ends"):
        await here.enqueue(say, "never", after=[say("built")])


@task
async def own_id() -> str:
    return str(current().id)


async def test_a_child_waits_for_tasks_of_its_job(db: Database, quick: Settings) -> None:
    job = await in_job(db, quick, planned(1, own_id), planned(2, spawns_behind, kwargs={"other": node(1)}, after=[1]))
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert [one for one in said if one in ("first", "second", "third")] == ["first", "second", "third"]
    assert {"behind one that has ended", "built"} < set(said)
    assert "never" not in said


@task
async def spawns_into(group: str, wrong: str) -> None:
    here = current()
    await here.enqueue(say, "in", group=int(group))
    await here.enqueue(say, "in", group=group)
    with pytest.raises(UnknownJob):
        await here.enqueue(say, "never", group=12)
    with pytest.raises(GroupClosed):
        await here.enqueue(say, "never", group=wrong)
    with pytest.raises(WrongContext, match="group="):
        await here.enqueue(say, "never", group=1.5)
    said.append("done")


async def test_a_child_joins_another_group_unless_it_has_ended(db: Database, quick: Settings) -> None:
    job = await write_job(
        db,
        [planned(1, say, kwargs={"value": "x"}, group=11), planned(2, where, group=10, task={"countdown": 3600.0})],
        [PlannedGroup(number=10, name="open"), PlannedGroup(number=11, name="ended")],
    )
    async with running_worker(quick):
        await until(lambda: said == ["x"])
        await until(lambda: _gate_has_ended(db, job.ids[11]))
        kwargs = {"group": str(job.ids[10]), "wrong": str(job.ids[11])}
        await db.fetch(
            "UPDATE aaiclick_queue.tasks SET entrypoint = $2, kwargs = $3::text::jsonb WHERE id = $1",
            job.ids[2],
            spawns_into.entrypoint,
            json.dumps(kwargs),
        )
        await db.fetch("UPDATE aaiclick_queue.delayed SET not_before = now()")
        await until(lambda: sorted(said) == ["done", "in", "in", "x"])
    assert [one["group_id"] for one in (await tasks_of(db, job.job_id))[2:]] == [job.ids[10]] * 2


async def _has_ended(db: Database, task_id: int) -> bool:
    return (await row(db, "tasks", task_id))["status"] is not None


async def _gate_has_ended(db: Database, gate: int) -> bool:
    return bool(await db.fetchval("SELECT remaining = 0 FROM aaiclick_queue.gates WHERE id = $1", gate))


@task
async def places_without_a_job() -> None:
    for place in ({"after": [1]}, {"group": 1}):
        with pytest.raises(WrongContext, match="this task has none"):
            await current().enqueue(say, 1, **place)
    said.append("refused")


async def test_a_child_without_a_job_has_no_place_in_one(db: Database, quick: Settings) -> None:
    await put_one(db, entrypoint=places_without_a_job.entrypoint)
    async with running_worker(quick):
        await until(lambda: said == ["refused"])


@task
async def has_such_parameters(key: str, after: list[int], group: str) -> None:
    said.append((key, after, group))


@task
async def spawns_with_such_parameters() -> None:
    await current().enqueue(has_such_parameters, key="k", after=[1], group="g")


async def test_what_a_function_has_a_parameter_for_is_its_own(db: Database, quick: Settings) -> None:
    await in_job(db, quick, planned(1, spawns_with_such_parameters))
    assert said == [("k", [1], "g")]


# In a transaction block.


@task
async def spawns_in_a_block(fails: bool) -> None:
    here = current()
    outside = await here.enqueue(say, "outside")
    try:
        async with here.transaction() as session:
            await session.execute(text("CREATE TABLE IF NOT EXISTS public.written (id bigint)"))
            first = await here.enqueue(say, "first")
            second = await here.enqueue(say, "second", after=[first, outside], key="k")
            assert (await here.enqueue(say, "second", after=[first], key="k")).id == second.id
            with pytest.raises(SpawnDiverged):
                await here.enqueue(say, "other", key="k")
            await session.execute(text(f"INSERT INTO public.written VALUES ({first.id}), ({second.id})"))
            say("built")
            here.result({"continued": say("continues")})
            found = await here._services.db.fetch(
                "SELECT id FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[])", [first.id, second.id]
            )
            said.append(("seen by others", len(found)))
            locked = await here._services.db.fetch(
                "SELECT id FROM aaiclick_queue.gates WHERE id = $1 FOR UPDATE SKIP LOCKED", here.job_id
            )
            said.append(("gate is free", len(locked)))
            if fails:
                raise RuntimeError("no")  # noqa: TRY301
    except RuntimeError:
        return


@pytest.mark.parametrize("fails", [False, True])
async def test_children_of_a_block_are_written_with_its_end(db: Database, quick: Settings, fails: bool) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, spawns_in_a_block, kwargs={"fails": fails}),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert said[:2] == [("seen by others", 0), ("gate is free", 1)] or "outside" in said[:3]
    values = [one for one in said if not isinstance(one, tuple)]
    if fails:
        assert sorted(map(str, values)) == ["None", "built", "continues", "outside"]
        return
    assert {str(one) for one in values} == {
        "outside",
        "first",
        "second",
        "built",
        "continues",
        "{'continued': 'continues'}",
    }
    ids = {row["id"] for row in await db.fetch("SELECT id FROM public.written")}
    names = {one["id"]: one["kwargs"] for one in await tasks_of(db, job.job_id)}
    assert sorted(names[one] for one in ids) == ['{"value": "first"}', '{"value": "second"}']
    assert values.index("first") < values.index("second")


@task
async def tries_two_blocks() -> None:
    here = current()
    try:
        async with here.transaction():
            await here.enqueue(say, "rolled back", key="k")
            raise RuntimeError("no")  # noqa: TRY301
    except RuntimeError:
        pass
    async with here.transaction():
        await here.enqueue(say, "kept", key="k")


async def test_children_of_a_block_that_was_rolled_back_are_not_those_of_the_next(
    db: Database, quick: Settings
) -> None:
    job = await in_job(db, quick, planned(1, tries_two_blocks))
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert said == ["kept"]


@task
def spawns_in_a_sync_block() -> None:
    here = current()
    with here.transaction() as session:
        first = here.sync.enqueue(say, "first")
        here.sync.enqueue(say, "second", after=[first])
        session.execute(text("SELECT 1"))
        here.result(say("continues"))


async def test_a_def_task_has_such_a_block_too(db: Database, quick: Settings) -> None:
    job = await in_job(
        db, quick, planned(1, spawns_in_a_sync_block), planned(2, say, kwargs={"value": node(1)}, after=[1])
    )
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert sorted(said) == ["continues", "continues", "first", "second"]


@task
async def builds_after_its_block() -> None:
    async with current().transaction():
        say("in time")
    say("too late")


async def test_nodes_that_are_built_after_the_block_are_not_written(db: Database, quick: Settings) -> None:
    job = await in_job(db, quick, planned(1, builds_after_its_block))
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert said == ["in time"]


@task
async def loses_its_lease() -> None:
    here = current()
    await here._services.db.fetch("DELETE FROM aaiclick_queue.leases WHERE task_id = $1", here.id)
    with pytest.raises(LeaseLost):
        await here.enqueue(say, "never")
    with pytest.raises(LeaseLost):
        async with here.transaction():
            await here.enqueue(say, "never")
    assert await here.checkpoint("phase", 1) is False
    assert await here.progress(1, 2) is False
    said.append("lost")
    say("never")


@pytest.mark.breaks_invariants
async def test_a_run_without_lease_adds_nothing(db: Database, quick: Settings) -> None:
    job = await write_job(db, [planned(1, loses_its_lease)])
    # A beat that finds the lease gone would end the run before it has tried everything.
    async with running_worker(changed(quick, lease_seconds=60, heartbeat_seconds=20)) as worker:
        await until(lambda: said == ["lost"])
        await until(lambda: not worker.slots.held)
    assert len(await tasks_of(db, job.job_id)) == 1
    assert await rows(db, "events") == [one for one in await rows(db, "events") if one["type"] != "TASK_CHECKPOINT"]


# How far it is, and where to go on.


@task
async def tells_how_far(form: str) -> None:
    here = current()
    match form:
        case "number":
            assert await here.progress(0.5)
        case "object":
            assert await here.progress({"any": [1]})
        case "of":
            assert await here.progress(30, 100, "reading")
        case "message":
            assert await here.progress(30, message="reading")


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        ("number", 0.5),
        ("object", {"any": [1]}),
        ("of", {"current": 30, "total": 100, "message": "reading"}),
        ("message", {"current": 30, "message": "reading"}),
    ],
)
async def test_progress_is_kept_in_either_form(db: Database, quick: Settings, form: str, kept: Any) -> None:
    job = await in_job(db, quick, planned(1, tells_how_far, kwargs={"form": form}))
    assert json.loads((await row(db, "progress", job.ids[1]))["data"]) == kept


@task(max_attempts=2, retry_delay=0)
async def goes_on() -> None:
    here = current()
    said.append(await here.load_checkpoint())
    if here.attempt == 1:
        assert await here.checkpoint({"old": "form"})
        said.append(await here.load_checkpoint())
        assert await here.checkpoint("reading", {"row": 7})
        raise RuntimeError("again")


@task(max_attempts=2, retry_delay=0)
def goes_on_in_thread() -> None:
    here = current()
    said.append(here.sync.load_checkpoint())
    if here.attempt == 1:
        assert here.sync.checkpoint({"old": "form"})
        said.append(here.sync.load_checkpoint())
        assert here.sync.checkpoint("reading", {"row": 7})
        assert here.sync.progress(1, 2, "x")
        raise RuntimeError("again")


@pytest.mark.parametrize("goes", [goes_on, goes_on_in_thread], ids=str)
async def test_the_next_attempt_starts_with_the_last_checkpoint(db: Database, quick: Settings, goes: Any) -> None:
    job = await in_job(db, quick, planned(1, goes, spec={"max_attempts": 2}))
    assert said == [None, {"old": "form"}, {"phase": "reading", "data": {"row": 7}}]
    events = [one for one in await rows(db, "events") if one["type"] == "TASK_CHECKPOINT"]
    assert [(one["task_id"], one["job_id"], one["run_epoch"]) for one in events] == [(job.ids[1], job.job_id, 1)] * 2
    assert [json.loads(one["data"]) for one in events] == [{}, {"phase": "reading"}]


@task
async def keeps_nonsense() -> None:
    for wrong in ((), (1, 2), ("a", 1, 2)):
        with pytest.raises(TypeError, match="checkpoint"):
            await current().checkpoint(*wrong)
    said.append("refused")


async def test_a_checkpoint_of_neither_form_is_refused(db: Database, quick: Settings) -> None:
    await put_one(db, entrypoint=keeps_nonsense.entrypoint)
    async with running_worker(quick):
        await until(lambda: said == ["refused"])
