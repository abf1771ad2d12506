"""Middleware: what goes around enqueue and execute, in which order, and that its errors lose nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import aaiclick_queue
from aaiclick_queue import (
    Client,
    Enqueuing,
    Middleware,
    Proceed,
    Retry,
    Running,
    Settings,
    Status,
    TaskCancelled,
    TaskFailed,
    Worker,
    connect,
    current,
    middleware,
    task,
    use,
)
from aaiclick_queue.around import enqueue_through
from aaiclick_queue.errors import BadTask, DuplicateTask, WrongContext
from aaiclick_queue.flow.enqueue import NewTask, Spec
from aaiclick_queue.middleware import HEADERS, failures, headers_of, metadata_of
from aaiclick_queue.outcome import Cancelled, Error, Failed, Later, Outcome, Released, Succeeded, kind_of
from aaiclick_queue.postgres import Database
from tests.tools import changed, count, declarations_of_its_own, row, running_worker, until

said: list[Any] = []
go_on = threading.Event()


@pytest.fixture(autouse=True)
def _nothing_installed() -> Iterator[None]:
    said.clear()
    go_on.clear()
    failures.clear()
    middleware._logged.clear()
    with declarations_of_its_own():
        yield
    go_on.set()


@task(entrypoint="tests.middleware.echo")
async def echo(value: Any = None) -> Any:
    said.append(("ran", value))
    return value


@task(entrypoint="tests.middleware.fails", max_attempts=2, retry_delay=0)
async def fails() -> None:
    raise ValueError("no luck")


@task(entrypoint="tests.middleware.parent")
async def parent(value: Any) -> int:
    return (await current().enqueue(echo, value)).id


@task(entrypoint="tests.middleware.enqueues")
async def enqueues() -> int:
    return (await echo.enqueue("by a task")).id


@task(entrypoint="tests.middleware.enqueues_in_thread")
def enqueues_in_thread() -> int:
    return echo.delay("by a thread").id


@task(entrypoint="tests.middleware.told")
async def told() -> Any:
    return [current().headers, current().metadata]


@task(entrypoint="tests.middleware.waits")
async def waits() -> None:
    said.append("waits")
    await asyncio.Event().wait()


class Saying(Middleware):
    """Says what goes through it."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        said.append(f"{self.name} before enqueue")
        ids = await proceed()
        said.append(f"{self.name} after enqueue")
        return ids

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        said.append(f"{self.name} before execute")
        outcome = await proceed()
        said.append(f"{self.name} after execute: {kind_of(outcome)}")
        return outcome


async def ask(client: Client, asking: Any, *args: Any) -> Any:
    return await (await asking.enqueue(*args, client=client)).result(timeout=30)


# Order and places.


async def test_what_was_installed_first_is_outermost_and_what_a_process_uses_is_around_what_it_gives(
    quick: Settings,
) -> None:
    async with (
        connect(settings=quick, middleware=[Saying("c"), Saying("d")]) as client,
        running_worker(quick, middleware=[Saying("w")]),
    ):
        use(Saying("a"), Saying("b"))
        assert await ask(client, echo, 1) == 1
    # The worker is quicker than the end of the enqueue now and then.
    assert [one for one in said if "enqueue" in one] == [
        *("a before enqueue", "b before enqueue", "c before enqueue", "d before enqueue"),
        *("d after enqueue", "c after enqueue", "b after enqueue", "a after enqueue"),
    ]
    assert [one for one in said if "enqueue" not in one] == [
        *("a before execute", "b before execute", "w before execute", ("ran", 1)),
        *("w after execute: succeeded", "b after execute: succeeded", "a after execute: succeeded"),
    ]


class Counting(Middleware):
    """Keeps the calls that it sees."""

    def __init__(self) -> None:
        self.calls: list[Enqueuing] = []
        self.ids: list[list[int]] = []

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        self.calls.append(call)
        call.headers["seen"] = str(len(self.calls))
        ids = await proceed()
        self.ids.append(ids)
        return ids


