"""Nothing under limits is claimed ahead of a free slot: it would have had its turn before whoever comes now."""

from __future__ import annotations

import asyncio
from typing import Any

from aaiclick_queue import Client, Settings, task
from aaiclick_queue.kinds import A_FEW
from aaiclick_queue.postgres import Database
from tests.flow.test_admit import make
from tests.tools import running_worker, until

here: list[Any] = []
most: list[int] = []


@task(queue="narrow", concurrency_key="{key}")
async def short(key: str) -> None:
    most.append(sum(len(kind.waiting) for kind in here[0].slots._kinds))
    await asyncio.sleep(0.002)


async def test_a_worker_holds_hardly_more_runs_of_a_fair_queue_than_it_has_slots(
    client: Client, db: Database, quick: Settings
) -> None:
    most.clear()
    await make(db, name="narrow", kind="fair", n=1000)
    await short.enqueue_many([{"key": "a"}] * 100, client=client)
    async with running_worker(quick, queues={"narrow": 1}, slots=2) as worker:
        here[:] = [worker]
        await until(lambda: len(most) == 100)
    assert max(most) <= A_FEW  # beside runs of another kind a few may wait
