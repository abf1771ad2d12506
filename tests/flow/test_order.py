"""Strict order: one at a time, in the order of the enqueue, whatever becomes of each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaiclick_queue import Client, Settings, task
from aaiclick_queue.errors import BadTask
from aaiclick_queue.flags import STOPS
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.retry import retry_tasks, unblock
from aaiclick_queue.outcome import Error, Failed, Later, Released, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import claim, end, make_due, place_of, put_one, register_worker, row, running_worker, until

NO_LUCK = Failed(Error("ValueError", "no luck"))
seen: list[tuple[str, int]] = []
at_once: dict[str, int] = {}
failures: set[int] = set()


@task(order_by="customer-{customer}", max_attempts=3, retry_delay=0.05, concurrency_key="{customer}")
async def change(customer: str, number: int) -> None:
    at_once[customer] = at_once.get(customer, 0) + 1
    assert at_once[customer] == 1
    try:
        await asyncio.sleep(0)
        if number in failures:
            failures.discard(number)
            raise ValueError("once")
        seen.append((customer, number))
    finally:
        at_once[customer] -= 1


class Line:
    """One worker that takes what is let in."""

    def __init__(self, db: Database, worker_id: int) -> None:
        self._db = db
        self._worker_id = worker_id
        self._admission = Admission(db)

    async def next(self) -> list[Claimed]:
        await self._admission.admit_once()
        return await claim(self._db, self._worker_id)

    async def ids(self) -> list[int]:
        return [run.task_id for run in await self.next()]


@pytest.fixture
async def line(db: Database) -> Line:
    return Line(db, await register_worker(db))


async def ordered(db: Database, chain: str = "a", *, flags: int = 0, priority: int = 0, **given: float) -> int:
    return await put_one(db, flags=flags, priority=priority, task={"order_by": chain, **given})


async def test_they_run_one_at_a_time_in_the_order_of_their_enqueue_through_retries_and_many_slots(
    client: Client, quick: Settings
) -> None:
    seen.clear()
    failures.update({3, 7})
    calls = [{"customer": customer, "number": number} for number in range(10) for customer in ("ada", "bob")]
    await change.enqueue_many(calls, client=client)
    async with running_worker(quick, slots=10), running_worker(quick, slots=10):
        await until(lambda: len(seen) == 20)
    for customer in ("ada", "bob"):
        assert [number for who, number in seen if who == customer] == list(range(10))


async def test_priority_does_not_change_the_order(db: Database, line: Line) -> None:
    low, high = await ordered(db), await ordered(db, priority=9)
    [run] = await line.next()
    assert run.task_id == low
    assert await line.ids() == []
    assert await end(db, run, Succeeded("1"))
    assert await line.ids() == [high]


async def test_orders_do_not_wait_for_each_other(db: Database, line: Line) -> None:
    first, other, second = await ordered(db), await ordered(db, "b"), await ordered(db)
    runs = await line.next()
    assert {run.task_id for run in runs} == {first, other}
    assert await end(db, runs[0], Succeeded("1"))
    assert await end(db, runs[1], Succeeded("1"))
    assert await line.ids() == [second]


@pytest.mark.parametrize("kind", ["RETRYING", "SNOOZED", "UNKNOWN"])
async def test_one_that_comes_back_later_keeps_its_successors_waiting(db: Database, line: Line, kind: str) -> None:
    first, second = await ordered(db), await ordered(db)
    [run] = await line.next()
    assert await end(db, run, Later(kind, Error("ValueError"), 60.0))  # type: ignore[arg-type]
    assert await line.ids() == []
    await make_due(db)
    await Reaper(db).due_once()
    [again] = await line.next()
    assert again.task_id == first
    assert await end(db, again, Succeeded("1"))
    assert await line.ids() == [second]


async def test_one_that_is_handed_back_is_next_again(db: Database, line: Line) -> None:
    first, _ = await ordered(db), await ordered(db)
    [run] = await line.next()
    assert await end(db, run, Released())
    assert await line.ids() == [first]


async def test_a_failure_lets_the_next_one_go_on_unless_told_to_stop(db: Database, line: Line) -> None:
    await ordered(db)
    second, third = await ordered(db, flags=STOPS), await ordered(db, flags=STOPS)
    [run] = await line.next()
    assert await end(db, run, NO_LUCK)
    [run] = await line.next()
    assert run.task_id == second
    assert await end(db, run, NO_LUCK)
    assert await line.ids() == []
    await Reaper(db).sweep_once()
    assert await line.ids() == []
    assert await unblock(db, [second], by="me") == {second}
    assert await line.ids() == [third]


async def test_a_failed_one_that_stops_its_order_may_be_retried_and_the_order_goes_on_behind_it(
    db: Database, line: Line
) -> None:
    first, second = await ordered(db, flags=STOPS), await ordered(db, flags=STOPS)
    await db.fetch("UPDATE aaiclick_queue.tasks SET order_stops = true")
    [run] = await line.next()
    assert await end(db, run, NO_LUCK)
    assert await line.ids() == []
    assert await retry_tasks(db, [first], by="me") == {first}
    [again] = await line.next()
    assert again.task_id == first
    assert await unblock(db, [first], by="me") == set()  # it runs: nothing to unblock
    assert await line.ids() == []
    assert await end(db, again, Succeeded("1"))
    assert await line.ids() == [second]


async def test_a_cancelled_one_makes_room_in_any_place(db: Database, line: Line) -> None:
    held, running, last = [await ordered(db) for _ in range(3)]
    [run] = await line.next()
    assert run.task_id == held
    assert await end(db, run, Succeeded("1"))
    [run] = await line.next()
    assert await cancel(db, [running]) == {running}
    # Its code may still run: the next one waits until its worker has said that it has ended, or is over.
    assert await line.ids() == []
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'STOPPED', stopped_at = now()")
    later = Line(db, await register_worker(db))
    assert await later.ids() == [last]


async def test_a_countdown_counts_from_when_it_gets_in_line(db: Database, line: Line) -> None:
    later, first, second = await ordered(db, countdown=60.0), await ordered(db), await ordered(db)
    [run] = await line.next()
    assert run.task_id == first
    await make_due(db)
    await Reaper(db).due_once()
    assert await end(db, run, Succeeded("1"))
    assert await line.ids() == [later]
    assert await place_of(db, second) == ["held"]


async def test_a_run_that_is_lost_keeps_its_place_in_the_order(db: Database, line: Line) -> None:
    first, second = await ordered(db), await ordered(db)
    [run] = await line.next()
    assert run.task_id == first
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")
    await Reaper(db).reap_once()
    other = Line(db, await register_worker(db))
    assert await other.ids() == []
    assert (await row(db, "delayed", first))["reason"] == "lost"
    await make_due(db)
    await Reaper(db).due_once()
    [again] = await other.next()
    assert again.task_id == first
    assert await end(db, again, Succeeded("1"))
    assert await other.ids() == [second]


def test_what_a_failure_does_is_refused_without_an_order() -> None:
    with pytest.raises(BadTask, match="name the order"):

        @task(order_on_failure="stop")
        async def nothing() -> None: ...


async def test_a_template_that_cannot_be_filled_in_is_refused(client: Client) -> None:
    with pytest.raises(BadTask, match="cannot be filled in"):
        await change.options(order_by="{nobody}").enqueue("ada", 1, client=client)


@pytest.mark.parametrize("template", ["{nobody}", "a-{}", "a-{0}", "a-{customer", "a-{nobody.name}"])
@pytest.mark.parametrize("option", ["order_by", "concurrency_key"])
def test_a_template_that_no_call_can_fill_in_is_refused_where_it_is_written(option: str, template: str) -> None:
    async def nothing(customer: str) -> None: ...

    options: dict[str, Any] = {option: template}
    with pytest.raises(BadTask, match="cannot be filled in"):
        task(**options)(nothing)
