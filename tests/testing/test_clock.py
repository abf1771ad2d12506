"""Time passes in every time column there is, at once or not at all."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from aaiclick_queue import DuplicateTask, Status, TaskCancelled, task
from aaiclick_queue.postgres import Database
from aaiclick_queue.testing import Clock, QueueUnderTest
from tests.tools import put, row, rows

# Of every table in the schema; partitions are their parents' rows.
COLUMNS = """
SELECT c.relname, a.attname, t.typname, t.typcategory, a.attidentity
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type t ON t.oid = a.atttypid
WHERE c.relnamespace = 'aaiclick_queue'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY c.relname, a.attnum
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint
WHERE connamespace = 'aaiclick_queue'::regnamespace AND contype IN ('c', 'f') AND coninhcount = 0
"""
VALUES = {"N": "1", "S": "'x'", "U": "'{}'", "A": "'{}'", "B": "true", "D": "now()", "T": "'1 s'"}


@pytest.fixture
def columns(queue: QueueUnderTest) -> dict[str, list[tuple[str, str]]]:
    """Names and types of the columns by table, each table filled with one row whose every column has a value."""
    found: dict[str, list[tuple[str, str]]] = {}
    with psycopg.connect(queue.url, autocommit=True) as connection:
        for table, name in connection.execute(CONSTRAINTS).fetchall():
            connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}")  # any value will do
        values: dict[str, dict[str, str]] = {}
        for table, column, kind, category, identity in connection.execute(COLUMNS):
            found.setdefault(table, []).append((column, kind))
            if not identity and table != "alembic_version":
                values.setdefault(table, {})[f'"{column}"'] = VALUES[category]
        for table, given in values.items():
            text = f"INSERT INTO aaiclick_queue.{table} ({', '.join(given)}) VALUES ({', '.join(given.values())})"
            connection.execute(text)
    return found


def times(url: str, columns: dict[str, list[tuple[str, str]]]) -> dict[tuple[str, str], Any]:
    with psycopg.connect(url) as connection:
        return {
            (table, column): connection.execute(f'SELECT "{column}" FROM aaiclick_queue.{table}').fetchall()[0][0]
            for table, names in columns.items()
            for column, kind in names
            if kind == "timestamptz"
        }


@pytest.mark.breaks_invariants
async def test_every_time_column_moves(
    queue: QueueUnderTest, clock: Clock, columns: dict[str, list[tuple[str, str]]]
) -> None:
    before = times(queue.url, columns)
    assert {("tasks", "created_at"), ("attempts", "finished_at"), ("workers", "lease_expires_at")} <= set(before)
    await clock.advance(timedelta(days=40, hours=1))
    after = times(queue.url, columns)
    assert {place: before[place] - after[place] for place in before} == dict.fromkeys(
        before, timedelta(days=40, hours=1)
    )


async def test_every_time_is_of_the_kind_that_moves(columns: dict[str, list[tuple[str, str]]]) -> None:
    names_of_ticks = {"fire_at", "anchor_at", "queued_fire_at", "starts_at", "ends_at"}  # what schedules say: they stay
    without_a_zone = {name for names in columns.values() for name, kind in names if kind == "timestamp"}
    assert without_a_zone == names_of_ticks
    kinds = {kind for names in columns.values() for name, kind in names if name not in names_of_ticks}
    assert "timestamptz" in kinds
    others = {"timestamp", "date", "time", "timetz", "interval", "tstzrange", "tsrange", "daterange", "_timestamptz"}
    assert kinds & others == set()


async def test_what_cannot_move_whole_does_not_move(queue: QueueUnderTest, clock: Clock) -> None:
    async with Database(queue.settings, size=1) as db:
        [task_id] = await put(db)
        await db.fetch("ALTER TABLE aaiclick_queue.tasks ADD CHECK (created_at > now() - interval '1 hour')")
        before = (await row(db, "ready", task_id))["ready_at"]
        with pytest.raises(Exception, match="violates check constraint"):
            await clock.advance(hours=2)
        assert (await row(db, "ready", task_id))["ready_at"] == before


@pytest.mark.parametrize("units", [{}, {"minutes": 0}, {"hours": -1}])
async def test_time_only_goes_on(clock: Clock, units: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="time only goes on"):
        await clock.advance(**units)


@task(max_attempts=1)
async def nothing() -> None:
    pass


async def test_delays_end(queue: QueueUnderTest, clock: Clock) -> None:
    await nothing.options(countdown=3600).enqueue()
    await clock.advance(minutes=59)
    assert await queue.drain() == []
    await clock.advance(minutes=2)
    assert [done.status for done in await queue.drain()] == [Status.COMPLETED]


async def test_expiries_pass(queue: QueueUnderTest, clock: Clock) -> None:
    handle = await nothing.options(expires=60).enqueue()
    await clock.advance(seconds=61)
    await queue.drain()
    with pytest.raises(TaskCancelled, match="Expired"):
        await handle.result(timeout=5)


async def test_keys_end(queue: QueueUnderTest, clock: Clock) -> None:
    keyed = nothing.options(dedupe_key="k", dedupe_until=timedelta(days=1))
    await keyed.enqueue()
    await queue.drain()
    with pytest.raises(DuplicateTask):
        await keyed.enqueue()
    await clock.advance(days=1)
    await keyed.enqueue()


async def test_history_moves_to_days_that_had_no_partition(queue: QueueUnderTest, clock: Clock) -> None:
    await raises.enqueue()
    await queue.drain()
    for _ in range(2):
        await clock.advance(days=200)
    async with Database(queue.settings, size=1) as db:
        [attempt] = await rows(db, "attempts")
        [event] = await rows(db, "events")
        [days] = await db.fetch("SELECT (now() - $1) > interval '399 days' AS gone", attempt["finished_at"])
    assert days["gone"]
    assert attempt["finished_at"] - event["created_at"] < timedelta(minutes=1)
    assert [done.status for done in await queue.drain()] == [Status.FAILED]


@task(max_attempts=2)
async def raises() -> None:
    raise RuntimeError("no")