async def test_every_way_to_enqueue_is_one_call(db: Database, as_default: None) -> None:
    counting = Counting()
    use(counting)
    one = await echo.enqueue(1)
    many = await echo.enqueue_many([{"value": n} for n in range(2500)])
    named = await aaiclick_queue.enqueue("tests.middleware.echo", {"value": 2})
    keyed = await echo.options(dedupe_key="k").enqueue(3)
    delayed = await asyncio.to_thread(echo.delay, 4)
    assert [call.count for call in counting.calls] == [1, 2500, 1, 1, 1]
    assert counting.ids == [[one.id], many, [named.id], [keyed.id], [delayed.id]]
    assert [call.dedupe_key for call in counting.calls] == [None, None, None, "k", None]
    assert counting.calls[1].kwargs[7] == '{"value":7}'
    assert {call.entrypoint for call in counting.calls} == {"tests.middleware.echo"}
    for number, task_id in enumerate([one.id, many[0], named.id, keyed.id, delayed.id], 1):
        assert headers_of((await row(db, "tasks", task_id))["metadata"]) == {"seen": str(number)}
    assert headers_of((await row(db, "tasks", many[-1]))["metadata"]) == {"seen": "2"}
    with pytest.raises(DuplicateTask):
        await echo.options(dedupe_key="k").enqueue(3)
    assert len(counting.ids) == 5


async def test_a_transaction_of_the_caller_is_one_call_too_async_and_not(
    quick: Settings, db: Database, as_default: None
) -> None:
    counting = Counting()
    use(counting)
    assert quick.postgres_url is not None
    connection = await asyncpg.connect(quick.postgres_url)
    transaction = connection.transaction()
    await transaction.start()
    dropped = await echo.enqueue(1, connection=connection)
    await transaction.rollback()
    async with connection.transaction():
        kept = await echo.enqueue(2, connection=connection)

    def synchronously() -> int:
        engine = create_engine(str(quick.postgres_url).replace("postgresql://", "postgresql+psycopg://", 1))
        with Session(engine) as session, session.begin():
            handle = echo.options(connection=session).delay(3)
        engine.dispose()
        return handle.id

    sync = await asyncio.to_thread(synchronously)
    await connection.close()
    assert counting.ids == [[dropped.id], [kept.id], [sync]]
    assert all(call.in_callers_transaction for call in counting.calls)
    assert await count(db, "tasks") == 2
    assert headers_of((await row(db, "tasks", sync))["metadata"]) == {"seen": "3"}


class Napping(Middleware):
    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        await asyncio.sleep(0)
        return await proceed()


async def test_middleware_that_waits_is_refused_in_a_synchronous_transaction_before_anything_is_written(
    quick: Settings, db: Database, as_default: None
) -> None:
    use(Napping())

    def synchronously() -> None:
        engine = create_engine(str(quick.postgres_url).replace("postgresql://", "postgresql+psycopg://", 1))
        with Session(engine) as session, session.begin(), pytest.raises(WrongContext, match="has to wait"):
            echo.options(connection=session).delay(3)
        engine.dispose()

    await asyncio.to_thread(synchronously)
    await asyncio.to_thread(echo.delay, 4)  # on the loop of synchronous code it may wait
    assert await count(db, "tasks") == 1


async def test_what_a_task_enqueues_goes_through_the_middleware_of_its_worker(
    quick: Settings, client: Client, db: Database
) -> None:
    counting = Counting()
    async with running_worker(quick, middleware=[counting]):
        child = await ask(client, parent, "by current()")
        by_task = await ask(client, enqueues)
        by_thread = await ask(client, enqueues_in_thread)
        await until(lambda: len([one for one in said if one[0] == "ran"]) == 3)
    assert counting.ids == [[child], [by_task], [by_thread]]
    assert counting.calls[0].parent_id is not None
    assert counting.calls[1].parent_id is None
    assert headers_of((await row(db, "tasks", child))["metadata"]) == {"seen": "1"}


# What an enqueue can be made into.


