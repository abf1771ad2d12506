"""Operations: changes of many tasks by filter, page by page, until a whole pass finds nothing."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from aaiclick_queue import Client, Settings, sync
from aaiclick_queue.callers import caller_transaction
from aaiclick_queue.errors import BadTask, PostgresUnavailable, WrongContext
from aaiclick_queue.flow import wanted
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.background import Background
from aaiclick_queue.flow.filter_pages import CANCEL_PAGE, LIMIT_PAGE, MOVE_PAGE, RETRY_FAILED_PAGE, RETRY_PAGE
from aaiclick_queue.flow.limits import NewLimit, drop_limit, set_limit
from aaiclick_queue.flow.move import move_tasks
from aaiclick_queue.flow.operate import AGAIN_SECONDS, LONGEST_AGAIN_SECONDS, work_once
from aaiclick_queue.flow.operation import make_operation
from aaiclick_queue.flow.pause import pause_queue
from aaiclick_queue.flow.wanted import COUNT_ENDED, COUNT_FAILED, COUNT_WAITING
from aaiclick_queue.operations import (
    Operation,
    cancel_operation,
    cancel_where,
    carry_out,
    count_tasks,
    move,
    moving,
    purge,
    purging,
    read_operation,
    retry,
    retry_where,
    retrying,
    set_priority,
    unblock,
    work_to_end,
)
from aaiclick_queue.outcome import Error, Failed, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import Proxy, changed, claim, count, end, put, put_one, register_worker, row, rows, until


async def finish(db: Database, operation_id: int) -> Operation:
    return await work_to_end(db, operation_id)


async def statuses(db: Database) -> dict[int, str]:
    return {one["id"]: one["status"] for one in await rows(db, "task_status")}


async def in_queue(db: Database, queue: str) -> set[int]:
    found = set()
    for place in ("ready", "held", "delayed"):
        found |= {one["task_id"] for one in await rows(db, place) if one["queue"] == queue}
    return found


async def test_a_purge_ends_what_waits_in_every_place_and_leaves_what_runs(db: Database, client: Client) -> None:
    [running] = await put(db, queue="mail")
    [run] = await claim(db, await register_worker(db), queues=["mail"])
    waiting = await put(db, count=3, queue="mail")
    later = await put_one(db, queue="mail", task={"countdown": 60.0})
    ordered = await put_one(db, queue="mail", task={"order_by": "a"})
    [elsewhere] = await put(db, queue="other")
    assert await purge("mail", client=client) == 5
    found = await statuses(db)
    assert {found[one] for one in (*waiting, later, ordered)} == {"CANCELLED"}
    assert (found[running], found[elsewhere]) == ("RUNNING", "QUEUED")
    error = (await row(db, "tasks", later))["error"]
    assert "purged from its queue by hand" in error
    assert await end(db, run, Succeeded("1"))


async def test_every_word_of_a_filter_narrows_it(db: Database, client: Client) -> None:
    one = await put_one(db, queue="mail", entrypoint="shop.send")
    other = await put_one(db, queue="mail", entrypoint="shop.resend", priority=5)
    keyed = await put_one(db, queue="bulk", entrypoint="shop.send", task={"concurrency_key": "acme"})
    told = await put_one(db, queue="bulk", entrypoint="shop.report", task={"correlation_id": "order-7"})
    old = await put_one(db, queue="bulk", entrypoint="shop.x_y")
    await db.fetch("UPDATE aaiclick_queue.tasks SET created_at = now() - interval '2 h' WHERE id = $1", old)
    later = await put_one(db, queue="bulk", entrypoint="shop.later", task={"countdown": 60.0})

    async def n(**where: Any) -> int:
        return (await count_tasks(client=client, **where)).n

    assert await n(queue="mail") == 2
    assert await n(entrypoint="send") == await n(entrypoint="shop.send") == 2
    assert await n(entrypoint="end") == await n(entrypoint="x%y") == await n(entrypoint="x.y") == 0
    assert (await n(entrypoint="x_y"), await n(older_than=3600), await n(status="SCHEDULED")) == (1, 1, 1)
    assert (await n(key="acme"), await n(correlation_id="order-7"), await n(priority=5)) == (1, 1, 1)
    assert await n(queue="mail", entrypoint="send") == 1
    for where, meant in (
        ({"queue": "mail", "priority": 5}, other),
        ({"key": "acme"}, keyed),
        ({"correlation_id": "order-7"}, told),
        ({"older_than": 3600}, old),
        ({"status": "SCHEDULED"}, later),
        ({"entrypoint": "send"}, one),
    ):
        assert await cancel_where(client=client, **where) == 1, where
        assert (await statuses(db))[meant] == "CANCELLED"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({}, "everything=True"),
        ({"queu": "mail"}, "did you mean 'queue'"),
        ({"status": "FAILED"}, "it can be PENDING"),
        ({"priority": "high"}, "whole number"),
        ({"queue": ""}, "1 to 200"),
        ({"older_than": -1}, "seconds or a timedelta"),
    ],
)
async def test_a_filter_that_cannot_be_meant_is_refused_before_anything_is_written(
    db: Database, client: Client, where: dict[str, Any], said: str
) -> None:
    await put(db)
    with pytest.raises(BadTask, match=said):
        await cancel_where(client=client, **where)
    assert await count(db, "operations") == 0


async def test_everything_has_to_be_asked_for_by_name(db: Database, client: Client) -> None:
    await put(db, count=2)
    await put(db, queue="mail")
    assert await cancel_where(client=client, everything=True) == 3


async def test_a_move_keeps_order_attempts_and_due_times(db: Database, client: Client) -> None:
    first, second = await put(db, count=2, queue="mail")
    later = await put_one(db, queue="mail", task={"countdown": 60.0})
    ordered = await put_one(db, queue="mail", task={"order_by": "a"})
    due = (await row(db, "delayed", later))["not_before"]
    assert await move(to="slow", queue="mail", client=client) == 4
    assert await in_queue(db, "mail") == set()
    assert await in_queue(db, "slow") == {first, second, later, ordered}
    assert (await row(db, "delayed", later))["not_before"] == due
    assert (await row(db, "tasks", ordered))["queue"] == "slow"
    runs = await claim(db, await register_worker(db), queues=["slow"])
    assert [one.task_id for one in runs] == [first, second]


async def test_moved_tasks_come_under_the_limits_of_where_they_go(db: Database, client: Client) -> None:
    await set_limit(db, NewLimit("queue", "slow", "running", 1), by="me")
    await put(db, count=3, queue="mail")
    assert await move(to="slow", queue="mail", client=client) == 3
    assert (await count(db, "ready"), await count(db, "held")) == (0, 3)
    assert (await Admission(db).admit_once()).count == 1


async def test_a_task_that_is_moved_out_of_line_gives_its_slot_back(db: Database, client: Client) -> None:
    await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
    await put(db, count=2, queue="mail")
    assert (await Admission(db).admit_once()).count == 1
    assert await move(to="fast", status="QUEUED", client=client) == 1
    assert await count(db, "slots") == 0
    assert (await Admission(db).admit_once()).count == 1


async def test_a_new_priority_changes_the_line_and_only_for_those_that_have_another(
    db: Database, client: Client
) -> None:
    low = await put(db, count=3)
    high = await put_one(db, priority=9)
    later = await put_one(db, task={"countdown": 60.0})
    assert await set_priority(9, everything=True, client=client) == 4
    assert (await row(db, "tasks", later))["priority"] == 9
    assert (await row(db, "delayed", later))["rank"] == -9
    runs = await claim(db, await register_worker(db))
    assert [one.task_id for one in runs] == [*low, high]


async def test_only_tasks_older_than_the_operation_are_changed(db: Database) -> None:
    old = await put(db, count=3, queue="mail")
    operation = await make_operation(db, "cancel", {"queue": "mail"}, {}, by="me")
    await asyncio.sleep(0.003)  # ids are of milliseconds
    new = await put(db, count=3, queue="mail")
    assert (await finish(db, operation)).done == 3
    assert await in_queue(db, "mail") == set(new)
    assert {(await statuses(db))[one] for one in old} == {"CANCELLED"}


async def test_whatever_was_there_belongs_to_it_though_its_id_is_ahead_of_the_clock(db: Database) -> None:
    [ahead] = await put(db, queue="mail")
    for table in ("tasks", "ready"):
        key = "id" if table == "tasks" else "task_id"
        await db.fetch(f"UPDATE aaiclick_queue.{table} SET {key} = {key} + (1000::bigint << 22)")
    await db.fetch("UPDATE aaiclick_queue.ready SET order_key = task_id")
    assert (await carry_out(db, purging("mail", {}))).done == 1
    assert ahead not in await in_queue(db, "mail")


async def test_an_operation_goes_on_where_a_crash_has_left_it(db: Database) -> None:
    await put(db, count=10, queue="mail")
    operation = await make_operation(db, "cancel", {"queue": "mail"}, {}, by="me")
    for _ in range(5):  # gates, held and delayed are empty, then two pages of ready
        worked = await work_once(db, operation, limit=3)
        assert worked
        assert worked.status == "OPEN"
    assert (await read_operation(db, operation)).done == 6
    ended = await finish(db, operation)
    assert (ended.status, ended.done) == ("DONE", 10)


async def test_a_page_that_was_not_committed_did_not_happen(db: Database, settings: Settings) -> None:
    waiting = await put(db, count=3, queue="mail")
    operation = await make_operation(db, "cancel", {"queue": "mail", "status": "QUEUED"}, {}, by="me")
    assert settings.postgres_url
    async with (
        Proxy(settings.postgres_url) as proxy,
        Database(changed(settings, postgres_url=proxy.url), size=1) as cut,
    ):
        proxy.break_at(b"found = found OR", carried_out=True)
        with pytest.raises(PostgresUnavailable):
            await work_once(cut, operation)
    await until(lambda: _is_free(db, operation))
    assert (await read_operation(db, operation)).done == 0
    assert await in_queue(db, "mail") == set(waiting)
    assert (await finish(db, operation)).done == 3


async def _is_free(db: Database, operation: int) -> bool:
    return bool(
        await db.fetch("SELECT 1 FROM aaiclick_queue.operations WHERE id = $1 FOR UPDATE SKIP LOCKED", operation)
    )


async def test_rows_that_others_hold_are_met_again(db: Database) -> None:
    first, second = await put(db, count=2, queue="mail")
    operation = await make_operation(db, "move", {"queue": "mail"}, {"queue": "slow"}, by="me")
    async with db.transaction() as other:
        await other.fetch("SELECT 1 FROM aaiclick_queue.ready WHERE task_id = $1 FOR UPDATE", first)
        working = asyncio.create_task(finish(db, operation))
        await until(lambda: _is_in(db, "slow", second))
        assert not working.done()
        assert await in_queue(db, "mail") == {first}
    assert (await working).done == 2
    assert await in_queue(db, "slow") == {first, second}


async def _is_in(db: Database, queue: str, task_id: int) -> bool:
    return task_id in await in_queue(db, queue)


async def test_a_task_that_changes_its_place_during_the_pass_is_met_in_the_next(db: Database) -> None:
    later = await put_one(db, queue="mail", task={"countdown": 60.0})
    [waiting] = await put(db, queue="mail")
    operation = await make_operation(db, "cancel", {"queue": "mail"}, {}, by="me")
    assert await work_once(db, operation)  # held
    # What was in line goes behind the page that has been looked at, and the other way round.
    await db.fetch(
        """WITH gone AS (DELETE FROM aaiclick_queue.ready WHERE task_id = $1 RETURNING task_id, order_key, queue, rank)
           INSERT INTO aaiclick_queue.held (task_id, order_key, queue, rank)
           SELECT task_id, order_key, queue, rank FROM gone""",
        waiting,
    )
    ended = await finish(db, operation)
    assert ended.done == 2
    assert {(await statuses(db))[one] for one in (later, waiting)} == {"CANCELLED"}


async def test_cancelled_runs_lose_their_lease_when_running_ones_are_meant(db: Database, client: Client) -> None:
    [running] = await put(db, queue="mail")
    [run] = await claim(db, await register_worker(db), queues=["mail"])
    [waiting] = await put(db, queue="mail")
    assert await cancel_where(queue="mail", running=True, client=client) == 2
    assert {(await statuses(db))[one] for one in (running, waiting)} == {"CANCELLED"}
    assert not await end(db, run, Succeeded("1"))


async def test_an_operation_that_was_cancelled_stops_after_its_page(db: Database) -> None:
    await put(db, count=10, queue="mail")
    operation = await make_operation(db, "cancel", {"queue": "mail", "status": "QUEUED"}, {}, by="me")
    assert await work_once(db, operation, limit=3)
    assert await cancel_operation(db, operation)
    assert await work_once(db, operation, limit=3) is None
    ended = await finish(db, operation)
    assert (ended.status, ended.done) == ("CANCELLED", 3)
    assert len(await in_queue(db, "mail")) == 7
    assert not await cancel_operation(db, operation)


async def test_one_that_waits_does_not_keep_the_others(db: Database) -> None:
    [stuck] = await put(db, queue="mail")
    await put(db, count=5, queue="other")
    waiting = await make_operation(db, "cancel", {"queue": "mail"}, {}, by="me")
    other = await make_operation(db, "cancel", {"queue": "other"}, {}, by="me")
    async with db.transaction() as holder:
        await holder.fetch("SELECT 1 FROM aaiclick_queue.ready WHERE task_id = $1 FOR UPDATE", stuck)
        for _ in range(20):
            await work_once(db)
        assert (await read_operation(db, other)).status == "DONE"
        assert (await read_operation(db, waiting)).status == "OPEN"
    assert (await finish(db, waiting)).done == 1


async def test_those_that_wait_for_an_old_transaction_do_not_keep_a_new_one_waiting(db: Database) -> None:
    background = Background(db, None, holder=1)
    async with db.transaction() as old:
        await old.fetch("SELECT pg_current_xact_id()")
        for n in range(5):
            await set_limit(db, NewLimit("task", f"shop.{n}", "running", 1), by="me")
        while (pause := await background._operate_pass()) == 0:
            pass
        assert pause <= AGAIN_SECONDS
        assert {one["place"] for one in await rows(db, "operations")} == {""}  # each has made a whole pass
        new = await make_operation(db, "cancel", {"queue": "mail"}, {}, by="me")
        while (await read_operation(db, new)).status == "OPEN":
            worked = await work_once(db, rested=True)
            assert worked
            assert worked.operation_id == new or worked.pause
    while await work_once(db):
        pass
    assert await background._operate_pass() > 60


async def test_a_limit_that_waits_long_is_looked_at_less_often(db: Database) -> None:
    async with db.transaction() as old:
        await old.fetch("SELECT pg_current_xact_id()")
        operation = await set_limit(db, NewLimit("task", "shop.send", "running", 1), by="me")
        for age, pause in ((0, AGAIN_SECONDS), (20, 2.0), (3600, LONGEST_AGAIN_SECONDS)):
            await db.fetch("UPDATE aaiclick_queue.operations SET created_at = now() - make_interval(secs => $1)", age)
            while not (worked := await work_once(db, operation)) or not worked.pause:
                pass
            assert pause <= worked.pause < pause + 0.4
            assert (await read_operation(db, worked.operation_id)).updated_at <= datetime.now(UTC)
    while await work_once(db):
        pass


async def test_an_operation_of_a_newer_version_fails_with_a_word(db: Database) -> None:
    operation = await make_operation(db, "fold", {}, {}, by="me")
    assert (await work_once(db)) is not None
    ended = await read_operation(db, operation)
    assert (ended.status, ended.error) == ("FAILED", "this version knows no operation 'fold'")


async def test_failed_tasks_are_retried_by_filter_and_once_though_they_fail_again(db: Database, client: Client) -> None:
    ids = await put(db, count=3, queue="mail", max_attempts=1)
    worker_id = await register_worker(db)
    await _fail_all(db, worker_id)
    operation = await make_operation(db, "retry", {"queue": "mail"}, {}, by="me")
    worked = await work_once(db, operation)
    assert worked
    assert worked.taken == 3
    await _fail_all(db, worker_id)
    assert (await finish(db, operation)).done == 3
    assert {(await statuses(db))[one] for one in ids} == {"FAILED"}
    attempts = [one["outcome"] for one in await rows(db, "attempts") if one["task_id"] == ids[0]]
    assert attempts == ["FAILED"]
    assert await retry([*ids, 1], client=client) == set(ids)
    assert await cancel_where(queue="mail", client=client) == 3
    assert await retry_where(queue="mail", client=client) == 0  # FAILED ones, unless told otherwise
    assert await retry_where(status="CANCELLED", client=client) == 3
    runs = await claim(db, worker_id, queues=["mail"])
    assert [(run.task_id, run.attempt) for run in runs] == [(one, 1) for one in ids]


async def test_what_failed_is_found_however_many_ended_well_after_it(
    db: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_id = await register_worker(db)
    await put(db, count=2, queue="mail", max_attempts=1)
    await _fail_all(db, worker_id)
    await put(db, count=5, queue="mail")
    for run in await claim(db, worker_id, queues=["mail"]):
        await end(db, run, Succeeded("1"))
    monkeypatch.setattr(wanted, "LOOK_LIMIT", 3)
    for where, found in (({"queue": "mail"}, 2), ({"entrypoint": "nothing"}, 0), ({"queue": "other"}, 0)):
        count = await retrying(where).count(db)
        assert (count.n, count.more, count.looked_at) == (found, False, None), where
    assert await retry_where(queue="mail", client=client) == 2


async def test_a_count_that_has_not_seen_all_does_not_say_that_there_is_none(
    db: Database, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(db, count=2, queue="mail")
    assert await cancel_where(queue="mail", client=client) == 2
    await put(db, count=5, queue="other")
    for run in await claim(db, await register_worker(db), queues=["other"]):
        await end(db, run, Succeeded("1"))
    monkeypatch.setattr(wanted, "LOOK_LIMIT", 3)
    count = await retrying({"status": "CANCELLED"}).count(db)
    assert (count.n, count.more, count.looked_at) == (0, True, 3)
    assert str(count) == "an unknown number of"
    assert await retry_where(status="CANCELLED", client=client) == 2


async def _fail_all(db: Database, worker_id: int) -> None:
    for run in await claim(db, worker_id, queues=["mail"]):
        await end(db, run, Failed(Error("ValueError", "no luck")))


async def test_unblocking_lets_the_order_behind_a_failed_task_go_on(db: Database, client: Client) -> None:
    failed, behind = [await put_one(db, flags=8, task={"order_by": "a"}) for _ in range(2)]
    admission = Admission(db)
    assert (await admission.admit_once()).count == 1
    [run] = await claim(db, await register_worker(db))
    assert await end(db, run, Failed(Error("ValueError", "no luck")))
    assert (await admission.admit_once()).count == 0
    assert await unblock([failed, behind], client=client) == {failed}
    assert (await admission.admit_once()).count == 1


async def test_several_may_work_on_one_operation_while_others_claim_and_enqueue(db: Database) -> None:
    ids = await put(db, count=300, queue="mail")
    operation = await make_operation(db, "move", {"queue": "mail"}, {"queue": "slow"}, by="me")
    worker_id = await register_worker(db)

    async def work() -> None:
        while (await read_operation(db, operation)).status == "OPEN":
            await work_once(db, operation, limit=7)

    async def take() -> set[int]:
        taken: set[int] = set()
        for _ in range(10):
            taken |= {run.task_id for run in await claim(db, worker_id, 5, queues=["mail"])}
        return taken

    _, _, taken, new = await asyncio.gather(work(), work(), take(), _put_slowly(db))
    moved = await in_queue(db, "slow")
    assert moved & taken == set()
    assert moved | taken >= set(ids)
    assert (await read_operation(db, operation)).done == len(moved)
    assert await in_queue(db, "mail") == set(new) - moved - taken


async def _put_slowly(db: Database) -> list[int]:
    return [one for _ in range(10) for one in await put(db, count=2, queue="mail")]


async def test_waiting_tasks_are_moved_by_id_and_others_left(db: Database) -> None:
    [running] = await put(db, queue="mail")
    await claim(db, await register_worker(db), queues=["mail"])
    [waiting] = await put(db, queue="mail")
    later = await put_one(db, queue="mail", task={"countdown": 60.0})
    held = await put_one(db, queue="mail", task={"order_by": "a"})
    there = await put_one(db, queue="slow")
    meant = [running, waiting, later, held, there, 1]
    assert await move_tasks(db, meant, {"queue": "slow"}) == {waiting, later, held}
    assert await in_queue(db, "slow") == {waiting, later, held, there}
    assert await in_queue(db, "mail") == set()


def test_synchronous_code_has_the_same_calls(as_default: None) -> None:
    assert sync.limit_queue("mail", max_running=2) == [1]
    assert sync.limit_task("shop.send", rate="5/s") == [2]
    assert sync.limit_key("acme", max_running=1) == [3]
    assert sync.pause_task("shop.send", lasts=60) == [4]
    assert [limit.kind for limit in sync.list_limits()] == ["running", "running", "pause", "rate"]
    assert sync.resume_task("shop.send")
    ids = [sync.enqueue("shop.send", queue="mail").id for _ in range(3)]
    assert sync.set_priority(3, queue="mail") == 3
    assert sync.move(to="slow", queue="mail") == 3
    assert sync.purge("slow") == 3
    assert sync.retry(ids[0]) == {ids[0]}
    assert sync.retry_where(status="CANCELLED", queue="slow") == 2
    assert sync.cancel_where(queue="slow") == 3
    assert sync.unblock(ids[0]) == set()


async def test_synchronous_operations_are_refused_where_they_would_block_an_event_loop() -> None:
    with pytest.raises(WrongContext, match=r"await operations\.purge"):
        sync.purge("mail")


# New limits.


async def test_a_new_limit_is_never_exceeded_by_tasks_that_were_in_line_or_running(db: Database) -> None:
    await put(db, count=20, queue="mail")
    worker_id = await register_worker(db)
    running = await claim(db, worker_id, limit=2, queues=["mail"])
    operation = await set_limit(db, NewLimit("queue", "mail", "running", 3), by="me")
    assert operation
    assert await claim(db, worker_id, queues=["mail"]) == []  # from its first moment
    for _ in range(3):
        await work_once(db, operation, limit=5)
        assert await claim(db, worker_id, queues=["mail"]) == []
    await finish(db, operation)
    admission = Admission(db)
    await admission.admit_once()
    [third] = await claim(db, worker_id, queues=["mail"])
    assert await end(db, running[0], Succeeded("1"))
    await admission.admit_once()
    [fourth] = await claim(db, worker_id, queues=["mail"])
    assert third.task_id < fourth.task_id


async def test_a_row_that_is_committed_late_by_who_could_not_see_the_limit_is_caught(db: Database) -> None:
    await put(db, queue="mail")
    async with db.transaction() as late:
        late_ids = await put(late, count=2, queue="mail")
        operation = await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
        assert operation
        for _ in range(5):
            worked = await work_once(db, operation)
            assert worked
            assert worked.status == "OPEN"
        assert await claim(db, await register_worker(db), queues=["mail"]) == []
    await finish(db, operation)
    assert await count(db, "ready") == 0
    assert {one["task_id"] for one in await rows(db, "held")} > set(late_ids)


async def test_a_transaction_that_goes_on_after_the_limit_and_still_cannot_see_it_is_waited_for(
    db: Database, settings: Settings
) -> None:
    connection = await asyncpg.connect(settings.postgres_url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            late = caller_transaction(connection, schema=settings.postgres_schema)
            await put(late, queue="mail")
            operation = await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
            assert operation
            await asyncio.sleep(0.003)  # ids are of milliseconds
            newer = await put(late, count=2, queue="mail")
    finally:
        await connection.close()
    await finish(db, operation)
    assert await count(db, "ready") == 0
    assert {one["task_id"] for one in await rows(db, "held")} > set(newer)


async def test_a_row_that_is_committed_behind_the_last_page_of_a_pass_is_caught_too(db: Database) -> None:
    await set_limit(db, NewLimit("queue", "other", "running", 1), by="me")
    async with db.transaction() as late:
        late_ids = await put(late, count=2, queue="mail")
        operation = await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
        assert operation
        worked = await work_once(db, operation)  # the pass has begun: held
        assert worked
        assert worked.status == "OPEN"
    # Committed now, in front of where the pass stands in line.
    await db.fetch("UPDATE aaiclick_queue.operations SET place = 'ready', after = '[\"mail\", 100, 0, 0]'")
    await finish(db, operation)
    assert {one["task_id"] for one in await rows(db, "held")} == set(late_ids)


async def test_two_limits_at_once_open_the_queue_when_both_are_applied(db: Database) -> None:
    await put(db, count=3, queue="mail")
    first = await set_limit(db, NewLimit("queue", "mail", "running", 5), by="me")
    second = await set_limit(db, NewLimit("queue", "mail", "rate", 5, seconds=60), by="me")
    assert first
    assert second
    assert await work_once(db, second) is None  # one after the other
    await finish(db, first)
    [queue] = await rows(db, "queues")
    assert queue["paused_by"] == f"operation {second}"
    await finish(db, second)
    [queue] = await rows(db, "queues")
    assert queue["paused_at"] is None


async def test_a_limit_that_is_taken_away_again_leaves_its_queue_open(db: Database) -> None:
    await put(db, count=3, queue="mail")
    operation = await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
    assert operation
    assert not await cancel_operation(db, operation)
    assert await drop_limit(db, NewLimit("queue", "mail", "running"), by="me")
    await finish(db, operation)
    assert len(await claim(db, await register_worker(db), queues=["mail"])) == 3


async def test_a_person_s_pause_outlasts_the_operation_that_had_closed_the_queue(db: Database) -> None:
    await put(db, queue="mail")
    operation = await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
    assert operation
    assert await pause_queue(db, "mail", by="ada", reason=None)
    await finish(db, operation)
    [queue] = await rows(db, "queues")
    assert queue["paused_by"] == "ada"


async def test_a_pause_that_has_run_out_and_is_made_again_takes_its_tasks_out_of_line(db: Database) -> None:
    pause = NewLimit("task", "shop.send", "pause", lasts=60)
    first = await set_limit(db, pause, by="me")
    assert first
    await finish(db, first)
    await db.fetch("UPDATE aaiclick_queue.limits SET until = now() - interval '1 s'")
    await put(db, count=2, entrypoint="shop.send")
    assert (await Admission(db).admit_once()).count == 2
    again = await set_limit(db, pause, by="me")
    assert again
    await finish(db, again)
    assert (await count(db, "ready"), await count(db, "held")) == (0, 2)


async def test_a_move_onto_itself_is_refused(db: Database) -> None:
    with pytest.raises(BadTask, match="name another one"):
        moving("mail", {"queue": "mail"})


async def test_a_count_looks_each_task_up_by_its_id_however_new_the_tables_are(db: Database) -> None:
    await put(db, count=2_000, queue="mail")
    for place, sql in {**COUNT_WAITING, "ended": COUNT_ENDED, "failures": COUNT_FAILED}.items():
        plan = "\n".join(row[0] for row in await db.fetch("EXPLAIN " + sql, '{"queue": "mail"}', 100_000, 10_001))
        assert "Index Cond: (id = looked" in plan, (place, plan)


async def test_a_page_looks_each_task_up_by_its_id_however_new_the_tables_are(db: Database) -> None:
    await put(db, count=2_000, queue="mail")
    pages: list[tuple[str, list[Any]]] = [
        *((sql, ["{}"]) for sql in CANCEL_PAGE.values()),
        *((sql, ['{"queue": "slow"}']) for sql in MOVE_PAGE.values()),
        *((sql, ["{}", 1]) for sql in LIMIT_PAGE.values()),
        (RETRY_PAGE, ["me", datetime.now(UTC)]),
        (RETRY_FAILED_PAGE, ["me", datetime.now(UTC)]),
    ]
    for sql, more in pages:
        plan = "\n".join(line[0] for line in await db.fetch("EXPLAIN " + sql, None, 1000, "{}", 2**62, *more))
        assert re.search(r"Index Cond: .*\(id = page", plan), plan
