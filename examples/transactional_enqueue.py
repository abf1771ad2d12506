"""Enqueue inside the application's own transaction: the order and its e-mail are committed together, or neither is.

Run it: python examples/transactional_enqueue.py
"""

from __future__ import annotations

import asyncio

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from aaiclick_queue import Settings, Worker, task
from aaiclick_queue.local import database_url


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "example_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


@task
async def confirm(order_id: int) -> str:
    return f"order {order_id} confirmed"


async def with_an_async_session(url: str) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with engine.begin() as connection:
        await connection.run_sync(Model.metadata.drop_all)
        await connection.run_sync(Model.metadata.create_all)

    async with AsyncSession(engine) as session:
        session.add(Order(id=1, customer="Ada"))
        handle = await confirm.enqueue(1, connection=session)
        await session.commit()
    print("async session, committed:", await handle.result(timeout=30))

    async with AsyncSession(engine) as session:
        session.add(Order(id=2, customer="Bob"))
        handle = await confirm.enqueue(2, connection=session)
        await session.rollback()
    assert await is_unknown(handle.id, url)
    print("async session, rolled back: no order, no task")
    await engine.dispose()


def with_a_sync_session(url: str) -> None:
    """The same in code without an event loop: `.options(connection=…)` and `delay`."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session, session.begin():
        session.add(Order(id=3, customer="Cleo"))
        handle = confirm.options(connection=session).delay(3)
    print("sync session, committed:", handle.get(timeout=30))
    engine.dispose()


def with_a_plain_connection(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO example_orders (id, customer) VALUES (4, 'Dan')")
        handle = confirm.options(connection=connection).delay(4)
    print("psycopg connection, committed:", handle.get(timeout=30))


async def is_unknown(task_id: int, url: str) -> bool:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        found = await connection.execute("SELECT FROM aaiclick_queue.tasks WHERE id = %s", [task_id])
        return await found.fetchone() is None


async def main() -> None:
    settings = Settings.load()
    url = await database_url(settings)  # in your application: the URL it has already
    async with asyncio.TaskGroup() as group:
        worker = Worker(settings)
        group.create_task(worker.run())
        await with_an_async_session(url)
        await asyncio.to_thread(with_a_sync_session, url)
        await asyncio.to_thread(with_a_plain_connection, url)
        worker.stop()

    async with await psycopg.AsyncConnection.connect(url) as connection:
        rows = await (await connection.execute("SELECT id FROM example_orders ORDER BY id")).fetchall()
        assert [order_id for (order_id,) in rows] == [1, 3, 4]
        await connection.execute("DROP TABLE example_orders")


if __name__ == "__main__":
    asyncio.run(main())
