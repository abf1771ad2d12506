"""Threads of `def` tasks: each takes the next call by itself, and none waits for another that takes long."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest

from aaiclick_queue import Client, Inject, Settings, TaskFailed, current, handle, resource, task
from aaiclick_queue.strands import rest
from aaiclick_queue.threads import Threads, Unfinished, begin, on_the_loop
from tests.tools import declarations_of_its_own, running_worker, until

THREADS = 4

together = threading.Barrier(THREADS)
seen: ContextVar[str] = ContextVar("seen", default="nothing")
said: list[Any] = []


class Stage:
    """Threads, and what their calls gave."""

    def __init__(self, size: int = THREADS) -> None:
        self.threads = Threads(size, self._collected)
        self.came: list[Any] = []
        self.times = 0

    def _collected(self) -> None:
        self.times += 1

    def call(self, function: Any) -> None:
        self.threads.call(function, self.came.append)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.threads.close()


@pytest.fixture(autouse=True)
def _silence() -> None:
    said.clear()
    together.reset()


async def test_calls_that_wait_for_each_other_run_at_once(stage: Stage) -> None:
    for _ in range(THREADS):
        stage.call(lambda: together.wait(30) is not None)
    await until(lambda: len(stage.came) == THREADS)
    assert stage.came == [True] * THREADS


async def test_a_call_that_takes_long_keeps_no_other_from_being_called(stage: Stage) -> None:
    go_on = threading.Event()
    for _ in range(THREADS - 1):
        stage.call(partial(go_on.wait, 30))
    for number in range(100):
        stage.call(lambda number=number: number)
    await until(lambda: len(stage.came) == 100)
    assert sorted(stage.came) == list(range(100))
    go_on.set()
    await until(lambda: len(stage.came) == 100 + THREADS - 1)


async def test_what_ended_while_the_loop_was_busy_is_told_in_one_go(stage: Stage) -> None:
    ran = threading.Semaphore(0)
    for _ in range(50):
        stage.call(ran.release)
    for _ in range(50):
        assert ran.acquire(timeout=30)  # the loop stands still meanwhile
    await until(lambda: len(stage.came) == 50)
    assert stage.times <= 2  # the second for one that had ended and was not told yet


async def test_whoever_cannot_be_told_keeps_nobody_else_from_it() -> None:
    stage = Stage(1)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))

    def refuse(_: object) -> None:
        raise RuntimeError("not now")

    stage.threads.call(lambda: 1, refuse)
    stage.threads.call(lambda: 2, stage.came.append)
    await until(lambda: stage.came == [2])
    assert [str(error["exception"]) for error in errors] == ["not now"]
    stage.threads.close()


async def test_after_the_end_no_call_is_begun() -> None:
    stage, go_on = Stage(1), threading.Event()
    stage.call(partial(go_on.wait, 30))
    stage.call(lambda: said.append("begun"))
    stage.threads.close()
    go_on.set()
    await until(lambda: stage.came == [True])
    assert said == []


async def test_threads_that_end_after_their_loop_trouble_nobody() -> None:
    go_on, ended = threading.Event(), threading.Event()

    async def leave() -> Threads:
        threads = Threads(1, lambda: None)
        threads.call(partial(go_on.wait, 30), lambda _: None)
        return threads

    threads = await asyncio.to_thread(lambda: asyncio.run(leave()))
    threads.executor.submit(ended.set)
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 30), "the thread died"
    threads.close()


async def test_a_call_is_forgotten_when_it_is_over(stage: Stage) -> None:
    class Value:
        pass

    value = Value()
    kept = weakref.ref(value)
    stage.threads.call(partial(lambda held: held is not None, value), stage.came.append)
    del value
    await until(lambda: stage.came == [True])
    await until(lambda: [gc.collect()] and kept() is None)


async def test_a_coroutine_goes_on_on_the_loop_where_it_asks_for_it(stage: Stage) -> None:
    async def work() -> list[object]:
        before = threading.current_thread()
        await on_the_loop()
        await asyncio.sleep(0)
        return [before is threading.main_thread(), threading.current_thread() is threading.main_thread()]

    stage.call(lambda: begin(copy_context(), work()))
    [left] = await until(lambda: stage.came)
    assert isinstance(left, Unfinished)

    async def finish() -> Any:
        return await rest(left.context, left.coroutine, None)

    assert await asyncio.create_task(finish()) == [False, True]


# In a worker.


@task(entrypoint="tests.threads.meet")
def meet() -> int:
    return together.wait(30)


@task(entrypoint="tests.threads.mark")
def mark(word: str) -> str:
    before = seen.get()
    seen.set(word)
    return before


@task(entrypoint="tests.threads.interrupt", max_attempts=1)
def interrupt() -> None:
    raise KeyboardInterrupt("not from a keyboard")


@task(entrypoint="tests.threads.leave", max_attempts=1)
def leave() -> None:
    raise asyncio.CancelledError


async def test_as_many_def_tasks_run_at_once_as_there_are_threads(quick: Settings, client: Client) -> None:
    async with running_worker(quick, threads=THREADS):
        met = [await meet.enqueue(client=client) for _ in range(THREADS)]
        assert sorted([await one.result(60) for one in met]) == list(range(THREADS))


async def test_def_tasks_of_one_thread_see_nothing_of_each_other(quick: Settings, client: Client) -> None:
    async with running_worker(quick, threads=1):
        ids = await mark.enqueue_many([{"word": f"{n}"} for n in range(50)], client=client)
        for task_id in ids:
            assert await handle(task_id, client=client).result(60) == "nothing"


@pytest.mark.parametrize(("one", "words"), [(interrupt, "not from a keyboard"), (leave, "cancelled itself")])
async def test_what_no_def_task_should_raise_ends_its_run_and_no_thread(
    quick: Settings, client: Client, one: Any, words: str
) -> None:
    async with running_worker(quick, threads=1):
        with pytest.raises(TaskFailed, match=words):
            await (await one.enqueue(client=client)).result(60)
        assert await (await mark.enqueue("on", client=client)).result(60) == "nothing"


class Late:
    """Something that tasks are given."""


async def test_a_def_task_that_came_after_the_start_is_given_its_resources(quick: Settings, client: Client) -> None:
    with declarations_of_its_own():

        @resource
        async def late() -> AsyncIterator[Late]:
            said.append("opened")
            yield Late()

        async with running_worker(quick, threads=1) as worker:

            @task(entrypoint="tests.threads.newcomer")
            def newcomer(given: Inject[Late]) -> list[Any]:
                return [type(given).__name__, threading.current_thread() is threading.main_thread(), current().attempt]

            for _ in range(2):
                assert await (await newcomer.enqueue(client=client)).result(60) == ["Late", False, 1]
            await until(lambda: worker.slots.stuck_threads == 0)
    assert said == ["opened"]
