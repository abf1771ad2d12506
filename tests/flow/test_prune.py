"""Pruning: what the policy gives up goes, with all that belongs to it, and nothing else ever does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from aaiclick_queue import Client, Settings, connect, doctor, enqueue, handle
from aaiclick_queue.errors import ResultExpired, SettingsError
from aaiclick_queue.flow import background, prune
from aaiclick_queue.flow.days import OLD_DAYS, drop_old_days
from aaiclick_queue.flow.prune import DAY, LAG_SECONDS, ROWS, Policy, Pruner, first_beyond
from aaiclick_queue.flow.prune_by_hand import prune_all
from aaiclick_queue.flow.retry import unblock
from aaiclick_queue.outcome import Error, Failed, Outcome, Succeeded
from aaiclick_queue.postgres import Database
from tests.tools import (
    changed,
    claim,
    count,
    end,
    lock_is_waited_for,
    put,
    put_one,
    register_worker,
    rows,
    running_worker,
    until,
)

WEEK = Policy(7 * DAY, 30 * DAY)
FAILED = Failed(Error("ValueError", "no"))


async def ended(db: Database, outcomes: Sequence[Outcome], *, days: float, **spec: Any) -> list[int]:
    """Tasks that were made and ended so many days ago."""
    ids = await put(db, count=len(outcomes), **spec)
    runs = await claim(db, await register_worker(db), len(outcomes), queues=[spec.get("queue", "default")])
    assert [run.task_id for run in runs] == ids
    for run, outcome in zip(runs, outcomes, strict=True):
        assert await end(db, run, outcome)
    await make_old(db, ids, days)
    return ids


async def make_old(db: Database, ids: Sequence[int], days: float) -> None:
    await db.fetch(
        """UPDATE aaiclick_queue.tasks SET created_at = created_at - make_interval(secs => $2::float8),
                                           finished_at = finished_at - make_interval(secs => $2::float8)
           WHERE id = ANY($1::bigint[])""",
        list(ids),
        days * DAY,
    )


async def left(db: Database) -> set[int]:
    return {row["id"] for row in await rows(db, "tasks")}


# What goes.


async def test_a_task_goes_when_it_is_older_than_its_kind_is_kept(db: Database) -> None:
    gone = await ended(db, [Succeeded("1"), Succeeded("2")], days=7.1)
    gone += await ended(db, [FAILED], days=30.1)
    kept = await ended(db, [Succeeded("3")], days=6.9)
    kept += await ended(db, [FAILED], days=29.9)
    cancelled = await put_one(db)
    from aaiclick_queue.flow.cancel import cancel

    await cancel(db, [cancelled])
    await make_old(db, [cancelled], 7.1)
    open_one = await put_one(db)
    await db.fetch("UPDATE aaiclick_queue.tasks SET created_at = now() - interval '1 year' WHERE id = $1", open_one)
    counted = await prune_all(db, WEEK, dry_run=True)
    assert await left(db) == {*gone, *kept, cancelled, open_one}
    pruned = await prune_all(db, WEEK)
    assert (pruned.completed, pruned.failed, pruned.cancelled, pruned.tasks) == (2, 1, 1, 4)
    assert counted == pruned
    assert await left(db) == {*kept, open_one}


async def test_forever_keeps_and_nothing_is_read(db: Database) -> None:
    ids = await ended(db, [Succeeded("1"), FAILED], days=1000)
    assert (await prune_all(db, Policy())).tasks == 0
    assert (await prune_all(db, Policy(None, 30 * DAY))).failed == 1
    assert await left(db) == {ids[0]}
    assert Policy(None, DAY).history_seconds is None
    await prune_all(db, WEEK)


async def test_the_count_keeps_the_newest_finished_tasks(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "KEPT_ROWS", 3)
    ids = await ended(db, [Succeeded("1")] * 10, days=0)
    open_ones = await put(db, count=4)
    most = Policy(7 * DAY, 30 * DAY, 4)
    assert await first_beyond(db, 4) == ids[5]
    assert await first_beyond(db, 10) is None
    assert (await prune_all(db, most, dry_run=True)).tasks == 6
    assert (await prune_all(db, most)).completed == 6
    assert await left(db) == {*ids[6:], *open_ones}
    assert (await prune_all(db, Policy(None, None, 4))).tasks == 0
    assert (await prune_all(db, Policy(None, None, 1))).tasks == 3


async def test_what_belongs_to_a_task_goes_with_it_and_a_key_that_is_held_for_a_time_stays(
    db: Database, client: Client
) -> None:
    held = await enqueue("tests.nowhere", dedupe_key="held", dedupe_until=86400, client=client)
    free = await enqueue("tests.nowhere", dedupe_key="free", client=client)
    other = await put_one(db)
    for run in await claim(db, await register_worker(db), 3):
        for table in ("progress", "checkpoints"):
            await db.fetch(
                f"INSERT INTO aaiclick_queue.{table} (task_id, run_epoch, data) VALUES ($1, 1, '1')", run.task_id
            )
        await db.fetch("INSERT INTO aaiclick_queue.timers VALUES ($1, now() + interval '1 day')", run.task_id)
        assert await end(db, run, Succeeded(None))
    # As if the sweep had not come by yet.
    await db.fetch("INSERT INTO aaiclick_queue.dedupe (scope, key, task_id) VALUES ('s', 'left over', $1)", free.id)
    await make_old(db, [held.id, free.id], 8)
    assert (await prune_all(db, WEEK)).tasks == 2
    for table in ("progress", "checkpoints", "timers"):
        assert [row["task_id"] for row in await rows(db, table)] == [other]
    assert [row["task_id"] for row in await rows(db, "dedupe")] == [held.id]
    again = await enqueue("tests.nowhere", dedupe_key="held", dedupe="skip", client=client)
    assert again.id == held.id
    with pytest.raises(ResultExpired):
        await again.result(1)


async def test_children_stay_as_long_as_their_parent_may_run_again(db: Database) -> None:
    parent = await put_one(db, queue="parents")
    children = await ended(db, [Succeeded("1"), Succeeded("2")], days=20)
    await db.fetch(
        "UPDATE aaiclick_queue.tasks SET parent_id = $1, spawn_key = id::text WHERE id = ANY($2::bigint[])",
        parent,
        children,
    )
    assert (await prune_all(db, WEEK)).tasks == 0
    [run] = await claim(db, await register_worker(db), 1, queues=["parents"])
    assert await end(db, run, FAILED)
    await make_old(db, [parent], 20)
    assert (await prune_all(db, WEEK)).tasks == 0  # a failed one may be retried by hand
    await make_old(db, [parent], 20)
    assert (await prune_all(db, WEEK)).failed == 1
    assert (await prune_all(db, WEEK)).tasks == 2


async def test_a_failure_that_stops_a_strict_order_stays_until_it_is_unblocked(db: Database) -> None:
    stops, other = await ended(db, [FAILED, FAILED], days=40)
    await db.fetch("UPDATE aaiclick_queue.tasks SET order_by = 'c', order_stops = true")
    await db.fetch("INSERT INTO aaiclick_queue.slots (task_id, limit_id, key) VALUES ($1, 0, 'c')", stops)
    assert (await prune_all(db, WEEK)).failed == 1
    assert await left(db) == {stops}
    assert await unblock(db, [stops], by="me") == {stops}
    assert (await prune_all(db, WEEK)).failed == 1
    assert other not in await left(db)


async def test_a_task_that_is_retried_at_that_moment_stays(db: Database, settings: Settings) -> None:
    retried, other = await ended(db, [FAILED, FAILED], days=40)
    with psycopg.connect(settings.postgres_url or "") as operator:
        operator.execute("UPDATE aaiclick_queue.tasks SET status = NULL WHERE id = %s", [retried])
        operator.execute(
            "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, %s, %s)",
            [retried, retried],
        )
        assert (await prune_all(db, WEEK)).tasks == 1  # without a wait
        assert await left(db) == {retried}
        operator.commit()
    assert (await prune_all(db, WEEK)).tasks == 0
    assert await left(db) == {retried}
    assert other not in await left(db)


async def test_a_retry_that_commits_while_the_page_is_read_is_seen(db: Database, settings: Settings) -> None:
    """The page's snapshot is older than the retry: the row is looked at again when it is locked."""
    [retried] = await ended(db, [FAILED], days=40)
    assert "FROM page\n), overdue" in prune.PRUNE_PAGE
    halting = prune.PRUNE_PAGE.replace("FROM page\n), overdue", "FROM page, pg_advisory_xact_lock(7)\n), overdue")
    with psycopg.connect(settings.postgres_url or "") as operator:
        operator.execute("SELECT pg_advisory_xact_lock(7)")
        pruning = asyncio.create_task(db.fetch(halting, 0, prune.LAST_ID, ROWS, 0.0, 7 * DAY, 30 * DAY, None))
        await until(lambda: lock_is_waited_for(db))
        operator.execute("UPDATE aaiclick_queue.tasks SET status = NULL WHERE id = %s", [retried])
        operator.execute(
            "INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) VALUES ('default', 0, %s, %s)",
            [retried, retried],
        )
        operator.commit()
    [page] = await pruning
    assert (page["last"], page["failed"]) == (retried, 0)
    assert await left(db) == {retried}


