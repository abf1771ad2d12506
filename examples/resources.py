"""Resources: opened once by the worker, filled into tasks by their type, closed after the last run.

Run it: python examples/resources.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from aaiclick_queue import Inject, Settings, Worker, on_shutdown, on_startup, resource, task
from aaiclick_queue.local import database_url

Sessions = async_sessionmaker[AsyncSession]
happened: list[str] = []


@resource
async def engine(settings: Settings) -> AsyncIterator[AsyncEngine]:
    """One engine a process. What a resource asks for is another resource, or the worker's settings."""
    url = await database_url(settings)
    made = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    happened.append("engine opened")
    yield made
    await made.dispose()
    happened.append("engine closed")


@resource
def sessions(engine: AsyncEngine) -> Sessions:
    """What needs no closing is returned."""
    return async_sessionmaker(engine)


@on_startup
async def create_table(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS example_visits (page text)"))


@on_shutdown
async def drop_table(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE example_visits"))
    happened.append("table dropped")


@task
async def visit(page: str, *, sessions: Inject[Sessions]) -> int:
    """`page` is an argument, `sessions` is filled in by the worker."""
    async with sessions() as session, session.begin():
        await session.execute(text("INSERT INTO example_visits VALUES (:page)"), {"page": page})
        return int(await session.scalar(text("SELECT count(*) FROM example_visits")) or 0)


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())
        for page in ("home", "shop"):
            visits = await (await visit.enqueue(page)).result(timeout=30)
            print(f"{page}: visit {visits}")
        assert visits == 2
        worker.stop()
    print(" → ".join(happened))
    assert happened == ["engine opened", "table dropped", "engine closed"]


if __name__ == "__main__":
    asyncio.run(main())
