"""`current()`: what a run can keep, ask for and enqueue, and that all of it ends with its lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from aaiclick_queue import Client, LeaseLost, Settings, TaskFailed, current, task
from aaiclick_queue.errors import ArgumentsDoNotFit, WrongContext
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.fenced import (
    CHILD_OF_KEY,
    Fence,
    extend,
    hold_lease,
    keep_checkpoint,
    keep_progress,
    load_checkpoint,
    spawn,
)
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.postgres import Connection, Database
from tests.tools import count, holder_of, leased, place_of, put_one, row, rows, running_worker, until


class Scene:
    """What the tasks of a test say and wait for."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.lease_is_gone = threading.Event()


scene: Scene


@pytest.fixture(autouse=True)
async def _scene() -> AsyncIterator[None]:
    global scene  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    scene = Scene()
    yield
    scene.lease_is_gone.set()


@task(entrypoint="tests.context.who")
async def who() -> dict[str, Any]:
    me = current()
    return {
        "id": me.id,
        "attempt": me.attempt,
        "max_attempts": me.max_attempts,
        "epoch": me.run_epoch,
        "queue": me.queue,
        "entrypoint": me.entrypoint,
        "correlation_id": me.correlation_id,
        "time_left": me.time_left(),
        "stopping": me.stopping,
    }


@task(entrypoint="tests.context.go_on", retry_delay=0.01)
async def go_on() -> list[Any]:
    me = current()
    before = await me.load_checkpoint()
    scene.said.append(me.idempotency_key)
    if me.attempt < 3:
        assert await me.checkpoint({"attempt": me.attempt, "before": before})
        assert await me.progress(me.attempt / 3)
        raise RuntimeError("not yet")
    assert await me.progress({"done": 7, "of": 7})
    return [before]


@task(entrypoint="tests.context.go_on_in_thread", retry_delay=0.01)
def go_on_in_thread() -> list[Any]:
    me = current().sync
    before = me.load_checkpoint()
    if current().attempt < 2:
        assert me.checkpoint([1, 2])
        assert me.progress(0.5)
        assert me.extend(30)
        scene.said.append(me.enqueue(say, "child").id)
        raise RuntimeError("not yet")
    scene.said.append(me.enqueue(say, "child").id)
    return [before]


@task(entrypoint="tests.context.say")
async def say(what: str) -> str:
    scene.said.append((what, current().queue, current().correlation_id))
    return what


@task(entrypoint="tests.context.say_elsewhere", queue="elsewhere", priority=1)
async def say_elsewhere(what: str) -> str:
    return what


@task(entrypoint="tests.context.spawn_then_fail", retry_delay=0.01)
async def spawn_then_fail() -> list[int]:
    me = current()
    children = [await me.enqueue(say, what) for what in ("a", "b", "a")]
    children += await asyncio.gather(me.enqueue(say, "c"), me.enqueue(say, "c"))
    scene.said.append([child.id for child in children])
    if me.attempt < 3:
        raise RuntimeError("after the children")
    return [child.id for child in children]


@task(entrypoint="tests.context.family")
async def family() -> list[int]:
    me = current()
    return [
        (await me.enqueue(say, "one")).id,
        (await me.enqueue(say_elsewhere, "other")).id,
        (await me.enqueue(say.options(priority=9, correlation_id="own", countdown=60), "third")).id,
    ]


@task(entrypoint="tests.context.keyed_child")
async def keyed_child() -> str:
    with pytest.raises(WrongContext, match="leave dedupe_key away"):
        await current().enqueue(say.options(dedupe_key="k"), "a")
    return "refused"


@task(entrypoint="tests.context.take_longer", timeout=0.3, max_attempts=1)
async def take_longer(extension: float | None) -> str:
    if extension is not None:
        assert await current().extend(extension)
    for _ in range(10):
        await asyncio.sleep(0.06)
    return "done"


@task(entrypoint="tests.context.be_silent", heartbeat_timeout=0.5, max_attempts=1)
async def be_silent(breaths: int) -> str:
    for n in range(breaths):
        await current().progress(n)
        await asyncio.sleep(0.1)
    if not breaths:
        await asyncio.sleep(60)
    return "done"


