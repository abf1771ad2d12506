"""A small fleet that runs random jobs while everything about them is changed by hand; a part of test_recovery.py."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aaiclick_queue.errors import BadJob, GroupClosed, JobEnded, LeaseLost, TasksBusy, UnknownJob, UnknownTask
from aaiclick_queue.flow.admit import Admission, give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.fenced import Fence
from aaiclick_queue.flow.graph import Plan, Previous
from aaiclick_queue.flow.job_control import cancel_job, pause_job, resume_job
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, NewJob, add_to_job, submit_job
from aaiclick_queue.job_checks import JOB_CHECKS
from aaiclick_queue.outcome import Cancelled, Ended, Error, Failed, Later, Outcome, Released, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.spec import RULES
from tests.dag.caps import assert_not_crowded
from tests.dag.drawn import draw_plan
from tests.dag.written import planned
from tests.races.props import Props

JOBS = 6
WORKERS = RESOLVERS = 3
PATIENCE = 90.0
ERROR = Error("ValueError", "no")
OPEN_JOBS = "SELECT id FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING')"
TASKS = "SELECT id FROM aaiclick_queue.tasks WHERE job_id = $1 AND member_gate IS NOT NULL"
GROUP_OF = "SELECT group_id FROM aaiclick_queue.tasks WHERE id = $1"
GROUPS = "SELECT id FROM aaiclick_queue.groups WHERE job_id = $1"
ABOUT = """
WITH RECURSIVE around AS (
    SELECT t.id, t.group_id FROM aaiclick_queue.tasks t WHERE t.id = $1
    UNION ALL SELECT g.id, g.parent_group_id FROM around JOIN aaiclick_queue.groups g ON g.id = around.group_id
)
SELECT d.next_id, d.next_type, d.any_of, d.choices, d.previous_type, t.id, t.status, t.result, t.rule, t.group_id,
       t.after_gate, t.wait_gate, g.state, g.rule AS gate_rule, (SELECT string_agg(e.type, ' ' ORDER BY e.created_at)
       FROM aaiclick_queue.events e WHERE e.task_id = t.id) AS events
