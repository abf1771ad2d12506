"""Held tasks get in line as far as their limits allow, and what they hold comes back with their end, whatever it is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aaiclick_queue import Client, Handle, Settings, Status, limits, task
from aaiclick_queue.errors import BadTask
from aaiclick_queue.flow.admit import Admission, give_back_stopped
from aaiclick_queue.flow.background import Background
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask
from aaiclick_queue.flow.heartbeat import Counters, set_status
from aaiclick_queue.flow.limits import NewLimit, drop_limit, set_limit
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.pause import resume_queue
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Cancelled, Ended, Error, Failed, Later, Lost, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import (
    age,
    claim,
    count,
    make_due,
    place_of,
    put,
    put_one,
    register_worker,
    row,
    rows,
    running_worker,
    until,
)

ERROR = Error("ValueError", "no")
HELD_BY = "SELECT limit_id, task_id, stopping, ends_at IS NULL AS open FROM aaiclick_queue.slots ORDER BY task_id"


async def make(db: Database, scope: Any = "queue", name: str = "default", kind: Any = "running", **more: Any) -> None:
    await set_limit(db, NewLimit(scope, name, kind, **({"n": 1} | more)), by="a test")
    while await work_once(db):
        pass


async def admit(db: Database) -> int:
    """Rounds of admission until one lets nobody in."""
    admission, total = Admission(db), 0
    while (admitted := await admission.admit_once()).count or admitted.more:
        total += admitted.count
    return total


async def ended(db: Database, run: Claimed, outcome: Outcome, worker_id: int, *, still_running: bool = False) -> bool:
    one = Ended(run.task_id, run.run_epoch, outcome, 0.0, 0.0, flags=run.flags, still_running=still_running)
    return bool(await complete(db, [one], worker_id=worker_id))


async def test_a_task_under_a_limit_waits_in_held_and_gets_in_when_there_is_room(db: Database) -> None:
    await make(db, n=2)
    ids = await put(db, count=3)
    assert [await place_of(db, one) for one in ids] == [["held"]] * 3
    assert (await row(db, "task_status", ids[0]))["status"] == "PENDING"
    assert await admit(db) == 2
    assert [await place_of(db, one) for one in ids] == [["ready"], ["ready"], ["held"]]
    assert (await row(db, "task_status", ids[0]))["status"] == "QUEUED"
    worker_id = await register_worker(db)
    first, second = await claim(db, worker_id)
    assert await admit(db) == 0
    assert await ended(db, first, Succeeded(None), worker_id)
    assert await admit(db) == 1
    assert await count(db, "slots") == 2
    await ended(db, second, Succeeded(None), worker_id)


@pytest.mark.parametrize(
    ("outcome", "place"),
    [
        (Succeeded("1"), ["COMPLETED"]),
        (Failed(ERROR), ["FAILED"]),
        (Cancelled(ERROR), ["CANCELLED"]),
        (Later("RETRYING", ERROR, 60.0), ["delayed"]),
        (Later("SNOOZED", ERROR, 60.0), ["delayed"]),
        (Later("UNKNOWN", ERROR, 60.0), ["delayed"]),
        (Lost(ERROR), ["delayed"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Outcome) else "",
)
async def test_every_way_out_of_a_lease_gives_the_slot_back(db: Database, outcome: Outcome, place: list[str]) -> None:
    await make(db)
    first, second = await put(db, count=2)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await ended(db, run, outcome, worker_id)
    assert await place_of(db, first) == place
    assert await count(db, "slots") == 0
    assert await admit(db) == 1
    assert await place_of(db, second) == ["ready"]


async def test_a_run_that_is_handed_back_keeps_its_slot_in_line(db: Database) -> None:
    await make(db)
    first, second = await put(db, count=2)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await ended(db, run, Released(), worker_id)
    assert await place_of(db, first) == ["ready"]
    assert await admit(db) == 0, "its slot is taken"
    [again] = await claim(db, worker_id)
    assert (again.task_id, again.attempt) == (first, 1)
    await ended(db, again, Succeeded(None), worker_id)
    assert await admit(db) == 1
    assert await place_of(db, second) == ["ready"]


@pytest.mark.parametrize("place", ["held", "ready", "delayed"])
async def test_cancelling_a_waiting_task_leaves_no_slot(db: Database, place: str) -> None:
    await make(db)
    [first] = await put(db, NewTask("{}", countdown=60.0 if place == "delayed" else None))
    if place == "ready":
        await admit(db)
    assert await place_of(db, first) == [place]
    assert await cancel(db, [first]) == {first}
    assert await count(db, "slots") == 0


async def test_the_slot_of_a_cancelled_run_is_free_when_its_worker_says_that_it_has_ended(db: Database) -> None:
    await make(db)
    first, _ = await put(db, count=2)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await cancel(db, [first]) == {first}
    assert await admit(db) == 0, "its code may still run"
    await give_back_stopped(db, [(first, run.run_epoch)], worker_id=worker_id + 1)
    assert await admit(db) == 0, "somebody else cannot say so"
    await give_back_stopped(db, [(first, run.run_epoch)], worker_id=worker_id)
    assert await admit(db) == 1


async def test_the_slot_of_a_cancelled_run_is_free_when_its_worker_is_over(db: Database) -> None:
    await make(db)
    first, _ = await put(db, count=2)
    await admit(db)
    worker_id = await register_worker(db)
    await claim(db, worker_id)
    await cancel(db, [first])
    assert await admit(db) == 0
    await Reaper(db).sweep_once()
    assert await admit(db) == 0
    await set_status(db, worker_id, "STOPPED", Counters())
    assert await admit(db) == 1


async def test_the_sweep_frees_the_slots_of_cancelled_runs_of_workers_that_are_over(db: Database) -> None:
    await make(db)
    [first] = await put(db)
    await admit(db)
    worker_id = await register_worker(db)
    await claim(db, worker_id)
    await cancel(db, [first])
    await Reaper(db).sweep_once()
    assert await count(db, "slots") == 1
    await set_status(db, worker_id, "STOPPED", Counters())
    await Reaper(db).sweep_once()
    assert await count(db, "slots") == 0


async def test_a_timed_out_thread_holds_its_slot_while_its_retry_waits_for_another(db: Database) -> None:
    await make(db)
    [first] = await put(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await ended(db, run, Later("RETRYING", ERROR, 0.0), worker_id, still_running=True)
    await make_due(db)
    await Reaper(db).due_once()
    assert await place_of(db, first) == ["held"]
    assert await admit(db) == 0, "the thread of the first attempt goes on"
    await give_back_stopped(db, [(first, run.run_epoch)], worker_id=worker_id)
    assert await admit(db) == 1
    [again] = await claim(db, worker_id)
    assert again.attempt == 2
    await ended(db, again, Succeeded(None), worker_id)
    assert await count(db, "slots") == 0


async def test_a_run_that_is_handed_back_while_its_thread_goes_on_waits_for_another_slot(db: Database) -> None:
    await make(db)
    task_id = await put_one(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await ended(db, run, Released(), worker_id, still_running=True)
    assert await place_of(db, task_id) == ["held"]
    assert await admit(db) == 0, "two would run at once"
    await give_back_stopped(db, [(task_id, run.run_epoch)], worker_id=worker_id)
    assert await admit(db) == 1


async def _two_runs(db: Database, worker_id: int) -> tuple[Claimed, Claimed]:
    """One of a task whose thread goes on, and the next one."""
    await make(db, n=2)
    await put(db)
    await admit(db)
    [first] = await claim(db, worker_id)
    assert await ended(db, first, Later("RETRYING", ERROR, 0.0), worker_id, still_running=True)
    await make_due(db)
    await Reaper(db).due_once()
    assert await admit(db) == 1
    [second] = await claim(db, worker_id)
    assert await count(db, "slots") == 2
    return first, second


@pytest.mark.parametrize("outcome", [Succeeded("1"), Failed(ERROR), Later("RETRYING", ERROR, 60.0)], ids=repr)
async def test_the_end_of_a_run_leaves_the_slot_of_one_before_it_that_goes_on(db: Database, outcome: Outcome) -> None:
    worker_id = await register_worker(db)
    first, second = await _two_runs(db, worker_id)
    assert await ended(db, second, outcome, worker_id)
    assert [one["stopping"] for one in await db.fetch(HELD_BY)] == [first.run_epoch]
    await give_back_stopped(db, [(first.task_id, first.run_epoch)], worker_id=worker_id)
    assert await count(db, "slots") == 0


async def test_a_run_that_has_stopped_leaves_the_slot_of_the_next_one(db: Database) -> None:
    worker_id = await register_worker(db)
    first, second = await _two_runs(db, worker_id)
    for _ in range(2):
        await give_back_stopped(db, [(first.task_id, first.run_epoch)], worker_id=worker_id)
        assert [one["stopping"] for one in await db.fetch(HELD_BY)] == [0], "the next one runs"
    assert await ended(db, second, Succeeded(None), worker_id)
    assert await count(db, "slots") == 0


async def test_a_killed_workers_slots_are_free_when_its_lease_has_expired(settings: Settings, db: Database) -> None:
    await make(db)
    first, second = await put(db, count=2)
    await admit(db)
    worker_id = await register_worker(db)
    await claim(db, worker_id)
    assert await admit(db) == 0
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now() WHERE id = $1", worker_id)
    assert (await Reaper(db).reap_once()).lost == 1
    assert await admit(db) == 1
    assert await place_of(db, second) == ["ready"]
    assert await place_of(db, first) == ["delayed"]


async def test_a_rate_counts_starts_in_any_stretch_of_its_period_and_not_what_still_waits(db: Database) -> None:
    await make(db, kind="rate", n=2, seconds=60.0)
    await put(db, count=6)
    assert await admit(db) == 2
    await age(db, "ready", "ready_at", 3600)
    assert await admit(db) == 0, "two wait for a worker: nothing has started yet"
    worker_id = await register_worker(db)
    first, second = await claim(db, worker_id)
    await ended(db, first, Succeeded(None), worker_id)
    await age(db, "leases", "claimed_at", 61)
    assert await admit(db) == 1, "one has ended and started just now, one runs on and started a period ago"
    await age(db, "slots", "ends_at", 61)
    assert await admit(db) == 1
    await ended(db, second, Succeeded(None), worker_id)
    assert await admit(db) == 0


async def test_limits_of_queue_task_and_key_hold_at_once(db: Database) -> None:
    await make(db, n=3)
    await make(db, scope="task", name="mod.slow", n=1)
    await make(db, scope="key", name="acme", n=1)
    await make(db, per_key=True, n=2)
    slow = await put(db, NewTask("{}"), NewTask("{}"), entrypoint="mod.slow")
    acme = await put(db, NewTask("{}", concurrency_key="acme"), NewTask("{}", concurrency_key="acme"))
    other = await put(db, *(NewTask("{}", concurrency_key="other") for _ in range(4)))
    assert await admit(db) == 3
    inside = {one["task_id"] for one in await rows(db, "ready")}
    assert inside == {slow[0], acme[0], other[0]}


async def test_a_limit_of_a_key_holds_over_all_queues(db: Database) -> None:
    await make(db, scope="key", name="acme", n=1)
    for queue in ("a", "b"):
        await put(db, NewTask("{}", concurrency_key="acme"), queue=queue)
        await put(db, NewTask("{}", concurrency_key="other"), queue=queue)
    assert await count(db, "ready") == 2, "the other key has no limit"
    assert await admit(db) == 1


@pytest.mark.parametrize(("scope", "name"), [("queue", "default"), ("task", "mod.f"), ("key", "acme")])
async def test_a_retry_that_is_due_waits_for_its_turn_like_everybody(db: Database, scope: str, name: str) -> None:
    await make(db, scope=scope, name=name)
    first, second = await put(db, *(NewTask("{}", concurrency_key="acme") for _ in range(2)), entrypoint="mod.f")
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    await ended(db, run, Later("RETRYING", ERROR, 0.0), worker_id)
    assert (await row(db, "delayed", first))["flags"] == 0, "it holds nothing while it waits"
    assert await admit(db) == 1
    await make_due(db)
    await Reaper(db).due_once()
    assert (await place_of(db, first), await place_of(db, second)) == (["held"], ["ready"])


async def test_a_new_limit_counts_what_runs_and_takes_what_waits_out_of_line(db: Database) -> None:
    ids = await put(db, count=5)
    worker_id = await register_worker(db)
    running = await claim(db, worker_id, 2)
    await make(db, n=3)
    assert [await place_of(db, one) for one in ids[2:]] == [["held"]] * 3
    assert await db.fetchval("SELECT paused_at FROM aaiclick_queue.queues WHERE name = 'default'") is None
    assert await admit(db) == 1, "two run already"
    for run in running:
        await ended(db, run, Succeeded(None), worker_id)
    assert await admit(db) == 2


async def test_a_dropped_limit_lets_everybody_in(db: Database) -> None:
    await make(db)
    await put(db, count=5)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await drop_limit(db, NewLimit("queue", "default", "running"), by="a test")
    assert not await drop_limit(db, NewLimit("queue", "default", "running"), by="a test")
    assert await admit(db) == 4
    assert await ended(db, run, Succeeded(None), worker_id)
    assert await count(db, "slots") == 0
    assert [one["type"] for one in await rows(db, "events")][-1] == "LIMIT_DROPPED"


async def test_a_limit_that_is_lowered_lets_nobody_in_until_enough_have_ended(db: Database) -> None:
    await make(db, n=3)
    await put(db, count=5)
    assert await admit(db) == 3
    worker_id = await register_worker(db)
    running = await claim(db, worker_id)
    await make(db, n=1)
    for run in running:
        assert await admit(db) == 0
        await ended(db, run, Succeeded(None), worker_id)
    assert await admit(db) == 1


async def test_a_paused_task_waits_and_others_of_its_queue_run(db: Database) -> None:
    await make(db, scope="task", name="mod.bad", kind="pause", n=0, lasts=60.0)
    [bad] = await put(db, entrypoint="mod.bad")
    [good] = await put(db, entrypoint="mod.good")
    assert await admit(db) == 0
    assert (await place_of(db, bad), await place_of(db, good)) == (["held"], ["ready"])
    await age(db, "limits", "until", 61)
    assert await admit(db) == 1, "the pause is over by itself"


async def test_one_keys_million_does_not_keep_anothers_ten_waiting(db: Database) -> None:
    await make(db, kind="fair", n=1000)
    await put(db, *(NewTask("{}", concurrency_key="big") for _ in range(3000)))
    await admit(db)
    worker_id = await register_worker(db)
    started = await claim(db, worker_id, 100)
    small = await put(db, *(NewTask("{}", concurrency_key="small") for _ in range(10)))
    await admit(db)
    next_starts = await claim(db, worker_id, 25)
    assert set(small) <= {run.task_id for run in next_starts}
    for run in [*started, *next_starts]:
        await ended(db, run, Succeeded(None), worker_id)


async def test_a_task_in_fair_turns_is_found_wherever_it_is(db: Database) -> None:
    await make(db, kind="fair", n=10)
    first, second, third = await put(db, count=3)
    await admit(db)
    assert (await row(db, "task_status", second))["status"] == "QUEUED"
    assert await cancel(db, [second]) == {second}
    worker_id = await register_worker(db)
    one, other = await claim(db, worker_id)
    assert [one.task_id, other.task_id] == [first, third]
    assert await ended(db, one, Released(), worker_id)
    assert await place_of(db, first) == ["held"], "its turn has passed: it takes the next one"
    await admit(db)
    [again] = await claim(db, worker_id)
    assert again.task_id == first
    assert await drop_limit(db, NewLimit("queue", "default", "fair"), by="a test")
    await ended(db, again, Later("RETRYING", ERROR, 0.0), worker_id)
    await make_due(db)
    await Reaper(db).due_once()
    assert (await row(db, "task_status", first))["status"] == "QUEUED"
    await ended(db, other, Succeeded(None), worker_id)


async def test_an_admission_that_is_going_on_elsewhere_is_left_alone(db: Database) -> None:
    await make(db)
    await put(db)
    async with db.transaction() as tx:
        await tx.fetch("SELECT pg_advisory_xact_lock(hashtext('aaiclick_queue.admission'))")
        assert (await Admission(db).admit_once()).busy
    assert (await Admission(db).admit_once()).count == 1


async def test_lanes_beyond_one_pass_get_their_turn(db: Database) -> None:
    await make(db, per_key=True)
    await put(db, *(NewTask("{}", concurrency_key=f"k{n}") for n in range(25)))
    admission = Admission(db)
    passes = [await admission.admit_once(lanes=10) for _ in range(3)]
    assert [(one.count, one.more) for one in passes] == [(10, True), (10, True), (5, False)]


async def test_the_sweep_gives_back_what_nobody_holds(db: Database) -> None:
    await make(db)
    await put(db, count=1)
    await db.fetch("INSERT INTO aaiclick_queue.slots (task_id, limit_id) SELECT 1, id FROM aaiclick_queue.limits")
    assert await admit(db) == 0
    await Reaper(db).sweep_once()
    assert await admit(db) == 1


async def test_the_sweep_leaves_the_slots_of_those_in_line_and_of_those_that_run(db: Database) -> None:
    await make(db, n=3)
    await put(db, count=3)
    assert await admit(db) == 3
    await claim(db, await register_worker(db), 2)
    await Reaper(db).sweep_once()
    assert await count(db, "slots") == 3


limited_runs = {"now": 0, "most": 0, "done": 0}


@task(queue="narrow")
async def squeeze() -> None:
    limited_runs["now"] += 1
    limited_runs["most"] = max(limited_runs["most"], limited_runs["now"])
    await asyncio.sleep(0.002)
    limited_runs["now"] -= 1
    limited_runs["done"] += 1


@task(queue="narrow", concurrency_key="tenant-{tenant}")
async def for_tenant(tenant: int) -> None:
    """Takes nothing."""


async def test_workers_keep_to_a_limit_and_use_all_of_it(quick: Settings, client: Client) -> None:
    limited_runs.update(now=0, most=0, done=0)
    await limits.limit_queue("narrow", max_running=3, client=client)
    async with running_worker(quick, queues={"narrow": 1}), running_worker(quick, queues={"narrow": 1}):
        await squeeze.enqueue_many([{}] * 100, client=client)
        await until(lambda: limited_runs["done"] == 100)
    assert limited_runs["most"] == 3


async def test_a_cancelled_run_in_a_worker_frees_its_slot_once_its_code_has_ended(
    quick: Settings, client: Client, db: Database
) -> None:
    await limits.limit_task(f"{endless.entrypoint}", max_running=1, client=client)
    async with running_worker(quick):
        first = await endless.enqueue(client=client)
        second = await endless.enqueue(client=client)
        await until(lambda: _status(first, "RUNNING"))
        await first.cancel()
        await until(lambda: _status(second, "RUNNING"))
        await second.cancel()
        await until(lambda: _nobody_holds(db))


async def test_a_thread_that_goes_on_after_its_timeout_keeps_its_slot(
    quick: Settings, client: Client, db: Database
) -> None:
    let_go.clear()
    await limits.limit_task(stubborn.entrypoint, max_running=1, client=client)
    try:
        async with running_worker(quick):
            first = await stubborn.enqueue(client=client)
            await until(lambda: _status(first, "FAILED"))
            second = await stubborn.enqueue(client=client)
            [slot] = await until(lambda: rows(db, "slots"))
            assert (slot["task_id"], slot["stopping"]) == (first.id, 1)
            assert await admit(db) == 0
            let_go.set()
            await until(lambda: _status(second, "COMPLETED"))
            await until(lambda: _nobody_holds(db))
    finally:
        let_go.set()


let_go = threading.Event()


@task(timeout=0.2, max_attempts=1)
def stubborn() -> None:
    let_go.wait(30)


async def _status(handle: Handle[Any], wanted: str) -> bool:
    return await handle.status() == Status(wanted)


async def _nobody_holds(db: Database) -> bool:
    return await count(db, "slots") == 0


@task
async def endless() -> None:
    await asyncio.Event().wait()


async def test_a_key_is_filled_in_from_the_arguments(client: Client, db: Database) -> None:
    ids = await for_tenant.enqueue_many([{"tenant": 1}, {"tenant": 2}], client=client)
    handle = await for_tenant.enqueue(3, client=client)
    keys = [(await row(db, "tasks", one))["concurrency_key"] for one in [*ids, handle.id]]
    assert keys == ["tenant-1", "tenant-2", "tenant-3"]
    with pytest.raises(BadTask, match="cannot be filled in"):
        await for_tenant.options(concurrency_key="{nobody}").enqueue(3, client=client)


async def test_a_task_is_limited_and_paused_by_itself_as_by_its_name(client: Client, db: Database) -> None:
    await limits.limit_task(squeeze, max_running=2, client=client)
    await limits.pause_task(squeeze, client=client)
    assert {one["name"] for one in await rows(db, "limits")} == {squeeze.entrypoint}
    assert await limits.resume_task(squeeze, client=client)
    with pytest.raises(BadTask, match="give a name"):
        await limits.limit_task(5, max_running=2, client=client)  # type: ignore[arg-type]


async def test_a_queue_that_a_new_limit_has_closed_is_not_opened_by_hand(db: Database) -> None:
    await put(db, count=3)
    await set_limit(db, NewLimit("queue", "default", "running", 1), by="a test")
    closed = (await rows(db, "queues"))[0]["paused_by"]
    assert await resume_queue(db, "default", by="somebody")
    assert (await rows(db, "queues"))[0]["paused_by"] == closed
    worker_id = await register_worker(db)
    assert await claim(db, worker_id) == []
    while await work_once(db):
        pass
    assert (await rows(db, "queues"))[0]["paused_at"] is None
    await admit(db)
    assert len(await claim(db, worker_id)) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_running": 0}, "whole number from 1"),
        ({"max_running": True}, "whole number from 1"),
        ({"rate": "often"}, "'100/min'"),
        ({"rate": "10/fortnight"}, "'100/min'"),
        ({"rate": "0/s"}, "1 to 1,000,000 starts"),
        ({"max_depth": -1}, "whole number from 1"),
    ],
)
async def test_a_limit_that_makes_no_sense_is_refused(client: Client, db: Database, given: Any, words: str) -> None:
    with pytest.raises(BadTask, match=words):
        await limits.limit_queue("mail", client=client, **given)
    assert await count(db, "limits") == 0


@pytest.mark.parametrize(
    ("text", "n", "seconds"), [("100/min", 100, 60), ("5/10s", 5, 10), ("1 / hour", 1, 3600), ("3/2days", 3, 172800)]
)
def test_rates_are_written_as_people_write_them(text: str, n: int, seconds: float) -> None:
    assert limits.Rate.of(text) == limits.Rate(n, seconds)


async def test_background_looks_for_held_tasks_only_when_there_may_be_any(db: Database) -> None:
    background = Background(db, None, holder=1)
    assert await background._admit_pass() > 60
    await put_one(db)
    await make(db)
    await background._reap_pass()
    assert background.admit._kick.is_set()
