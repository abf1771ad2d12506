"""Tasks of a job that add to it: what their end writes, what it does not, and what others see of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from aaiclick_queue import Enqueuing, Middleware, Proceed, Settings, TaskResult, current, task
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.graph import PlannedGroup, Previous
from aaiclick_queue.flow.inputs import spliced
from aaiclick_queue.flow.submit import Submitted
from aaiclick_queue.growing import write_end
from aaiclick_queue.nodes import Group
from aaiclick_queue.postgres import Database
from aaiclick_queue.references import group, node
from tests.dag.written import ended, planned, result_of, status_of_job, tasks_of, write_job
from tests.tools import Proxy, changed, count, place_of, put_one, row, running_worker, until


class Scene:
    """What the tasks of a test say and wait for."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.go_on = asyncio.Event()


scene: Scene


@pytest.fixture(autouse=True)
async def _scene() -> None:
    global scene  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    scene = Scene()


@task
async def say(value: Any) -> Any:
    scene.said.append(value)
    return value


@task
async def double(value: int) -> int:
    return value * 2


@task
async def total(values: list[int]) -> int:
    return sum(values)


@dataclass
class Report:
    name: str
    rows: Any


async def in_job(db: Database, settings: Settings, *tasks: Any, groups: Any = (), **job: Any) -> Submitted:
    """A job of these tasks, run to its end by a worker."""
    written = await write_job(db, tasks, groups, **job)
    async with running_worker(settings):
        await ended(db, written.job_id)
    return written


async def result(db: Database, job: Submitted, number: int) -> Any:
    """The result of a task with what continues it."""
    text = await result_of(db, job.ids[number])
    return None if text is None else json.loads(await spliced(db, text, job.job_id))


# What a task returns, in each kind of place that tasks run in.


@task
async def continues(value: int) -> Any:
    return double(value)


@task
def continues_in_thread(value: int) -> Any:
    return double(value)


@task(isolation="process")
def continues_in_process(value: int) -> Any:
    return double(value)


@task(isolation="process")
async def continues_in_async_process(value: int) -> Any:
    return double(value)


@pytest.mark.parametrize(
    "first", [continues, continues_in_thread, continues_in_process, continues_in_async_process], ids=str
)
async def test_a_task_that_returns_a_node_is_continued_by_it(db: Database, quick: Settings, first: Any) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, first, kwargs={"value": 4}, spec={"priority": 3}, task={"correlation_id": "c-1"}),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert scene.said == [8]
    [one, _, added] = await tasks_of(db, job.job_id)
    assert one["result"] == json.dumps({"$node": added["id"]})
    assert (added["parent_id"], added["name"], added["priority"]) == (one["id"], "double", 3)
    assert (added["correlation_id"], added["attempt"], one["attempt"]) == ("c-1", 1, 1)


@task
async def returns_many(values: list[int]) -> Any:
    doubled = [double(value) for value in values]
    return {"report": Report("r", doubled), "sum": total(doubled), "plain": [1, "x"]}


async def test_nodes_inside_what_is_returned_become_their_results(db: Database, quick: Settings) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, returns_many, kwargs={"values": [1, 2, 3]}),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    value = {"report": {"name": "r", "rows": [2, 4, 6]}, "sum": 12, "plain": [1, "x"]}
    assert scene.said == [value]
    assert await result(db, job, 1) == value


@task
async def merely_builds(count: int) -> str:
    for number in range(count):
        say(number)
    return "built"


async def test_nodes_that_were_merely_built_join_the_job_and_nobody_waits_for_them(
    db: Database, quick: Settings
) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, merely_builds, kwargs={"count": 3}),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    assert sorted(map(str, scene.said)) == ["0", "1", "2", "built"]
    names = [one["name"] for one in await tasks_of(db, job.job_id)]
    assert names == ["t1", "t2", "say", "say#2", "say#3"]
    assert await result_of(db, job.ids[1]) == '"built"'


@task
async def gives_both(value: int) -> TaskResult:
    return TaskResult(data={"got": value}, tasks=[say(value + 1), say.node(value + 2)])


