"""Enqueue: tasks, their place and the outbox row are written together, in the caller's transaction."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue, id_source, written_before
from aaiclick_queue.postgres import Database
from tests.tools import ENTRYPOINT, count, place_of, put, put_one, row, rows

SPEC = Spec(entrypoint=ENTRYPOINT, queue="default")


async def test_a_task_is_written_with_its_place_in_line_and_a_wake_up(db: Database) -> None:
    task_id = await put_one(db, '{"to": "ada"}')
    task = await row(db, "tasks", task_id)
    assert (task["entrypoint"], task["queue"], task["status"]) == (ENTRYPOINT, "default", None)
    assert msgspec.json.decode(task["kwargs"]) == {"to": "ada"}
    place = await row(db, "ready", task_id)
    assert (place["queue"], place["rank"], place["order_key"]) == ("default", 0, task_id)
    assert (place["run_epoch"], place["attempt"], place["lost_count"], place["snoozes"]) == (0, 0, 0, 0)
    [told] = await rows(db, "outbox")
    assert (told["queue"], told["rank"], told["order_key"], told["n"], told["task_ids"]) == (
        "default",
        0,
        task_id,
        1,
        [task_id],
    )


async def test_nobody_sees_a_task_before_the_callers_commit(db: Database) -> None:
    async with db.transaction() as tx:
        await put(tx, count=3)
        assert await count(tx, "ready") == 3
        assert [await count(db, table) for table in ("tasks", "ready", "outbox")] == [0, 0, 0]
    assert [await count(db, table) for table in ("tasks", "ready", "outbox")] == [3, 3, 1]


async def test_a_rolled_back_caller_leaves_nothing(db: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with db.transaction() as tx:
            await put(tx, NewTask("{}"), NewTask("{}", countdown=60), NewTask("{}", expires=60))
            raise ZeroDivisionError
    assert [await count(db, table) for table in ("tasks", "ready", "delayed", "timers", "outbox")] == [0] * 5


async def test_every_option_is_written(db: Database) -> None:
    task = NewTask("{}", correlation_id="order-7", metadata='{"by": "ada"}')
    task_id = await put_one(
        db,
        task={"correlation_id": task.correlation_id, "metadata": task.metadata},
        queue="mail",
        priority=7,
        name="greet",
        max_attempts=5,
        retry='{"delay": 3.0}',
        timeout=1.5,
    )
    written = await row(db, "tasks", task_id)
    expected = {"queue": "mail", "priority": 7, "name": "greet", "max_attempts": 5, "retry": '{"delay": 3.0}'}
    expected |= {"timeout_seconds": 1.5, "correlation_id": "order-7", "metadata": '{"by": "ada"}'}
    assert {name: written[name] for name in expected} == expected
    place = await row(db, "ready", task_id)
    assert (place["queue"], place["rank"]) == ("mail", -7)


async def test_tasks_of_one_call_are_one_wake_up_that_names_at_most_a_hundred(db: Database) -> None:
    ids = await put(db, count=150)
    [told] = await rows(db, "outbox")
    assert told["n"] == 150
    assert told["order_key"] == min(ids)
    assert len(told["task_ids"]) == 100
    assert set(told["task_ids"]) < set(ids)


async def test_ids_come_back_in_the_order_given(db: Database) -> None:
    ids = await put(db, *(NewTask(f'{{"n": {n}}}') for n in range(20)))
    written = {task["id"]: msgspec.json.decode(task["kwargs"])["n"] for task in await rows(db, "tasks")}
    assert [written[task_id] for task_id in ids] == list(range(20))


async def test_a_countdown_waits_in_delayed_and_wakes_nobody(db: Database) -> None:
    task_id = await put_one(db, task={"countdown": 60.0}, priority=3)
    assert await place_of(db, task_id) == ["delayed"]
    place, task = await row(db, "delayed", task_id), await row(db, "tasks", task_id)
    assert (place["reason"], place["rank"], place["order_key"]) == ("eta", -3, task_id)
    assert place["not_before"] == task["eta"] == task["created_at"] + timedelta(seconds=60)
    assert await count(db, "outbox") == 0


@pytest.mark.parametrize("eta", [datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)])
async def test_an_eta_in_the_past_is_in_line_at_once_and_one_in_the_future_waits(db: Database, eta: datetime) -> None:
    task_id = await put_one(db, task={"eta": eta})
    assert await place_of(db, task_id) == ["ready" if eta.year == 2020 else "delayed"]


async def test_one_call_may_put_some_in_line_and_some_to_wait(db: Database) -> None:
    now, later = await put(db, NewTask("{}"), NewTask("{}", countdown=60))
    assert await place_of(db, now) == ["ready"]
    assert await place_of(db, later) == ["delayed"]
    [told] = await rows(db, "outbox")
    assert told["task_ids"] == [now]


async def test_an_expiry_is_counted_from_the_enqueue_by_the_databases_clock(db: Database) -> None:
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    in_seconds, at_moment, never = await put(
        db, NewTask("{}", expires=90), NewTask("{}", expires=moment), NewTask("{}")
    )
    first = await row(db, "tasks", in_seconds)
    assert first["expires_at"] == first["created_at"] + timedelta(seconds=90)
    assert (await row(db, "tasks", at_moment))["expires_at"] == moment
    assert (await row(db, "tasks", never))["expires_at"] is None
    assert {timer["task_id"]: timer["due_at"] for timer in await rows(db, "timers")} == {
        in_seconds: first["expires_at"],
        at_moment: moment,
    }


async def test_an_id_that_another_process_has_drawn_costs_a_new_id_and_not_the_callers_transaction(
    db: Database,
) -> None:
    taken = await put(db, count=2)
    fresh = (await id_source(db)).take(100)
    draws = [[fresh[0], taken[0], fresh[1], taken[1]], [fresh[2], taken[0]], [fresh[3]]]
    tasks = [NewTask(f'{{"n": {n}}}') for n in range(4)]
    async with db.transaction() as tx:
        await tx.fetch("SELECT 1")
        written = await enqueue(tx, SPEC, tasks, lambda _: draws.pop(0))
    assert written.ids == [fresh[0], fresh[2], fresh[1], fresh[3]]
    numbers = {task["id"]: task["kwargs"] for task in await rows(db, "tasks")}
    assert [msgspec.json.decode(numbers[task_id])["n"] for task_id in written.ids] == [0, 1, 2, 3]
    assert await count(db, "ready") == 6
    told = {task_id for row in await rows(db, "outbox") for task_id in row["task_ids"]}
    assert told >= set(written.ids)


async def test_ids_that_an_unanswered_insert_had_written_are_told_from_ids_of_others(db: Database) -> None:
    [ours] = await put(db)
    [others] = await put(db, entrypoint="tests.other")
    assert await written_before(db, SPEC, {ours, others, 17}) == {ours}


async def test_two_processes_draw_ids_of_different_nodes_on_the_databases_clock(db: Database) -> None:
    one, other = await id_source(db), await id_source(db)
    [first], [second] = one.take(1), other.take(1)
    assert (first >> 12) & 1023 != (second >> 12) & 1023
    now = await db.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8 * 1000")
    assert abs((first >> 22) - now) < 10_000


async def test_many_writers_at_once_write_every_task_once(db: Database) -> None:
    written = await asyncio.gather(*(put(db, count=25) for _ in range(8)))
    ids = [task_id for part in written for task_id in part]
    assert len(set(ids)) == 200
    assert {place["task_id"] for place in await rows(db, "ready")} == set(ids)
