"""Exactly-once effects in the database: the task's writes and its completion are one commit.

Run it: python examples/exactly_once.py
"""

from __future__ import annotations

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from aaiclick_queue import LeaseLost, Settings, Status, TaskCancelled, Worker, current, handle, task
from aaiclick_queue.local import database_url

BOOK = text("INSERT INTO example_bookings (task_id, what, amount) VALUES (:id, :what, :amount)")
lost = asyncio.Event()


@task(retry_delay=0.05)
async def book(amount: int) -> int:
    async with current().transaction() as session:
        await session.execute(BOOK, {"id": current().id, "what": "paid", "amount": amount})
        if current().attempt == 1:
            raise ConnectionError("the first attempt dies after its write")
        current().result(amount)
    return -1  # after the commit the task is over: this value is dropped, with a line in the log


@task
async def overtaken() -> None:
    try:
        async with current().transaction() as session:
            await session.execute(BOOK, {"id": current().id, "what": "overtaken", "amount": 0})
            await handle(current().id).cancel()  # somebody ends the task while it runs
    except LeaseLost:
        lost.set()
        raise


async def main() -> None:
    settings = Settings.load()
    url = await database_url(settings)
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE IF EXISTS example_bookings"))
        await connection.execute(text("CREATE TABLE example_bookings (task_id bigint, what text, amount int)"))

    async with asyncio.TaskGroup() as group:
        worker = Worker(settings)
        group.create_task(worker.run())

        result = await (await book.enqueue(250)).result(timeout=30)
        print(f"booked {result}: attempt 1 was rolled back, attempt 2 committed booking and completion together")
        assert result == 250

        gone = await overtaken.enqueue()
        try:
            await gone.result(timeout=30)
        except TaskCancelled:
            assert await gone.status() is Status.CANCELLED
        await lost.wait()
        print("overtaken: the run had lost its lease, so its write was rolled back")
        worker.stop()

    async with engine.begin() as connection:
        rows = (await connection.execute(text("SELECT what, amount FROM example_bookings"))).all()
        await connection.execute(text("DROP TABLE example_bookings"))
    await engine.dispose()
    print("in the table:", rows)
    assert [tuple(row) for row in rows] == [("paid", 250)]


if __name__ == "__main__":
    asyncio.run(main())
