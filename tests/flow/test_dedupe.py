"""Dedupe keys: one open task for a key, whatever place it is in and whoever asks at the same time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from aaiclick_queue.errors import DedupeKeyBusy, DuplicateTask, WrongContext
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.dedupe import Key, enqueue_keyed
from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Error, Failed, Later, Released, Succeeded
from aaiclick_queue.postgres import Connection, Database
from aaiclick_queue.spec import DEDUPE_MODES, DedupeMode
from tests.tools import (
    ENTRYPOINT,
    age,
    claim,
    count,
    end,
    lock_is_waited_for,
    make_due,
    place_of,
    register_worker,
    row,
    rows,
    until,
)

SPEC = Spec(entrypoint=ENTRYPOINT, queue="default")
OLD, NEW = '{"n": 1}', '{"n": 2}'
PLACES = ["delayed", "ready", "leases", "final"]


async def keyed(
    tx: Database | Connection,
    kwargs: str = NEW,
    mode: DedupeMode = "raise",
    *,
    key: str = "k",
    spec: Spec = SPEC,
    countdown: float | None = None,
    for_seconds: float | None = None,
    debounce_max: float | None = None,
) -> int:
    ids = await id_source(tx)
    wanted = Key(key, mode, for_seconds, debounce_max)
    task = NewTask(kwargs, countdown=countdown)
    if isinstance(tx, Connection):
        return (await enqueue_keyed(tx, spec, task, wanted, ids.take)).ids[0]
    async with tx.transaction() as inner:
        return (await enqueue_keyed(inner, spec, task, wanted, ids.take)).ids[0]


async def holder(db: Database, place: str) -> int:
    """A task that holds the key and is in that place."""
    task_id = await keyed(db, OLD, countdown=60 if place == "delayed" else None)
    if place in ("leases", "final"):
        [run] = await claim(db, await register_worker(db))
        if place == "final":
            # As after a free that was skipped because of a lock: the key row is still there.
            await db.fetch("UPDATE aaiclick_queue.leases SET flags = 0")
            assert await end(db, run, Succeeded(None))
            assert await count(db, "dedupe") == 1
    return task_id


async def key_of(db: Database) -> int:
    [found] = await rows(db, "dedupe")
    return int(found["task_id"])


@pytest.mark.parametrize("place", PLACES)
async def test_raise_refuses_a_second_open_task_and_names_the_first(db: Database, place: str) -> None:
    first = await holder(db, place)
    if place == "final":
        assert await keyed(db) != first
        return
    with pytest.raises(DuplicateTask, match=r"dedupe_key 'k'.*dedupe='skip'") as refused:
        await keyed(db)
    assert refused.value.task_id == first
    assert await count(db, "tasks") == 1
    assert await key_of(db) == first


@pytest.mark.parametrize("place", PLACES)
async def test_skip_gives_back_the_task_that_is_there(db: Database, place: str) -> None:
    first = await holder(db, place)
    second = await keyed(db, mode="skip")
    assert (second == first) == (place != "final")
    assert await count(db, "tasks") == (2 if place == "final" else 1)
    assert await key_of(db) == second
    assert msgspec.json.decode((await row(db, "tasks", first))["kwargs"]) == {"n": 1}


@pytest.mark.parametrize("place", PLACES)
async def test_replace_cancels_one_that_waits_and_leaves_one_that_runs(db: Database, place: str) -> None:
    first = await holder(db, place)
    second = await keyed(db, mode="replace")
    assert second != first
    assert await place_of(db, second) == ["ready"]
    assert await key_of(db) == second
    if place in ("delayed", "ready"):
        assert await place_of(db, first) == ["CANCELLED"]
        error = msgspec.json.decode((await row(db, "tasks", first))["error"], type=Error)
        assert error.type == "Replaced"
    else:
        assert await place_of(db, first) == (["leases"] if place == "leases" else ["COMPLETED"])


@pytest.mark.parametrize("place", PLACES)
async def test_debounce_moves_one_that_waits_and_follows_one_that_runs(db: Database, place: str) -> None:
    first = await holder(db, place)
    second = await keyed(db, mode="debounce", countdown=30)
    assert (second == first) == (place in ("delayed", "ready"))
    assert await place_of(db, second) == ["delayed"]
    assert msgspec.json.decode((await row(db, "tasks", second))["kwargs"]) == {"n": 2}
    assert await key_of(db) == second
    waiting = await row(db, "delayed", second)
    assert waiting["not_before"] == (await row(db, "tasks", second))["eta"]
    # Thirty seconds from the second call, not the sixty that the first one had asked for.
    [near] = await db.fetch("SELECT $1 BETWEEN now() AND now() + interval '30 s' AS near", waiting["not_before"])
    assert near["near"]


async def test_debounce_puts_a_task_off_at_most_so_long_after_the_first_call(db: Database) -> None:
    first = await keyed(db, OLD, "debounce", countdown=30, debounce_max=40)
    await age(db, "dedupe", "first_at", 35)
    assert await keyed(db, NEW, "debounce", countdown=30, debounce_max=40) == first
    began = (await rows(db, "dedupe"))[0]["first_at"]
    assert (await row(db, "delayed", first))["not_before"] == began + timedelta(seconds=40)


async def test_a_debounced_task_keeps_its_key_and_runs_once_it_is_due(db: Database) -> None:
    first = await keyed(db, OLD, "debounce", countdown=30)
    await keyed(db, NEW, "debounce", countdown=30)
    await make_due(db)
    assert (await Reaper(db).due_once())[0] == 1
    [run] = await claim(db, await register_worker(db))
    assert (run.task_id, run.kwargs) == (first, NEW)
    assert await end(db, run, Succeeded(None))
    assert await count(db, "dedupe") == 0


@pytest.mark.parametrize("outcome", [Succeeded(None), Failed(Error("Boom")), "cancelled"])
async def test_the_end_of_a_task_frees_its_key(db: Database, outcome: object) -> None:
    first = await holder(db, "ready")
    [run] = await claim(db, await register_worker(db))
    if outcome == "cancelled":
        assert await cancel(db, [first]) == {first}
    else:
        assert isinstance(outcome, Succeeded | Failed)
        assert await end(db, run, outcome)
    assert await count(db, "dedupe") == 0
    assert await keyed(db) != first


@pytest.mark.parametrize(
    "outcome", [Later("RETRYING", Error("Boom")), Later("SNOOZED", Error("Snooze"), 1), Released()]
)
async def test_a_task_that_will_run_again_keeps_its_key_all_the_way(db: Database, outcome: Later | Released) -> None:
    first = await holder(db, "ready")
    [run] = await claim(db, await register_worker(db))
    assert await end(db, run, outcome)
    assert await keyed(db, mode="skip") == first
    await make_due(db)
    await Reaper(db).due_once()
    [again] = await claim(db, await register_worker(db))
    assert await end(db, again, Succeeded(None))
    assert await count(db, "dedupe") == 0


async def test_the_end_of_a_replaced_run_does_not_free_the_key_of_its_successor(db: Database) -> None:
    await holder(db, "ready")
    [run] = await claim(db, await register_worker(db))
    second = await keyed(db, mode="replace")
    assert await end(db, run, Succeeded(None))
    assert await key_of(db) == second
    with pytest.raises(DuplicateTask):
        await keyed(db)


async def test_a_completion_does_not_wait_for_a_key_that_an_application_holds(db: Database) -> None:
    await holder(db, "ready")
    [run] = await claim(db, await register_worker(db))
    async with db.transaction() as application:
        await keyed(application, mode="skip")
        async with asyncio.timeout(10):
            assert await end(db, run, Succeeded(None))
    assert await count(db, "dedupe") == 1  # the free was skipped
    second = await keyed(db)
    assert await key_of(db) == second


async def test_a_key_is_free_again_after_its_time_and_not_before(db: Database) -> None:
    first = await keyed(db, for_seconds=60)
    [run] = await claim(db, await register_worker(db))
    assert await end(db, run, Succeeded(None))
    assert await keyed(db, mode="skip") == first  # ended, and the time is not over
    await age(db, "dedupe", "until", 61)
    assert await keyed(db, mode="skip") != first


async def test_two_entrypoints_and_two_keys_do_not_meet(db: Database) -> None:
    other = Spec(entrypoint="tests.other", queue="default")
    ids = [await keyed(db), await keyed(db, key="l"), await keyed(db, spec=other)]
    assert len(set(ids)) == 3


async def test_of_many_enqueues_at_once_with_one_key_one_is_written(db: Database) -> None:
    ids = await asyncio.gather(*(keyed(db, mode="skip") for _ in range(12)))
    assert len(set(ids)) == 1
    assert await count(db, "tasks") == 1


@pytest.mark.parametrize("place", ["leases", "final"])
@pytest.mark.parametrize("mode", ["skip", "replace"])
async def test_two_that_take_over_a_key_at_once_leave_one_open_task(db: Database, place: str, mode: DedupeMode) -> None:
    await holder(db, place)
    async with db.transaction() as application:
        # The other one comes while this one has seen the holder and has not yet put itself in its place.
        await application.fetch("SELECT 1 FROM aaiclick_queue.dedupe WHERE key = 'k' FOR UPDATE")
        waiting = asyncio.create_task(keyed(db, mode=mode))
        await until(lambda: lock_is_waited_for(db))
        first = await keyed(application, mode="replace")
    second = await waiting
    assert await key_of(db) == second
    assert await place_of(db, first) == (["ready"] if mode == "skip" else ["CANCELLED"])
    assert await place_of(db, second) == ["ready"]
    assert await count(db, "ready") == 1


async def test_a_rolled_back_enqueue_leaves_the_key_free(db: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with db.transaction() as tx:
            await keyed(tx)
            raise ZeroDivisionError
    assert await count(db, "dedupe") == 0
    await keyed(db)


async def test_a_key_in_another_open_transaction_is_an_error_that_says_so_and_not_a_hang(db: Database) -> None:
    async with db.transaction() as application:
        first = await keyed(application)
        with pytest.raises(DedupeKeyBusy, match="held by another open transaction"):
            await keyed(db, mode="skip")
    assert await keyed(db, mode="skip") == first


async def test_the_callers_own_lock_timeout_is_as_it_was(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.fetch("SET LOCAL lock_timeout = '7s'")
        await keyed(tx)
        assert [tuple(found) for found in await tx.fetch("SHOW lock_timeout")] == [("7s",)]


@pytest.mark.parametrize("mode", DEDUPE_MODES)
async def test_modes_that_move_tasks_are_refused_where_a_snapshot_would_hide_the_move(
    db: Database, mode: DedupeMode
) -> None:
    async with db.connection() as connection:
        await connection.fetch("BEGIN ISOLATION LEVEL REPEATABLE READ")
        try:
            if mode in ("replace", "debounce"):
                with pytest.raises(WrongContext, match=f"dedupe='{mode}' needs a READ COMMITTED.*dedupe='raise'"):
                    await keyed(connection, mode=mode, countdown=1)
            else:
                await keyed(connection, mode=mode)
        finally:
            await connection.fetch("ROLLBACK")


async def test_an_id_that_is_taken_costs_a_keyed_task_a_new_one(db: Database) -> None:
    taken = await keyed(db, key="first")
    [fresh] = (await id_source(db)).take(1)
    draws = [[taken], [fresh]]
    async with db.transaction() as tx:
        written = await enqueue_keyed(tx, SPEC, NewTask(NEW), Key("k"), lambda _: draws.pop(0))
    assert written.ids == [fresh]
    assert {found["key"]: found["task_id"] for found in await rows(db, "dedupe")} == {"first": taken, "k": fresh}


async def test_the_sweep_removes_keys_of_ended_tasks_and_keys_whose_time_is_over(db: Database) -> None:
    await holder(db, "final")
    held = await keyed(db, key="held")
    await keyed(db, key="timed", for_seconds=60)
    await keyed(db, key="over", for_seconds=60)
    await db.fetch("UPDATE aaiclick_queue.dedupe SET until = now() - interval '1 s' WHERE key = 'over'")
    await Reaper(db).sweep_once()
    assert {found["key"] for found in await rows(db, "dedupe")} == {"held", "timed"}
    assert await keyed(db, mode="skip", key="held") == held


@pytest.mark.parametrize("mode", ["raise", "skip", "replace", "debounce"])
async def test_an_enqueue_that_is_sent_again_finds_its_own_task_by_the_key(db: Database, mode: DedupeMode) -> None:
    [task_id] = (await id_source(db)).take(1)
    for _ in range(2):  # the answer to the first was lost
        async with db.transaction() as tx:
            written = await enqueue_keyed(
                tx, Spec("mod.f", "default"), NewTask("{}"), Key("k", mode), lambda _: [task_id]
            )
        assert written.ids == [task_id]
    assert await place_of(db, task_id) == ["ready"]
    assert await count(db, "tasks") == await count(db, "dedupe") == 1
