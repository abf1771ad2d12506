"""One task at a time for a key, and the four things that can happen when the key is taken.

Run it: python examples/dedupe.py
"""

from __future__ import annotations

import asyncio

from aaiclick_queue import DuplicateTask, Settings, Status, Worker, task


@task
async def index(document: int, revision: int) -> str:
    return f"document {document} at revision {revision}"


async def main() -> None:
    keyed = index.options(dedupe_key="document-7")  # the key is per task function
    first = await keyed.enqueue(7, revision=1)

    holder = None
    try:
        await keyed.enqueue(7, revision=2)
    except DuplicateTask as duplicate:
        print(f"raise (the default): {duplicate}")
        holder = duplicate.task_id
    assert holder == first.id

    same = await keyed.options(dedupe="skip").enqueue(7, revision=3)
    print("skip: the handle of the one that is there")
    assert same.id == first.id

    newer = await keyed.options(dedupe="replace").enqueue(7, revision=4)
    print("replace: the waiting one is cancelled, the new one takes its key")
    assert newer.id != first.id
    assert await first.status() is Status.CANCELLED

    # Runs 0.5 s after the last call and at the latest 10 s after the first, with the arguments of the last.
    quiet = index.options(dedupe_key="document-8", dedupe="debounce", countdown=0.5, debounce_max=10)
    calls = [await quiet.enqueue(8, revision=revision) for revision in (1, 2, 3)]
    assert len({call.id for call in calls}) == 1

    async with asyncio.TaskGroup() as group:
        worker = Worker(Settings.load())
        group.create_task(worker.run())
        assert await newer.result(timeout=30) == "document 7 at revision 4"

        again = await keyed.enqueue(7, revision=5)
        assert await again.result(timeout=30) == "document 7 at revision 5"
        print("the key is free as soon as its task has ended")

        assert await calls[0].result(timeout=30) == "document 8 at revision 3"
        print("debounce: three calls, one run, the last arguments")
        worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
