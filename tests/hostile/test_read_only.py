"""A Postgres that takes no writes for a while, as after a failover: enqueues say so, workers go on afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from aaiclick_queue import Client, Settings, connect
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.migrate import upgrade
from aaiclick_queue.postgres import Database, plain_dsn
from tests.hostile.conftest import good
from tests.servers import OwnPostgres
from tests.tools import count, running_worker, until

NOT_COMPLETED = "SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS DISTINCT FROM 'COMPLETED'"


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    with OwnPostgres() as server:
        yield server


@pytest.fixture
async def own(server: OwnPostgres, tmp_path: Path) -> Settings:
    settings = Settings.load(
        {},
        postgres_url=server.url,
        lease_seconds=20,
        heartbeat_seconds=0.2,
        poll_max_seconds=0.1,
        enqueue_timeout_seconds=3,
        log_dir=tmp_path,
    )
    await upgrade(settings)
    return settings


async def _read_only(server: OwnPostgres, *, on: bool) -> None:
    """Tell the server; every session hears of it, those that are open too."""
    connection = await asyncpg.connect(plain_dsn(server.url))
    try:
        await connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


async def _takes_writes(client: Client) -> bool:
    try:
        return await (await good.enqueue(3, client=client)).result(60) == 3
    except PostgresUnavailable:
        return False


async def _all_completed(db: Database) -> bool:
    return not await db.fetchval(NOT_COMPLETED)


async def test_an_enqueue_to_a_read_only_postgres_says_so_and_a_worker_outlives_it(
    own: Settings, server: OwnPostgres
) -> None:
    async with connect(settings=own) as client, Database(own, size=2) as db, running_worker(own) as worker:
        assert await (await good.enqueue(1, client=client)).result(60) == 1
        later = [await good.options(countdown=2).enqueue(n, client=client) for n in range(5)]
        await _read_only(server, on=True)
        refusal, more = "", 0
        while not refusal:  # a session hears of it when the server gets round to telling it
            try:
                await good.enqueue(2, client=client)
                more += 1
            except PostgresUnavailable as error:
                refusal = str(error)
        assert re.search(r"takes no writes now .*read-only", refusal)
        loops = worker._background._loops
        await until(lambda: any("read-only" in str(loop.counts.last_error) for loop in loops))
        await _read_only(server, on=False)
        assert [await one.result(60) for one in later] == list(range(5))
        await until(lambda: _takes_writes(client))
        await until(lambda: _all_completed(db))
        assert await count(db, "tasks") == 7 + more
