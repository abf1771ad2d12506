"""What lies behind a mark is found: a delay that ends earlier than those before it, an end that commits late."""

from __future__ import annotations

from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.postgres import Database
from tests.dag.hands import Hands, job_row
from tests.planned import Job
from tests.tools import make_due, place_of, put, put_one, until

LONG_DUE = "UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 hour' WHERE task_id = $1"


async def test_a_task_that_was_due_before_the_mark_is_moved(db: Database) -> None:
    reaper = Reaper(db)
    await put(db, count=3)
    for _ in range(3):
        await put_one(db, task={"countdown": 60.0})
    await make_due(db)
    moved = 0
    while moved < 3:
        moved += (await reaper.due_once(limit=1))[0]
    late = await put_one(db, task={"countdown": 60.0})
    await db.fetch(LONG_DUE, late)

    async def is_in_line() -> bool:
        await reaper.due_once(limit=1)
        return await place_of(db, late) == ["ready"]

    await until(is_in_line)  # at once, unless the last look from the head was dear


async def test_an_end_that_commits_after_later_ones_were_folded_is_folded(db: Database) -> None:
    job = Job()
    numbers = job.tasks(4)
    await job.submit(db)
    hands = await Hands.register(db)
    first, *others = await hands.take(*job.of(numbers))
    resolver = Resolver(db)
    async with db.transaction() as late:
        await hands.finish([first], tx=late)  # its arrival has the lowest number, and is committed last
        for run in others:
            await hands.finish([run])
        folded = 0
        while folded < 3:
            folded += (await resolver.resolve_once(limit=1)).folded

    async def is_closed() -> bool:
        await resolver.resolve_once(limit=1)
        return bool((await job_row(db, job.id))["status"] == "COMPLETED")

    await until(is_closed)
