"""Workers, resolvers, reapers, cancellers and adders that run random jobs side by side and get much of it wrong.

Each has a connection of its own. What they do is written down with the moment before an end and after a start, so that
the journal is never kinder to the flow than the truth.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aaiclick_queue.errors import BadJob, GroupClosed, JobEnded, LeaseLost, TasksBusy
from aaiclick_queue.flow.admit import Admission, give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.fenced import Fence
from aaiclick_queue.flow.job_control import cancel_job, pause_job, resume_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, NewJob, add_to_job, submit_job
from aaiclick_queue.outcome import Cancelled, Ended, Error, Failed, Later, Outcome, Released, Skipped, Succeeded
from aaiclick_queue.postgres import Connection, Database
from aaiclick_queue.settings import Settings
from tests.dag.additions import Addition, Job
from tests.dag.caps import assert_not_crowded
from tests.dag.model import Group, Task
from tests.dag.plans import as_plan, draw_graph, draw_value
from tests.races.props import Props

WORKERS = RESOLVERS = 3
ERROR = Error("ValueError", "no")
PATIENCE = 20.0
DUE = "UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 ms' WHERE not_before > now()"
LEFT = """
SELECT t.id, t.group_id, t.wait_gate, t.exit_gate, t.after_gate,
       concat_ws(' ', (SELECT 'waiting' FROM aaiclick_queue.waiting w WHERE w.task_id = t.id),
                      (SELECT 'ready' FROM aaiclick_queue.ready w WHERE w.task_id = t.id),
                      (SELECT 'delayed' FROM aaiclick_queue.delayed w WHERE w.task_id = t.id),
                      (SELECT 'leased' FROM aaiclick_queue.leases w WHERE w.task_id = t.id)) AS places
FROM aaiclick_queue.tasks t WHERE t.status IS NULL
"""
SOURCES = """
SELECT g.id AS gate, g.kind, g.rule, g.state, g.total, g.remaining, s.id AS gate_before, s.state AS state_before,
       s.kind AS kind_before, s.remaining AS left_before, t.id AS task_before, t.status
