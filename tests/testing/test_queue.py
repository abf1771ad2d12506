"""The queue of a test: drained by a real worker, looked at, found by every enqueue of the process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from aaiclick_queue import Inject, Settings, Status, TaskFailed, client, current, resource, task
from aaiclick_queue import enqueue as enqueue_by_name
from aaiclick_queue.errors import BadTask
from aaiclick_queue.flow.pause import pause_queue
from aaiclick_queue.limits import limit_queue
from aaiclick_queue.postgres import Database
from aaiclick_queue.testing import Clock, QueueUnderTest
from tests.tools import until

ran: list[Any] = []


@pytest.fixture(autouse=True)
def quiet() -> None:
    ran.clear()


@task
async def greet(name: str, times: int = 1) -> str:
    ran.append(name)
    return f"hello {name}" * times


@task
def greet_plainly(name: str) -> str:
    ran.append(threading.current_thread())
    assert greet.delay(name).id
    return name


@task
async def family(names: list[str]) -> None:
    for name in names:
        await current().enqueue(greet, name)


@task(max_attempts=2, retry_delay=60)
async def flaky(times: int = 1) -> int:
    if current().attempt <= times:
        raise ConnectionError("not yet")
    return current().attempt


@task
async def never_ends() -> None:
    await asyncio.sleep(3600)


async def test_a_drain_runs_what_is_in_line_on_all_queues_and_what_that_enqueues(queue: QueueUnderTest) -> None:
    handle = await greet.enqueue("ada")
    await family.options(queue="slow").enqueue(["bob", "carl"])
    await greet_plainly.enqueue("dora")
    ended = await queue.drain()
    assert {task.status for task in ended} == {Status.COMPLETED}
    assert sorted(name for name in ran if isinstance(name, str)) == ["ada", "bob", "carl", "dora"]
    assert [task.result for task in ended if task.id == handle.id] == ["hello ada"]
    assert await handle.result(timeout=5) == "hello ada"
    assert await queue.drain() == []


async def test_what_is_not_due_is_left_until_time_has_passed(queue: QueueUnderTest, clock: Clock) -> None:
    handle = await flaky.enqueue()
    assert await queue.drain() == []
    [waiting] = await queue.tasks(flaky, status="SCHEDULED")
    assert (waiting.attempt, waiting.reason, await handle.status()) == (1, "retry", Status.SCHEDULED)
    await clock.advance(minutes=2)
    assert [task.result for task in await queue.drain()] == [2]


async def test_a_drain_can_go_on_until_something_is_true(queue: QueueUnderTest) -> None:
    await greet.options(countdown=3).enqueue("late")  # later than any drain takes that finds nothing
    assert await queue.drain() == []
    await queue.drain(until=lambda: "late" in ran)
    await greet.options(countdown=0.1).enqueue("later")

    async def is_there() -> bool:
        return bool(await queue.tasks(status=Status.COMPLETED)) and "later" in ran

    await queue.drain(until=is_there)


async def test_a_drain_that_takes_too_long_says_what_is_left_and_hands_it_back(queue: QueueUnderTest) -> None:
    await never_ends.enqueue()
    await flaky.options(countdown=60).enqueue()
    with pytest.raises(TimeoutError, match=r"(?s)0\.3 s.*RUNNING .*never_ends\(\).*SCHEDULED .*flaky\(\)"):
        await queue.drain(timeout=0.3)
    [waiting] = await queue.tasks(never_ends)
    assert (waiting.status, waiting.attempt) == (Status.QUEUED, 0)


async def test_failures_are_raised_when_asked_for(queue: QueueUnderTest) -> None:
    await flaky.options(max_attempts=1).enqueue()
    with pytest.raises(TaskFailed, match=r"(?s)flaky failed in attempt 1: ConnectionError: not yet.*Traceback"):
        await queue.drain(raising=True)


async def test_a_task_that_nobody_registered_is_named(queue: QueueUnderTest) -> None:
    await enqueue_by_name("shop.mail.nowhere", {})
    with pytest.raises(BadTask, match=r"shop\.mail\.nowhere: import the module"):
        await queue.drain()


async def test_paused_queues_are_left_alone(queue: QueueUnderTest) -> None:
    await greet.options(queue="paused").enqueue("ada")
    async with Database(queue.settings, size=1) as db:
        await pause_queue(db, "paused", by="test", reason=None)
    assert await queue.drain() == []
    assert [task.status for task in await queue.tasks()] == [Status.QUEUED]


async def test_what_a_limit_holds_back_is_run_as_it_gets_in(queue: QueueUnderTest, clock: Clock) -> None:
    await limit_queue("one", max_running=1)
    for n in range(5):
        await greet.options(queue="one").enqueue(str(n))
    assert len(await queue.drain()) == 5
    await limit_queue("rated", rate="2/h")
    for n in range(3):
        await greet.options(queue="rated").enqueue(str(n))
    assert len(await queue.drain()) == 2
    assert [task.kwargs for task in await queue.tasks(status=Status.PENDING)] == [{"name": "2"}]
    await clock.advance(hours=1)
    assert len(await queue.drain()) == 1


async def test_one_task_is_run_at_a_time_in_line_order(queue: QueueUnderTest) -> None:
    assert await queue.run_one() is None
    await greet.enqueue("second")
    await greet.options(priority=1).enqueue("first")
    await greet_plainly.enqueue("third")
    one = await queue.run_one()
    assert one is not None
    assert (one.kwargs, one.status, ran) == ({"name": "first"}, Status.COMPLETED, ["first"])
    await queue.run_one()
    assert ran == ["first", "second"]
    await flaky.options(priority=9).enqueue()
    retried = await queue.run_one()
    assert retried is not None
    assert (retried.status, retried.attempt) == (Status.SCHEDULED, 1)


async def test_a_worker_runs_beside_the_test(queue: QueueUnderTest) -> None:
    async with queue.worker():
        assert await (await greet.enqueue("ada")).result(timeout=30) == "hello ada"


async def test_what_was_enqueued_is_compared_as_the_function_gets_it(queue: QueueUnderTest) -> None:
    await greet.options(metadata={"a": 1}, priority=3, correlation_id="c", queue="q", name="n").enqueue("ada")
    [seen] = await queue.assert_enqueued(greet, name="ada")
    assert (seen.metadata, seen.priority, seen.correlation_id, seen.queue, seen.name) == ({"a": 1}, 3, "c", "q", "n")
    await queue.assert_enqueued(greet, name="ada", times=1)  # its default
    await queue.assert_enqueued("tests.testing.test_queue.greet", name="ada")
    await queue.assert_not_enqueued(greet, name="bob")
    with pytest.raises(AssertionError) as told:
        await queue.assert_enqueued(greet, name="bob", times=2)
    assert "greet(name='bob', times=2, …) was not enqueued" in str(told.value)
    assert "name='ada' instead of 'bob', times was not given, 2 is wanted" in str(told.value)
    with pytest.raises(AssertionError, match=r"(?s)Nothing of that name was.*greet ×1"):
        await queue.assert_enqueued(flaky)
    with pytest.raises(AssertionError, match="was enqueued once"):
        await queue.assert_not_enqueued(greet)


def test_synchronous_code_is_tested_without_a_loop(queue: QueueUnderTest) -> None:
    handle = greet.delay("ada")
    asyncio.run(queue.drain())
    assert handle.get(timeout=5) == "hello ada"


@pytest.mark.parametrize("n", [1, 2])
def test_each_test_has_its_own_database_also_on_the_loop_of_synchronous_code(queue: QueueUnderTest, n: int) -> None:
    greet.delay(str(n))
    assert [task.kwargs for task in asyncio.run(queue.tasks())] == [{"name": str(n)}]


async def test_settings_and_environment_are_those_of_the_test(queue: QueueUnderTest) -> None:
    assert Settings.load().postgres_url == queue.url
    assert os.environ["AAICLICK_QUEUE_POSTGRES_URL"] == queue.url
    assert (await client.default_client()).settings is queue.settings


class Greeter:
    word = "hello"


@task
async def greet_by(name: str, greeter: Inject[Greeter]) -> str:
    return f"{greeter.word} {name}"


@resource
def greeter() -> Iterator[Greeter]:
    yield Greeter()


@task(isolation="process")
def greet_apart(name: str, greeter: Inject[Greeter]) -> str:
    ran.append(name)
    return f"{greeter.word} {name}"


async def test_a_task_for_a_process_of_its_own_has_the_resources_and_the_memory_of_the_test(
    queue: QueueUnderTest,
) -> None:
    queue.resources[Greeter] = mine = Greeter()
    mine.word = "test"
    await greet_apart.enqueue("ada")
    [done] = await queue.drain(raising=True)
    assert (done.result, ran) == ("test ada", ["ada"])


async def test_workers_of_the_test_use_its_resources(queue: QueueUnderTest) -> None:
    mine = queue.resources[Greeter] = Greeter()
    mine.word = "welcome"
    await greet_by.enqueue("ada")
    assert [task.result for task in await queue.drain(raising=True)] == ["welcome ada"]
    await greet_by.enqueue("bob")
    done = await queue.run_one()
    assert done is not None
    assert done.result == "welcome bob"


async def test_other_settings_can_be_put_on_top(queue: QueueUnderTest) -> None:
    with queue.also(max_attempts=7) as other:
        await flaky.options(max_attempts=None).enqueue()
        assert (await client.default_client()).settings.max_attempts == 7
        assert other.url == queue.url
    assert (await client.default_client()).settings.max_attempts == 3


def test_nothing_stays_open_when_the_test_is_over(postgres_url: str) -> None:
    with QueueUnderTest.opened({"postgres_url": postgres_url}) as queue:
        greet.delay("ada")
        with asyncio.Runner() as runner:
            runner.run(greet.enqueue("bob"))
            assert connections(postgres_url) > 0
            runner.run(queue.drain())
            loop = runner.get_loop()
            assert not loop.is_closed()
            queue_settings = queue.settings
    assert not any(queue_settings in clients for clients in client._clients.values())
    asyncio.run(until(lambda: connections(postgres_url) == 0))
    assert "AAICLICK_QUEUE_POSTGRES_URL" not in os.environ


def test_a_loop_that_outlives_the_test_keeps_nothing_of_it(postgres_url: str) -> None:
    with asyncio.Runner() as runner:
        for _ in range(2):
            with QueueUnderTest.opened({"postgres_url": postgres_url}):
                runner.run(greet.enqueue("bob"))
            runner.run(until(lambda: connections(postgres_url) == 0))


def connections(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchone()
    assert row
    return int(row[0])
