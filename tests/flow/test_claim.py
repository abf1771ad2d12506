"""Claim: who gets what in which order, and what a second worker sees meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aaiclick_queue.flags import LIMITED, ORDERED
from aaiclick_queue.flow.claim import HEAD, Line, Wanted, queues_in_line
from aaiclick_queue.flow.enqueue import NewTask
from aaiclick_queue.flow.mark import HeadScans, Mark
from aaiclick_queue.outcome import Error, Later, Released
from aaiclick_queue.postgres import Database
from aaiclick_queue.schema import Transaction
from tests.tools import age, claim, count, end, place_of, put, put_one, register_worker, row, rows, until


async def claim_ids(tx: Transaction, worker_id: int, limit: int = 100, **given: Any) -> list[int]:
    return [run.task_id for run in await claim(tx, worker_id, limit, **given)]


async def test_a_claim_moves_the_task_from_the_line_to_the_workers_leases(db: Database) -> None:
    task_id = await put_one(db, '{"to": "ada"}', queue="mail", name="greet", timeout=7, max_attempts=4, priority=2)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id, queues=["mail"])
    assert (run.task_id, run.run_epoch, run.attempt, run.lost_count, run.snoozes) == (task_id, 1, 1, 0, 0)
    assert (run.queue, run.name, run.timeout_seconds, run.max_attempts, run.priority) == ("mail", "greet", 7, 4, 2)
    assert (run.kwargs, run.expired) == ('{"to": "ada"}', False)
    assert await place_of(db, task_id) == ["leases"]
    lease = await row(db, "leases", task_id)
    assert (lease["worker_id"], lease["run_epoch"], lease["attempt"], lease["rank"]) == (worker_id, 1, 1, -2)
    assert (lease["deadline_at"] - lease["claimed_at"]).total_seconds() == 7 + 30 + 5  # timeout, grace, start


async def test_each_claim_of_a_task_is_a_new_epoch_and_only_a_spent_attempt_counts(db: Database) -> None:
    task_id, worker_id = await put_one(db), await register_worker(db)
    seen = []
    for outcome in (Released(), Later("SNOOZED", Error("Snooze"), 0), Later("RETRYING", Error("Boom"), 0), Released()):
        [run] = await claim(db, worker_id)
        seen.append((run.run_epoch, run.attempt))
        assert await end(db, run, outcome)
        if isinstance(outcome, Later):
            await _into_line(db, task_id)
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 2)]


async def _into_line(db: Database, task_id: int) -> None:
    from aaiclick_queue.flow.reaper import Reaper

    await Reaper(db).due_once()
    assert await place_of(db, task_id) == ["ready"]


async def test_higher_priority_comes_first_then_the_order_of_enqueueing(db: Database) -> None:
    low, first, second, high = [await put_one(db, priority=priority) for priority in (-5, 0, 0, 9)]
    worker_id, line = await register_worker(db), Line({"default": 1})
    assert await claim_ids(db, worker_id, 2, line=line) == [high, first]
    assert await claim_ids(db, worker_id, 2, line=line) == [second, low]


async def test_a_claim_takes_at_most_what_it_was_asked_for(db: Database) -> None:
    await put(db, count=10)
    worker_id = await register_worker(db)
    assert len(await claim(db, worker_id, 3)) == 3
    assert await count(db, "leases") == 3
    assert await count(db, "ready") == 7


async def test_a_second_worker_walks_on_instead_of_waiting(db: Database) -> None:
    ids = await put(db, count=4)
    one, other = await register_worker(db), await register_worker(db)
    async with db.transaction() as open_claim:
        assert await claim_ids(open_claim, one, 2) == ids[:2]
        async with asyncio.timeout(10):
            assert await claim_ids(db, other) == ids[2:]
    assert await count(db, "ready") == 0


async def test_a_claim_that_is_rolled_back_gives_its_tasks_back_unchanged(db: Database) -> None:
    task_id, worker_id, line = await put_one(db), await register_worker(db), Line({"default": 1})
    with pytest.raises(ZeroDivisionError):
        async with db.transaction() as tx:
            assert await claim_ids(tx, worker_id, line=line) == [task_id]
            raise ZeroDivisionError
    [run] = await claim(db, worker_id, line=line)
    assert (run.task_id, run.run_epoch, run.attempt) == (task_id, 1, 1)


async def test_many_workers_at_once_share_the_line_without_a_gap_or_a_double(db: Database) -> None:
    ids = await put(db, count=200)
    workers = [await register_worker(db) for _ in range(4)]

    async def drain(worker_id: int) -> list[int]:
        line, got = Line({"default": 1}), list[int]()
        while taken := await claim_ids(db, worker_id, 7, line=line):
            got += taken
        return got

    got = await asyncio.gather(*(drain(worker_id) for worker_id in workers))
    assert sorted(task_id for part in got for task_id in part) == ids
    owners = {lease["task_id"]: lease["worker_id"] for lease in await rows(db, "leases")}
    assert owners == {task_id: worker for worker, part in zip(workers, got, strict=True) for task_id in part}


@pytest.mark.parametrize("status", ["STOPPING", "STOPPED", "LOST"])
async def test_a_worker_that_is_not_active_gets_nothing(db: Database, status: str) -> None:
    await put(db)
    assert await claim(db, await register_worker(db, status=status)) == []
    assert await claim(db, 4711) == []  # a worker that nobody has registered
    assert await count(db, "ready") == 1


async def test_a_paused_queue_keeps_its_rows_and_holds_up_no_other(db: Database) -> None:
    [mail], [default] = await put(db, queue="mail"), await put(db)
    await db.fetch("INSERT INTO aaiclick_queue.queues (name, paused_at) VALUES ('mail', now()), ('default', NULL)")
    worker_id, line = await register_worker(db), Line({"mail": 1, "default": 1})
    assert await claim_ids(db, worker_id, line=line) == [default]
    assert await place_of(db, mail) == ["ready"]
    await db.fetch("UPDATE aaiclick_queue.queues SET paused_at = NULL")
    assert await claim_ids(db, worker_id, line=line) == [mail]


async def test_queues_that_are_not_served_are_left_alone(db: Database) -> None:
    await put(db, queue="other")
    assert await claim(db, await register_worker(db)) == []


async def test_a_queue_at_rest_is_left_alone(db: Database) -> None:
    [mail], [default] = await put(db, queue="mail"), await put(db)
    worker_id, line = await register_worker(db), Line({"mail": 1, "default": 1})
    resting = Wanted(10, worker_id, 3600, 30, frozenset({"mail"}))
    assert [run.task_id for run in await line.claim(db, resting)] == [default]
    assert [run.task_id for run in await line.claim(db, Wanted(10, worker_id, 3600, 30))] == [mail]


async def test_weights_share_the_turns(db: Database) -> None:
    for queue in ("mail", "default"):
        await put(db, count=40, queue=queue)
    worker_id, line = await register_worker(db), Line({"mail": 3, "default": 1})
    first = [(await claim(db, worker_id, 1, line=line))[0].queue for _ in range(12)]
    assert (first.count("mail"), first.count("default")) == (9, 3)


async def test_an_empty_queue_costs_the_others_no_turn(db: Database) -> None:
    ids = await put(db, count=4)
    worker_id, line = await register_worker(db), Line({"empty": 1, "default": 1})
    assert [await claim_ids(db, worker_id, 1, line=line) for _ in range(4)] == [[task_id] for task_id in ids]


async def test_low_priority_does_not_starve_behind_an_endless_line(db: Database) -> None:
    [low] = await put(db, priority=0)
    await put(db, count=60, priority=9)
    worker_id, line = await register_worker(db), Line({"default": 1})
    first = [await claim_ids(db, worker_id, 1, line=line) for _ in range(40)]
    assert [low] in first
    assert first.count([low]) == 1


async def test_a_task_behind_the_mark_is_found(db: Database) -> None:
    worker_id, line = await register_worker(db), Line({"default": 1})
    async with db.transaction() as late:
        [early] = await put(late)  # drawn and inserted first, committed last
        ids = await put(db, count=5)
        assert await claim_ids(db, worker_id, 5, line=line) == ids
        assert await claim_ids(db, worker_id, 5, line=line) == []
    urgent = await put_one(db, priority=5)
    assert line.passed("default", -5, urgent)
    assert not line.passed("default", 5, urgent)
    found: list[int] = []

    async def both() -> bool:
        found.extend(await claim_ids(db, worker_id, 5, line=line))
        return len(found) == 2

    await until(both)  # at once, unless the last look from the head was dear
    assert found == [urgent, early]


async def test_a_short_claim_looks_behind_the_mark_at_once(db: Database) -> None:
    worker_id, line = await register_worker(db), Line({"default": 1})
    async with db.transaction() as late:
        [early] = await put(late)
        ids = await put(db, count=5)
        assert await claim_ids(db, worker_id, 5, line=line) == ids
    line.head._last += 1000  # not because a second is over
    assert await claim_ids(db, worker_id, 5, line=line) == [early]


async def test_a_task_behind_the_mark_is_found_though_every_claim_is_full(db: Database) -> None:
    worker_id, line = await register_worker(db), Line({"default": 1})
    async with db.transaction() as late:
        [early] = await put(late)
        await put(db, count=2)
        assert len(await claim_ids(db, worker_id, 1, line=line)) == 1

    async def found() -> bool:
        await put(db)  # the line never ends
        return early in await claim_ids(db, worker_id, 1, line=line)

    await until(found)


async def test_a_claim_under_a_limit_or_an_order_waits_for_the_disk_and_others_do_not(db: Database) -> None:
    worker_id = await register_worker(db)
    for flags, waits in ((0, "off"), (LIMITED, "on"), (ORDERED, "on")):
        await put(db)
        async with db.transaction() as tx:
            await tx.fetch("SET LOCAL synchronous_commit = 'on'")
            await tx.fetch("UPDATE aaiclick_queue.ready SET flags = $1", flags)
            assert len(await claim_ids(tx, worker_id)) == 1
            assert (await tx.fetch("SHOW synchronous_commit"))[0][0] == waits, flags
    await db.fetch("UPDATE aaiclick_queue.leases SET flags = 0")  # nobody holds a slot


async def test_a_row_without_a_task_is_dropped_and_stops_nobody(db: Database) -> None:
    ids = await put(db, count=3)
    await db.fetch("DELETE FROM aaiclick_queue.tasks WHERE id = $1", ids[1])
    assert await claim_ids(db, await register_worker(db)) == [ids[0], ids[2]]
    assert await count(db, "ready") == 0


async def test_a_row_that_is_in_two_places_does_not_stop_the_line(db: Database) -> None:
    ids = await put(db, count=2)
    owner, other = await register_worker(db), await register_worker(db)
    [run] = await claim(db, owner, 1)
    await db.fetch(
        "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, $1, $1)", ids[0]
    )
    assert await claim_ids(db, other) == [ids[1]]
    assert (await row(db, "leases", ids[0]))["worker_id"] == owner
    assert await place_of(db, run.task_id) == ["leases"]


async def test_a_claim_says_whether_the_expiry_has_passed(db: Database) -> None:
    await put(db, NewTask("{}", expires=60), NewTask("{}", expires=60))
    worker_id = await register_worker(db)
    [fresh] = await claim(db, worker_id, 1)
    await age(db, "tasks", "expires_at", 61)
    [late] = await claim(db, worker_id, 1)
    assert (fresh.expired, late.expired) == (False, True)


async def test_the_wait_is_counted_from_the_moment_it_was_in_line(db: Database) -> None:
    await put(db)
    await age(db, "ready", "ready_at", 100)
    [run] = await claim(db, await register_worker(db))
    assert 100 <= run.waited < 100 + 60


async def test_every_queue_in_line_is_found_and_can_be_served(db: Database) -> None:
    assert await queues_in_line(db) == []
    for queue in ("b", "a", "ä", "c"):
        await put(db, count=3, queue=queue)
    assert await queues_in_line(db) == ["a", "b", "c", "ä"]
    line = Line({})
    assert await claim(db, await register_worker(db), line=line) == []
    line.serve(["a", "ä"])
    assert line.queues == ["a", "ä"]
    got = await claim(db, await register_worker(db), 10, line=line)
    assert sorted(run.queue for run in got) == ["a"] * 3 + ["ä"] * 3


# The mark.


class Scanned:
    """A line with a mark over numbers, scanned as the loops do."""

    def __init__(self) -> None:
        self.mark = Mark(0)

    def scan(self, line: Sequence[int], limit: int) -> list[int]:
        start = self.mark.begin()
        found = sorted(number for number in line if number >= start)[:limit]
        self.mark.end(found, full=len(found) >= limit)
        return found


def test_a_mark_follows_a_full_scan_and_goes_back_after_a_short_one() -> None:
    scanned = Scanned()
    assert scanned.scan([5, 6, 7, 8], 2) == [5, 6]
    assert scanned.mark.begin() == 5
    assert scanned.scan([7, 8, 1], 2) == [7, 8]  # from the mark: the late 1 waits
    assert scanned.scan([1, 9], 2) == [9]  # short: the next one looks from the head
    assert scanned.scan([1], 2) == [1]


def test_scans_from_the_head_take_at_most_a_fiftieth_of_the_time_when_they_are_dear() -> None:
    scans = HeadScans()
    assert scans.due()
    for _ in range(2):
        scans.done(0.001, rows=0, short=True)
    assert scans.due()  # cheap: as often as it is wanted
    scans.done(50.0, rows=0, short=False)
    scans.want()
    assert scans.due()  # one that was dear may have met a busy moment
    scans.done(50.0, rows=0, short=False)
    scans.want()
    assert not scans.due()


def test_the_rows_of_a_scan_are_not_what_makes_it_dear() -> None:
    scans = HeadScans()
    scans.done(0.09, rows=500, short=False)
    assert not scans.due()  # a full scan wants no other
    scans.want()
    assert scans.due()


def test_a_new_line_starts_at_the_head() -> None:
    assert not Line({"default": 1}).passed("default", *HEAD[:2])
    assert not Line({}).passed("unknown", 0, 0)