async def test_a_task_result_gives_data_and_adds_tasks(db: Database, quick: Settings) -> None:
    job = await in_job(db, quick, planned(1, gives_both, kwargs={"value": 1}))
    assert sorted(scene.said) == [2, 3]
    assert await result(db, job, 1) == {"got": 1}
    assert len(await tasks_of(db, job.job_id)) == 3


@task
async def gives_only_data(value: int) -> TaskResult:
    return TaskResult(data=value)


@pytest.mark.parametrize("has_job", [True, False])
async def test_a_task_result_without_tasks_is_its_data(db: Database, quick: Settings, has_job: bool) -> None:
    if has_job:
        job = await in_job(db, quick, planned(1, gives_only_data, kwargs={"value": 5}))
        task_id = job.ids[1]
    else:
        task_id = await put_one(db, '{"value": 5}', entrypoint=gives_only_data.entrypoint)
        async with running_worker(quick):
            await until(lambda: _is(db, task_id, "COMPLETED"))
    assert await result_of(db, task_id) == "5"


@task
async def again(left: int) -> Any:
    return again(left - 1) if left else "done"


async def test_a_task_may_be_continued_by_itself_many_times(db: Database, quick: Settings) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, again, kwargs={"left": 12}),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    assert scene.said == ["done"]
    assert len(await tasks_of(db, job.job_id)) == 14


@task
async def builds_groups(values: list[int]) -> Any:
    with Group("outer", max_parallel=2) as outer:
        with Group("inner"):
            parts = [double(value) for value in values]
        last = total(parts)
    after = say("after the group")
    outer >> after
    return {"group": outer, "last": last, "none": Group("empty")}


async def test_groups_that_a_task_builds_are_in_its_own_group(db: Database, quick: Settings) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, builds_groups, kwargs={"values": [1, 2]}, group=10),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
        groups=[PlannedGroup(number=10, name="mine")],
    )
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    value = {"group": [2, 4, 6], "last": 6, "none": []}
    assert sorted(scene.said, key=str) == ["after the group", value]
    groups = {
        one["name"]: one for one in await db.fetch("SELECT * FROM aaiclick_queue.groups WHERE job_id = $1", job.job_id)
    }
    assert groups["outer"]["parent_group_id"] == job.ids[10]
    assert groups["inner"]["parent_group_id"] == groups["outer"]["id"]
    assert groups["outer"]["spawned_by"] == job.ids[1]
    names = {one["name"]: one["group_id"] for one in await tasks_of(db, job.job_id)}
    assert names["say"] == job.ids[10]
    assert names["total"] == groups["outer"]["id"]


@task
async def returns_an_empty_group() -> Any:
    return Group("empty")


