"""Reaper: takes back what is lost, overdue or expired, moves what is due; any number of reapers side by side."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from aaiclick_queue import Settings
from aaiclick_queue.flow import reaper as reaper_module
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.heartbeat import Counters, beat
from aaiclick_queue.flow.reaper import Reaped, Reaper
from aaiclick_queue.flow.retry import retry_tasks
from aaiclick_queue.outcome import Error, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import (
    age,
    claim,
    count,
    end,
    holder_of,
    leased,
    make_due,
    place_of,
    put,
    put_one,
    register_worker,
    row,
    rows,
    until,
)


async def reap_until(db: Database, **expected: int) -> Reaped:
    """Reap until something was found: a server that has just started gives every worker a lease period."""
    reaper = Reaper(db)

    async def found() -> Reaped | None:
        reaped = await reaper.reap_once()
        return reaped if reaped.anything else None

    reaped: Reaped = await until(found)
    assert {name: getattr(reaped, name) for name in expected} == expected
    return reaped


async def silence(db: Database) -> None:
    """No worker has beaten for a long time."""
    await age(db, "workers", "lease_expires_at", 1000)


async def error_of(db: Database, task_id: int) -> Error:
    return msgspec.json.decode((await row(db, "tasks", task_id))["error"], type=Error)


# Lost workers.


async def test_a_silent_worker_is_lost_and_its_runs_come_back_at_no_attempt(db: Database) -> None:
    run = await leased(db, priority=2)
    worker_id = await holder_of(db, run.task_id)
    await silence(db)
    await reap_until(db, workers=1, lost=1)
    [worker] = await rows(db, "workers")
    assert worker["status"] == "LOST"
    place = await row(db, "delayed", run.task_id)
    assert (place["attempt"], place["lost_count"], place["run_epoch"], place["reason"]) == (0, 1, 1, "lost")
    assert (place["rank"], place["order_key"]) == (-2, run.task_id)
    attempt = await row(db, "attempts", run.task_id)
    assert (attempt["outcome"], attempt["worker_id"], attempt["attempt"]) == ("LOST", worker_id, 1)
    assert "did not renew its lease; lost run 1" in attempt["error"]
    assert {noted["type"] for noted in await rows(db, "events")} == {"WORKER_LOST", "TASK_LOST"}


async def test_a_lost_worker_can_neither_beat_nor_claim_nor_complete(db: Database) -> None:
    run = await leased(db)
    worker_id = await holder_of(db, run.task_id)
    assert worker_id
    await silence(db)
    await reap_until(db, workers=1, lost=1)
    await put(db)
    answer = await beat(
        db, worker_id, [(run.task_id, 1)], lease_seconds=60, look_for_strangers=True, counters=Counters()
    )
    assert (answer.status, answer.gone) == (None, ((run.task_id, 1),))
    assert await claim(db, worker_id) == []
    assert not await end(db, run, Succeeded("1"), worker_id=worker_id)
    assert await place_of(db, run.task_id) == ["delayed"]


async def test_runs_that_a_dead_worker_got_after_it_was_marked_are_taken_too(db: Database) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")
    await reap_until(db, workers=0, lost=1)
    assert await place_of(db, run.task_id) == ["delayed"]


async def test_what_a_stopped_worker_left_behind_is_taken(db: Database) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'STOPPED', stopped_at = now()")
    await reap_until(db, lost=1)
    assert await place_of(db, run.task_id) == ["delayed"]


async def test_a_worker_that_is_stopping_and_beats_keeps_its_runs(db: Database) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'STOPPING'")
    assert not (await Reaper(db).reap_once()).anything
    assert await end(db, run, Succeeded(None))


async def test_a_task_that_is_lost_too_often_fails_with_the_cause(db: Database) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = 9")  # alone: twice the budget of 5
    await silence(db)
    await reap_until(db, lost=1)
    assert await place_of(db, run.task_id) == ["FAILED"]
    error = await error_of(db, run.task_id)
    assert error.type == "WorkerLost"
    assert "lost run 10" in error.message


@pytest.mark.parametrize(("losses", "place"), [(0, "delayed"), (4, "delayed"), (9, "FAILED")])
async def test_a_run_that_was_alone_may_be_lost_twice_as_often(db: Database, losses: int, place: str) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = $1", losses)
    await silence(db)
    await reap_until(db, lost=1)
    assert await place_of(db, run.task_id) == [place]


async def test_lost_runs_come_back_ever_later_and_apart_from_each_other(db: Database) -> None:
    worker_id = await register_worker(db)
    ids = await put(db, count=20)
    await claim(db, worker_id, 20)
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = 2 WHERE task_id = ANY($1::bigint[])", ids[10:])
    await silence(db)
    await reap_until(db, lost=20)
    found = await db.fetch(
        """SELECT task_id, extract(epoch FROM d.not_before - a.finished_at)::float8 AS seconds
           FROM aaiclick_queue.delayed d JOIN aaiclick_queue.attempts a USING (task_id) ORDER BY task_id"""
    )
    first, third = [row["seconds"] for row in found[:10]], [row["seconds"] for row in found[10:]]
    assert all(0.5 <= seconds <= 1 for seconds in first)
    assert all(2 <= seconds <= 4 for seconds in third)
    assert len(set(first)) > 1


async def test_a_lease_that_its_owner_is_writing_to_is_left_until_later(db: Database) -> None:
    run = await leased(db)
    await silence(db)
    async with db.transaction() as owner:
        await owner.fetch("SELECT 1 FROM aaiclick_queue.leases FOR UPDATE")
        async with asyncio.timeout(10):
            await reap_until(db, workers=1, lost=0)
        assert await place_of(db, run.task_id) == ["leases"]
    await reap_until(db, lost=1)


async def test_reapers_side_by_side_take_each_run_once(db: Database) -> None:
    worker_id = await register_worker(db)
    await put(db, count=60)
    await claim(db, worker_id, 60)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")

    async def reap() -> int:
        reaper, lost = Reaper(db), 0
        while taken := (await reaper.reap_once(7)).lost:
            lost += taken
        return lost

    assert sum(await asyncio.gather(*(reap() for _ in range(4)))) == 60
    assert await count(db, "attempts") == await count(db, "delayed") == 60


async def test_after_an_outage_nobody_is_marked_for_a_lease_period(db: Database) -> None:
    await leased(db)
    reaper = Reaper(db)
    await until(lambda: db.fetchval("SELECT pg_postmaster_start_time() < now() - interval '2 s'"))
    await silence(db)
    reaper._seen -= 1000  # this process has not seen the database for long
    assert (await reaper.reap_once()).workers == 0
    assert (await reaper.reap_once()).workers == 0
    reaper._blind_until = 0
    assert (await reaper.reap_once()).workers == 1


async def test_on_another_server_than_before_nobody_is_marked_for_a_lease_period(db: Database) -> None:
    await leased(db)
    reaper = Reaper(db)
    await until(lambda: db.fetchval("SELECT pg_postmaster_start_time() < now() - interval '2 s'"))
    await reaper.reap_once()
    await silence(db)
    reaper._server = "the primary of before"
    assert await reaper._mark_lost(10) == 0  # it took over since the last look
    assert (await reaper.reap_once()).workers == 0
    assert (await reaper.reap_once()).workers == 0
    reaper._blind_until = 0
    assert (await reaper.reap_once()).workers == 1


async def test_a_reaper_that_meets_another_timeline_than_was_written_down_marks_nobody(db: Database) -> None:
    await leased(db)
    await until(lambda: db.fetchval("SELECT pg_postmaster_start_time() < now() - interval '2 s'"))
    await Reaper(db).reap_once()
    await silence(db)
    # As a promoted standby has it: the timeline of the server that it has followed.
    await db.fetch("UPDATE aaiclick_queue.loops SET holder = holder + 1 WHERE name = 'timeline'")
    for _ in range(2):  # the second finds the timeline that the first has written down
        assert (await Reaper(db).reap_once()).workers == 0
    await db.fetch("UPDATE aaiclick_queue.loops SET expires_at = expires_at - interval '1 day'")
    assert (await Reaper(db).reap_once()).workers == 1


async def test_a_moment_that_is_no_lease_period_ahead_keeps_nobody_from_being_marked(db: Database) -> None:
    await leased(db)
    await until(lambda: db.fetchval("SELECT pg_postmaster_start_time() < now() - interval '2 s'"))
    await Reaper(db).reap_once()
    await silence(db)
    await db.fetch("UPDATE aaiclick_queue.loops SET expires_at = '9000-01-01' WHERE name = 'timeline'")
    assert (await Reaper(db).reap_once()).workers == 1


async def test_leases_of_workers_that_nobody_knows_are_swept(db: Database) -> None:
    run = await leased(db)
    await db.fetch("DELETE FROM aaiclick_queue.workers")
    assert not (await Reaper(db).reap_once()).anything
    await Reaper(db).sweep_once()
    assert await place_of(db, run.task_id) == ["delayed"]
    assert (await row(db, "delayed", run.task_id))["lost_count"] == 1


async def test_old_workers_are_forgotten_but_not_while_they_own_a_lease(db: Database) -> None:
    await leased(db)  # its worker is the first
    kept = [worker["id"] for worker in await rows(db, "workers")]
    for status in ("LOST", "STOPPED"):
        await register_worker(db, status=status)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST' WHERE id = ANY($1::bigint[])", kept)
    await db.fetch("UPDATE aaiclick_queue.workers SET stopped_at = now() - interval '2 hours'")
    kept += [await register_worker(db), await register_worker(db, status="STOPPED")]
    await Reaper(db).sweep_once()
    assert {worker["id"] for worker in await rows(db, "workers")} == set(kept)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'ACTIVE' WHERE id = $1", kept[0])


# Overdue runs.


@pytest.mark.parametrize(("max_attempts", "place"), [(3, "delayed"), (1, "FAILED"), (None, "delayed")])
async def test_a_run_past_its_deadline_is_taken_and_spends_its_attempt(
    db: Database, max_attempts: int | None, place: str
) -> None:
    run = await leased(db, max_attempts=max_attempts)
    await age(db, "leases", "deadline_at", 10_000)
    await reap_until(db, overdue=1)
    assert await place_of(db, run.task_id) == [place]
    if place == "FAILED":
        assert (await error_of(db, run.task_id)).type == "TimedOut"
    else:
        waiting = await row(db, "delayed", run.task_id)
        assert (waiting["attempt"], waiting["lost_count"], waiting["reason"]) == (1, 0, "retry")
    assert not await end(db, run, Succeeded("1"))


async def test_a_run_within_its_deadline_is_left_alone(db: Database) -> None:
    run = await leased(db, timeout=1)
    await age(db, "leases", "deadline_at", 1)  # past the timeout, within the grace time
    assert not (await Reaper(db).reap_once()).anything
    assert await place_of(db, run.task_id) == ["leases"]


class Slow:
    """A database whose answers take as long as they are told to, and the clock that goes on with them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = 1000.0
        self.takes = 0.0
        self.answer: list[dict[str, Any]] = []

    def monotonic(self) -> float:
        return self.now

    async def fetch(self, *_: Any) -> list[dict[str, Any]]:
        self.now += self.takes
        return self.answer

    async def note(self, *_: Any, **__: Any) -> None:
        self.now += 1000.0


