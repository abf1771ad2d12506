"""Tasks in line: the same arguments, results and decisions as in a worker, without a database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from sqlalchemy import create_engine, text

from aaiclick_queue import (
    Cancel,
    DuplicateTask,
    Enqueuing,
    Fail,
    Inject,
    Middleware,
    Proceed,
    Retry,
    Running,
    Snooze,
    Status,
    TaskCancelled,
    TaskFailed,
    TaskResult,
    as_completed,
    current,
    gather,
    handle,
    resource,
    sync,
    task,
)
from aaiclick_queue import enqueue as enqueue_by_name
from aaiclick_queue.errors import ArgumentsDoNotFit, BadTask, WrongContext
from aaiclick_queue.flow.ending import EndedTask
from aaiclick_queue.middleware import installed
from aaiclick_queue.testing import Eager
from aaiclick_queue.testing import eager as run_eagerly

calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


class Order(msgspec.Struct):
    number: int
    at: datetime


@task
async def double(n: int) -> int:
    calls.append(n)
    return 2 * n


@task
def double_plainly(n: int) -> int:
    calls.append(threading.current_thread())
    return 2 * n


@task
async def book(order: Order) -> Order:
    calls.append(order)
    return Order(order.number + 1, order.at)


@task(max_attempts=3)
async def third_time() -> int:
    calls.append(current().attempt)
    if current().attempt == 1:
        raise ConnectionError("not yet")
    if current().attempt == 2:
        raise Retry(in_=3600)
    return current().run_epoch


@task(max_attempts=2, give_up_on=(KeyError,))
async def hopeless(word: str) -> None:
    calls.append(word)
    match word:
        case "fail":
            raise Fail("never")
        case "cancel":
            raise Cancel("not needed")
        case "key":
            raise KeyError(word)
        case "snooze" if len(calls) < 3:
            raise Snooze(in_=60)
        case "snooze":
            return
    raise RuntimeError(word)


async def test_an_enqueue_runs_the_task_at_once(eager: Eager) -> None:
    one = await double.enqueue(21)
    assert calls == [21]
    assert await one.status() is Status.COMPLETED
    assert await one.result(timeout=1) == 42
    assert not await one.cancel()


async def test_many_run_in_their_order(eager: Eager) -> None:
    ids = await double.enqueue_many({"n": n} for n in range(3))
    assert calls == [0, 1, 2]
    assert [(task.id, task.result) for task in eager.tasks(double)] == list(zip(ids, (0, 2, 4), strict=True))


async def test_many_results_are_waited_for_as_always(eager: Eager) -> None:
    handles = [await double.enqueue(n) for n in range(3)]
    assert await gather(*handles) == [0, 2, 4]
    assert [await one.wait() async for one in as_completed(handles)] == [Status.COMPLETED] * 3


def test_synchronous_code_runs_def_tasks_in_its_own_thread(eager: Eager) -> None:
    assert double_plainly.delay(4).get(timeout=1) == 8
    assert calls == [threading.current_thread()]
    assert double.delay(3).get() == 6
    assert sync.enqueue_many(double, [{"n": 5}]) != []
    assert sync.enqueue("tests.testing.test_eager.double", {"n": 6}).get() == 12


async def test_in_async_code_a_def_task_runs_in_a_thread_and_may_block(eager: Eager) -> None:
    assert await (await double_plainly.enqueue(4)).result() == 8
    assert calls != [threading.current_thread()]
    double_plainly.delay(5)
    double.delay(6)
    assert calls[-1] == 6


async def test_arguments_and_results_are_what_a_worker_would_give(eager: Eager) -> None:
    order = Order(1, datetime.now(UTC))
    result = await (await book.enqueue(order)).result()
    assert (calls, result.number) == ([order], 2)
    assert calls[0] is not order
    with pytest.raises(ArgumentsDoNotFit):
        await double.enqueue("many")


async def test_a_retry_follows_at_once(eager: Eager) -> None:
    assert await (await third_time.enqueue()).result() == 3
    assert calls == [1, 2, 3]


@pytest.mark.parametrize(
    ("word", "status", "runs", "attempt"),
    [
        ("anything", Status.FAILED, 2, 2),
        ("fail", Status.FAILED, 1, 1),
        ("key", Status.FAILED, 1, 1),
        ("cancel", Status.CANCELLED, 1, 1),
        ("snooze", Status.COMPLETED, 3, 1),
    ],
)
async def test_outcomes_are_decided_as_in_a_worker(
    eager: Eager, word: str, status: Status, runs: int, attempt: int
) -> None:
    one = await hopeless.enqueue(word)
    [seen] = eager.tasks(status=status)
    assert (seen.runs, seen.attempt, len(calls)) == (runs, attempt, runs)
    if status is Status.FAILED:
        with pytest.raises(TaskFailed, match=word if word != "fail" else "never"):
            await one.result()
    if status is Status.CANCELLED:
        with pytest.raises(TaskCancelled):
            await one.result()


async def test_raising_brings_the_error_to_the_enqueue() -> None:
    with run_eagerly(raising=True), pytest.raises(KeyError):
        await hopeless.enqueue("key")
    with run_eagerly(raising=True) as running:
        await hopeless.enqueue("cancel")  # no error of the code
        with pytest.raises(TaskFailed, match="JSON"):
            await unfit.enqueue()
    assert [task.status for task in running.tasks()] == [Status.CANCELLED, Status.FAILED]


@task
async def unfit() -> object:
    return object()


async def test_options_are_recorded_and_not_waited_for(eager: Eager) -> None:
    await double.options(countdown=3600, queue="slow", priority=7, metadata={"a": 1}, correlation_id="c").enqueue(1)
    [seen] = eager.tasks()
    assert (seen.queue, seen.priority, seen.metadata, seen.correlation_id) == ("slow", 7, {"a": 1}, "c")
    assert seen.not_before is not None
    assert seen.not_before > datetime.now(UTC) + timedelta(minutes=59)
    await double.options(expires=datetime.now(UTC) - timedelta(1)).enqueue(2)
    assert [task.status for task in eager.tasks()] == [Status.COMPLETED, Status.CANCELLED]
    assert calls == [1]


@task
async def parent(n: int) -> list[int]:
    children = [await current().enqueue(double, k) for k in range(n)]
    assert await current().progress(0.5)
    assert await current().checkpoint({"done": n})
    assert await current().load_checkpoint() == {"done": n}
    assert await current().extend(60)
    if current().attempt == 1:
        raise ConnectionError("once more")
    return [await child.result() for child in children]


@task
def plain_parent() -> int:
    assert current().sync.progress(0.5)
    assert current().sync.checkpoint([1])
    assert current().sync.load_checkpoint() == [1]
    assert asyncio.run(asyncio.sleep(0, "a def task may have a loop of its own")) is not None
    double.delay(7)
    return current().sync.enqueue(double_plainly, 3).get() + current().sync.enqueue(double, 1).get()


@task
async def adds_two(n: int) -> Any:
    assert await current().progress(1, 2, "adding")
    assert await current().checkpoint("phase", n)
    assert await current().load_checkpoint() == {"phase": "phase", "data": n}
    return TaskResult(data=n, tasks=[double.node(n), double.options(queue="other").node(n + 1)])


async def test_what_a_task_result_adds_runs_after_it(eager: Eager) -> None:
    added = await adds_two.enqueue(5)
    assert await added.result() == 5
    assert calls == [5, 6]
    assert [one.queue for one in eager.tasks(double)] == ["default", "other"]


async def test_current_works_and_children_run_in_line_once(eager: Eager) -> None:
    assert await (await parent.enqueue(2)).result() == [0, 2]
    assert calls == [0, 1]  # not again in the second attempt
    assert {task.parent_id for task in eager.tasks(double)} == {eager.tasks(parent)[0].id}


def test_current_works_in_def_tasks(eager: Eager) -> None:
    assert plain_parent.delay().get() == 8
    with pytest.raises(WrongContext):
        current()


async def test_current_works_in_def_tasks_of_async_code(eager: Eager) -> None:
    assert await (await plain_parent.enqueue()).result() == 8


@task
async def told(ended: EndedTask) -> None:
    calls.append((ended.status, ended.attempt, ended.error.type if ended.error else ended.result))


@task
def told_plainly(ended: EndedTask) -> None:
    calls.append(ended.status)


@task(max_attempts=2, on_retry=told, on_failure=told, on_give_up=told_plainly, on_success=told)
async def hooked(ok: bool) -> str:
    if not ok:
        raise KeyError("no")
    return "fine"


async def test_hooks_run_in_line_after_the_run_they_belong_to(eager: Eager) -> None:
    await hooked.enqueue(True)
    assert calls == [("COMPLETED", 1, "fine")]
    calls.clear()
    await hooked.enqueue(False)
    assert calls[0] == ("RETRYING", 1, "KeyError")
    assert sorted(map(str, calls[1:])) == sorted(["('FAILED', 2, 'KeyError')", "FAILED"])
    assert {task.parent_id for task in eager.tasks(told)} == {task.id for task in eager.tasks(hooked)}


class Mailer:
    def __init__(self, name: str) -> None:
        self.name = name


@resource
async def mailer() -> AsyncIterator[Mailer]:
    calls.append("open")
    yield Mailer("declared")
    calls.append("closed")


@task
async def mail(n: int, by: Inject[Mailer]) -> str:
    return f"{n} by {by.name}"


@task
def mail_plainly(n: int, by: Inject[Mailer]) -> str:
    assert current().sync.progress(0.5)
    return f"{n} by {by.name}"


async def test_resources_are_opened_for_the_run_or_given_by_the_test(eager: Eager) -> None:
    assert await (await mail.enqueue(1)).result() == "1 by declared"
    assert calls == ["open", "closed"]
    assert await (await mail_plainly.enqueue(2)).result() == "2 by declared"
    with run_eagerly(resources={Mailer: Mailer("mine")}):
        assert await (await mail.enqueue(1)).result() == "1 by mine"


def test_resources_are_there_in_synchronous_code(eager: Eager) -> None:
    assert mail_plainly.apply_async((1,)).get() == "1 by declared"
    assert mail.apply_async((1,)).get() == "1 by declared"


class Noting(Middleware):
    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        call.headers["from"] = "middleware"
        return await proceed()

    async def execute(self, run: Running, proceed: Proceed[Any]) -> Any:
        calls.append(run.headers.get("from"))
        return await proceed()


@pytest.fixture
def noting() -> Iterator[None]:
    installed.append(Noting())
    yield
    installed.pop()


@pytest.mark.usefixtures("noting")
@pytest.mark.parametrize("blocking", [True, False])
async def test_middleware_goes_around_enqueue_and_execute(eager: Eager, blocking: bool) -> None:
    handle = double_plainly.delay(1) if blocking else await double_plainly.enqueue(1)
    assert await handle.result() == 2
    assert calls[0] == "middleware"
    assert eager.tasks()[0].metadata is None


@task
async def slow() -> None:
    await asyncio.sleep(30)


async def test_a_timeout_is_kept(eager: Eager) -> None:
    with pytest.raises(TaskFailed, match="timeout"):
        await (await slow.options(timeout=0.05, max_attempts=1).enqueue()).result()


@task
async def keyed_inside() -> None:
    keyed = keyed_inside.options(dedupe_key="k")
    with pytest.raises(DuplicateTask):
        await keyed.enqueue()
    calls.append((await keyed.options(dedupe="skip").enqueue()).id)


async def test_a_key_is_held_while_its_task_runs_or_as_long_as_it_says(eager: Eager) -> None:
    one = await keyed_inside.options(dedupe_key="k").enqueue()
    await one.result()
    assert calls == [one.id]
    held = double.options(dedupe_key="d", dedupe_until=timedelta(hours=1))
    first = await held.enqueue(1)
    assert (await held.options(dedupe="skip").enqueue(2)).id == first.id
    with pytest.raises(DuplicateTask):
        await held.enqueue(3)
    assert (await held.options(dedupe="replace").enqueue(4)).id != first.id


@task
async def endless() -> None:
    await endless.enqueue()


async def test_what_cannot_work_in_line_says_so(eager: Eager) -> None:
    with pytest.raises(BadTask, match="registered"):
        await enqueue_by_name("tests.nowhere", {})
    await endless.enqueue()
    assert {one.error.message[:40] for one in eager.tasks(endless, status="FAILED") if one.error} == {
        "tests.testing.test_eager.endless is the "
    }
    with run_eagerly(raising=True), pytest.raises(Fail, match="no end in line"):
        await endless.enqueue()
    with pytest.raises(TaskFailed, match=r"eager\(database=url\)"):
        await (await pay.options(max_attempts=1).enqueue(1)).result()
    with pytest.raises(WrongContext, match="without a database"):
        await handle(4711).status()


@task(max_attempts=2)
async def pay(amount: int) -> int:
    async with current().transaction() as session:
        await session.execute(text("INSERT INTO paid (amount) VALUES (:amount)"), {"amount": amount})
        await current().enqueue(double, amount)
        if current().attempt == 1:
            raise ConnectionError("after the write")
        current().result(amount)
        assert calls == []  # a child starts after the commit
    return -1


@task
def pay_plainly(amount: int) -> None:
    with current().transaction() as session:
        session.execute(text("INSERT INTO paid (amount) VALUES (:amount)"), {"amount": amount})


async def test_with_a_database_a_transaction_is_real(empty_postgres_url: str) -> None:
    engine = create_engine(empty_postgres_url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (amount int)"))
    with run_eagerly(database=empty_postgres_url) as running:
        assert await (await pay.enqueue(5)).result() == 5
        await (await pay_plainly.enqueue(6)).result()
        pay_plainly.delay(7)
    assert calls == [5]
    with run_eagerly(database=empty_postgres_url) as failing:
        with pytest.raises(TaskFailed):
            await (await pay.options(max_attempts=1).enqueue(5)).result()
        assert failing.tasks(double) == []  # rolled back with its transaction
    assert [task.result for task in running.tasks(double)] == [10]
    with engine.begin() as connection:
        assert sorted(connection.scalars(text("SELECT amount FROM paid"))) == [5, 6, 7]
    engine.dispose()


async def test_two_blocks_know_nothing_of_each_other(eager: Eager) -> None:
    one = await double.enqueue(1)
    with run_eagerly() as inner:
        await double.enqueue(2)
    assert [task.kwargs for task in inner.tasks()] == [{"n": 2}]
    assert await one.result() == 2


async def test_an_assertion_shows_what_was_enqueued_instead(eager: Eager) -> None:
    await double.enqueue(1)
    await third_time.enqueue()
    assert [task.result for task in eager.assert_enqueued(double, n=1)] == [2]
    eager.assert_not_enqueued(double, n=2)
    with pytest.raises(AssertionError) as told:
        eager.assert_enqueued(double, n=2)
    assert "n=1 instead of 2" in str(told.value)
    assert "test_eager.third_time ×1" in str(told.value)
    with pytest.raises(AssertionError, match="once"):
        eager.assert_not_enqueued(double)
