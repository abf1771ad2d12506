"""Faults on order: workers die as by kill -9, answers and wake-ups are lost, a task runs twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine, text

from aaiclick_queue import LeaseLost, Status, current, task
from aaiclick_queue.errors import PostgresUnavailable, WrongContext
from aaiclick_queue.flow import kick
from aaiclick_queue.postgres import Database
from aaiclick_queue.testing import Clock, QueueUnderTest, kill_here
from tests.tools import count, rows, until

ran: list[Any] = []
deaths: list[int] = []


@pytest.fixture(autouse=True)
def quiet() -> None:
    ran.clear()
    deaths[:] = [1]


def outside() -> str:
    """Something that a task calls."""
    ran.append("outside")
    return "done"


async def outside_too() -> str:
    """Something that an async task awaits."""
    ran.append("outside too")
    return "done"


@task
async def step(n: int = 1) -> str:
    ran.append(n)
    outside()
    return await outside_too()


@task
def plain_step() -> str:
    ran.append("plain")
    return outside()


@task
async def child() -> None:
    ran.append("child")


@task
async def dies_here() -> str:
    ran.append("begin")
    try:
        if deaths:
            deaths.pop()
            kill_here()
    except Exception:  # nothing that a task may catch by accident
        ran.append("caught")
    finally:
        if not deaths and current().run_epoch == 1:
            with pytest.raises((PostgresUnavailable, asyncio.CancelledError)):
                await current().progress(0.5)
            with pytest.raises((PostgresUnavailable, asyncio.CancelledError)):
                await current().enqueue(child)
            ran.append("finally")
    return "end"


@task
def dies_in_its_thread() -> None:
    if deaths:
        deaths.pop()
        try:
            kill_here()
        finally:
            with pytest.raises(PostgresUnavailable, match="a test has killed it"):
                current().sync.progress(0.5)
            ran.append("finally")


async def runs_again(queue: QueueUnderTest, clock: Clock, *, lost: int = 1) -> Any:
    """The one task looks as if it ran; when its lease has ended it is run again."""
    [left] = await queue.tasks()
    assert (left.status, left.runs) == (Status.RUNNING, lost)
    assert await queue.drain() == []  # nobody knows that it is dead
    await clock.advance(minutes=1)
    [done] = await queue.drain(raising=True)
    assert (done.status, done.runs, done.lost_count, done.attempt) == (Status.COMPLETED, lost + 1, lost, 1)
    return done


async def test_a_run_is_lost_before_its_body(queue: QueueUnderTest, clock: Clock) -> None:
    await step.enqueue()
    with queue.kill_run(step, when="before"):
        await queue.drain()
    assert ran == []
    await runs_again(queue, clock)


async def test_a_run_is_lost_after_its_body(queue: QueueUnderTest, clock: Clock) -> None:
    await plain_step.enqueue()
    with queue.kill_run(plain_step):
        await queue.drain()
    assert ran == ["plain", "outside"]
    assert (await runs_again(queue, clock)).result == "done"


@pytest.mark.parametrize("name", ["outside", "outside_too"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_is_lost_at_a_call(queue: QueueUnderTest, clock: Clock, name: str, when: Any) -> None:
    await step.enqueue()
    with queue.kill_at(f"{__name__}.{name}", when=when):
        outside()  # of nobody's run
        ran.clear()
        await queue.drain()
    expected = {"outside": [1, "outside"], "outside_too": [1, "outside", "outside too"]}[name]
    assert ran == (expected if when == "after" else expected[:-1])
    await runs_again(queue, clock)


async def test_a_run_is_lost_at_a_statement_and_nothing_more_of_it_is_written(
    queue: QueueUnderTest, clock: Clock
) -> None:
    await dies_here.enqueue()
    await queue.drain()
    assert ran == ["begin", "finally"]
    async with Database(queue.settings, size=1) as db:
        assert (await count(db, "progress"), await count(db, "tasks")) == (0, 1)
        [worker] = [worker for worker in await rows(db, "workers") if worker["status"] == "ACTIVE"]
        assert [lease["worker_id"] for lease in await rows(db, "leases")] == [worker["id"]]
    assert (await runs_again(queue, clock)).result == "end"


async def test_a_def_task_is_lost_at_a_statement(queue: QueueUnderTest, clock: Clock) -> None:
    await dies_in_its_thread.enqueue()
    await queue.drain()
    await until(lambda: ran == ["finally"])
    await runs_again(queue, clock)


async def test_all_runs_of_a_killed_worker_are_lost_and_a_new_one_takes_the_rest(
    queue: QueueUnderTest, clock: Clock
) -> None:
    await waits.enqueue()
    await dies_here.enqueue()
    await child.options(countdown=1).enqueue()
    await queue.drain(until=lambda: "child" in ran, timeout=30)
    seen = {task.entrypoint.rpartition(".")[2]: task.status for task in await queue.tasks()}
    assert seen == {"waits": Status.RUNNING, "dies_here": Status.RUNNING, "child": Status.COMPLETED}
    await clock.advance(minutes=1)
    assert {task.status for task in await queue.drain()} == {Status.COMPLETED}


@task
async def waits() -> None:
    if current().run_epoch == 1:
        await asyncio.sleep(60)


async def test_a_task_that_was_lost_twice_still_runs_in_the_process_of_the_test(
    queue: QueueUnderTest, clock: Clock
) -> None:
    await step.enqueue(7)
    for _ in range(2):
        with queue.kill_run(step, when="before"):
            await queue.drain()
        await clock.advance(minutes=1)
    [done] = await queue.drain(timeout=30, raising=True)
    assert (done.lost_count, done.runs, done.result) == (2, 3, "done")
    assert ran  # here


async def test_an_outcome_whose_answer_is_lost_stands(queue: QueueUnderTest, clock: Clock) -> None:
    await step.enqueue()
    with queue.lose_answer(step):
        [done] = await queue.drain()
    assert (done.status, done.result) == (Status.COMPLETED, "done")
    await clock.advance(minutes=1)
    assert await queue.drain() == []
    assert ran.count(1) == 1


@task
async def books() -> None:
    async with current().transaction() as session:
        await session.execute(text("INSERT INTO booked (run) VALUES (:run)"), {"run": current().run_epoch})
        await outside_too()


@pytest.fixture
def engine(queue: QueueUnderTest) -> Any:
    engine = create_engine(queue.url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE booked (run int)"))
    yield engine
    engine.dispose()


async def test_what_a_killed_run_wrote_in_its_transaction_is_rolled_back(
    queue: QueueUnderTest, clock: Clock, engine: Any
) -> None:
    await books.enqueue()
    with queue.kill_at(f"{__name__}.outside_too"):
        await queue.drain()
    await runs_again(queue, clock)
    with engine.begin() as connection:
        assert list(connection.scalars(text("SELECT run FROM booked"))) == [2]


async def test_a_committed_transaction_whose_answer_is_lost_stands(
    queue: QueueUnderTest, clock: Clock, engine: Any
) -> None:
    await books.enqueue()
    with queue.lose_answer(books):
        [done] = await queue.drain()
    await clock.advance(minutes=1)
    assert await queue.drain() == []
    assert (done.status, done.runs) == (Status.COMPLETED, 1)


@task
async def meets_itself() -> int:
    ran.append(current().run_epoch)
    await until(lambda: len(ran) == 2)
    return current().run_epoch


async def test_a_task_runs_twice_at_a_time_and_ends_once(queue: QueueUnderTest) -> None:
    await meets_itself.enqueue()
    with queue.run_twice(meets_itself):
        [done] = await queue.drain()
    assert (sorted(ran), done.result, done.runs, done.attempt) == ([1, 2], 2, 2, 1)


async def test_only_one_of_two_runs_commits_its_transaction(queue: QueueUnderTest, engine: Any) -> None:
    await books_late.enqueue()
    with queue.run_twice(books_late):
        [done] = await queue.drain()
    assert (ran, done.runs) == (["lost"], 2)
    with engine.begin() as connection:
        assert list(connection.scalars(text("SELECT run FROM booked"))) == [2]


@task
async def books_late() -> None:
    try:
        async with current().transaction() as session:
            await session.execute(text("INSERT INTO booked (run) VALUES (:run)"), {"run": current().run_epoch})
    except LeaseLost:
        ran.append("lost")
        raise


async def test_wake_ups_are_lost_and_the_work_is_found(queue: QueueUnderTest) -> None:
    kicks: list[int] = []
    kick.add_claimer(lambda: kicks.append(1))
    async with queue.worker():
        with queue.lose_wakeups():
            assert await (await step.enqueue()).result(timeout=30) == "done"
            assert kicks == []
        await step.enqueue()
        assert kicks


async def test_wake_ups_over_redis_are_lost_and_the_work_is_found(queue_with_redis: QueueUnderTest) -> None:
    settings = queue_with_redis.settings
    assert settings.redis_url
    stream = f"{{{settings.redis_prefix}}}:wake:default"
    redis = Redis.from_url(settings.redis_url)
    async with Database(settings, size=1) as db:
        with queue_with_redis.lose_wakeups():
            lost = await step.enqueue()
            await until(lambda: count_is(db, "outbox", 0))  # as if it had been delivered
            assert await redis.xlen(stream) == 0
        heard = await step.enqueue()
        await until(lambda: redis.xlen(stream))
    async with queue_with_redis.worker():
        assert await lost.result(timeout=30) == await heard.result(timeout=30) == "done"
    await redis.aclose()


async def count_is(db: Database, table: str, number: int) -> bool:
    return await count(db, table) == number


@pytest.mark.parametrize("fault", ["kill_run", "lose_answer", "run_twice"])
async def test_a_fault_that_struck_nothing_says_so(queue: QueueUnderTest, fault: str) -> None:
    with pytest.raises(AssertionError, match="no run of"), getattr(queue, fault)(step):
        await queue.drain()


async def test_a_call_that_no_run_made_says_so(queue: QueueUnderTest) -> None:
    with pytest.raises(AssertionError, match="no run called"), queue.kill_at(f"{__name__}.outside"):
        outside()


def test_outside_of_the_kit_nothing_can_be_killed() -> None:
    with pytest.raises(WrongContext, match="testing kit"):
        kill_here()


@pytest.mark.parametrize("target", ["outside", f"{__name__}.nosuch", "nosuch_module.f", "..f"])
def test_a_kill_at_what_is_not_there_is_refused_by_name(queue: QueueUnderTest, target: str) -> None:
    with pytest.raises(ValueError, match="name what is called as"), queue.kill_at(target):
        pass
