"""A limit is never exceeded, in whatever order admissions, claims, ends, cancels and new limits come."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aaiclick_queue.errors import TasksBusy
from aaiclick_queue.flow.admit import FROM_THE_START, Admission, give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.choose import Lane
from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask
from aaiclick_queue.flow.heartbeat import Counters, set_status
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.races.orders import Play, Stage
from tests.tools import claim, count, make_due, put, register_worker

QUEUE = "narrow"
CLEAR = ("slots", "ready", "held", "leases", "delayed", "tasks", "limits", "operations", "queues", "outbox")
OUTSIDE = "SELECT (SELECT count(*) FROM aaiclick_queue.ready) + (SELECT count(*) FROM aaiclick_queue.leases) AS n"


async def _fresh(db: Database, *, tasks: int, limit: int = 1, before: bool = False) -> list[int]:
    for table in CLEAR:
        await db.fetch(f"DELETE FROM aaiclick_queue.{table}")
    ids = await put(db, count=tasks, queue=QUEUE) if before else []
    await set_limit(db, NewLimit("queue", QUEUE, "running", limit), by="a test")
    if not before:
        while await work_once(db):
            pass
        ids = await put(db, count=tasks, queue=QUEUE)
    return ids


async def test_two_admissions_never_give_out_the_same_slot(stage: Stage, db: Database) -> None:
    async def scene(play: Play) -> None:
        await _fresh(db, tasks=3)
        await play.run(one=lambda at: Admission(at).admit_once(), other=lambda at: Admission(at).admit_once())
        assert await count(db, "ready") == await count(db, "slots") == 1

    await stage.in_every_order(scene)


async def test_two_admissions_that_look_at_different_lanes_keep_the_limit_of_both(stage: Stage, db: Database) -> None:
    def looks(after: Lane) -> Callable[[Database], Awaitable[object]]:
        async def admits(at: Database) -> None:
            admission = Admission(at)
            admission._after = after
            await admission.admit_once(lanes=1)

        return admits

    async def scene(play: Play) -> None:
        await _fresh(db, tasks=1)
        await db.fetch("DELETE FROM aaiclick_queue.held")
        await db.fetch("DELETE FROM aaiclick_queue.tasks")
        await put(db, *(NewTask("{}", concurrency_key=key) for key in "ab"), queue=QUEUE)
        await play.run(one=looks(FROM_THE_START), other=looks(Lane(QUEUE, "", "a", "", "")))
        assert await count(db, "ready") == await count(db, "slots") == 1

    await stage.in_every_order(scene)


async def test_an_admission_counts_a_slot_until_its_end_is_committed(stage: Stage, db: Database) -> None:
    async def scene(play: Play) -> None:
        await _fresh(db, tasks=2)
        await Admission(db).admit_once()
        worker_id = await register_worker(db)
        [run] = await claim(db, worker_id, queues=[QUEUE])
        ended = Ended(run.task_id, run.run_epoch, Succeeded(None), 0.0, 0.0, flags=run.flags)
        await play.run(
            end=lambda at: complete(at, [ended], worker_id=worker_id), admission=lambda at: Admission(at).admit_once()
        )
        inside = await db.fetchval(OUTSIDE)
        assert inside <= 1
        assert await count(db, "slots") == inside
        await Admission(db).admit_once()
        assert await db.fetchval(OUTSIDE) == 1

    await stage.in_every_order(scene)


async def test_a_held_task_is_let_in_or_cancelled_and_never_both(stage: Stage, db: Database) -> None:
    async def scene(play: Play) -> None:
        [first, _] = await _fresh(db, tasks=2)
        await play.run(admission=lambda at: Admission(at).admit_once(), cancel=lambda at: cancel(at, [first]))
        [task] = await db.fetch("SELECT status FROM aaiclick_queue.tasks WHERE id = $1", first)
        assert task["status"] == "CANCELLED"
        assert await count(db, "slots") == await count(db, "ready") <= 1
        await Admission(db).admit_once()
        assert await count(db, "ready") == 1

    await stage.in_every_order(scene)


async def test_a_limit_that_is_made_while_tasks_are_claimed_counts_every_one_of_them(
    stage: Stage, db: Database
) -> None:
    async def scene(play: Play) -> None:
        await _fresh(db, tasks=3, before=True, limit=2)
        worker_id = await register_worker(db)
        claimed, _ = await play.run(
            claim=lambda at: Line({QUEUE: 1}).claim(at, Wanted(1, worker_id, 3600, 30)), operation=_work_to_its_end
        )
        await _work_to_its_end(db)
        await Admission(db).admit_once()
        assert await db.fetchval(OUTSIDE) == 2
        assert await count(db, "leases") == len(claimed)
        assert await db.fetchval("SELECT paused_at FROM aaiclick_queue.queues WHERE name = $1", QUEUE) is None

    await stage.in_every_order(scene, preemptions=2)


async def _work_to_its_end(db: Database) -> None:
    while await work_once(db):
        pass


async def test_a_task_whose_transaction_could_not_see_a_new_limit_is_caught(db: Database) -> None:
    async with db.transaction() as tx:
        [late] = await put(tx, queue=QUEUE)
        await set_limit(db, NewLimit("queue", QUEUE, "running", 1), by="a test")
        for _ in range(5):
            worked = await work_once(db)
            assert worked is not None, "the operation waits for the transaction that is older than the limit"
            assert worked.status == "OPEN"
    await put(db, queue=QUEUE)
    await _work_to_its_end(db)
    assert await count(db, "held") == 2
    await Admission(db).admit_once()
    assert [row["task_id"] for row in await db.fetch("SELECT task_id FROM aaiclick_queue.ready")] == [late]


class Crowd:
    """Many workers on few connections: they claim under a limit, end in every way, or die."""

    def __init__(self, db: Database, limit: int, tasks: int) -> None:
        self.db = db
        self.limit = limit
        self.tasks = tasks
        self.running: set[tuple[int, int]] = set()
        self.most = 0
        self.chance = random.Random(7)
        self.until = time.monotonic() + 12

    async def over(self) -> bool:
        left = await self.db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL")
        return not left or time.monotonic() > self.until

    async def work(self) -> None:
        while not await self.over():
            worker_id = await register_worker(self.db)
            line = Line({QUEUE: 1})
            for _ in range(self.chance.randrange(1, 6)):
                claimed = await line.claim(self.db, Wanted(3, worker_id, 3600, 30))
                self.running |= {(run.task_id, run.run_epoch) for run in claimed}
                self.most = max(self.most, len(self.running))
                await asyncio.sleep(self.chance.random() * 0.01)
                if claimed and self.chance.random() < 0.15:
                    await self._die(worker_id, claimed)
                    break
                await self._end(worker_id, claimed)

    async def _end(self, worker_id: int, claimed: list[Claimed]) -> None:
        self.running -= {(run.task_id, run.run_epoch) for run in claimed}  # their code is over before they say so
        error = Error("ValueError", "no")
        later = Later("RETRYING", error, 0.0)
        outcomes: list[Outcome] = [*(Succeeded(None) for _ in range(6)), later, Released(), Failed(error)]
        ends = [
            Ended(run.task_id, run.run_epoch, self.chance.choice(outcomes), 0.0, 0.0, flags=run.flags)
            for run in claimed
        ]
        if ends:
            landed = await complete(self.db, ends, worker_id=worker_id)
            gone = [(run.task_id, run.run_epoch) for run in claimed if run.task_id not in landed]
            await give_back_stopped(self.db, gone, worker_id=worker_id)  # cancelled meanwhile, and over by now

    async def _die(self, worker_id: int, claimed: list[Claimed]) -> None:
        self.running -= {(run.task_id, run.run_epoch) for run in claimed}  # a dead process runs nothing
        await self.db.fetch(
            "UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now() WHERE id = $1", worker_id
        )

    async def admit(self) -> None:
        admission = Admission(self.db)
        while not await self.over():
            await admission.admit_once(batch=self.chance.randrange(1, 20))

    async def reap(self) -> None:
        reaper = Reaper(self.db)
        while not await self.over():
            await reaper.reap_once()
            await make_due(self.db)
            await reaper.due_once()
            await asyncio.sleep(0.01)

    async def meddle(self) -> None:
        while not await self.over():
            rows = await self.db.fetch("SELECT task_id FROM aaiclick_queue.held LIMIT 2")
            rows = [*rows, *await self.db.fetch("SELECT task_id FROM aaiclick_queue.ready LIMIT 1")]
            try:
                await cancel(self.db, [row["task_id"] for row in rows])
            except TasksBusy:
                continue
            await asyncio.sleep(0.2)


async def test_a_crowd_of_workers_that_end_and_die_never_exceeds_the_limit(settings: Settings) -> None:
    async with Database(settings, size=20, flow=True) as db:
        await set_limit(db, NewLimit("queue", QUEUE, "running", 7), by="a test")
        await _work_to_its_end(db)
        await put(db, *(NewTask("{}") for _ in range(600)), queue=QUEUE, max_attempts=50)
        crowd = Crowd(db, 7, 600)
        parts: list[Any] = [crowd.work() for _ in range(100)]
        parts += [crowd.admit() for _ in range(4)] + [crowd.reap() for _ in range(2)] + [crowd.meddle()]
        await asyncio.gather(*parts)
        assert 1 < crowd.most <= 7, "never more; that all of it is used, tests/faults shows"
        await _everything_ends(db)


async def _everything_ends(db: Database) -> None:
    """Nothing of the limit is left behind: all that remains gets in and through."""
    for row in await db.fetch("SELECT id FROM aaiclick_queue.workers WHERE status = 'ACTIVE'"):
        await set_status(db, row["id"], "STOPPED", Counters())
    worker_id, admission, reaper = await register_worker(db), Admission(db), Reaper(db)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        await reaper.reap_once()
        await make_due(db)
        await reaper.due_once()
        await admission.admit_once()
        # From the head each time: a mark would leave what was handed back for a later look.
        claimed = await Line({QUEUE: 1}).claim(db, Wanted(100, worker_id, 3600, 30))
        ends = [Ended(run.task_id, run.run_epoch, Succeeded(None), 0.0, 0.0, flags=run.flags) for run in claimed]
        if ends:
            await complete(db, ends, worker_id=worker_id)
        elif not await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL"):
            break
    assert await db.fetchval("SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL") == 0
    await reaper.sweep_once()  # where nothing is held, nobody looks for slots of workers that are over
    assert await count(db, "slots") == 0
