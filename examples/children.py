"""A task that enqueues children: written only while its run holds the lease, and once over all attempts.

Run it: python examples/children.py
"""

from __future__ import annotations

import asyncio

from aaiclick_queue import Settings, Worker, current, handle, task

PAGES = 20


@task
async def fetch(page: int) -> int:
    return page * 10


@task(retry_delay=0.05)
async def crawl(pages: int) -> list[str]:
    children = [await current().enqueue(fetch, page) for page in range(pages)]
    if current().attempt == 1:
        raise ConnectionError("dies after its children were written")
    return [str(child.id) for child in children]  # text, because ids are larger than JavaScript's whole numbers


async def main() -> None:
    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())

        ids = await (await crawl.enqueue(PAGES)).result(timeout=30)
        print(f"two attempts, {len(set(ids))} children: the second attempt found those of the first")
        assert len(set(ids)) == PAGES

        results = await asyncio.gather(*(handle(int(task_id)).result(timeout=30) for task_id in ids))
        print(f"their sum is {sum(results)}")
        assert sum(results) == sum(page * 10 for page in range(PAGES))
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
