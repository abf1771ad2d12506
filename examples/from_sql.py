"""Enqueue from SQL: a trigger writes the task in the transaction of the row it is about.

Run it: python examples/from_sql.py
"""

from __future__ import annotations

import asyncio

import asyncpg

from aaiclick_queue import Settings, Worker, handle, task
from aaiclick_queue.local import database_url

SETUP = """
DROP TABLE IF EXISTS example_users;
CREATE TABLE example_users (name text PRIMARY KEY, welcome_task bigint);
CREATE OR REPLACE FUNCTION example_welcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.welcome_task := aaiclick_queue.enqueue('from_sql.welcome', jsonb_build_object('name', NEW.name));
    RETURN NEW;
END $$;
CREATE TRIGGER welcome BEFORE INSERT ON example_users FOR EACH ROW EXECUTE FUNCTION example_welcome();
"""
BY_HAND = """
SELECT aaiclick_queue.enqueue('from_sql.welcome', '{"name": "Bob"}', queue => 'default', priority => 5,
                              countdown => interval '0.2 seconds', max_attempts => 2)
"""


@task
async def welcome(name: str) -> str:
    return f"welcome {name}"


async def main() -> None:
    settings = Settings.load()
    connection = await asyncpg.connect(await database_url(settings))
    await connection.execute(SETUP)

    async with asyncio.TaskGroup() as group:
        worker = Worker(settings)
        group.create_task(worker.run())

        added = "INSERT INTO example_users (name) VALUES ($1) RETURNING welcome_task"
        greeting = await handle(await connection.fetchval(added, "Ada")).result(timeout=30)
        print("by a trigger:", greeting)
        assert greeting == "welcome Ada"

        greeting = await handle(await connection.fetchval(BY_HAND)).result(timeout=30)
        print("by SELECT, 0.2 s later:", greeting)
        assert greeting == "welcome Bob"
        worker.stop()

    await connection.execute("DROP TABLE example_users; DROP FUNCTION example_welcome()")
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
