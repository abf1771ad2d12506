"""Tasks that run their function for many items: on the loop, in threads, in child processes, and what stops them."""

from __future__ import annotations

import os
import threading
from datetime import date

import pytest

from aaiclick_queue import Client, Fail, Inject, Settings, TaskCancelled, TaskFailed, current, enqueue, task
from aaiclick_queue.limits import limit_task
from aaiclick_queue.testing import eager
from tests.flow.children_tasks import pid, pid_async
from tests.tools import declarations_of_its_own, running_worker, until


class Engine:
    """A resource."""

    url = "engine"


@task
async def add(x: int, y: int = 0) -> int:
    return x + y


@task
def days(start: date, more: int) -> date:
    return date.fromordinal(start.toordinal() + more)


@task(max_attempts=2, retry_delay=0)
def flaky(x: int) -> int:
    if x == 3 and current().attempt == 1:
        raise ConnectionError("not now")
    if x < 0:
        raise Fail("below zero")
    return x


started, release = threading.Event(), threading.Event()
ran: list[int] = []


@task
def slow(x: int) -> None:
    ran.append(x)
    started.set()
    release.wait(30)


async def test_results_are_a_list_in_the_order_of_the_items(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await add.starmap([(1, 2), {"x": 3, "y": 4}, (5,)]).enqueue(client=client)
        assert await run.result(timeout=30) == [3, 7, 5]
        run = await days.starmap([(date(2026, 1, 31), 1), (date(2026, 12, 31), 1)]).enqueue(client=client)
        assert await run.result(timeout=30) == [date(2026, 2, 1), date(2027, 1, 1)]
        run = await add.starmap([]).enqueue(client=client)
        assert await run.result(timeout=30) == []


async def test_resources_are_filled_in_for_each(client: Client, quick: Settings) -> None:
    with declarations_of_its_own():

        @task
        async def with_engine(x: int, on: Inject[Engine]) -> str:
            return f"{x} on {on.url}"

        async with running_worker(quick, resources={Engine: Engine()}):
            run = await with_engine.starmap([(1,), (2,)]).enqueue(client=client)
            assert await run.result(timeout=30) == ["1 on engine", "2 on engine"]


async def test_isolated_tasks_run_for_many_in_one_child(client: Client, quick: Settings) -> None:
    async with running_worker(quick, modules=("tests.flow.children_tasks",)):
        for one in (pid, pid_async):
            run = await one.starmap([(), {}]).enqueue(client=client)
            first, second = await run.result(timeout=60)
            assert first == second != os.getpid()


async def test_the_whole_is_tried_again_and_the_error_names_the_item(client: Client, quick: Settings) -> None:
    async with running_worker(quick):
        run = await flaky.starmap([(1,), (3,)]).enqueue(client=client)
        assert await run.result(timeout=30) == [1, 3]
        run = await flaky.starmap([(1,), (-1,), (2,)]).enqueue(client=client)
        with pytest.raises(TaskFailed) as failed:
            await run.result(timeout=30)
        assert "raised by items[1] of 3" in failed.value.traceback


async def test_a_thread_that_was_told_to_stop_ends_between_two_items(client: Client, quick: Settings) -> None:
    started.clear()
    release.clear()
    ran.clear()
    async with running_worker(quick) as worker:
        run = await slow.starmap([(1,), (2,)]).enqueue(client=client)
        await until(started.is_set)
        assert await run.cancel()
        await until(lambda: not worker.slots.held)
        release.set()
        await until(lambda: not worker.slots.busy)
        with pytest.raises(TaskCancelled):
            await run.result(timeout=30)
    assert ran == [1]


async def test_limits_of_the_task_hold_for_it(client: Client, quick: Settings) -> None:
    await limit_task(add.entrypoint, max_running=1, client=client)
    run = await add.starmap([(1, 2)]).enqueue(client=client)
    other = await add.enqueue(1, 2, client=client)
    assert str(await other.status()) == "PENDING"
    async with running_worker(quick):
        assert await run.result(timeout=30) == [3]
        assert await other.result(timeout=30) == 3


async def test_it_is_enqueued_by_name_and_what_does_not_fit_fails_with_its_place(
    client: Client, quick: Settings
) -> None:
    async with running_worker(quick):
        run = await enqueue(add.entrypoint, {"$each": [[1, 2], {"x": 3}]}, client=client)
        assert await run.result(timeout=30) == [3, 3]
        for wrong, says in (
            ({"$each": 3}, "given 3, which is no list of arguments"),
            ({"$each": [3]}, r"items\[0\] is 3: give a tuple"),
            ({"$each": [[1], [1, 2, 3]]}, r"items\[1\]: .* takes 2 positional arguments and 3 were given"),
            ({"$each": [{"x": "one"}]}, r"items\[0\]: .* parameter 'x'"),
            ({"$each": [[1]], "x": 1}, r"has no parameter '\$each'"),
        ):
            run = await enqueue(add.entrypoint, wrong, client=client)
            with pytest.raises(TaskFailed, match=says):
                await run.result(timeout=30)


def test_it_runs_in_line_too() -> None:
    with eager():
        assert flaky.starmap([(1,), (3,)]).delay().get() == [1, 3]
        assert add.starmap([(1, 2)]).delay().get() == [3]
