"""`python -m tests.bench.chain`: how long it takes from the end of one task of a chain to the start of the next.

On the Postgres that AAICLICK_QUEUE_POSTGRES_URL names (a database of its own is made there) or an embedded one; with
Redis where AAICLICK_QUEUE_REDIS_URL names one, and without. Nothing here judges a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aaiclick_queue import Plan, Worker, task
from aaiclick_queue.flow.enqueue import NewTask, Spec, id_source
from aaiclick_queue.flow.graph import Plan as Nodes
from aaiclick_queue.flow.graph import PlannedTask, Previous
from aaiclick_queue.flow.submit import NewJob, submit_job
from aaiclick_queue.migrate import upgrade
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.servers import Databases, OwnPostgres

moments: dict[int, tuple[float, float]] = {}


@task(entrypoint="bench.link")
async def link(number: int, before: Any = None) -> int:
    """One link of the chain."""
    began = time.perf_counter()
    del before
    moments[number] = (began, time.perf_counter())
    return number


def chain(length: int, *, inputs: bool) -> Nodes:
    """Each link behind the one before it; with `inputs` each takes its result too."""
    return Nodes([
        PlannedTask(
            number=number,
            name=f"link {number}",
            spec=Spec("bench.link", "default"),
            task=NewTask(
                f'{{"number":{number},"before":{{"$node":{number - 1}}}}}'
                if inputs and number > 1
                else f'{{"number":{number}}}'
            ),
            previous=[Previous(number - 1)] if number > 1 else [],
        )
        for number in range(1, length + 1)
    ], [])  # fmt: skip


async def measure(settings: Settings, length: int, *, inputs: bool, workers: int) -> list[float]:
    """The hops of one chain, in seconds."""
    moments.clear()
    crew = [Worker(settings, Plan(slots=10)) for _ in range(workers)]
    running = [asyncio.create_task(worker.run()) for worker in crew]
    for worker in crew:
        await worker.started.wait()
    async with Database(settings, size=1) as db:
        ids = await id_source(db)
        for some in (20, length):  # the first to warm up
            moments.clear()
            async with db.transaction() as tx:
                await submit_job(tx, NewJob(name="chain"), chain(some, inputs=inputs), ids.take)
            while len(moments) < some:  # noqa: ASYNC110 - nobody tells, and it must not disturb
                await asyncio.sleep(0.05)
    for worker in crew:
        worker.stop(now=True)
    await asyncio.gather(*running)
    return [moments[number + 1][0] - moments[number][1] for number in range(1, length)]


@contextmanager
def postgres() -> Iterator[Databases]:
    """The server that the environment names, else one that ends with the block."""
    if url := os.environ.get("AAICLICK_QUEUE_POSTGRES_URL"):
        yield Databases(url)
        return
    with OwnPostgres() as server:
        yield Databases(server.url)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.chain", description=__doc__)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--workers", type=int, default=1, help="in this process")
    given = parser.parse_args()
    redis_url = os.environ.get("AAICLICK_QUEUE_REDIS_URL")
    with postgres() as databases, databases.new() as name:
        plain = Settings.load({}, postgres_url=databases.url(name))
        await upgrade(plain)
        with_redis = plain.model_copy(update={"redis_url": redis_url, "redis_prefix": f"b{uuid.uuid4().hex[:8]}"})
        for label, settings in (("with Redis", with_redis), ("without Redis", plain)):
            if settings is with_redis and not redis_url:
                continue
            for inputs in (False, True):
                hops = await measure(settings, given.length, inputs=inputs, workers=given.workers)
                cut = statistics.quantiles(hops, n=100)
                what = f"{label}, {'with' if inputs else 'no'} inputs"
                shown = ", ".join(f"{word} {cut[at] * 1000:.1f} ms" for word, at in (("p50", 49), ("p99", 98)))
                print(f"{what}: {shown}, longest {max(hops) * 1000:.1f} ms")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
