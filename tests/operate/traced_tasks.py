"""Tasks whose traces are looked at, and the application that enqueues them."""

from __future__ import annotations

import asyncio

from opentelemetry import trace

from aaiclick_queue import connect, current, job, task


@task(queue="mail")
async def child(n: int) -> int:
    return n


@task(queue="mail")
async def parent() -> int:
    return (await current().enqueue(child, 1)).id


@task(queue="mail", max_attempts=2, retry_delay=0)
async def second_time() -> None:
    if current().attempt == 1:
        raise ValueError("no luck")


@task(queue="mail")
async def told(ended: object) -> None:
    """What is told of a job's end."""


@job(on_success=told)
def pair() -> object:
    first = child(1)
    return child.options(name="after")(first)


def main() -> None:
    asyncio.run(_main())


async def _main() -> None:
    async with connect() as queue:
        with trace.get_tracer("app").start_as_current_span("request"):
            await parent.enqueue(client=queue)
            await second_time.enqueue(client=queue)
            await child.enqueue_many([{"n": n} for n in range(3)], client=queue)
            await pair.enqueue(client=queue)
