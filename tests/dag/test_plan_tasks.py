"""The tasks of a plan: those of one kind that wait are written by a statement of their own, to the same rows."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from aaiclick_queue import Group, Settings, connect, job, task
from aaiclick_queue.flow import plan_tasks
from aaiclick_queue.flow.plan_rows import in_turn
from aaiclick_queue.flow.plan_tasks import INSERT_TASKS, INSERT_WAITING
from aaiclick_queue.postgres import Connection, Database, plain_dsn
from tests.tools import rows

TABLES = ("tasks", "waiting", "ready", "delayed", "timers", "dependencies", "outbox")
OWN = {"created_at", "ready_at", "expires_at", "due_at", "not_before", "eta"}


@task(entrypoint="tests.plan_tasks.first")
async def first() -> int:
    return 1


@task(
    entrypoint="tests.plan_tasks.part", queue="parts", priority=4, max_attempts=7, on_failure="tests.plan_tasks.first"
)
async def part(before: int, n: int) -> int:
    return n


@task(entrypoint="tests.plan_tasks.ordered", order_by="customer-{n}", order_on_failure="stop")
async def ordered(n: int) -> int:
    return n


@task(entrypoint="tests.plan_tasks.total", critical=False)
async def total(parts: list[int]) -> int:
    return sum(parts)


@job
def mixed(width: int) -> Any:
    root = first()
    parts = [part(root, n) for n in range(width)]
    with Group("late", max_parallel=3) as late:
        root >> late
        [part.options(countdown=5).node(1, n) for n in range(width)]
        [root >> ordered(n) for n in range(width)]
        [root >> part.options(expires=60).node(2, n) for n in range(3)]
    return total(parts)


async def _written(db: Database) -> dict[str, list[tuple[tuple[str, str], ...]]]:
    """All rows, with ids as their place among all ids: those of two databases can be compared."""
    found = {table: [dict(one) for one in await rows(db, table)] for table in TABLES}
    whole = [value for some in found.values() for one in some for value in one.values()]
    numbers = sorted({value for value in whole if isinstance(value, int) and value > 2**40})
    places = {str(number): f"#{at}" for at, number in enumerate(numbers)}

    def shown(value: Any) -> str:
        text = str(value)
        for number, place in places.items():
            text = text.replace(number, place)
        return text

    def kept(table: str, one: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        left = OWN if table == "tasks" else OWN | {"id"}
        return tuple((name, shown(value)) for name, value in one.items() if name not in left)

    return {table: sorted(kept(table, one) for one in some) for table, some in found.items()}


async def _submit(settings: Settings, *, by: str) -> None:
    async with connect(settings=settings) as client:
        if by == "us":
            await mixed.enqueue(60, client=client)
            return
        assert settings.postgres_url
        connection = await asyncpg.connect(plain_dsn(settings.postgres_url))
        async with connection.transaction():
            await mixed.enqueue(60, client=client, connection=connection)
        await connection.close()


@pytest.mark.parametrize("by", ["us", "an application"])
async def test_rows_are_the_same_whichever_statement_writes_them(
    settings: Settings, db: Database, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    used: list[str] = []
    fetch = Connection.fetch

    async def seen(self: Connection, sql: str, *given: Any) -> Any:
        used.append(sql)
        return await fetch(self, sql, *given)

    monkeypatch.setattr(Connection, "fetch", seen)
    await _submit(settings, by=by)
    assert by != "us" or {INSERT_WAITING, INSERT_TASKS} <= set(used)
    quick = await _written(db)
    await db.fetch(f"TRUNCATE {', '.join(f'aaiclick_queue.{one}' for one in (*TABLES, 'jobs', 'gates', 'groups'))}")
    monkeypatch.setattr(plan_tasks, "LEAST_ALIKE", 10_000)
    used.clear()
    await _submit(settings, by=by)
    assert INSERT_WAITING not in used
    assert await _written(db) == quick
    assert len(quick["waiting"]) == 60 + 60 + 60 + 3 + 1


async def test_a_page_that_cannot_be_made_ends_the_statement_before_it(db: Database) -> None:
    def calls() -> Any:
        yield "SELECT pg_sleep(30)", []
        raise ValueError("no more")

    async with asyncio.timeout(20), db.connection() as connection:
        with pytest.raises(ValueError, match="no more"):
            await in_turn(connection, calls())


async def test_statements_run_in_turn_and_give_all_their_rows(db: Database) -> None:
    async with db.connection() as connection:
        found = await in_turn(connection, iter([("SELECT $1::int AS n", [n]) for n in range(5)]))
    assert [one["n"] for one in found] == list(range(5))
    assert await in_turn(db, iter([("SELECT 7 AS n", [])])) == await db.fetch("SELECT 7 AS n")
    assert plan_tasks.PAGE >= plan_tasks.LEAST_ALIKE