async def test_pruners_side_by_side_take_each_task_once(db: Database, settings: Settings) -> None:
    ids = await put(db, count=3000)
    await db.fetch("DELETE FROM aaiclick_queue.ready")
    await db.fetch("UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', finished_at = now()")
    await make_old(db, ids, 8)
    pruned = await asyncio.gather(*(prune_all(db, WEEK) for _ in range(4)))
    assert sum(one.tasks for one in pruned) == 3000
    assert await count(db, "tasks") == 0


async def test_a_waiting_result_is_told_when_its_task_is_pruned(db: Database, client: Client) -> None:
    """Retried by hand, awaited, and then removed by somebody with a sharper policy."""
    one = await put_one(db)
    waiting = asyncio.create_task(handle(one, client=client).result(30))
    await until(lambda: client.waiting._awaited and client.waiting._awaited[one].was_there)
    await db.fetch(
        """WITH place AS (DELETE FROM aaiclick_queue.ready WHERE task_id = $1)
           DELETE FROM aaiclick_queue.tasks WHERE id = $1""",
        one,
    )
    with pytest.raises(ResultExpired):
        await waiting


# How it goes about it.


class Reading:
    """A database that notes which pages are read."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.settings = db.settings
        self.pages: list[tuple[int, Any]] = []

    async def fetch(self, sql: str, *args: Any) -> Any:
        found = await self._db.fetch(sql, *args)
        if sql == prune.PRUNE_PAGE:
            self.pages.append((args[0], found[0]["last"]))
        return found


async def test_the_front_reads_each_row_once_and_the_sweep_finds_what_ended_late(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "ROWS", 2)
    first = await ended(db, [Succeeded("1"), FAILED, Succeeded("2"), FAILED, Succeeded("3")], days=8)
    late = await ended(db, [Succeeded("4")], days=8)
    await db.fetch("UPDATE aaiclick_queue.tasks SET finished_at = now() WHERE id = $1", late[0])
    young = await ended(db, [Succeeded("5")], days=1)
    reading = Reading(db)
    pruner = Pruner(reading, WEEK)  # type: ignore[arg-type]
    while await pruner.prune_once() < prune.IDLE_SECONDS:
        pass
    assert pruner.pruned.completed == 3
    assert await left(db) == {first[1], first[3], *late, *young}
    assert pruner._fronts[0].after == late[0]
    assert max(after for after, _ in reading.pages) == late[0]
    # Later: the young one comes of age, the front goes on from where it was and looks back at nothing.
    await make_old(db, young, 8)
    reading.pages.clear()
    await pruner.prune_once()
    assert young[0] not in await left(db)
    fronts = [after for after, _ in reading.pages if after == late[0]]
    assert len(fronts) == 1
    assert all(after in (0, late[0], young[0]) for after, _ in reading.pages)
    # What ended late is found by the next sweep, and only by it.
    await make_old(db, late, 8)
    await pruner.prune_once()
    assert late[0] in await left(db)
    monkeypatch.setattr(prune, "SWEEP_SECONDS", (0.0, 0.0))
    while late[0] in await left(db):
        await pruner.prune_once()


async def test_a_page_is_bounded_and_more_is_told(db: Database) -> None:
    ids = await put(db, count=ROWS + 10)
    await db.fetch("DELETE FROM aaiclick_queue.ready")
    await db.fetch("UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', finished_at = now()")
    await make_old(db, ids, 8)
    pruner = Pruner(db, WEEK)
    pause = await pruner.prune_once()
    assert pause < prune.IDLE_SECONDS
    assert pruner.pruned.tasks >= ROWS
    while await pruner.prune_once() < prune.IDLE_SECONDS:
        pass
    assert pruner.pruned.tasks == ROWS + 10


async def test_the_front_waits_for_what_ran_a_while(db: Database) -> None:
    assert LAG_SECONDS < 0.02 * DAY
    [one] = await ended(db, [Succeeded("1")], days=7)
    await db.fetch("UPDATE aaiclick_queue.tasks SET finished_at = finished_at + interval '5 min' WHERE id = $1", one)
    pruner = Pruner(db, WEEK)
    await pruner.prune_once()
    assert await left(db) == {one}
    await make_old(db, [one], 0.02)
    pruner._sweeps[0].over_at = 1e12  # the front alone
    await pruner.prune_once()
    assert await left(db) == set()


async def test_a_surplus_is_pruned_by_the_loop_too(db: Database) -> None:
    ids = await ended(db, [Succeeded("1")] * 5, days=0)
    pruner = Pruner(db, Policy(None, None, 2))
    await pruner.prune_once()
    assert await left(db) == set(ids[3:])


async def test_a_surplus_is_counted_anew_when_its_time_has_come(db: Database) -> None:
    await ended(db, [Succeeded("1")] * 3, days=0)
    pruner = Pruner(db, Policy(None, None, 2))
    await pruner.prune_once()
    more = await ended(db, [Succeeded("1")] * 4, days=0)
    await pruner.prune_once()
    assert len(await left(db)) == 6
    pruner._count_at = 0.0
    await pruner.prune_once()
    assert await left(db) == set(more[2:])


@pytest.mark.parametrize(("took", "rest"), [(0.1, 60.0), (5.0, 300.0)])
async def test_a_surplus_is_counted_the_less_often_the_longer_that_takes(
    db: Database, monkeypatch: pytest.MonkeyPatch, took: float, rest: float
) -> None:
    now = 1000.0

    async def counted(*_: object) -> None:
        nonlocal now
        now += took

    monkeypatch.setattr(prune, "first_beyond", counted)
    monkeypatch.setattr(prune, "time", SimpleNamespace(monotonic=lambda: now))
    pruner = Pruner(db, Policy(None, None, 2))
    assert not await pruner._prune_surplus(2)
    assert pruner._count_at == pytest.approx(now + rest)


async def test_a_worker_prunes_by_itself(quick: Settings, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PRUNE_SECONDS", 0.05)
    old = await ended(db, [Succeeded("1")], days=8)
    async with running_worker(quick):

        async def gone() -> bool:
            return not await left(db)

        await until(gone)
    assert old


async def test_who_does_not_hold_the_loops_does_not_prune(
    quick: Settings, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "PRUNE_SECONDS", 0.0)
    await ended(db, [Succeeded("1")], days=8)
    looping = background.Background(db, None, holder=1)
    assert await looping._prune_pass() == 0.0
    assert await count(db, "tasks") == 1
    looping._holder.holds = True
    await looping._prune_pass()
    assert await count(db, "tasks") == 0


# Days of history.

DAY_TABLE = """
CREATE TABLE aaiclick_queue.{name} (LIKE aaiclick_queue.{parent} INCLUDING ALL);
ALTER TABLE aaiclick_queue.{parent} ATTACH PARTITION aaiclick_queue.{name}
    FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day} 24:00:00+00')
