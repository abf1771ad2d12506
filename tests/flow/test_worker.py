"""The worker: what a person sees of a task that runs, fails, hangs, is stopped, or loses its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from aaiclick_queue import (
    Cancel,
    Client,
    Fail,
    Plan,
    Retry,
    Settings,
    Snooze,
    TaskCancelled,
    TaskFailed,
    Worker,
    connect,
    current,
    enqueue,
    handle,
    migrate,
    task,
)
from aaiclick_queue.errors import SchemaMismatch
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.execute import RELEASED, Run, Stop
from aaiclick_queue.flow.unknown import unknown_outcomes
from aaiclick_queue.outcome import Failed, Later, Outcome
from aaiclick_queue.postgres import Database
from aaiclick_queue.slots import Slots
from tests.tools import (
    Proxy,
    age,
    changed,
    claim,
    count,
    holder_of,
    make_due,
    place_of,
    put_one,
    row,
    rows,
    running_worker,
    until,
)


class Scene:
    """What the tasks of a test say and wait for; tasks run in this process, so that they can reach it."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.go_on = asyncio.Event()
        self.thread_may_end = threading.Event()
        self.running = 0
        self.most = 0


scene: Scene


@pytest.fixture(autouse=True)
async def _scene() -> AsyncIterator[None]:
    global scene  # noqa: PLW0603 - tasks are found by name and have nothing else to share
    scene = Scene()
    yield
    scene.thread_may_end.set()


@task(entrypoint="tests.worker.add")
async def add(a: int, b: int) -> int:
    return a + b


@task(entrypoint="tests.worker.add_in_thread")
def add_in_thread(a: int, b: int) -> int:
    scene.said.append(threading.current_thread() is threading.main_thread())
    return a + b


@task(entrypoint="tests.worker.say")
async def say(what: Any) -> None:
    scene.said.append(what)


@task(entrypoint="tests.worker.fail", retry_delay=0.01)
async def fail(times: int) -> int:
    attempt = current().attempt
    scene.said.append(attempt)
    if attempt <= times:
        raise RuntimeError(f"attempt {attempt}")
    return attempt


@task(entrypoint="tests.worker.picky", retry_delay=0.01, give_up_on=(KeyError,))
async def picky() -> None:
    scene.said.append(current().attempt)
    raise KeyError("nobody")


@task(entrypoint="tests.worker.choosy", retry_delay=0.01, retry_on=(KeyError,))
async def choosy(kind: str) -> int:
    scene.said.append(current().attempt)
    if current().attempt == 1:
        raise {"RuntimeError": RuntimeError, "KeyError": KeyError}[kind]
    return current().attempt


@task(entrypoint="tests.worker.steer")
async def steer(how: str) -> int:
    attempt, epoch = current().attempt, current().run_epoch
    scene.said.append((attempt, epoch))
    if epoch < 3:
        match how:
            case "retry":
                raise Retry(in_=0.01)
            case "snooze":
                raise Snooze(in_=0.01)
            case "cancel":
                raise Cancel("not needed")
            case "fail":
                raise Fail("no use")
    return attempt


@task(entrypoint="tests.worker.wait")
async def wait(n: int = 0) -> int:
    scene.said.append(n)
    scene.running += 1
    scene.most = max(scene.most, scene.running)
    try:
        await scene.go_on.wait()
    except asyncio.CancelledError:
        scene.said.append(f"stopped {n}")
        raise
    finally:
        scene.running -= 1
    return n


@task(entrypoint="tests.worker.wait_in_thread")
def wait_in_thread(n: int = 0) -> int:
    scene.said.append(n)
    scene.thread_may_end.wait(60)
    scene.said.append(f"ended {n}")
    return n


@task(entrypoint="tests.worker.clean_up_slowly", retry_delay=0.01)
async def clean_up_slowly() -> str:
    epoch = current().run_epoch
    scene.said.append(epoch)
    try:
        await asyncio.sleep(60 if epoch == 1 else 0)
    finally:
        if epoch == 1:
            await scene.go_on.wait()
            scene.said.append("cleaned up")
    await asyncio.to_thread(scene.thread_may_end.wait, 60)
    return "second"


@task(entrypoint="tests.worker.no_json")
async def no_json() -> Any:
    return object()