async def test_a_task_that_is_continued_by_nothing_gives_an_empty_list(db: Database, quick: Settings) -> None:
    await in_job(
        db,
        quick,
        planned(1, returns_an_empty_group),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    assert scene.said == [[]]


@task(max_attempts=2, retry_delay=0)
async def fails_first() -> Any:
    added = double(1)
    if current().attempt == 1:
        raise RuntimeError("first")
    return added


async def test_an_attempt_that_failed_has_added_nothing(db: Database, quick: Settings) -> None:
    job = await in_job(db, quick, planned(1, fails_first))
    assert await status_of_job(db, job.job_id) == "COMPLETED"
    assert [one["name"] for one in await tasks_of(db, job.job_id)] == ["t1", "double"]


@task
async def fails() -> None:
    raise RuntimeError("no")


@task
async def continued_by_a_failure() -> Any:
    return fails.options(max_attempts=1)()


async def test_who_waits_for_a_task_fails_with_what_continues_it(db: Database, quick: Settings) -> None:
    job = await in_job(
        db,
        quick,
        planned(1, continued_by_a_failure),
        planned(2, say, kwargs={"value": node(1)}, after=[1]),
    )
    assert [one["status"] for one in await tasks_of(db, job.job_id)] == ["COMPLETED", "UPSTREAM_FAILED", "FAILED"]
    assert await status_of_job(db, job.job_id) == "FAILED"


# What is refused.


@task
async def builds_a_cycle() -> None:
    one, two = double(1), double(2)
    one >> two >> one


@task
async def gives_equal_names() -> None:
    double.options(name="same")(1)
    double.options(name="same")(2)


strangers: list[Any] = []


@task
async def leaves_a_node() -> None:
    strangers.append(double(1))


@task
async def returns_a_strangers_node() -> Any:
    double(2)
    return strangers[0]


@task
async def returns_what_cannot_be_stored() -> Any:
    return {"node": double(1), "object": object()}


@task
async def returns_a_look_alike() -> Any:
    return {"node": double(1), "mine": {"$node": 5}}


@task
async def adds_no_node() -> Any:
    return TaskResult(tasks=[5])


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (builds_a_cycle, "a cycle, so that none of them could ever start: double"),
        (gives_equal_names, "two tasks of the job are called 'same'"),
        (returns_what_cannot_be_stored, "cannot be stored"),
        (returns_a_look_alike, "'$node'"),
        (adds_no_node, "TaskResult(tasks=[…]) has 5, which is no node"),
    ],
    ids=str,
)
async def test_a_plan_that_is_refused_fails_the_task_and_writes_nothing(
    db: Database, quick: Settings, refused: Any, words: str
) -> None:
    job = await in_job(db, quick, planned(1, refused, spec={"max_attempts": 3}))
    [only] = await tasks_of(db, job.job_id)
    assert (only["status"], only["attempt"]) == ("FAILED", 1)
    assert words in json.loads(only["error"])["message"]
    assert await count(db, "gates") == 1


async def test_a_node_of_another_run_is_refused(db: Database, quick: Settings) -> None:
    strangers.clear()
    job = await in_job(
        db, quick, planned(1, leaves_a_node), planned(2, returns_a_strangers_node, after=[1], spec={"max_attempts": 1})
    )
    task_row = await row(db, "tasks", job.ids[2])
    assert task_row["status"] == "FAILED"
    assert "belongs to another job" in json.loads(task_row["error"])["message"]


# Tasks without a job.


@task
async def calls_another(value: int) -> int:
    return int(await double(value)) + 1


async def test_a_task_without_a_job_runs_what_it_calls(db: Database, quick: Settings) -> None:
    task_id = await put_one(db, '{"value": 4}', entrypoint=calls_another.entrypoint)
    async with running_worker(quick):
        await until(lambda: _is(db, task_id, "COMPLETED"))
    assert await result_of(db, task_id) == "9"
    assert await count(db, "tasks") == 1


@task
async def adds_alone(value: int) -> TaskResult:
    return TaskResult(data=value, tasks=[say.node(value + 1), say.options(queue="other", name="n").node(value + 2)])


async def test_a_task_without_a_job_enqueues_what_it_adds(db: Database, quick: Settings) -> None:
    task_id = await put_one(
        db, '{"value": 1}', entrypoint=adds_alone.entrypoint, priority=4, task={"correlation_id": "c"}
    )
    async with running_worker(quick):
        await until(lambda: scene.said == [2])
        await until(lambda: _is(db, task_id, "COMPLETED"))
    assert await result_of(db, task_id) == "1"
    added = await db.fetch("SELECT * FROM aaiclick_queue.tasks WHERE parent_id = $1 ORDER BY id", task_id)
    assert [(one["queue"], one["priority"], one["name"]) for one in added] == [("default", 4, None), ("other", 4, "n")]
    assert {(one["job_id"], one["correlation_id"]) for one in added} == {(None, "c")}


@task
async def adds_what_waits() -> TaskResult:
    one = say.node(1)
    return TaskResult(tasks=[say.node(one)])