"""


def add_day(settings: Settings, parent: str, day: str) -> str:
    name = f"{parent}_{day.replace('-', '')}"
    with psycopg.connect(settings.postgres_url or "", autocommit=True) as admin:
        for statement in DAY_TABLE.format(name=name, parent=parent, day=day).split(";"):
            admin.execute(statement)
    return name


async def days(db: Database) -> set[str]:
    found = await db.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(attempts|events)_[0-9]{8}$'"
    )
    return {row["relname"] for row in found}


async def test_days_that_are_too_old_are_dropped_and_young_ones_stay(db: Database, settings: Settings) -> None:
    before = await days(db)
    old = {add_day(settings, parent, day) for parent in ("attempts", "events") for day in ("2020-01-01", "2020-01-02")}
    assert (await drop_old_days(db, None)).names == []
    assert set((await drop_old_days(db, 30 * DAY, dry_run=True)).names) == old
    assert await days(db) == before | old
    assert set((await drop_old_days(db, 30 * DAY)).names) == old
    assert await days(db) == before
    assert await db.fetchval("SHOW lock_timeout") == "0"


async def test_a_day_that_somebody_reads_is_left_and_nobody_waits_behind_it(db: Database, settings: Settings) -> None:
    name = add_day(settings, "events", "2020-01-01")
    with psycopg.connect(settings.postgres_url or "") as reader:
        reader.execute("SELECT count(*) FROM aaiclick_queue.events")
        dropped = await drop_old_days(db, 30 * DAY)
        assert (dropped.names, dropped.left) == ([], [name])
        # Detached by half: writers go on, and the next pass knows.
        await db.fetch("INSERT INTO aaiclick_queue.events (type) VALUES ('TEST')")
        [found] = await db.fetch(OLD_DAYS, 30 * DAY)
        assert found["is_pending"]
        assert (await drop_old_days(db, 30 * DAY)).left == [name]
        reader.commit()
    assert (await drop_old_days(db, 30 * DAY)).names == [name]
    assert name not in await days(db)


async def test_a_day_that_was_detached_and_not_dropped_is_dropped_later(db: Database, settings: Settings) -> None:
    name = add_day(settings, "attempts", "2020-01-01")
    with psycopg.connect(settings.postgres_url or "", autocommit=True) as admin:
        admin.execute(f"ALTER TABLE aaiclick_queue.attempts DETACH PARTITION aaiclick_queue.{name}")
    assert (await drop_old_days(db, 30 * DAY)).names == [name]


async def test_behind_a_pooler_days_are_dropped_without_a_word_to_the_session(settings: Settings) -> None:
    name = add_day(settings, "attempts", "2020-01-01")
    async with Database(changed(settings, postgres_pooler="transaction"), size=1) as pooled:
        with psycopg.connect(settings.postgres_url or "") as reader:
            reader.execute("SELECT count(*) FROM aaiclick_queue.attempts")
            assert (await drop_old_days(pooled, 30 * DAY)).left == [name]
        assert (await drop_old_days(pooled, 30 * DAY)).names == [name]
        assert await pooled.fetchval("SHOW lock_timeout") == "0"


async def test_the_loop_drops_days_too(db: Database, settings: Settings) -> None:
    name = add_day(settings, "attempts", "2020-01-01")
    await Pruner(db).prune_once()
    assert name not in await days(db)


# Settings and the doctor.


@pytest.mark.parametrize("text", ["0", "-1", "never", "nan", "99999"])
def test_days_that_say_nothing_clear_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"RETENTION_COMPLETED_DAYS = .*more than 0 .* or `forever`"):
        Settings.load({"AAICLICK_QUEUE_RETENTION_COMPLETED_DAYS": text})


def test_days_are_numbers_or_forever() -> None:
    settings = Settings.load(
        {"AAICLICK_QUEUE_RETENTION_COMPLETED_DAYS": "0.5", "AAICLICK_QUEUE_RETENTION_FAILED_DAYS": "Forever"}
    )
    assert Policy.of(settings) == Policy(DAY / 2, None, None)
    assert Policy.of(Settings.load({})) == WEEK
    assert Policy(DAY / 2, DAY).history_seconds == 2 * DAY


@pytest.mark.parametrize("outcome", [Succeeded("1"), FAILED], ids=["completed", "failed"])
async def test_the_doctor_sees_what_is_overdue_for_a_day(db: Database, outcome: Outcome) -> None:
    await ended(db, [outcome], days=7.9 if isinstance(outcome, Succeeded) else 30.9)
    assert await unwell(db) == []
    await make_old(db, list(await left(db)), 0.2)
    assert await unwell(db) == ["finished tasks are pruned by policy"]
    await prune_all(db, WEEK)


async def test_the_doctor_sees_history_that_is_too_old(db: Database, settings: Settings) -> None:
    add_day(settings, "events", "2020-01-01")
    assert await unwell(db) == ["history is dropped by policy"]
    async with Database(changed(settings, retention_failed_days="forever"), size=1) as forever:
        assert await unwell(forever) == []
    await drop_old_days(db, 30 * DAY)


async def unwell(db: Database) -> list[str]:
    return [finding.name for finding in await doctor.check(db) if not finding.ok]


async def test_a_result_that_was_pruned_is_told_at_once(settings: Settings, db: Database) -> None:
    [one] = await ended(db, [Succeeded("1")], days=8)
    async with connect(settings=settings) as client:
        assert await handle(one, client=client).result(1) == 1
        await prune_all(db, WEEK)
        with pytest.raises(ResultExpired, match="pruned"):
            await handle(one, client=client).result(1)