FROM around LEFT JOIN aaiclick_queue.dependencies d ON d.next_id = around.id
JOIN aaiclick_queue.tasks t ON t.id IN (d.previous_id, $1) OR t.group_id = d.previous_id
LEFT JOIN aaiclick_queue.gates g ON g.id = t.wait_gate
"""
LATER = "UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 ms' WHERE not_before > now()"
Act = Callable[[Database, random.Random], Awaitable[None]]


class Fleet:
    """Workers that spawn, fail, die and come late; resolvers; and people who change their minds."""

    def __init__(self, settings: Settings, props: Props, seed: str, *, seconds: float) -> None:
        self._settings = settings
        self._props = props
        self._seed = seed
        self._seconds = seconds  # then everybody behaves, so that it comes to an end
        self._until = 0.0
        self.jobs: list[int] = []
        self.claimed: set[tuple[int, int]] = set()
        self.landed: set[tuple[int, int]] = set()
        self.done: Counter[str] = Counter()

    @property
    def _erratic(self) -> bool:
        return time.monotonic() < self._until

    async def run(self) -> None:
        rng = random.Random(self._seed)
        for _ in range(JOBS):
            await self._submit(rng)
        self._until = time.monotonic() + self._seconds
        acts: list[Act] = [
            *[self._work] * WORKERS, *[self._resolve] * RESOLVERS, self._change, self._change, self._operate,
            self._operate, self._admit, self._reap, self._look, self._add,
        ]  # fmt: skip
        running = [asyncio.create_task(self._act(act, at)) for at, act in enumerate(acts)]
        try:
            async with asyncio.timeout(PATIENCE):
                while self._erratic or await self._props.db.fetch(OPEN_JOBS):
                    over, _ = await asyncio.wait(running, timeout=0.02, return_when=asyncio.FIRST_EXCEPTION)
                    for one in over:
                        one.result()
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _submit(self, rng: random.Random) -> None:
        """A job, perhaps one with caps, with a deadline, or one that fails at once."""
        timeout = rng.random() * self._seconds if rng.random() < 0.3 else None
        fail_fast, max_parallel = rng.random() < 0.2, rng.choice([None, None, 2])
        job = NewJob(name="random", fail_fast=fail_fast, max_parallel=max_parallel, timeout=timeout)
        plan = draw_plan(rng, 30)
        for group in plan.groups:
            group.max_parallel = rng.choice([None, None, 1, 2])
        async with self._props.db.transaction() as tx:
            self.jobs.append((await submit_job(tx, job, plan, self._props.take)).job_id)

    async def _act(self, act: Act, at: int) -> None:
        async with Database(self._settings, size=1, flow=True) as db:
            await act(db, random.Random(f"{self._seed} {at}"))

    async def _work(self, db: Database, rng: random.Random) -> None:
        while True:
            worker = await self._props.worker()
            held = await self._live(db, worker, rng)
            await self._props.lose(worker)
            await asyncio.sleep(rng.random() * 0.05)
            for one in held:  # comes late
                await self._end(db, worker, one, rng)

    async def _live(self, db: Database, worker: int, rng: random.Random) -> list[Claimed]:
        line = Line({"default": 1})
        held: list[Claimed] = []
        for _ in range(rng.randrange(5, 60) if self._erratic else 10_000):
            claimed = await line.claim(db, Wanted(rng.randrange(1, 6), worker, 3600, 30))
            for one in claimed:
                assert (one.task_id, one.run_epoch) not in self.claimed, "an epoch was given out twice"
                self.claimed.add((one.task_id, one.run_epoch))
            held += claimed
            rng.shuffle(held)
            keep = rng.randrange(len(held) + 1) if self._erratic else 0
            for one in held[keep:]:
                await self._end(db, worker, one, rng)
            held = held[:keep]
            await asyncio.sleep(0.001 + rng.random() * 0.01)
        return held

    async def _end(self, db: Database, worker: int, run: Claimed, rng: random.Random) -> None:
        outcome = self._outcome(rng)
        ended = Ended(run.task_id, run.run_epoch, outcome, time.monotonic(), time.monotonic(), flags=run.flags)
        landed: set[int] = set()
        with suppress(LeaseLost, GroupClosed):
            adds = rng.random() < 0.15 if self._erratic else False
            async with db.transaction() as tx:
                if adds and isinstance(outcome, Succeeded) and run.job_id is not None:
                    [row] = await tx.fetch(GROUP_OF, run.task_id)
                    tasks = [planned(901), planned(902, after=[901]), planned(903)][: rng.randint(1, 3)]
                    returned = (Previous(901),) if rng.random() < 0.4 else ()
                    fence = Fence(run.task_id, run.run_epoch, worker)
                    adding = Adding(run.job_id, by=fence, group=row["group_id"], returned=returned)
                    await add_to_job(tx, adding, Plan(tasks), self._props.take)
                    self.done["continued" if returned else "added"] += 1
                landed = await complete(tx, [ended], worker_id=worker)
        key = run.task_id, run.run_epoch
        if not landed:
            await give_back_stopped(db, [key], worker_id=worker)
            return
        assert key not in self.landed, "a run ended twice"
        if not isinstance(outcome, Released):
            self.landed.add(key)

    def _outcome(self, rng: random.Random) -> Outcome:
        choices: list[Outcome] = [
            Succeeded(rng.choice(["true", "false"])),
            Failed(ERROR),
            Skipped(ERROR),
            Cancelled(ERROR),
            Later("RETRYING", ERROR, rng.choice([0.0, 0.01])),
            Released(),
        ]
        [chosen] = rng.choices(choices, [20, 3, 2, 1, 2, 1] if self._erratic else [1, 0, 0, 0, 0, 0])
        return chosen

    async def _resolve(self, db: Database, rng: random.Random) -> None:
        resolver = Resolver(db)
        while True:
            done = await resolver.resolve_once(limit=rng.randint(1, 50), page=rng.randint(1, 10))
            await asyncio.sleep(0 if done.more else 0.002)

    async def _change(self, db: Database, rng: random.Random) -> None:
        while self._erratic:
            job = rng.choice(self.jobs)
            rows = await db.fetch(TASKS, job)
            task_id = rng.choice(rows)["id"]
            what = rng.choices(
                ["clear", "cancel", "retry", "retry all", "cancel job", "pause", "resume"], [8, 3, 3, 2, 1, 1, 3]
            )[0]
            with suppress(TasksBusy, JobEnded, UnknownTask):
                await self._by_hand(db, what, job, task_id)
                self.done[what] += 1
            await asyncio.sleep(rng.random() * 0.05)
        for job in self.jobs:
            await resume_job(db, job, by="me")
        await asyncio.sleep(3600)

    async def _add(self, db: Database, rng: random.Random) -> None:
        """Somebody outside adds to jobs, into groups and behind tasks and groups that are there."""
        while self._erratic:
            await asyncio.sleep(rng.random() * 0.05)
            job = rng.choice(self.jobs)
            tasks = [row["id"] for row in await db.fetch(TASKS, job)]
            groups = [row["id"] for row in await db.fetch(GROUPS, job)]
            nodes = [*(Previous(one) for one in tasks), *(Previous(one, "group") for one in groups)]
            after = rng.sample(nodes, min(len(nodes), rng.randint(0, 3)))
            new = planned(801, after=after, group=rng.choice([None, *groups]), rule=rng.choice(RULES))
            with suppress(BadJob, GroupClosed, JobEnded, UnknownJob):
                async with db.transaction() as tx:
                    await add_to_job(tx, Adding(job), Plan([new, planned(802, after=[801])]), self._props.take)
                self.done["added from outside"] += 1
        await asyncio.sleep(3600)

    async def _by_hand(self, db: Database, what: str, job: int, task_id: int) -> None:
        match what:
            case "clear":
                await clear_task(db, task_id, by="me")
            case "cancel":
                await cancel(db, [task_id])
            case "retry" | "retry all":
                async with db.transaction() as tx:
                    await retry_in_job(tx, job, [task_id] if what == "retry" else None, by="me")
            case "cancel job":
                await cancel_job(db, job, by="me")
            case "pause":
                await pause_job(db, job, by="me")
            case "resume":
                await resume_job(db, job, by="me")

    async def _operate(self, db: Database, rng: random.Random) -> None:
        while True:
            await work_once(db, limit=rng.randint(1, 20))
            await asyncio.sleep(rng.random() * 0.01)

    async def _admit(self, db: Database, rng: random.Random) -> None:
        admission = Admission(db)
        while True:
            await admission.admit_once()
            await asyncio.sleep(rng.random() * 0.01)

    async def _reap(self, db: Database, rng: random.Random) -> None:
        reaper = Reaper(db)
        while True:
            await reaper.reap_once(rng.choice([1, 7, 500]))
            await db.fetch(LATER)
            await reaper.due_once(rng.choice([1, 30, 1000]))
            await asyncio.sleep(rng.random() * 0.02)

    async def _look(self, db: Database, rng: random.Random) -> None:
        """What must be true at any moment is true at this one."""
        while True:
            for one in JOB_CHECKS:
                if not one.twice:
                    broken = await db.fetch(one.sql, *one.arguments(self._settings))
                    told = [await self._told(db, row["id"]) for row in broken]
                    assert not told, "\n".join([one.name, *told])
            for _ in range(20):
                await assert_not_crowded(db)
                await asyncio.sleep(0.01 + rng.random() * 0.015)

    async def _told(self, db: Database, task_id: int) -> str:
        """All about a task that a check has found, and about what it waits for."""
        return "\n".join(str(dict(row)) for row in await db.fetch(ABOUT, task_id))