async def test_a_task_without_a_job_cannot_add_what_waits_for_others(db: Database, quick: Settings) -> None:
    task_id = await put_one(db, entrypoint=adds_what_waits.entrypoint)
    async with running_worker(quick):
        await until(lambda: _is(db, task_id, "FAILED"))
    error = json.loads((await row(db, "tasks", task_id))["error"])
    assert error["type"] == "BadJob"
    assert "has no job" in error["message"]
    assert await count(db, "tasks") == 1


# Commits that are slow, lost or late.


@task(timeout=1)
async def adds_slowly() -> Any:
    return double(1)


async def test_the_ends_of_others_do_not_wait_for_runs_that_add(db: Database, quick: Settings) -> None:
    job = await write_job(db, [planned(number, adds_slowly) for number in range(1, 5)])
    async with db.connection() as holding, running_worker(quick):
        async with holding.transaction():
            await holding.fetch("SELECT FROM aaiclick_queue.gates WHERE id = $1 FOR UPDATE", job.job_id)
            await until(lambda: _all_wait(db, 4))
            others = [await put_one(db, '{"value": 1}', entrypoint=double.entrypoint) for _ in range(20)]
            await until(lambda: _all_completed(db, others))
            # Longer than their timeout: nobody may stop a run whose end is being written.
            began = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() - began > 1.5)
            assert [await place_of(db, job.ids[number]) for number in range(1, 5)] == [["leases"]] * 4
        assert await ended(db, job.job_id) == "COMPLETED"
    assert [one["attempt"] for one in await tasks_of(db, job.job_id)] == [1] * 8


async def test_a_worker_that_is_told_to_stop_lets_a_run_write_its_end(db: Database, quick: Settings) -> None:
    job = await write_job(db, [planned(1, adds_slowly)])
    async with db.connection() as holding, running_worker(quick) as worker:
        async with holding.transaction():
            await holding.fetch("SELECT FROM aaiclick_queue.gates WHERE id = $1 FOR UPDATE", job.job_id)
            await until(lambda: _all_wait(db, 1))
            worker.stop(now=True)
            await until(lambda: worker._hurry.is_set() and worker._claimer._stopped)
        await until(lambda: _is(db, job.ids[1], "COMPLETED"))
    assert [(one["status"], one["attempt"]) for one in await tasks_of(db, job.job_id)] == [
        ("COMPLETED", 1),
        (None, None),
    ]


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("tries", [1, 2])
async def test_an_end_whose_commit_was_not_answered_is_written_once(
    db: Database, quick: Settings, monkeypatch: pytest.MonkeyPatch, tries: int, carried_out: bool
) -> None:
    job = await write_job(
        db,
        [planned(1, continues, kwargs={"value": 4}), planned(2, say, kwargs={"value": node(1)}, after=[1])],
    )
    assert quick.postgres_url
    async with Proxy(quick.postgres_url) as proxy, running_worker(changed(quick, postgres_url=proxy.url)) as worker:
        left = [carried_out] if tries == 1 else [False, carried_out]

        async def then_break(*args: Any) -> None:
            await write_end(*args)
            if left:
                proxy.break_at(b"COMMIT", carried_out=left.pop(0))

        monkeypatch.setattr("aaiclick_queue.growing.write_end", then_break)
        assert await ended(db, job.job_id) == "COMPLETED"
        assert left == []
        await until(lambda: not worker.slots.held)
        assert worker.tally == {"Succeeded": 3}
    assert scene.said == [8]
    tasks = await tasks_of(db, job.job_id)
    assert [(one["name"], one["attempt"], one["run_epoch"]) for one in tasks] == [
        ("t1", 1, 1),
        ("t2", 1, 1),
        ("double", 1, 1),
    ]


