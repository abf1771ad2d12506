"""Behind pgbouncer in transaction mode: nothing of a session is relied on, told to it or found out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aaiclick_queue import Plan, Worker, connect, current, handle, migrate, task
from aaiclick_queue.settings import Settings
from tests.servers import OwnPostgres
from tests.wires.pgbouncer import PgBouncer

pytestmark = pytest.mark.needs_tool("pgbouncer")


@task(entrypoint="test_pgbouncer.double", retry_delay=0.01)
async def double(n: int) -> int:
    if n % 10 == 0 and current().attempt == 1:
        raise ValueError("the first attempt of each tenth")
    await current().progress(0.5)
    return 2 * n


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[OwnPostgres]:
    with OwnPostgres() as server:
        yield server


@pytest.mark.parametrize("pooler", ["transaction", "none"], ids=["told", "found out"])
async def test_the_whole_flow_works_through_pgbouncer_in_transaction_mode(
    own_postgres: OwnPostgres, pooler: str
) -> None:
    with PgBouncer(own_postgres.url) as bouncer:
        settings = Settings.load({}, postgres_url=bouncer.url, postgres_pooler=pooler, lease_seconds=2)
        direct = settings.model_copy(update={"postgres_url": own_postgres.url})
        await migrate.upgrade(settings if pooler == "transaction" else direct)
        worker = Worker(settings, Plan(slots=20))
        running = asyncio.create_task(worker.run())
        async with connect(settings=settings) as client:
            ids = await double.enqueue_many([{"n": n} for n in range(200)], client=client)
            handles = [await double.enqueue(n, client=client) for n in range(20)]
            assert [await handle.result(30) for handle in handles] == [2 * n for n in range(20)]
            results = await asyncio.gather(*(handle(task_id, client=client).result(30) for task_id in ids))
            assert results == [2 * n for n in range(200)]
        worker.stop()
        await running