@task(entrypoint="tests.worker.long_error", max_attempts=1)
async def long_error() -> None:
    raise ValueError("x" * 10_000_000)


@task(entrypoint="tests.worker.leave", max_attempts=1)
async def leave() -> None:
    sys.exit(3)


@task(entrypoint="tests.worker.leave_in_thread", max_attempts=1)
def leave_in_thread(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    next(iter(()))


@task(entrypoint="tests.worker.block")
async def block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - as somebody will


@task(entrypoint="tests.worker.pid")
async def pid() -> int:
    return os.getpid()


@task(entrypoint="tests.worker.kill_process")
def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def said(*expected: Any) -> None:
    """Wait until the tasks have said that, in whatever order."""
    await until(lambda: set(expected) <= set(scene.said))


# Outcomes.


async def test_async_tasks_and_functions_run_and_their_results_are_kept(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        one = await add.enqueue(1, b=2, client=client)
        other = await add_in_thread.enqueue(3, 4, client=client)
        assert await one.result(30) == 3
        assert await other.result(30) == 7
    assert scene.said == [False]  # not in the thread of the event loop


async def test_a_task_is_retried_until_it_succeeds(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        one = await fail.enqueue(times=2, client=client)
        assert await one.result(30) == 3
    assert scene.said == [1, 2, 3]
    history = await db.fetch("SELECT attempt, run_epoch, outcome FROM aaiclick_queue.attempts ORDER BY run_epoch")
    assert [tuple(one) for one in history] == [(1, 1, "RETRYING"), (2, 2, "RETRYING")]
    assert (await row(db, "tasks", one.id))["attempt"] == 3


async def test_a_task_without_attempts_left_fails_with_what_it_raised_last(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        one = await fail.options(max_attempts=2).enqueue(times=9, client=client)
        with pytest.raises(TaskFailed, match="failed in attempt 2: RuntimeError: attempt 2") as failed:
            await one.result(30)
    assert (failed.value.error_type, failed.value.error_message, failed.value.attempts) == (
        "RuntimeError",
        "attempt 2",
        2,
    )
    assert "raise" in failed.value.traceback
    assert scene.said == [1, 2]


async def test_a_retry_waits_its_backoff(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick):
        one = await fail.options(retry_delay=50, retry_jitter=False).enqueue(times=1, client=client)
        await until(lambda: count(db, "delayed"))
        seconds = await db.fetchval(
            """SELECT extract(epoch FROM d.not_before - a.finished_at)::float8 FROM aaiclick_queue.delayed d
               JOIN aaiclick_queue.attempts a USING (task_id)"""
        )
        assert seconds == pytest.approx(50)
        await make_due(db)
        assert await one.result(30) == 2


@task(entrypoint="tests.worker.patient", retry_delay=50, retry_jitter=False)
async def patient() -> None:
    raise RuntimeError("not yet")


async def test_a_task_enqueued_by_name_waits_the_backoff_of_its_code(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        await enqueue("tests.worker.patient", client=client)
        await until(lambda: count(db, "delayed"))
    seconds = await db.fetchval(
        """SELECT extract(epoch FROM d.not_before - a.finished_at)::float8 FROM aaiclick_queue.delayed d
           JOIN aaiclick_queue.attempts a USING (task_id)"""
    )
    assert seconds == pytest.approx(50)


async def test_exceptions_to_give_up_on_fail_at_once(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        with pytest.raises(TaskFailed, match="KeyError"):
            await (await picky.enqueue(client=client)).result(30)
        with pytest.raises(TaskFailed, match="RuntimeError"):
            await (await choosy.enqueue("RuntimeError", client=client)).result(30)
        assert await (await choosy.enqueue("KeyError", client=client)).result(30) == 2
    assert scene.said == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("how", "runs"),
    [
        ("retry", [(1, 1), (2, 2), (3, 3)]),
        ("snooze", [(1, 1), (1, 2), (1, 3)]),
        ("cancel", [(1, 1)]),
        ("fail", [(1, 1)]),
    ],
)
async def test_a_task_can_say_what_becomes_of_it(
    quick: Settings, client: Client, how: str, runs: list[tuple[int, int]]
) -> None:
    async with running_worker(quick):
        one = await steer.enqueue(how, client=client)
        if how == "cancel":
            with pytest.raises(TaskCancelled, match="not needed"):
                await one.result(30)
        elif how == "fail":
            with pytest.raises(TaskFailed, match="no use"):
                await one.result(30)
        else:
            assert await one.result(30) == runs[-1][0]
    assert scene.said == runs


async def test_an_async_task_is_stopped_at_its_timeout(quick: Settings, client: Client) -> None:
    async with running_worker(quick):
        one = await wait.options(timeout=0.05, max_attempts=2, retry_delay=0).enqueue(client=client)
        with pytest.raises(TaskFailed, match=r"TimedOut: timeout of 0.05 s passed in attempt 2"):
            await one.result(30)
    assert scene.said == [0, "stopped 0", 0, "stopped 0"]


async def test_a_thread_at_its_timeout_is_given_up_and_keeps_its_slot_until_it_ends(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick, threads=1) as worker:
        one = await wait_in_thread.options(timeout=0.05, max_attempts=1).enqueue(client=client)
        with pytest.raises(TaskFailed, match="TimedOut"):
            await one.result(30)
        other = await add_in_thread.enqueue(1, 2, client=client)
        assert worker.slots.stuck_threads == 1
        assert not (await other.status()).is_final
        scene.thread_may_end.set()
        assert await other.result(30) == 3
        assert worker.slots.stuck_threads == 0
    assert await place_of(db, one.id) == ["FAILED"]
    assert (await row(db, "tasks", one.id))["result"] is None


async def test_a_task_that_expired_before_its_start_is_cancelled(quick: Settings, client: Client, db: Database) -> None:
    one = await say.options(expires=60).enqueue("never", client=client)
    await age(db, "tasks", "expires_at", 61)
    async with running_worker(quick):
        with pytest.raises(TaskCancelled, match="Expired"):
            await one.result(30)
    assert scene.said == []


async def test_what_cannot_be_stored_read_or_printed_fails_its_task_and_no_other(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        bad_result = await no_json.enqueue(client=client)
        bad_arguments = await enqueue("tests.worker.add", {"a": 1, "c": 2}, client=client)
        bad_error = await long_error.enqueue(client=client)
        for one, words in (
            (bad_result, "ResultDoesNotEncode: the result of .*no_json, an object, cannot be stored"),
            (bad_arguments, "ArgumentsDoNotFit: the arguments do not fit: .*add has no parameter 'c'"),
            (bad_error, "ValueError: xxx.* characters left out"),
        ):
            with pytest.raises(TaskFailed, match=f"(?s){words}") as failed:
                await one.result(30)
            assert failed.value.attempts == 1
        assert await (await add.enqueue(1, 2, client=client)).result(30) == 3
    assert await db.fetchval("SELECT max(pg_column_size(error)) FROM aaiclick_queue.tasks") < 150_000


async def test_a_task_that_exits_or_breaks_the_rules_of_iteration_ends_alone(quick: Settings, client: Client) -> None:
    async with running_worker(quick, threads=1, slots=1):
        for one in (
            await leave.enqueue(client=client),
            await leave_in_thread.enqueue("exit", client=client),
            await leave_in_thread.enqueue("stop", client=client),
        ):
            with pytest.raises(TaskFailed, match=r"SystemExit|StopIteration"):
                await one.result(30)
        assert await (await add_in_thread.enqueue(1, 2, client=client)).result(30) == 3
        assert await (await add.enqueue(1, 2, client=client)).result(30) == 3


# Unknown entrypoints.


async def test_a_task_that_the_worker_does_not_know_is_left_to_others(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick, queues={"new": 1, "default": 1}):
        unknown = await enqueue("tests.worker.of_the_next_version", {"x": 1}, queue="new", client=client)
        await until(lambda: count(db, "delayed"))
        assert await (await add.enqueue(1, 2, client=client)).result(30) == 3
    place = await row(db, "delayed", unknown.id)
    assert (place["attempt"], place["reason"]) == (0, "unknown entrypoint")
    [attempt] = await rows(db, "attempts")
    assert "no task is registered as 'tests.worker.of_the_next_version'" in attempt["error"]
    assert "-A" in attempt["error"]


async def test_unknown_tasks_wait_ever_longer_and_at_last_fail(db: Database) -> None:
    task_id = await put_one(db)
    run = Claimed(task_id, 9, 1, 0, 0, "default", "tests.nowhere", "{}", None, None, None, None, 0, 0.0, False)
    seconds = []
    for _ in range(9):
        [outcome] = await unknown_outcomes(db, [run], keep_seconds=3600)
        assert isinstance(outcome, Later)
        seconds.append(outcome.seconds)
        await db.fetch(
            "INSERT INTO aaiclick_queue.attempts (task_id, run_epoch, attempt, outcome) VALUES ($1, 1, 1, 'UNKNOWN')",
            task_id,
        )
    assert seconds == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    await age(db, "attempts", "finished_at", 3601)
    [outcome] = await unknown_outcomes(db, [run], keep_seconds=3600)
    assert isinstance(outcome, Failed)
    assert outcome.error.type == "UnknownEntrypoint"


# The line.


async def test_priorities_hold_within_a_queue(quick: Settings, client: Client) -> None:
    for priority in (0, 5, -5, 9):
        await say.options(priority=priority).enqueue(priority, client=client)
    async with running_worker(quick, slots=1):
        await until(lambda: len(scene.said) == 4)
    assert scene.said == [9, 5, 0, -5]


async def test_queues_take_turns_by_their_weights(quick: Settings, client: Client) -> None:
    for queue in ("mail", "default"):
        await say.options(queue=queue).enqueue_many([{"what": queue}] * 40, client=client)
    async with running_worker(changed(quick, prefetch=False), slots=1, queues={"mail": 3, "default": 1}):
        await until(lambda: len(scene.said) >= 16)
    first = scene.said[:16]
    assert 10 <= first.count("mail") <= 14


async def test_a_star_serves_every_queue_there_is(quick: Settings, client: Client) -> None:
    async with running_worker(quick, queues={"*": 1}):
        for queue in ("a", "b", "c"):
            await say.options(queue=queue).enqueue(queue, client=client)
            await said(queue)


async def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(
    quick: Settings, client: Client, db: Database
) -> None:
    await db.fetch("INSERT INTO aaiclick_queue.queues (name, paused_at) VALUES ('mail', now())")
    async with running_worker(quick, queues={"mail": 1, "default": 1}):
        held = await say.options(queue="mail").enqueue("held", client=client)
        await (await say.enqueue("other", client=client)).result(30)
        assert scene.said == ["other"]
        assert await place_of(db, held.id) == ["ready"]
        await db.fetch("DELETE FROM aaiclick_queue.queues")
        await said("held")


async def test_never_more_run_at_once_than_there_are_slots(quick: Settings, client: Client) -> None:
    async with running_worker(quick, slots=3):
        ids = await wait.enqueue_many([{"n": n} for n in range(10)], client=client)
        await until(lambda: scene.running == 3)
        scene.go_on.set()
        for task_id in ids:
            await handle(task_id, client=client).result(30)
    assert scene.most == 3


async def test_two_workers_run_each_task_once(quick: Settings, client: Client) -> None:
    ids = await say.enqueue_many([{"what": n} for n in range(200)], client=client)
    async with running_worker(quick, slots=10), running_worker(quick, slots=10):
        for task_id in ids:
            await handle(task_id, client=client).result(30)
    assert sorted(scene.said) == list(range(200))


async def test_a_run_that_could_not_start_for_a_second_is_handed_back(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick, threads=1):
        await wait_in_thread.enqueue(1, client=client)
        await said(1)
        second = await wait_in_thread.enqueue(2, client=client)
        # Claimed, because an async task might have been next; not started; handed back and claimed again.
        await until(
            lambda: db.fetchval("SELECT run_epoch > 1 FROM aaiclick_queue.leases WHERE task_id = $1", second.id)
        )
        lease = await row(db, "leases", second.id)
        assert (lease["attempt"], lease["lost_count"]) == (1, 0)
        scene.thread_may_end.set()
        assert await second.result(30) == 2
    assert await count(db, "attempts") == 0


# Redis.


async def test_with_redis_a_task_of_plain_sql_is_relayed_to_a_worker_that_listens(
    quick: Settings, redis_settings: Settings, db: Database
) -> None:
    both = changed(quick, redis_url=redis_settings.redis_url, redis_prefix=redis_settings.redis_prefix)
    async with running_worker(both):
        for n in range(3):
            await db.fetch("SELECT aaiclick_queue.enqueue('tests.worker.say', jsonb_build_object('what', $1::int))", n)
            await said(n)

        async def relayed() -> bool:
            return await count(db, "outbox") == 0

        await until(relayed)


# Stopping.


async def test_a_stopping_worker_finishes_what_runs_and_takes_nothing_more(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick, slots=1) as worker:
        first, second = await wait.enqueue(1, client=client), await wait.enqueue(2, client=client)
        await said(1)
        worker.stop()
        await until(lambda: db.fetchval("SELECT status = 'STOPPING' FROM aaiclick_queue.workers"))
        scene.go_on.set()
        assert await first.result(30) == 1
    assert await place_of(db, second.id) == ["ready"]
    [found] = await rows(db, "workers")
    assert (found["status"], found["tasks_completed"]) == ("STOPPED", 1)
    assert found["stopped_at"] is not None


@pytest.mark.parametrize("again", [False, True])
async def test_what_does_not_end_in_the_grace_time_or_at_a_second_stop_is_handed_back_at_no_cost(
    quick: Settings, client: Client, db: Database, again: bool
) -> None:
    async with running_worker(changed(quick, grace_seconds=60 if again else 0.1)) as worker:
        one = await wait.enqueue(1, client=client)
        await said(1)
        worker.stop()
        if again:
            await until(lambda: db.fetchval("SELECT status = 'STOPPING' FROM aaiclick_queue.workers"))
            worker.stop(now=True)
        await said("stopped 1")
    place = await row(db, "ready", one.id)
    assert (place["attempt"], place["lost_count"], place["run_epoch"]) == (0, 0, 1)
    assert await count(db, "attempts") == 0
    assert [one["status"] for one in await rows(db, "workers")] == ["STOPPED"]


async def test_a_thread_that_cannot_be_stopped_is_handed_back_and_its_end_is_not_recorded(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick):
        one = await wait_in_thread.enqueue(1, client=client)
        await said(1)
    place = await row(db, "ready", one.id)
    assert (place["attempt"], place["lost_count"]) == (0, 0)
    scene.thread_may_end.set()
    await said("ended 1")
    assert await place_of(db, one.id) == ["ready"]


async def test_no_stop_however_timed_costs_a_task_anything(quick: Settings, client: Client, db: Database) -> None:
    await say.enqueue_many([{"what": n} for n in range(120)], client=client)
    while await count(db, "ready"):
        before = len(scene.said)
        async with running_worker(quick, slots=5) as worker:
            await until(lambda seen=before: len(scene.said) > seen)  # type: ignore[misc]
            worker.stop(now=True)
        assert await count(db, "leases") == 0
    assert sorted(scene.said) == list(range(120))
    assert await count(db, "attempts") == 0


async def test_a_worker_stops_when_its_row_says_so(quick: Settings, db: Database) -> None:
    worker = Worker(quick, Plan())
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'STOPPING'")
    async with asyncio.timeout(30):
        await running
    assert [one["status"] for one in await rows(db, "workers")] == ["STOPPED"]


async def test_a_worker_refuses_a_database_without_our_tables(empty_postgres_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="aaiclick-queue migrate"):
        await Worker(Settings.load({}, postgres_url=empty_postgres_url)).run()


# Losing runs.


async def test_a_cancelled_run_is_stopped(quick: Settings, client: Client, db: Database) -> None:
    async with running_worker(quick) as worker:
        one = await wait.enqueue(1, client=client)
        await said(1)
        assert await one.cancel()
        await said("stopped 1")
        await until(lambda: not worker.held())
        assert not await one.cancel()
    assert await place_of(db, one.id) == ["CANCELLED"]


async def test_a_run_that_is_told_to_stop_is_left_to_clean_up_in_peace(
    quick: Settings, client: Client, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_worker(quick) as worker:
        one = await clean_up_slowly.enqueue(client=client)
        await said(1)
        await one.cancel()
        await until(lambda: "is not this worker's any more" in caplog.text)
        beats = set[Any]()

        async def beaten_on() -> bool:
            beats.add(await db.fetchval("SELECT last_heartbeat FROM aaiclick_queue.workers"))
            return len(beats) > 3

        await until(beaten_on)
        scene.go_on.set()
        await said("cleaned up")
        await until(lambda: not worker.held())
    assert caplog.text.count("is not this worker's any more") == 1


async def test_a_worker_given_up_as_lost_comes_back_and_its_old_run_writes_nothing(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick) as worker:
        one = await clean_up_slowly.enqueue(client=client)
        await said(1)
        old_self = worker.worker_id
        await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")
        await until(lambda: worker.worker_id != old_self)
        await said(2)  # taken back by the reaper and claimed again, while the first run still cleans up
        assert await holder_of(db, one.id) == worker.worker_id
        scene.go_on.set()
        await said("cleaned up")
        scene.thread_may_end.set()
        assert await one.result(30) == "second"
    [attempt] = await rows(db, "attempts")
    assert (attempt["outcome"], attempt["worker_id"]) == ("LOST", old_self)
    assert {found["id"]: found["status"] for found in await rows(db, "workers")} == {
        old_self: "LOST",
        worker.worker_id: "STOPPED",
    }


async def test_the_late_end_of_an_old_run_does_not_take_the_new_one_from_the_worker(
    quick: Settings, client: Client, db: Database
) -> None:
    async with running_worker(quick) as worker:
        one = await clean_up_slowly.enqueue(client=client)
        await said(1)
        # Reaped as overdue: the same worker claims the task again while its first run still cleans up.
        await age(db, "leases", "deadline_at", 10_000)
        await said(2)
        scene.go_on.set()
        await said("cleaned up")
        await asyncio.sleep(0)
        assert worker.held() == [(one.id, 2)]
        scene.thread_may_end.set()
        assert await one.result(30) == "second"


async def test_leases_that_the_worker_does_not_know_of_are_handed_back(quick: Settings, db: Database) -> None:
    async with running_worker(quick) as worker:
        # As after a claim whose answer never arrived; of a queue that the worker does not serve, so that it stays.
        task_id = await put_one(db, queue="elsewhere")
        [run] = await claim(db, worker.worker_id, queues=["elsewhere"])
        assert run.task_id == task_id
        await age(db, "leases", "claimed_at", 10)
        worker.unanswered()
        await until(lambda: db.fetchval("SELECT count(*) FROM aaiclick_queue.ready"))
    place = await row(db, "ready", task_id)
    assert (place["attempt"], place["lost_count"], place["run_epoch"]) == (0, 0, 1)
    assert await count(db, "attempts") == 0


async def test_a_worker_that_cannot_renew_its_lease_stops_its_runs_by_its_own_clock(
    quick: Settings, client: Client, db: Database
) -> None:
    assert quick.postgres_url
    async with Proxy(quick.postgres_url) as proxy:
        cut_off = changed(quick, postgres_url=proxy.url, lease_seconds=1)
        async with running_worker(cut_off, background=False) as worker:
            one = await wait.enqueue(1, client=client)
            await said(1)
            proxy.freeze()
            await said("stopped 1")
            assert await holder_of(db, one.id) == worker.worker_id  # nobody else had it yet
            proxy.thaw()
            scene.go_on.set()
            assert await one.result(30) == 1
    assert (await row(db, "tasks", one.id))["attempt"] == 1
    assert await count(db, "attempts") == 0


async def test_a_worker_survives_a_cut_wire(quick: Settings, client: Client) -> None:
    assert quick.postgres_url
    async with Proxy(quick.postgres_url) as proxy, running_worker(changed(quick, postgres_url=proxy.url)):
        for n in range(3):
            one = await wait.enqueue(n, client=client)
            await said(n)
            proxy.cut()
            scene.go_on.set()
            assert await one.result(30) == n
            scene.go_on.clear()


async def test_a_blocked_event_loop_keeps_its_leases_and_is_reported_with_its_stack(
    quick: Settings, client: Client, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    stalling = changed(quick, lease_seconds=1, loop_stall_seconds=0.2)
    async with running_worker(stalling):
        one = await block.enqueue(1.5, client=client)
        await one.result(30)
    assert "the event loop has been blocked" in caplog.text
    assert "time.sleep(seconds)" in caplog.text
    assert await count(db, "attempts") == 0
    assert [found["status"] for found in await rows(db, "workers")] == ["STOPPED"]


async def test_a_run_that_was_lost_twice_is_run_in_a_process_of_its_own(
    quick: Settings, client: Client, db: Database
) -> None:
    innocent, poison = await pid.enqueue(client=client), await kill_process.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2 WHERE task_id = $1", innocent.id)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 4 WHERE task_id = $1", poison.id)
    async with running_worker(quick):
        assert await innocent.result(60) not in (os.getpid(), None)
        with pytest.raises(TaskFailed, match="WorkerLost: its own process was killed by SIGKILL"):
            await poison.result(60)
        assert await (await add.enqueue(1, 2, client=client)).result(30) == 3


async def test_a_run_alone_whose_process_dies_is_a_lost_run(quick: Settings, client: Client, db: Database) -> None:
    one = await kill_process.enqueue(client=client)
    await db.fetch("UPDATE aaiclick_queue.ready SET lost_count = 2")
    async with running_worker(quick):
        await until(lambda: count(db, "delayed"))
        place = await row(db, "delayed", one.id)
        assert (place["attempt"], place["lost_count"], place["reason"]) == (0, 3, "lost")


# Slots.


async def test_a_run_that_is_stopped_before_its_first_step_gives_its_slot_back() -> None:
    ended: list[tuple[Run, Outcome | None]] = []
    slots = Slots(size=1, threads=1, prefetch=False, ended=lambda run, outcome: ended.append((run, outcome)))
    claimed = Claimed(1, 1, 1, 0, 0, "default", "tests.worker.say", "{}", None, None, None, None, 0, 0.0, False)
    run = Run(claimed, say, Settings.load({}), 1)
    slots.serve(object())  # type: ignore[arg-type]  # nothing is asked of it
    slots.start([run])
    slots.stop(run, Stop(RELEASED))
    await until(lambda: ended)
    assert ended == [(run, RELEASED)]
    assert slots.room() == 1
    assert scene.said == []
    await slots.close()


async def test_tasks_of_many_kinds_at_once_all_come_to_an_end(quick: Settings, client: Client, db: Database) -> None:
    handles = []
    async with running_worker(quick, slots=20, threads=4):
        for n in range(60):
            handles.append(await add.enqueue(n, 1, client=client))
            handles.append(await add_in_thread.enqueue(n, 1, client=client))
            if n % 10 == 0:
                handles.append(await fail.enqueue(times=1, client=client))
        values = await asyncio.gather(*(one.result(60) for one in handles))
    assert values.count(2) >= 6
    statuses = {found["status"] for found in await rows(db, "tasks")}
    assert statuses == {"COMPLETED"}
    assert msgspec.json.decode((await row(db, "tasks", handles[0].id))["kwargs"]) == {"a": 0, "b": 1}


async def test_a_process_that_enqueues_kicks_its_own_worker(quick: Settings, client: Client) -> None:
    slow = changed(quick, poll_min_seconds=60, poll_max_seconds=60)
    async with running_worker(slow):
        for n in range(3):
            assert await (await add.enqueue(n, 1, client=client)).result(30) == n + 1


async def test_two_schemas_in_one_database_are_two_queues(quick: Settings, client: Client, db: Database) -> None:
    second = changed(quick, postgres_schema="second_queue")
    await migrate.upgrade(second)
    async with connect(settings=second) as other:
        left = await say.enqueue("first", client=client)
        async with running_worker(second):
            assert await (await fail.enqueue(times=1, client=other)).result(30) == 2
            keyed = say.options(dedupe_key="k", dedupe="replace", countdown=60, client=other)
            assert (await keyed.enqueue("a")).id != (await keyed.enqueue("b")).id
            await db.fetch("""SELECT second_queue.enqueue('tests.worker.say', '{"what": "by SQL"}')""")
            await said("by SQL")
    assert await place_of(db, left.id) == ["ready"]
    assert await count(db, "tasks") == 1
    assert "first" not in scene.said


async def test_what_others_put_in_line_is_found_by_looking(quick: Settings, db: Database) -> None:
    async with running_worker(quick):
        task_id = await put_one(db, '{"a": 1, "b": 2}', entrypoint="tests.worker.add")
        await until(lambda: db.fetchval("SELECT status FROM aaiclick_queue.tasks WHERE id = $1", task_id))
