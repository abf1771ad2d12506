"""`current().transaction()`: the application's writes and the end of the task share one commit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from aaiclick_queue import Client, Fail, LeaseLost, Settings, Snooze, TaskFailed, current, task
from aaiclick_queue.errors import WrongContext
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.postgres import Database
from tests.tools import Proxy, changed, count, place_of, row, rows, running_worker, until

NOTE = "INSERT INTO public.notes (task_id, attempt, text) VALUES ({id}, {attempt}, '{text}')"
KINDS = ["sqlalchemy", "asyncpg", "thread"]


class Scene:
    """What the tasks of a test say and wait for."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.go_on = threading.Event()
        self.proxy: Proxy | None = None


scene: Scene


@pytest.fixture(autouse=True)
async def _scene(db: Database) -> AsyncIterator[None]:
    global scene  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    scene = Scene()
    await db.fetch("CREATE TABLE public.notes (task_id bigint, attempt int, text text)")
    yield
    scene.go_on.set()


def note(text: str) -> str:
    return NOTE.format(id=current().id, attempt=current().attempt, text=text)


async def gone_on() -> None:
    await until(scene.go_on.is_set)


def act(what: str) -> None:
    """What a task does at the end of its block."""
    match what:
        case "raise":
            raise RuntimeError("inside the block")
        case "raise once" if current().attempt == 1:
            raise RuntimeError("inside the block")
        case "snooze once" if current().run_epoch == 1:
            raise Snooze(in_=0.01)
        case "object":
            current().result(object())
        case "large":
            current().result("x" * 2000)
        case "slow":
            time.sleep(0.3)
        case "lose lease":
            scene.said.append("in the block")


def break_wire(what: str) -> None:
    if scene.proxy is not None and current().attempt == 1:
        scene.proxy.break_at(b"COMMIT", carried_out=what == "answer lost")


def act_after(what: str) -> Any:
    """What a task does after its block."""
    match what:
        case "raise after":
            raise RuntimeError("after the block")
        case "return after":
            return "after the block"
    return None


@task(entrypoint="tests.transaction.sqlalchemy", retry_delay=0.01, max_attempts=2)
async def with_sqlalchemy(what: str = "") -> Any:
    async with current().transaction() as session:
        assert isinstance(session, AsyncSession)
        await session.execute(sa.text(note("in the block")))
        current().result("done")
        if what == "children":
            scene.said += [(await current().enqueue(child, n)).id for n in (1, 2)]
        act(what)
        if what == "lose lease":
            await gone_on()
        break_wire(what)
    return act_after(what)


@task(entrypoint="tests.transaction.asyncpg", retry_delay=0.01, max_attempts=2)
async def with_asyncpg(what: str = "") -> Any:
    async with current().transaction(driver="asyncpg") as connection:
        assert isinstance(connection, asyncpg.Connection)
        await connection.execute(note("in the block"))
        current().result("done")
        if what == "children":
            scene.said += [(await current().enqueue(child, n)).id for n in (1, 2)]
        act(what)
        if what == "lose lease":
            await gone_on()
        break_wire(what)
    return act_after(what)


@task(entrypoint="tests.transaction.thread", retry_delay=0.01, max_attempts=2)
def with_thread(what: str = "") -> Any:
    with current().transaction() as session:
        assert isinstance(session, Session)
        session.execute(sa.text(note("in the block")))
        current().result("done")
        if what == "children":
            scene.said += [current().sync.enqueue(child, n).id for n in (1, 2)]
        act(what)
        if what == "lose lease":
            scene.go_on.wait(60)
        break_wire(what)
    return act_after(what)


@task(entrypoint="tests.transaction.child")
async def child(n: int) -> int:
    return n


@task(entrypoint="tests.transaction.refusals")
async def refusals(driver: str) -> None:
    if driver == "asyncpg":
        async with current().transaction(driver="asyncpg") as connection:
            await connection.execute("COMMIT")
            await connection.execute(note("committed by hand"))
    else:
        async with current().transaction() as session:
            await session.execute(sa.text(note("in the block")))
            await session.commit()


@task(entrypoint="tests.transaction.refusals_in_thread")
def refusals_in_thread() -> None:
    with current().transaction() as session:
        session.execute(sa.text(note("in the block")))
        session.commit()


@task(entrypoint="tests.transaction.twice")
async def twice() -> None:
    async with current().transaction() as session:
        with pytest.raises(WrongContext, match="use the session of the outer block"):
            async with current().transaction():
                pass
        await session.execute(sa.text(note("first")))
    with pytest.raises(WrongContext, match="completed by an earlier"):
        async with current().transaction():
            pass
    scene.said.append("refused")


@task(entrypoint="tests.transaction.savepoints")
async def savepoints() -> None:
    async with current().transaction() as session:
        async with session.begin_nested():
            await session.execute(sa.text(note("kept")))
        nested = await session.begin_nested()
        await session.execute(sa.text(note("dropped")))
        await nested.rollback()