FROM aaiclick_queue.gates g LEFT JOIN aaiclick_queue.gate_edges e ON e.next_gate_id = g.id
LEFT JOIN aaiclick_queue.gates s ON s.id = e.gate_id LEFT JOIN aaiclick_queue.tasks t ON t.exit_gate = g.id
WHERE g.remaining > 0 AND g.job_id = ANY(ARRAY(SELECT id FROM aaiclick_queue.jobs WHERE status = 'RUNNING'))
"""
OPEN_JOBS = "SELECT id FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING')"


@dataclass
class Journal:
    """What was seen of tasks, by their ids."""

    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, tuple[float, Outcome]] = field(default_factory=dict)
    by_hand: dict[int, float] = field(default_factory=dict)
    runs: set[tuple[int, int]] = field(default_factory=set)
    done: Counter[str] = field(default_factory=Counter)


class Crew:
    """Everybody who works on the jobs of one round."""

    def __init__(self, settings: Settings, props: Props, seed: str, *, jobs: int, size: int, erratic: float) -> None:
        self._settings = settings
        self._props = props
        self._seed = seed
        self._moments = itertools.count(1)
        self._until = time.monotonic() + erratic
        rng = random.Random(seed)
        self.jobs = [Job(draw_graph(rng, rng.randint(1, size))) for _ in range(jobs)]
        for job in self.jobs:
            job.adds_left = rng.choice([0, 2, 8])
            job.cancels_left = rng.choice([0, 0, 1, 5])
            job.stop_left = rng.random() < 0.15
            job.given = {
                "fail_fast": rng.random() < 0.15,
                "max_parallel": rng.choice([None, None, None, 1, 3]),
                "timeout": rng.random() * erratic if rng.random() < 0.1 else None,
            }
        self.journal = Journal()
        self._job_of: dict[int, Job] = {}
        self._numbers: dict[int, int] = {}

    @property
    def _erratic(self) -> bool:
        return time.monotonic() < self._until

    def _moment(self) -> float:
        return next(self._moments)

    async def run(self) -> None:
        """Until every job has ended."""
        rng = random.Random(f"{self._seed} submit")
        for job in self.jobs:
            nodes: list[Task | Group] = [*job.graph.groups.values(), *job.graph.tasks.values()]
            async with self._props.db.transaction() as tx:
                new = NewJob(name="random", **job.given)
                made = await submit_job(tx, new, as_plan(job.graph, nodes, {}, rng), self._props.take)
            job.id = made.job_id
            self._learn(job, made.ids, [])
        acts: list[Callable[[Database, random.Random], Awaitable[None]]] = [
            *[self._work] * WORKERS, *[self._resolve] * RESOLVERS, self._reap, self._cancel, self._pass_time,
            self._add_from_outside, self._control, self._operate, self._admit, self._look,
        ]  # fmt: skip
        running = [asyncio.create_task(self._with_database(act, at)) for at, act in enumerate(acts)]
        until = time.monotonic() + PATIENCE
        try:
            while await self._props.db.fetch(OPEN_JOBS):
                if time.monotonic() > until:
                    raise AssertionError(f"jobs that do not end: {await self._left()}")
                done, _ = await asyncio.wait(running, timeout=0.005, return_when=asyncio.FIRST_EXCEPTION)
                for one in done:
                    one.result()
        finally:
            for one in running:
                one.cancel()
            ends = await asyncio.gather(*running, return_exceptions=True)
        await self._tidy()
        broken = [end for end in ends if not isinstance(end, asyncio.CancelledError | None)]
        if broken:
            raise broken[0] if isinstance(broken[0], BaseException) else AssertionError(broken)

    async def _tidy(self) -> None:
        """Do what is left when all jobs have ended, and the workers are over."""
        db = self._props.db
        while await work_once(db):
            pass
        resolver = Resolver(db)
        while (await resolver.resolve_once()).folded:
            pass
        await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST'")
        await Reaper(db).sweep_once()

    async def _left(self) -> str:
        """What a job that hangs has left behind: open tasks where they are, and gates with what was to tell them."""
        names = {given: number for number, given in self._numbers.items() if number > 0}
        rows = [*await self._props.db.fetch(LEFT), *await self._props.db.fetch(SOURCES)]
        shown = ({key: names.get(value, value) for key, value in row.items() if value is not None} for row in rows)
        lines = [", ".join(f"{key}={value}" for key, value in row.items()) for row in shown]
        return "\n".join(lines)

    async def _with_database(self, act: Callable[[Database, random.Random], Awaitable[None]], at: int) -> None:
        async with Database(self._settings, size=1, flow=True) as db:
            await act(db, random.Random(f"{self._seed} {at}"))

    def _learn(self, job: Job, ids: dict[int, int], nodes: list[Task | Group]) -> None:
        job.learn(ids, nodes)
        for number, given in ids.items():
            self._job_of[given] = job
            self._numbers[given] = number

    # Workers.

    async def _work(self, db: Database, rng: random.Random) -> None:
        zombies: list[tuple[int, list[Claimed]]] = []
        while True:
            worker = await self._props.worker()
            held = await self._live(db, worker, rng)
            await self._props.silence(worker)
            zombies.append((worker, held))
            if len(zombies) > rng.randrange(3):
                await self._come_late(db, *zombies.pop(0), rng)

    async def _live(self, db: Database, worker: int, rng: random.Random) -> list[Claimed]:
        line, held = Line({"default": 1}), list[Claimed]()
        for _ in range(rng.randrange(3, 60) if self._erratic else 10_000):
            claimed = await line.claim(db, Wanted(rng.randrange(1, 6), worker, 3600, 30))
            moment = self._moment()
            for one in claimed:
                assert (one.task_id, one.run_epoch) not in self.journal.runs, "an epoch was given out twice"
                self.journal.runs.add((one.task_id, one.run_epoch))
                self.journal.starts.setdefault(one.task_id, moment)
            held += claimed
            rng.shuffle(held)
            keep = rng.randrange(len(held) + 1) if self._erratic and rng.random() < 0.7 else 0
            await self._finish(db, worker, held[keep:], rng)
            held = held[:keep]
            await asyncio.sleep(rng.random() * 0.003)
        return held

    async def _finish(self, db: Database, worker: int, runs: list[Claimed], rng: random.Random) -> None:
        together: list[Ended] = []
        for one in runs:
            job = self._job_of.get(one.task_id)
            adds = self._erratic and job is not None and job.adds_left > 0 and rng.random() < 0.3
            if adds and job is not None:
                await self._finish_adding(db, worker, one, job, rng)
            else:
                together.append(self._ended(one, self._outcome(one, rng)))
        await self._complete(db, worker, together)
        if together and rng.random() < 0.1:
            again = await complete(db, together, worker_id=worker)
            assert not again, f"runs ended twice: {again}"

    async def _finish_adding(self, db: Database, worker: int, one: Claimed, job: Job, rng: random.Random) -> None:
        """The run adds to its job, with its end or before it."""
        job.adds_left -= 1
        number = self._numbers[one.task_id]
        adding = Addition(job, rng, by=number)
        fence = Fence(one.task_id, one.run_epoch, worker)
        continues = rng.random() < 0.4 and adding.can_continue
        if continues:
            adding.continue_by(rng)
        outcome = Succeeded(adding.result()) if continues else self._outcome(one, rng)
        together = continues or rng.random() < 0.5
        landed: set[int] = set()
        moment = self._moment()
        try:
            async with db.transaction() as tx:
                ids = await self._add(tx, adding, fence)
                ended = self._ended(one, outcome, ids)
                if together:
                    landed = await complete(tx, [ended], worker_id=worker)
                    assert landed, "it held its lease, and lost it"
        except LeaseLost:
            await self._complete(db, worker, [self._ended(one, Failed(ERROR))])
            return
        except (BadJob, GroupClosed):
            await self._complete(db, worker, [self._ended(one, self._outcome(one, rng))])
            return
        self._added(adding, ids)
        if together:
            self._note(landed, [ended], moment)
        else:
            await self._complete(db, worker, [ended])

    def _added(self, adding: Addition, ids: dict[int, int]) -> None:
        """It is committed."""
        self._learn(adding.job, ids, adding.new)
        if adding.by is not None:
            adding.job.graph.tasks[adding.by].continued_by += adding.returns
        self.journal.done["additions"] += 1

    async def _add(self, tx: Connection, adding: Addition, fence: Fence | None) -> dict[int, int]:
        job = adding.job
        to = Adding(job.id, fence, adding.own_group, adding.returned())
        try:
            made = await add_to_job(tx, to, adding.plan(), self._props.take)
        except BadJob:
            job.cycles.append((adding.new, adding.returns, adding.by))
            raise
        except GroupClosed as error:
            [number] = [n for n, given in job.ids.items() if n > 0 and str(given) in str(error)] or [0]
            job.refused.append((number, self._moment()))
            raise
        return made.ids

    def _ended(self, one: Claimed, outcome: Outcome, ids: dict[int, int] | None = None) -> Ended:
        now = time.monotonic()
        if ids and isinstance(outcome, Succeeded):
            outcome = Succeeded(Addition.with_ids(outcome.result, ids))
        return Ended(one.task_id, one.run_epoch, outcome, now, now, flags=one.flags)

    async def _complete(self, db: Database, worker: int, batch: list[Ended]) -> set[int]:
        if not batch:
            return set()
        moment = self._moment()
        landed = await complete(db, batch, worker_id=worker)
        self._note(landed, batch, moment)
        stopped = [(one.task_id, one.run_epoch) for one in batch if one.task_id not in landed]
        await give_back_stopped(db, stopped, worker_id=worker)
        return landed

    def _note(self, landed: set[int], batch: list[Ended], moment: float | None = None) -> None:
        moment = self._moment() if moment is None else moment
        for run in batch:
            if run.task_id in landed and not isinstance(run.outcome, Later | Released):
                assert run.task_id not in self.journal.ends, "a task ended twice"
                self.journal.ends[run.task_id] = moment, run.outcome

    def _outcome(self, one: Claimed, rng: random.Random) -> Outcome:
        job = self._job_of.get(one.task_id)
        value = draw_value(job.graph, rng, self._numbers[one.task_id]) if job else True
        again = one.attempt < 3
        choices: list[Outcome] = [
            Succeeded(json.dumps(value)),
            Failed(ERROR),
            Skipped(ERROR),
            Cancelled(ERROR),
            Later("RETRYING", ERROR, 0.0) if again else Failed(ERROR),
            Later("SNOOZED", ERROR, 0.0),
            Released(),
        ]
        [chosen] = rng.choices(choices, [60, 8, 6, 2, 6, 4, 4] if self._erratic else [60, 5, 5, 1, 0, 0, 0])
        return chosen

    async def _come_late(self, db: Database, worker: int, held: list[Claimed], rng: random.Random) -> None:
        """A worker that everybody has given up, or is about to, completes what it had."""
        landed = await self._complete(db, worker, [self._ended(one, self._outcome(one, rng)) for one in held])
        self.journal.done["late ends"] += len(held) - len(landed)

    # The others.

    async def _resolve(self, db: Database, rng: random.Random) -> None:
        resolver = Resolver(db)
        while True:
            done = await resolver.resolve_once(limit=rng.choice([1, 3, 20, 1000]), page=rng.choice([1, 2, 7, 10_000]))
            await asyncio.sleep(0 if done.more else rng.random() * 0.004)

    async def _reap(self, db: Database, rng: random.Random) -> None:
        reaper = Reaper(db)
        while True:
            await reaper.reap_once(rng.choice([1, 7, 500]))
            await reaper.due_once(rng.choice([1, 30, 1000]))
            await asyncio.sleep(rng.random() * 0.02)

    async def _pass_time(self, db: Database, rng: random.Random) -> None:
        while True:
            await db.fetch(DUE)
            await asyncio.sleep(0.01 + rng.random() * 0.03)

    async def _cancel(self, db: Database, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.random() * 0.05)
            if wanting := [job for job in self.jobs if job.cancels_left]:
                job = rng.choice(wanting)
                job.cancels_left -= 1
                ids = [job.ids[number] for number in rng.sample(list(job.graph.tasks), 1)]
                moment = self._moment()
                try:
                    cancelled = await cancel(db, ids)
                except TasksBusy:
                    continue
                self.journal.by_hand |= dict.fromkeys(cancelled, moment)

    async def _add_from_outside(self, db: Database, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.random() * 0.05)
            if wanting := [job for job in self.jobs if job.adds_left]:
                job = rng.choice(wanting)
                job.adds_left -= 1
                adding = Addition(job, rng)
                try:
                    async with db.transaction() as tx:
                        ids = await self._add(tx, adding, None)
                except (BadJob, GroupClosed, JobEnded):
                    continue
                self._added(adding, ids)

    async def _control(self, db: Database, rng: random.Random) -> None:
        """Jobs are paused, resumed and cancelled."""
        while self._erratic:
            await asyncio.sleep(rng.random() * 0.1)
            job = rng.choice(self.jobs)
            with suppress(JobEnded, TasksBusy):
                if job.stop_left and rng.random() < 0.3:
                    job.stop_left, moment = False, self._moment()
                    await cancel_job(db, job.id, by="me")
                    job.stopped = moment
                    self.journal.done["cancelled jobs"] += 1
                elif rng.random() < 0.5:
                    await pause_job(db, job.id, by="me")
                    self.journal.done["pauses"] += 1
                else:
                    await resume_job(db, job.id, by="me")
        for job in self.jobs:
            await resume_job(db, job.id, by="me")
        await asyncio.sleep(3600)

    async def _operate(self, db: Database, rng: random.Random) -> None:
        while True:
            await work_once(db, limit=rng.choice([1, 7, 1000]))
            await asyncio.sleep(rng.random() * 0.01)

    async def _admit(self, db: Database, rng: random.Random) -> None:
        admission = Admission(db)
        while True:
            await admission.admit_once(batch=rng.choice([1, 5, 500]))
            await asyncio.sleep(rng.random() * 0.01)

    async def _look(self, db: Database, rng: random.Random) -> None:
        while True:
            await assert_not_crowded(db)
            await asyncio.sleep(0.01 + rng.random() * 0.02)