@task(entrypoint="tests.context.too_late", max_attempts=1)
def too_late() -> None:
    me = current()
    scene.said.append("running")
    scene.lease_is_gone.wait(60)
    while not me.stopping:
        pass
    answers: list[Any] = [me.sync.progress(0.5), me.sync.checkpoint("late"), me.sync.extend(60)]
    try:
        me.sync.enqueue(say, "late")
    except LeaseLost as error:
        answers.append(str(error))
    scene.said.append(answers)


@task(entrypoint="tests.context.misuse")
async def misuse() -> list[str]:
    said = []
    for call in (lambda: current().sync.progress(1), current().sync.load_checkpoint):
        with pytest.raises(WrongContext, match="await current"):
            call()
    with pytest.raises(ArgumentsDoNotFit, match="not plain JSON"):
        await current().checkpoint({1, 2})
    for seconds in (0, -1, 1e12, float("nan")):
        with pytest.raises(ValueError, match="extend"):
            await current().extend(seconds)
        said.append(str(seconds))
    return said


async def test_a_run_knows_who_it_is(quick: Settings, client: Client) -> None:
    async with running_worker(quick, queues={"mail": 1}):
        one = await who.options(queue="mail", correlation_id="order-7", timeout=90, max_attempts=4).enqueue(
            client=client
        )
        found = await one.result(30)
    assert 0 < found.pop("time_left") <= 90
    assert found == {
        "id": one.id,
        "attempt": 1,
        "max_attempts": 4,
        "epoch": 1,
        "queue": "mail",
        "entrypoint": "tests.context.who",
        "correlation_id": "order-7",
        "stopping": False,
    }


def test_outside_a_task_there_is_no_current_run() -> None:
    with pytest.raises(WrongContext, match="inside a running task"):
        current()