class Changing(Middleware):
    def __init__(self, **options: Any) -> None:
        self.options = options

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        call.change(**self.options)
        call.metadata["tenant"] = 7
        call.headers["trace"] = "abc"
        return await proceed()


async def test_options_metadata_and_headers_can_be_changed(quick: Settings, db: Database) -> None:
    changes = Changing(queue="slow", priority=3, timeout=60, max_attempts=9, name="n", correlation_id="c", countdown=60)
    async with connect(settings=quick, middleware=[changes]) as client:
        handle = await told.options(metadata={"mine": True}, queue="quick").enqueue(client=client)
    found = await row(db, "tasks", handle.id)
    assert {
        name: found[name] for name in ("queue", "priority", "timeout_seconds", "max_attempts", "name", "correlation_id")
    } == {"queue": "slow", "priority": 3, "timeout_seconds": 60, "max_attempts": 9, "name": "n", "correlation_id": "c"}
    assert (await row(db, "delayed", handle.id))["queue"] == "slow"
    async with connect(settings=quick, middleware=[Changing()]) as client, running_worker(quick):
        handle = await told.options(metadata={"mine": True}).enqueue(client=client)
        assert await handle.result(timeout=30) == [{"trace": "abc"}, {"mine": True, "tenant": 7}]
        handle = await told.enqueue(client=client)
        assert await handle.result(timeout=30) == [{"trace": "abc"}, {"tenant": 7}]


