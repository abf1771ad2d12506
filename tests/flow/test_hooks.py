"""Hooks: tasks that the end or the retry of another one enqueues, with it or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aaiclick_queue import Client, EndedTask, Fail, Settings, TaskFailed, enqueue, task
from aaiclick_queue.errors import BadTask
from aaiclick_queue.flags import HOOKED, KEEP_NONE
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.retry import retry_tasks
from aaiclick_queue.outcome import Cancelled, Error, Failed, Later, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import (
    age,
    claim,
    count,
    end,
    leased,
    make_due,
    put_one,
    register_worker,
    row,
    rows,
    running_worker,
    until,
)

heard: list[tuple[str, EndedTask]] = []
ALL = {name: {"entrypoint": f"hooks.{name}"} for name in ("success", "failure", "retry", "give_up")}


@pytest.fixture(autouse=True)
def _nothing_heard() -> None:
    heard.clear()


@task
async def succeeded(ended: EndedTask) -> None:
    heard.append(("success", ended))


@task(queue="alerts")
async def failed(ended: EndedTask) -> None:
    heard.append(("failure", ended))


@task
async def retried(ended: EndedTask) -> None:
    heard.append(("retry", ended))


@task
async def given_up(ended: EndedTask) -> None:
    heard.append(("give_up", ended))


@task(
    max_attempts=2,
    retry_delay=0,
    on_success=succeeded,
    on_failure=failed,
    on_retry=retried,
    on_give_up=given_up,
)
async def pay(amount: int) -> int:
    if amount == 0:
        raise ValueError("nothing to pay")
    if amount < 0:
        raise Fail("no attempt will change that")
    return amount


def hooked(**hooks: Any) -> dict[str, Any]:
    return {"flags": HOOKED, "hooks": json.dumps(hooks or ALL)}


async def enqueued(db: Database) -> list[str]:
    """The hooks that were enqueued, by their names."""
    return sorted(
        one["entrypoint"].removeprefix("hooks.")
        for one in await rows(db, "tasks")
        if one["entrypoint"].startswith("hooks.")
    )


async def test_hooks_are_told_what_became_of_the_task(client: Client, quick: Settings) -> None:
    async with running_worker(quick, queues={"default": 1, "alerts": 1}):
        paid = await pay.options(name="a payment").enqueue(7, client=client)
        assert await paid.result(timeout=30) == 7
        await until(lambda: len(heard) == 1)
        [(name, ended)] = heard
        assert (name, ended.id, ended.status, ended.attempt) == ("success", str(paid.id), "COMPLETED", 1)
        assert (ended.kwargs, ended.result, ended.error) == ({"amount": 7}, 7, None)
        assert (ended.entrypoint, ended.name, ended.queue) == (pay.entrypoint, "a payment", "default")
        heard.clear()
        with pytest.raises(TaskFailed):
            await (await pay.enqueue(0, client=client)).result(timeout=30)
        await until(lambda: len(heard) == 3)
        told = dict(heard)
        assert set(told) == {"retry", "failure", "give_up"}
        assert (told["retry"].status, told["retry"].attempt) == ("RETRYING", 1)
        for name in ("failure", "give_up"):
            assert (told[name].status, told[name].attempt) == ("FAILED", 2)
            error = told[name].error
            assert error is not None
            assert (error.type, error.message) == ("ValueError", "nothing to pay")
            assert "raise ValueError" in error.traceback


async def test_a_failure_with_attempts_left_is_no_giving_up(client: Client, quick: Settings) -> None:
    async with running_worker(quick, queues={"default": 1, "alerts": 1}):
        with pytest.raises(TaskFailed):
            await (await pay.enqueue(-1, client=client)).result(timeout=30)
        await until(lambda: heard)
        assert await client.database()
    assert [name for name, _ in heard] == ["failure"]


async def test_several_hooks_are_told_of_one_end_each_once_and_each_with_its_own_arguments(db: Database) -> None:
    first = {"entrypoint": "hooks.first", "kwargs": {"channel": "ops"}}
    second, third = {"entrypoint": "hooks.second"}, {"entrypoint": "hooks.third", "kwargs": {"n": 3}, "tells": False}
    run = await leased(db, **hooked(failure=first, **{"failure.2": second, "failure.3": third}))
    assert await end(db, run, Failed(Error("ValueError")))
    assert await enqueued(db) == ["first", "second", "third"]
    told = {one["entrypoint"]: json.loads(one["kwargs"]) for one in await rows(db, "tasks") if one["id"] != run.task_id}
    assert told["hooks.first"]["channel"] == "ops"
    assert told["hooks.first"]["ended"]["id"] == told["hooks.second"]["ended"]["id"] == str(run.task_id)
    assert set(told["hooks.second"]) == {"ended"}
    assert told["hooks.third"] == {"n": 3}


async def test_options_take_several_hooks(client: Client, quick: Settings) -> None:
    async with running_worker(quick, queues={"default": 1, "alerts": 1}):
        both = pay.options(on_success=[succeeded, failed])
        assert await (await both.enqueue(7, client=client)).result(timeout=30) == 7
        await until(lambda: len(heard) == 2)
    assert sorted(name for name, _ in heard) == ["failure", "success"]


async def test_a_hook_goes_to_its_own_queue_and_inherits_the_rest(db: Database) -> None:
    run = await leased(
        db,
        queue="mail",
        priority=7,
        **hooked(success={"entrypoint": "hooks.success", "queue": "alerts"}, failure={"entrypoint": "hooks.failure"}),
    )
    assert await end(db, run, Succeeded('{"sum": 3}'))
    [hook] = [one for one in await rows(db, "tasks") if one["entrypoint"] == "hooks.success"]
    assert (hook["queue"], hook["priority"], hook["parent_id"]) == ("alerts", 7, run.task_id)
    ended = json.loads(hook["kwargs"])["ended"]
    assert (ended["id"], ended["result"], ended["queue"]) == (str(run.task_id), {"sum": 3}, "mail")
    [place] = await rows(db, "ready")
    assert (place["task_id"], place["queue"], place["rank"]) == (hook["id"], "alerts", -7)
    run = await leased(db, queue="mail", **hooked(failure={"entrypoint": "hooks.failure"}))
    assert await end(db, run, Failed(Error("ValueError")))
    [hook] = [one for one in await rows(db, "tasks") if one["entrypoint"] == "hooks.failure"]
    assert hook["queue"] == "mail"


@pytest.mark.parametrize(
    ("outcome", "hooks"),
    [
        (Succeeded("1"), ["success"]),
        (Failed(Error("ValueError")), ["failure"]),
        (Later("RETRYING", Error("ValueError"), 60.0), ["retry"]),
        (Later("SNOOZED", Error("Snooze"), 60.0), []),
        (Cancelled(Error("Cancel")), []),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
async def test_hooks_happen_with_the_end_and_only_for_the_one_that_owns_the_run(
    db: Database, outcome: Any, hooks: list[str]
) -> None:
    run = await leased(db, max_attempts=3, **hooked())
    assert not await end(db, run, outcome, worker_id=1)
    assert await enqueued(db) == []
    assert await end(db, run, outcome)
    assert await enqueued(db) == hooks
    assert not await end(db, run, outcome)
    assert await enqueued(db) == hooks


async def test_an_end_that_is_rolled_back_takes_its_hooks_along(db: Database) -> None:
    run = await leased(db, **hooked())
    with pytest.raises(RuntimeError):
        async with db.transaction() as tx:
            assert await end(tx, run, Succeeded("1"), worker_id=(await row(db, "leases", run.task_id))["worker_id"])  # type: ignore[arg-type]
            raise RuntimeError
    assert await enqueued(db) == []
    assert await count(db, "leases") == 1


async def test_a_run_that_the_reaper_ends_has_its_hooks_too(db: Database) -> None:
    lost = await leased(db, **hooked())
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = 1000")
    await age(db, "workers", "lease_expires_at", 3600)
    await db.fetch("UPDATE aaiclick_queue.workers SET started_at = now() - interval '1 h'")
    reaper = Reaper(db)
    await until(lambda: _reaped(reaper, db))
    assert (await row(db, "tasks", lost.task_id))["status"] == "FAILED"
    assert await enqueued(db) == ["failure", "give_up"]
    overdue = await leased(db, queue="slow", max_attempts=2, **hooked())
    await db.fetch("UPDATE aaiclick_queue.leases SET deadline_at = now() - interval '1 s'")
    await Reaper(db).reap_once()
    assert (await row(db, "delayed", overdue.task_id))["reason"] == "retry"
    assert await enqueued(db) == ["failure", "give_up", "retry"]


async def _reaped(reaper: Reaper, db: Database) -> bool:
    await reaper.reap_once()
    return await count(db, "leases") == 0


async def test_limits_apply_to_hooks(db: Database) -> None:
    await set_limit(db, NewLimit("task", "hooks.success", "running", 1), by="me")
    for _ in range(2):
        run = await leased(db, **hooked())
        assert await end(db, run, Succeeded("1"))
    assert (await count(db, "ready"), await count(db, "held")) == (0, 2)
    assert (await Admission(db).admit_once()).count == 1


async def test_every_retry_has_its_hook_and_a_task_run_again_by_hand_has_them_again(db: Database) -> None:
    task_id = await put_one(db, max_attempts=5, **hooked())
    worker_id = await register_worker(db)
    for _ in range(2):
        [run] = [one for one in await claim(db, worker_id) if one.task_id == task_id]
        assert await end(db, run, Later("RETRYING", Error("ValueError"), 60.0))
        await make_due(db)
        await Reaper(db).due_once()
    [run] = [one for one in await claim(db, worker_id) if one.task_id == task_id]
    assert await end(db, run, Failed(Error("ValueError")))
    assert await enqueued(db) == ["failure", "retry", "retry"]
    assert await retry_tasks(db, [task_id], by="me") == {task_id}
    [run] = [one for one in await claim(db, worker_id) if one.task_id == task_id]
    assert await end(db, run, Failed(Error("ValueError")))
    assert await enqueued(db) == ["failure", "failure", "retry", "retry"]


async def test_a_task_whose_row_is_not_kept_has_its_hooks(db: Database) -> None:
    for queue, outcome in (("mail", Succeeded('"done"')), ("bulk", Failed(Error("ValueError")))):
        run = await leased(db, keep="none", hooks=json.dumps(ALL), flags=HOOKED | KEEP_NONE, queue=queue)
        assert await end(db, run, outcome)
        assert not [one for one in await rows(db, "tasks") if one["id"] == run.task_id]
    assert await enqueued(db) == ["failure", "success"]


@pytest.mark.parametrize("hook", [5, "", lambda: None])
def test_what_cannot_be_a_hook_is_refused(hook: Any) -> None:
    with pytest.raises(BadTask, match="on_success"):
        pay.options(on_success=hook)


async def test_by_name_on_give_up_needs_to_know_how_many_attempts_there_are(client: Client) -> None:
    with pytest.raises(BadTask, match="needs max_attempts"):
        await enqueue("hooks.somewhere", on_give_up="hooks.give_up", client=client)
    await enqueue("hooks.somewhere", on_give_up="hooks.give_up", max_attempts=2, client=client)


def test_a_hook_that_cannot_be_told_what_ended_is_refused_where_it_is_set() -> None:
    @task(entrypoint="tests.takes_something_else")
    def takes_something_else(a: int) -> None: ...

    with pytest.raises(BadTask, match="`ended`"):

        @task(entrypoint="tests.hooked", on_success=takes_something_else)
        def hooked() -> None: ...