async def test_an_end_waits_for_a_postgres_that_is_away(
    db: Database, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [PostgresUnavailable("away"), PostgresUnavailable("still away")]

    async def failing(*args: Any) -> None:
        if failures:
            raise failures.pop()
        await write_end(*args)

    monkeypatch.setattr("aaiclick_queue.growing.write_end", failing)
    job = await in_job(db, quick, planned(1, continues, kwargs={"value": 4}))
    assert failures == []
    assert [one["attempt"] for one in await tasks_of(db, job.job_id)] == [1, 1]


async def test_what_postgres_refuses_fails_the_task(
    db: Database, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusing(tx: Any, *_: Any) -> None:
        await tx.fetch("SELECT $1::text::jsonb", '"\\u0000"')

    monkeypatch.setattr("aaiclick_queue.growing.write_end", refusing)
    job = await in_job(db, quick, planned(1, continues, kwargs={"value": 4}))
    [only] = await tasks_of(db, job.job_id)
    assert only["status"] == "FAILED"
    assert "Postgres refused what the task adds" in json.loads(only["error"])["message"]


# Middleware.


class Tagging(Middleware):
    """Sees every enqueue of a run, and writes something beside the tasks."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | None, list[int]]] = []

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        call.headers["trace"] = "t-1"
        ids = await proceed()
        self.seen.append((call.entrypoint.rpartition(".")[2], call.count, call.parent_id, ids))
        return ids


@task
async def adds_in_a_block() -> None:
    async with current().transaction():
        await current().enqueue(say, "kept")
        double(1)
        double(2)


@task
def adds_in_a_sync_block() -> None:
    with current().transaction():
        current().sync.enqueue(say, "kept")
        double(1)
        double(2)


@pytest.mark.parametrize("adds", [adds_in_a_block, adds_in_a_sync_block], ids=str)
async def test_middleware_sees_what_a_block_adds_once(db: Database, quick: Settings, adds: Any) -> None:
    job = await write_job(db, [planned(1, adds)])
    tagging = Tagging()
    async with running_worker(quick, middleware=[tagging]):
        await ended(db, job.job_id)
    children = (await tasks_of(db, job.job_id))[1:]
    seen = {name: (count, parent) for name, count, parent, _ in tagging.seen}
    assert seen == {"say": (1, job.ids[1]), "double": (2, job.ids[1])}
    assert sorted(one for *_, ids in tagging.seen for one in ids) == [one["id"] for one in children]
    assert {one["metadata"] for one in children} == {'{"$headers": {"trace": "t-1"}}'}


@pytest.mark.parametrize("has_job", [True, False])
async def test_middleware_sees_what_a_run_adds(db: Database, quick: Settings, has_job: bool) -> None:
    tagging = Tagging()
    if has_job:
        job = await write_job(db, [planned(1, merely_builds, kwargs={"count": 2})])
        task_id = job.ids[1]
    else:
        task_id = await put_one(db, '{"value": 1}', entrypoint=adds_alone.entrypoint)
    async with running_worker(quick, middleware=[tagging], queues={"default": 1, "other": 1}):
        await until(lambda: len(scene.said) == 2)
        await until(lambda: _is(db, task_id, "COMPLETED"))
    children = await db.fetch("SELECT id, metadata FROM aaiclick_queue.tasks WHERE parent_id = $1", task_id)
    assert {name for name, *_ in tagging.seen} == {"say"}
    assert {parent for _, _, parent, _ in tagging.seen} == {task_id}
    assert sorted(one for *_, ids in tagging.seen for one in ids) == sorted(one["id"] for one in children)
    assert {one["metadata"] for one in children} == {'{"$headers": {"trace": "t-1"}}'}


async def test_a_group_waits_for_what_its_tasks_add(db: Database, quick: Settings) -> None:
    await in_job(
        db,
        quick,
        planned(1, merely_builds, kwargs={"count": 5}, group=10),
        planned(2, say, kwargs={"value": group(10)}, after=[Previous(10, "group")]),
        groups=[PlannedGroup(number=10, name="g")],
    )
    assert scene.said[-1] == ["built", 0, 1, 2, 3, 4]


async def _all_wait(db: Database, count: int) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(await db.fetchval(waiting) == count)


async def _all_completed(db: Database, ids: list[int]) -> bool:
    ended = await db.fetch(
        "SELECT FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[]) AND status = 'COMPLETED'", ids
    )
    return len(ended) == len(ids)


async def _is(db: Database, task_id: int, place: str) -> bool:
    return await place_of(db, task_id) == [place]