async def test_a_task_without_metadata_has_neither_metadata_nor_headers(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        assert await ask(client, told) == [{}, {}]
        assert await ask(client, told.options(metadata={"a": [1]})) == [{}, {"a": [1]}]


def test_headers_from_elsewhere_may_be_anything() -> None:
    for text in ("[1]", "null", '{"$headers": 7}', '{"$headers": {"a": 1}}', None):
        assert headers_of(text) == {}
    assert headers_of('{"$headers": {"a": 1, "b": "c"}, "d": 2}') == {"b": "c"}
    assert metadata_of('{"$headers": {"a": 1}, "d": 2}') == {"d": 2}
    assert metadata_of("[1]") == {}


async def test_what_cannot_be_written_is_refused(quick: Settings, client: Client, db: Database) -> None:
    with pytest.raises(BadTask, match="kept for the headers of middleware"):
        await echo.options(metadata={HEADERS: {}}).enqueue(client=client)
    for options in ({"queue": ""}, {"colour": "red"}, {"priority": "high"}, {"retry_delay": 3}):
        async with connect(settings=quick, middleware=[Changing(**options)]) as other:
            with pytest.raises(BadTask):
                await echo.enqueue(client=other)
    assert await count(db, "tasks") == 0


def test_only_instances_of_middleware_are_taken(settings: Settings) -> None:
    for wrong, text in ((Saying, r"is a class: give an instance, Saying\(\)"), (object(), "is no middleware: derive")):
        with pytest.raises(BadTask, match=text):
            use(wrong)  # type: ignore[arg-type]
        with pytest.raises(BadTask, match=text):
            Worker(settings, middleware=[wrong])  # type: ignore[list-item]
        with pytest.raises(BadTask, match=text):
            Client(settings, middleware=[wrong])  # type: ignore[list-item]
    once = Saying()
    use(once)
    use(once)
    assert middleware.installed == [once]


# Errors around an enqueue.


class Refusing(Middleware):
    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        raise PermissionError("not today")


class Forgetting(Middleware):
    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        return []


class Late(Middleware):
    """Raises when everything is done."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or KeyError("too late")

    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        await proceed()
        raise self.error

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        await proceed()
        raise self.error


class Twice(Middleware):
    async def enqueue(self, call: Enqueuing, proceed: Proceed[list[int]]) -> list[int]:
        await proceed()
        return await proceed()

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        await proceed()
        return await proceed()


async def test_an_error_before_the_write_refuses_it(quick: Settings, db: Database) -> None:
    async with connect(settings=quick, middleware=[Saying("s"), Refusing()]) as client:
        with pytest.raises(PermissionError, match="not today"):
            await echo.enqueue(client=client)
    async with connect(settings=quick, middleware=[Forgetting()]) as client:
        with pytest.raises(WrongContext, match=r"Forgetting.enqueue did not call proceed\(\)"):
            await echo.enqueue_many([{}], client=client)
    assert said == ["s before enqueue"]
    assert await count(db, "tasks") == 0


@pytest.mark.parametrize("wrong", [Late(), Twice()], ids=lambda one: type(one).__name__)
async def test_an_error_after_the_write_is_logged_once_and_counted_and_the_ids_are_returned(
    quick: Settings, db: Database, caplog: pytest.LogCaptureFixture, wrong: Middleware
) -> None:
    async with connect(settings=quick, middleware=[wrong]) as client:
        first = await echo.enqueue(1, client=client)
        [second] = await echo.enqueue_many([{"value": 2}], client=client)
    assert await count(db, "tasks") == 2
    assert (await row(db, "tasks", first.id))["kwargs"] == '{"value": 1}'
    assert (await row(db, "tasks", second))["kwargs"] == '{"value": 2}'
    name = type(wrong).__qualname__
    assert failures == {name: 2}
    assert [record.message for record in caplog.records if name in record.message] == [
        f"middleware {name} raised after its task was written or had run, which stands (1 times so far)"
    ]


async def test_an_enqueue_that_fails_is_not_counted_as_a_failure_of_middleware() -> None:
    async def write(spec: Spec, tasks: Any) -> list[int]:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await enqueue_through([Saying(), Late()], Enqueuing(Spec("e", "q"), [NewTask("{}")]), write)
    assert failures == {}


# Around a run.


class Watching(Middleware):
    """Keeps what it sees of runs."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.outcomes: list[Outcome] = []
        self.errors: list[BaseException | None] = []

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        fields = ("task_id", "entrypoint", "queue", "attempt", "max_attempts", "headers", "metadata", "kwargs", "name")
        self.seen.append({name: getattr(run, name) for name in fields})
        assert run.waited >= 0
        assert run.age >= 0
        assert run.run_epoch
        assert run.worker_id
        assert run.error is None
        assert current().id == run.task_id
        outcome = await proceed()
        self.outcomes.append(outcome)
        self.errors.append(run.error)
        return outcome


async def test_a_run_is_seen_with_what_it_came_to_and_what_it_raised(quick: Settings, client: Client) -> None:
    watching = Watching()
    async with running_worker(quick, middleware=[watching]):
        good = await echo.options(name="n", metadata={"a": 1}).enqueue(5, client=client)
        assert await good.result(timeout=30) == 5
        with pytest.raises(TaskFailed, match="attempt 2: ValueError: no luck"):
            await ask(client, fails)
    assert watching.seen[0] == {
        "task_id": good.id,
        "entrypoint": "tests.middleware.echo",
        "queue": "default",
        "attempt": 1,
        "max_attempts": quick.max_attempts,
        "headers": {},
        "metadata": {"a": 1},
        "kwargs": '{"value": 5}',
        "name": "n",
    }
    assert [one["attempt"] for one in watching.seen] == [1, 1, 2]
    assert watching.outcomes[0] == Succeeded("5")
    assert isinstance(watching.outcomes[1], Later)
    assert isinstance(watching.outcomes[2], Failed)
    assert [str(error) for error in watching.errors] == ["None", "no luck", "no luck"]


class Before(Middleware):
    """Raises before the task runs, the first time."""

    def __init__(self, error: BaseException, times: int = 1) -> None:
        self.error = error
        self.left = times

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        if self.left:
            self.left -= 1
            raise self.error
        return await proceed()


async def test_an_error_before_a_run_is_the_error_of_that_run(quick: Settings, client: Client) -> None:
    watching = Watching()
    async with running_worker(quick, middleware=[watching, Before(OSError("no tenant"))]):
        handle = await echo.options(retry_delay=0).enqueue(1, client=client)
        assert await handle.result(timeout=30) == 1
    assert said == [("ran", 1)]
    assert isinstance(watching.outcomes[0], Later)  # the outer one sees a value, never the error
    assert watching.outcomes[0].error.message == "no tenant"
    assert [one["attempt"] for one in watching.seen] == [1, 2]


async def test_middleware_can_steer_a_run_with_the_words_of_tasks(quick: Settings, client: Client) -> None:
    async with running_worker(quick, middleware=[Before(Retry(0, "later")), Before(SystemExit(2))]):
        assert await ask(client, echo.options(retry_delay=0), 1) == 1
    async with running_worker(quick, middleware=[Before(aaiclick_queue.Cancel("closed"))]):
        with pytest.raises(TaskCancelled, match="closed"):
            await ask(client, echo, 2)
    assert said == [("ran", 1)]


@pytest.mark.parametrize(
    "wrong", [Late(), Late(SystemExit(3)), Late(asyncio.CancelledError()), Twice()], ids=lambda one: repr(one.__dict__)
)
async def test_an_error_after_a_run_leaves_what_it_came_to(
    quick: Settings, client: Client, db: Database, wrong: Middleware
) -> None:
    async with running_worker(quick, middleware=[Saying("s"), wrong]):
        assert await ask(client, echo, 1) == 1
        with pytest.raises(TaskFailed, match="no luck"):
            await ask(client, fails)
    assert said.count(("ran", 1)) == 1
    assert said.count("s after execute: succeeded") == 1
    assert said.count("s after execute: failed") == 1
    assert await count(db, "leases") == 0


class Answering(Middleware):
    """Gives another outcome, with or without running the task."""

    def __init__(self, outcome: Any, *, runs: bool) -> None:
        self.outcome = outcome
        self.runs = runs

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        if self.runs:
            await proceed()
        answer: Outcome = self.outcome
        return answer


async def test_middleware_may_decide_a_run_itself(quick: Settings, client: Client) -> None:
    for outcome, runs in ((Succeeded('"other"'), True), (Succeeded('"other"'), False)):
        said.clear()
        async with running_worker(quick, middleware=[Answering(outcome, runs=runs)]):
            assert await ask(client, echo, 1) == "other"
        assert said == ([("ran", 1)] if runs else [])
    async with running_worker(quick, middleware=[Answering(Cancelled(Error("Closed", "for today")), runs=False)]):
        with pytest.raises(TaskCancelled, match="Closed: for today"):
            await ask(client, echo, 1)


@pytest.mark.parametrize("answer", [None, 7, Succeeded("not JSON {"), object()])
async def test_an_answer_that_is_no_outcome_loses_no_run(quick: Settings, client: Client, answer: Any) -> None:
    async with running_worker(quick, middleware=[Answering(answer, runs=True)]):
        assert await ask(client, echo, 1) == 1
    assert failures == {"Answering": 1}
    async with running_worker(quick, middleware=[Answering(answer, runs=False)]):
        with pytest.raises(TaskFailed):
            await ask(client, echo.options(max_attempts=1), 2)
    assert said == [("ran", 1)]


class Hanging(Middleware):
    """Goes on for ever before or after the task."""

    def __init__(self, when: str) -> None:
        self.when = when

    async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
        if self.when == "before":
            await asyncio.Event().wait()
        outcome = await proceed()
        await asyncio.Event().wait()
        return outcome


async def test_a_timeout_ends_middleware_too(quick: Settings, client: Client) -> None:
    async with running_worker(quick, middleware=[Saying("s"), Hanging("before")]):
        with pytest.raises(TaskFailed, match="TimedOut"):
            await ask(client, echo.options(timeout=0.1, max_attempts=1), 1)
    assert said == ["s before execute"]
    async with running_worker(quick, middleware=[Hanging("after")]):
        assert await ask(client, echo.options(timeout=0.1, max_attempts=1), 2) == 2  # it had run: that stands


async def test_a_run_that_is_handed_back_is_handed_back_whatever_middleware_says(
    quick: Settings, client: Client, db: Database
) -> None:
    seen: list[Outcome] = []

    class Claiming(Middleware):
        async def execute(self, run: Running, proceed: Proceed[Outcome]) -> Outcome:
            seen.append(await proceed())
            return Succeeded("1")

    async with running_worker(quick, middleware=[Claiming()]):
        handle = await waits.enqueue(client=client)
        await until(lambda: "waits" in said)
    assert seen == [Released()]
    assert await handle.status() is Status.QUEUED
    assert (await row(db, "ready", handle.id))["attempt"] == 0


@task(entrypoint="tests.middleware.committing")
async def committing() -> None:
    async with current().transaction():
        current().result("kept")


async def test_a_run_that_its_own_transaction_completed_is_a_success_that_nobody_changes(
    quick: Settings, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_worker(quick, middleware=[Answering(Failed(Error("No")), runs=True), Saying("s")]):
        assert await ask(client, committing) == "kept"
    assert said == ["s before execute", "s after execute: succeeded"]
    assert "had lost its lease" not in caplog.text  # nothing was recorded a second time


ALONE = """
import os
from aaiclick_queue import Middleware, current, task, use

class Here(Middleware):
    in_child = True
    where = None
    async def execute(self, run, proceed):
        Here.where = os.getpid()
        return await proceed()

class There(Middleware):
    seen = []
    async def execute(self, run, proceed):
        outcome = await proceed()
        There.seen.append((os.getpid(), type(outcome).__name__))
        return outcome

use(Here(), There())

@task
async def who() -> list:
    return [os.getpid(), Here.where, There.seen]
"""


async def test_of_a_run_in_a_process_of_its_own_the_worker_and_the_child_see_one_part_each(
    quick: Settings, client: Client, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "middleware_alone.py").write_text(ALONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import middleware_alone  # type: ignore[import-not-found]

    handle = await middleware_alone.who.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick):
        ran_in, here, there = await handle.result(timeout=30)
        assert ran_in != os.getpid()
        assert (here, there) == (ran_in, [])
        assert middleware_alone.There.seen == [(os.getpid(), "Succeeded")]
        assert middleware_alone.Here.where is None
        here, ran_in, _ = await ask(client, middleware_alone.who)
        assert here == ran_in == os.getpid()
    del sys.modules["middleware_alone"]


def test_a_worker_is_not_given_middleware_that_its_children_would_have_to_know(settings: Settings) -> None:
    class Apart(Middleware):
        in_child = True

    with pytest.raises(BadTask, match=r"install it with use\(.*Apart\(\)\)"):
        Worker(settings, middleware=[Apart()])


async def test_without_middleware_none_of_it_is_called(
    quick: Settings, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("called without middleware")

    for name in ("client.enqueue_through", "context.enqueue_through", "slots.execute_through", "client.Enqueuing"):
        monkeypatch.setattr(f"aaiclick_queue.{name}", never)
    async with running_worker(quick):
        assert await ask(client, echo, 1) == 1
        await ask(client, parent, 2)
        await until(lambda: ("ran", 2) in said)


async def test_ten_thousand_runs_with_broken_middleware_lose_nothing(quick: Settings, client: Client) -> None:
    logging.getLogger("aaiclick_queue.middleware").setLevel(logging.CRITICAL)
    try:
        async with running_worker(changed(quick, log_level="ERROR", lease_seconds=30), middleware=[Late(), Twice()]):
            ids = await echo.enqueue_many([{"value": n} for n in range(10_000)], client=client)
            last = aaiclick_queue.handle(ids[-1], client=client)
            assert await last.result(timeout=60) == 9_999
            await until(lambda: len(said) >= 10_000)
    finally:
        logging.getLogger("aaiclick_queue.middleware").setLevel(logging.NOTSET)
    assert sorted(value for _, value in said) == list(range(10_000))
    assert failures == {"Late": 10_000, "Twice": 10_000}
