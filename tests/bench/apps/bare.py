"""The limit of the design: the product's own claim and complete statements in a loop, with no product around them."""

from __future__ import annotations

import asyncio
import os
import secrets

import asyncpg

from aaiclick_queue import Settings
from aaiclick_queue.flow.claim import CLAIM_NEXT_IN_LINE, HEAD
from aaiclick_queue.flow.complete import COMPLETE_SUCCEEDED
from aaiclick_queue.flow.heartbeat import REGISTER_WORKER
from aaiclick_queue.postgres import FLOW_PLANS, SESSION, plain_dsn
from tests.bench.apps import driver, tally
from tests.bench.apps.ours import producer, setup

BATCH = 500  # as many as a worker of the product claims at most
CONNECTIONS = 2  # one claims while the other completes


async def work() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_claim_and_complete())


async def _claim_and_complete() -> None:
    url = Settings.load().postgres_url
    assert url is not None
    connection = await asyncpg.connect(plain_dsn(url), server_settings=SESSION | FLOW_PLANS)
    worker_id = secrets.randbits(62)
    await connection.execute(REGISTER_WORKER, worker_id, 3600.0, os.getpid(), BATCH, "bare", "bare", ["default"], None)
    mark = HEAD
    while True:
        place = ([part] for part in mark)
        rows = await connection.fetch(CLAIM_NEXT_IN_LINE, ["default"], *place, BATCH, worker_id, 3600.0, 35.0)
        if not rows:
            await asyncio.sleep(0.01)
        mark = min((row["rank"], row["order_key"], row["task_id"]) for row in rows) if len(rows) == BATCH else HEAD
        ids, epochs = [row["task_id"] for row in rows], [row["run_epoch"] for row in rows]
        ages = [0.0] * len(rows)
        done = await connection.fetch(COMPLETE_SUCCEEDED, ids, epochs, [None] * len(rows), ages, ages, worker_id)
        tally.ran(len(done))


if __name__ == "__main__":
    driver.main(producer, setup=setup, work=work)