@task(entrypoint="tests.transaction.savepoints_in_thread")
def savepoints_in_thread() -> None:
    with current().transaction() as session:
        with session.begin_nested():
            session.execute(sa.text(note("kept")))
        nested = session.begin_nested()
        session.execute(sa.text(note("dropped")))
        nested.rollback()


@task(entrypoint="tests.transaction.wrong_form")
async def wrong_form() -> None:
    with pytest.raises(WrongContext, match="async with"), current().transaction():
        pass
    scene.said.append("refused")


@task(entrypoint="tests.transaction.then_fail", max_attempts=1)
async def then_fail() -> None:
    async with current().transaction() as session:
        await session.execute(sa.text(note("in the block")))
    raise Fail("too late for that")


@task(entrypoint="tests.transaction.try_again")
async def try_again() -> str:
    with pytest.raises(sa.exc.ProgrammingError):
        async with current().transaction() as session:
            await session.execute(sa.text("SELECT nonsense"))
    async with current().transaction() as session:
        await session.execute(sa.text(note("second block")))
    return "not recorded"


@task(entrypoint="tests.transaction.slow", timeout=0.2, max_attempts=1)
async def slow() -> None:
    async with current().transaction() as session:
        await session.execute(sa.text(note("too slow")))
        await asyncio.sleep(60)


TASKS = {"sqlalchemy": with_sqlalchemy, "asyncpg": with_asyncpg, "thread": with_thread}


async def notes(db: Database) -> list[tuple[int, str]]:
    return [tuple(found) for found in await db.fetch("SELECT attempt, text FROM public.notes ORDER BY attempt, text")]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_writes_and_the_end_of_the_task_are_one_commit(
    quick: Settings, client: Client, db: Database, kind: str
) -> None:
    async with running_worker(quick) as worker:
        one = await TASKS[kind].enqueue(client=client)
        assert await one.result(30) == "done"
        await until(lambda: not worker.held())
    assert await notes(db) == [(1, "in the block")]
    task_row = await row(db, "tasks", one.id)
    assert (task_row["status"], task_row["attempt"], task_row["worker_id"]) == ("COMPLETED", 1, worker.worker_id)
    same = "SELECT t.xmin = n.xmin FROM aaiclick_queue.tasks t, public.notes n WHERE t.id = n.task_id"
    assert await db.fetchval(same)
    [found] = await rows(db, "workers")
    assert (found["tasks_completed"], found["tasks_lost"]) == (1, 0)