@pytest.fixture
def slow(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Slow:
    slow = Slow(settings)
    monkeypatch.setattr(reaper_module, "time", slow)
    monkeypatch.setattr(reaper_module, "note", slow.note)
    return slow


async def test_a_stall_does_not_keep_the_reaper_from_overdue_runs(slow: Slow) -> None:
    reaper: Any = Reaper(cast("Database", slow))
    usual = slow.settings.lease_seconds / 6
    for takes, rest in ((10.0, usual), (0.001, usual), (10.0, usual), (10.0, 60.0)):
        slow.takes = takes
        await reaper._take_overdue(10)
        assert reaper._overdue_at - slow.now == pytest.approx(rest)
        slow.now = reaper._overdue_at


async def test_to_tell_of_overdue_runs_is_no_reason_to_look_for_them_less_often(slow: Slow) -> None:
    reaper: Any = Reaper(cast("Database", slow))
    slow.answer = [
        {
            "task_id": 1,
            "worker_id": 2,
            "kind": "FAILED",
            "queue": "default",
            "entrypoint": "a",
            "waited": 0.0,
            "ran": 9.0,
        }
    ]
    for _ in range(2):
        await reaper._take_overdue(10)
        assert reaper._overdue_at - slow.now == pytest.approx(slow.settings.lease_seconds / 6)
        slow.now = reaper._overdue_at


async def test_a_stall_does_not_make_depths_old(slow: Slow) -> None:
    reaper: Any = Reaper(cast("Database", slow))
    for takes, rest in ((4.0, 1.0), (0.05, 5.0), (4.0, 5.0), (4.0, 10.0)):
        slow.takes = takes
        await reaper._refresh_depths()
        assert reaper._depths_at - slow.now == pytest.approx(rest)
        slow.now = reaper._depths_at


# Due tasks.


async def test_what_is_due_moves_into_line_with_a_wake_up(db: Database) -> None:
    due = await put_one(db, task={"countdown": 60.0}, priority=1)
    await make_due(db)
    later = await put_one(db, task={"countdown": 60.0})
    moved, next_due = await Reaper(db).due_once()
    assert moved == 1
    assert await place_of(db, due) == ["ready"]
    assert await place_of(db, later) == ["delayed"]
    assert (await row(db, "ready", due))["rank"] == -1
    assert [told["task_ids"] for told in await rows(db, "outbox")] == [[due]]
    assert next_due is not None
    assert 0 < next_due <= 60


async def test_with_nothing_delayed_nothing_is_next(db: Database) -> None:
    assert await Reaper(db).due_once() == (0, None)


async def test_a_pass_over_due_tasks_is_bounded_and_says_that_there_is_more(db: Database) -> None:
    for _ in range(5):
        await put_one(db, task={"countdown": 60.0})
    await make_due(db)
    reaper = Reaper(db)
    assert await reaper.due_once(2) == (2, 0.0)
    assert await reaper.due_once(2) == (2, 0.0)
    assert (await reaper.due_once(2))[0] == 1
    assert await count(db, "ready") == 5


async def test_a_due_task_that_was_committed_late_is_found_behind_the_mark(db: Database) -> None:
    reaper = Reaper(db)
    async with db.transaction() as late:
        task_id = await put_one(late, task={"countdown": 60.0})
        await late.fetch("UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 hour'")
        await put_one(db, task={"countdown": 60.0})
        await make_due(db)
        assert (await reaper.due_once())[0] == 1

    async def moved() -> bool:
        return (await reaper.due_once())[0] == 1

    await until(moved)
    assert await place_of(db, task_id) == ["ready"]


async def test_reapers_side_by_side_move_each_due_task_once(db: Database) -> None:
    ids = [await put_one(db, task={"countdown": 60.0}) for _ in range(10)]
    await make_due(db)
    async with db.transaction() as other:
        await other.fetch("SELECT 1 FROM aaiclick_queue.delayed ORDER BY task_id LIMIT 4 FOR UPDATE")
        async with asyncio.timeout(10):
            assert (await Reaper(db).due_once())[0] == 6
    assert (await Reaper(db).due_once())[0] == 4
    assert {place["task_id"] for place in await rows(db, "ready")} == set(ids)


# Expiry.


@pytest.mark.parametrize("place", ["ready", "delayed"])
async def test_a_task_whose_expiry_has_passed_is_cancelled_where_it_waits(db: Database, place: str) -> None:
    given: dict[str, Any] = {"expires": 60, "countdown": 30.0 if place == "delayed" else None}
    task_id, kept = await put_one(db, task=given), await put_one(db, task=given)
    await db.fetch("UPDATE aaiclick_queue.timers SET due_at = now() - interval '1 s' WHERE task_id = $1", task_id)
    await reap_until(db, expired=1)
    assert await place_of(db, task_id) == ["CANCELLED"]
    assert (await error_of(db, task_id)).type == "Expired"
    assert await place_of(db, kept) == [place]
    assert [timer["task_id"] for timer in await rows(db, "timers")] == [kept]


async def test_a_task_that_is_retried_by_hand_has_no_expiry_any_more(db: Database) -> None:
    task_id = await put_one(db, task={"expires": 60.0})
    assert await cancel(db, [task_id]) == {task_id}
    assert await retry_tasks(db, [task_id], by="me") == {task_id}
    await db.fetch("UPDATE aaiclick_queue.timers SET due_at = now() - interval '1 s'")
    assert not (await Reaper(db).reap_once()).anything
    assert await place_of(db, task_id) == ["ready"]


async def test_a_task_that_has_started_does_not_expire(db: Database) -> None:
    run = await leased(db)
    await db.fetch("INSERT INTO aaiclick_queue.timers (task_id, due_at) VALUES ($1, now())", run.task_id)
    assert not (await Reaper(db).reap_once()).anything
    assert await count(db, "timers") == 0
    assert await end(db, run, Succeeded("1"))


# History.


async def test_places_for_history_are_made_ahead_and_only_once(db: Database) -> None:
    await db.fetch(
        "DROP TABLE aaiclick_queue.attempts_"
        + await db.fetchval("SELECT to_char(now() + interval '9 days', 'YYYYMMDD')")
    )
    assert await db.fetchval("SELECT aaiclick_queue.ensure_partitions(14)") == 1
    assert await db.fetchval("SELECT aaiclick_queue.ensure_partitions(14)") == 0


async def test_two_that_make_places_for_history_at_once_do_not_meet(db: Database) -> None:
    made = await asyncio.gather(*(db.fetchval("SELECT aaiclick_queue.ensure_partitions(20)") for _ in range(3)))
    assert sorted(made) == [0, 0, 12]