async def test_checkpoints_go_from_attempt_to_attempt_and_progress_shows_the_last(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        one = await go_on.enqueue(client=client)
        assert await one.result(30) == [{"attempt": 2, "before": {"attempt": 1, "before": None}}]
    progress = await row(db, "progress", one.id)
    assert (msgspec.json.decode(progress["data"]), progress["run_epoch"]) == ({"done": 7, "of": 7}, 3)
    assert scene.said == [f"aaiclick-queue-{one.id}"] * 3  # the same idempotency key in every attempt


async def test_a_def_task_has_the_same_in_its_thread(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        one = await go_on_in_thread.enqueue(client=client)
        assert await one.result(30) == [[1, 2]]
        await until(lambda: len(scene.said) == 3)
    ids = [said for said in scene.said if isinstance(said, int)]
    assert len(ids) == 2
    assert ids[0] == ids[1]


async def test_what_blocks_or_cannot_be_kept_is_refused_with_the_way_out(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        assert await (await misuse.enqueue(client=client)).result(30)


async def test_a_repeated_attempt_does_not_double_its_children(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        one = await spawn_then_fail.enqueue(client=client)
        ids = await one.result(30)
        await until(lambda: len([said for said in scene.said if isinstance(said, tuple)]) == 5)
    assert len(set(ids)) == 5
    assert [said for said in scene.said if isinstance(said, list)] == [ids] * 3
    assert sorted(said[0] for said in scene.said if isinstance(said, tuple)) == ["a", "a", "b", "c", "c"]
    assert await count(db, "tasks") == 6


async def test_children_inherit_queue_priority_and_correlation_unless_told_otherwise(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick, queues={"mail": 1}):
        parent = await family.options(queue="mail", priority=5, correlation_id="order-7").enqueue(client=client)
        ids = await parent.result(30)
    children = [await row(db, "tasks", task_id) for task_id in ids]
    assert [(child["queue"], child["priority"], child["correlation_id"]) for child in children] == [
        ("mail", 5, "order-7"),
        ("elsewhere", 1, "order-7"),
        ("mail", 9, "own"),
    ]
    assert {child["parent_id"] for child in children} == {parent.id}
    assert await place_of(db, ids[2]) == ["delayed"]


async def test_a_child_with_a_dedupe_key_is_refused(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        assert await (await keyed_child.enqueue(client=client)).result(30) == "refused"


async def test_a_run_can_give_itself_more_time(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        extended, not_extended = (
            await take_longer.enqueue(60, client=client),
            await take_longer.enqueue(None, client=client),
        )
        assert await extended.result(30) == "done"
        with pytest.raises(TaskFailed, match=r"timeout of 0.3 s"):
            await not_extended.result(30)


async def test_a_silent_run_is_stopped_and_one_that_shows_signs_of_life_is_not(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        alive, silent = await be_silent.enqueue(8, client=client), await be_silent.enqueue(0, client=client)
        assert await alive.result(30) == "done"
        with pytest.raises(TaskFailed, match=r"heartbeat_timeout of 0.5 s passed"):
            await silent.result(30)


async def test_after_the_lease_is_gone_nothing_of_the_run_is_written(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        one = await too_late.enqueue(client=client)
        await until(lambda: scene.said)
        assert await one.cancel()
        scene.lease_is_gone.set()
        await until(lambda: len(scene.said) == 2)
    *answers, refusal = scene.said[1]
    assert answers == [False, False, False]
    assert "its child was not written" in refusal
    assert [await count(db, table) for table in ("tasks", "progress", "checkpoints")] == [1, 0, 0]


# The fence of each write.


async def fence_of(db: Database, task_id: int) -> Fence:
    lease = await row(db, "leases", task_id)
    return Fence(task_id, lease["run_epoch"], lease["worker_id"])


@pytest.mark.parametrize("breach", ["task_id", "run_epoch", "worker_id", "cancelled"])
async def test_each_write_needs_the_whole_fence(db: Database, breach: str) -> None:
    run = await leased(db)
    fence = await fence_of(db, run.task_id)
    assert await keep_progress(db, fence, "1")
    assert await keep_checkpoint(db, fence, "1")
    assert await extend(db, fence, 7200)
    assert await hold_lease(db, fence)
    if breach == "cancelled":
        await cancel(db, [run.task_id])
    else:
        fence = msgspec.structs.replace(fence, **{breach: 4711})
    assert not await keep_progress(db, fence, "2")
    assert not await keep_checkpoint(db, fence, "2")
    assert not await extend(db, fence, 99_999)
    assert not await hold_lease(db, fence)
    assert [progress["data"] for progress in await rows(db, "progress")] == ["1"]
    assert await load_checkpoint(db, run.task_id) == 1


async def test_a_deadline_is_moved_out_and_never_in(db: Database) -> None:
    run = await leased(db)
    fence = await fence_of(db, run.task_id)
    before = (await row(db, "leases", run.task_id))["deadline_at"]
    assert await extend(db, fence, 1)
    assert (await row(db, "leases", run.task_id))["deadline_at"] == before
    assert await extend(db, fence, 100_000)
    assert (await row(db, "leases", run.task_id))["deadline_at"] > before


@pytest.mark.parametrize("write", ["progress", "checkpoint", "child", "extend"])
async def test_no_reaper_can_take_the_lease_between_a_write_and_its_commit(db: Database, write: str) -> None:
    run = await leased(db)
    fence = await fence_of(db, run.task_id)
    async with db.transaction() as tx:
        match write:
            case "progress":
                assert await keep_progress(tx, fence, "1")
            case "checkpoint":
                assert await keep_checkpoint(tx, fence, "1")
            case "child":
                assert await hold_lease(tx, fence)
            case "extend":
                assert await extend(tx, fence, 1)
        await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")
        assert (await Reaper(db).reap_once()).lost == 0
        assert await holder_of(db, run.task_id) == fence.worker_id
    assert (await Reaper(db).reap_once()).lost == 1


async def test_a_child_that_another_run_has_written_meanwhile_is_found_and_not_written_again(db: Database) -> None:
    parent = await put_one(db)
    spec = Spec(entrypoint="tests.context.say", queue="default", parent_id=parent)
    take = (await id_source(db)).take

    class Overtaken:
        """Another run's child is committed right after this one has looked for it."""

        def __init__(self, tx: Connection) -> None:
            self.tx = tx
            self.others: list[int] = []

        async def fetch(self, sql: str, *args: Any) -> Sequence[Any]:
            found = await self.tx.fetch(sql, *args)
            if sql == CHILD_OF_KEY and not self.others:
                self.others = (await spawn(db, spec, NewTask("{}", spawn_key="k"), take)).ids
            return found

    async with db.transaction() as tx:
        overtaken = Overtaken(tx)
        written = await spawn(overtaken, spec, NewTask("{}", spawn_key="k"), take)
    assert written.ids == overtaken.others
    assert await count(db, "tasks") == 2