async def test_a_long_block_does_not_move_the_times_of_its_task(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        one = await TASKS[KINDS[0]].enqueue("slow", client=client)
        await one.result(30)
    task_row = await row(db, "tasks", one.id)
    assert task_row["ready_at"] <= task_row["started_at"] <= task_row["finished_at"] - timedelta(seconds=0.3)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_attempt_that_raises_inside_leaves_nothing_and_the_next_one_counts(
    quick: Settings, client: Client, db: Database, kind: str
) -> None:
    async with running_worker(quick):
        assert await (await TASKS[kind].enqueue("raise once", client=client)).result(30) == "done"
        assert await notes(db) == [(2, "in the block")]
        snoozed = await TASKS[kind].enqueue("snooze once", client=client)
        assert await snoozed.result(30) == "done"
        with pytest.raises(TaskFailed, match="inside the block"):
            await (await TASKS[kind].enqueue("raise", client=client)).result(30)
    assert await notes(db) == [(1, "in the block"), (2, "in the block")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_lost_its_lease_rolls_everything_back(
    quick: Settings, client: Client, db: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_worker(changed(quick, heartbeat_seconds=1)) as worker:
        one = await TASKS[kind].enqueue("lose lease", client=client)
        await until(lambda: scene.said)
        assert await one.cancel()
        scene.go_on.set()
        await until(lambda: not worker.held())
    assert await notes(db) == []
    assert await place_of(db, one.id) == ["CANCELLED"]
    assert (await row(db, "tasks", one.id))["result"] is None


async def test_a_lost_lease_is_told_to_the_task(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(changed(quick, heartbeat_seconds=1)):
        one = await tells.enqueue(client=client)
        await until(lambda: scene.said)
        assert await one.cancel()
        scene.go_on.set()
        await until(lambda: len(scene.said) == 2)
    assert "lost its lease, so everything in its transaction was rolled back" in scene.said[1]
    assert await notes(db) == []


@task(entrypoint="tests.transaction.tells")
def tells() -> None:
    try:
        with current().transaction() as session:
            session.execute(sa.text(note("in the block")))
            scene.said.append("in the block")
            scene.go_on.wait(60)
    except LeaseLost as error:
        scene.said.append(str(error))


@pytest.mark.parametrize("kind", KINDS)
async def test_after_the_block_a_value_is_dropped_and_an_exception_logged(
    quick: Settings, client: Client, db: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_worker(quick) as worker:
        assert await (await TASKS[kind].enqueue("return after", client=client)).result(30) == "done"
        assert await (await TASKS[kind].enqueue("raise after", client=client)).result(30) == "done"
        await until(lambda: not worker.held())
    assert "returned a value after its transaction had completed it: dropped" in caplog.text
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "raised after its transaction had completed it" in record.message
    assert "after the block" in caplog.text
    assert len(await notes(db)) == 2
    assert {found["status"] for found in await rows(db, "tasks")} == {"COMPLETED"}
    assert await count(db, "attempts") == 0


async def test_no_directive_after_the_block_changes_what_was_committed(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        one = await then_fail.enqueue(client=client)
        await one.result(30)
    assert await place_of(db, one.id) == ["COMPLETED"]


@pytest.mark.parametrize("kind", KINDS)
async def test_children_of_the_block_are_written_with_it_once(
    quick: Settings, client: Client, db: Database, kind: str
) -> None:
    async with running_worker(quick):
        one = await TASKS[kind].enqueue("children", client=client)
        assert await one.result(30) == "done"
        children = [await row(db, "tasks", task_id) for task_id in scene.said]
        await until(lambda: db.fetchval("SELECT count(*) = 3 FROM aaiclick_queue.tasks WHERE status = 'COMPLETED'"))
    assert {found["parent_id"] for found in children} == {one.id}
    same = "SELECT count(DISTINCT created_at) FROM aaiclick_queue.tasks WHERE parent_id IS NOT NULL"
    assert await db.fetchval(same) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", ["object", "large"])
async def test_a_result_that_cannot_be_kept_fails_the_task_at_once_and_rolls_back(
    quick: Settings, client: Client, db: Database, kind: str, value: str
) -> None:
    async with running_worker(changed(quick, result_max_bytes=1000)):
        with pytest.raises(TaskFailed, match=r"ResultDoesNotEncode|PayloadTooLarge") as failed:
            await (await TASKS[kind].enqueue(value, client=client)).result(30)
    assert failed.value.attempts == 1
    assert await notes(db) == []


async def test_a_commit_inside_the_block_is_refused(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        for one in (
            await refusals.options(max_attempts=1).enqueue("sqlalchemy", client=client),
            await refusals_in_thread.options(max_attempts=1).enqueue(client=client),
        ):
            with pytest.raises(TaskFailed, match="the block commits by itself when it ends"):
                await one.result(30)
        assert await notes(db) == []
        by_hand = await refusals.options(max_attempts=1).enqueue("asyncpg", client=client)
        with pytest.raises(TaskFailed, match="the transaction was ended inside"):
            await by_hand.result(30)


async def test_savepoints_inside_the_block_work(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        await (await savepoints.enqueue(client=client)).result(30)
        await (await savepoints_in_thread.enqueue(client=client)).result(30)
    assert await notes(db) == [(1, "kept"), (1, "kept")]


async def test_a_second_block_is_refused(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick) as worker:
        await (await twice.enqueue(client=client)).result(30)
        await until(lambda: not worker.held())
    assert scene.said == ["refused"]
    assert await notes(db) == [(1, "first")]


async def test_a_block_that_failed_can_be_followed_by_another(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        assert await (await try_again.enqueue(client=client)).result(30) is None
    assert await notes(db) == [(1, "second block")]


async def test_the_form_for_threads_is_refused_on_the_event_loop(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        await (await wrong_form.enqueue(client=client)).result(30)
    assert scene.said == ["refused"]


async def test_a_block_that_takes_too_long_is_stopped_and_rolled_back(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        with pytest.raises(TaskFailed, match="TimedOut"):
            await (await slow.enqueue(client=client)).result(30)
    assert await notes(db) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["answer lost", "never sent"])
async def test_a_commit_without_an_answer_is_looked_up_and_its_effects_happen_once(
    quick: Settings, client: Client, db: Database, kind: str, what: str
) -> None:
    assert quick.postgres_url
    async with (
        Proxy(quick.postgres_url) as scene.proxy,
        running_worker(changed(quick, postgres_url=scene.proxy.url), background=False) as worker,
    ):
        one = await TASKS[kind].options(retry_delay=0).enqueue(what, client=client)
        if what == "never sent":
            await until(lambda: count(db, "delayed"))
            assert await notes(db) == []
            await Reaper(db).due_once()
        assert await one.result(30) == "done"
        await until(lambda: not worker.held())
    assert await notes(db) == [(1 if what == "answer lost" else 2, "in the block")]
    [found] = await rows(db, "workers")
    assert (found["tasks_completed"], found["tasks_lost"]) == (1, 0)


async def test_many_blocks_at_once_wait_for_the_pool(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(changed(quick, transaction_pool_size=2), slots=20):
        handles = [await TASKS[KINDS[n % 3]].enqueue(client=client) for n in range(24)]
        assert await asyncio.gather(*(one.result(30) for one in handles)) == ["done"] * 24
    assert len(await notes(db)) == 24
