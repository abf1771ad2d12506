"""The life of a job under many hands: ends that are folded, gates that open, jobs that close, and who comes between."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from aaiclick_queue.errors import BadJob, GroupClosed, JobEnded, LeaseLost
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.graph import Plan, Previous
from aaiclick_queue.flow.job_control import cancel_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.outcome import Outcome
from aaiclick_queue.postgres import Connection, Database, Record
from aaiclick_queue.settings import Settings
from tests.dag.hands import FAILS, WELL, Hands, assert_counted, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.races.orders import Act, Play, Stage
from tests.races.props import Props

ENDS_OF_JOB = """
SELECT type FROM aaiclick_queue.events WHERE job_id = $1 AND task_id IS NULL AND type IN
       ('JOB_COMPLETED', 'JOB_FAILED', 'JOB_CANCELLED')
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
OPEN_TASKS = "SELECT count(*) FROM aaiclick_queue.tasks WHERE job_id = $1 AND status IS NULL"
PLACES = ("waiting", "arrivals", "ready", "delayed", "held", "leases")


async def nothing_is_left(db: Database, job_id: int) -> None:
    await assert_counted(db, job_id)
    for place in PLACES:
        assert not await db.fetch(f"SELECT FROM aaiclick_queue.{place}"), place


def resolves(passes: int = 2, **given: Any) -> Act:
    async def resolve(db: Database) -> None:
        resolver = Resolver(db)
        for _ in range(passes):
            await resolver.resolve_once(**given)

    return resolve


@pytest.mark.parametrize("outcome", [WELL, FAILS])
@pytest.mark.parametrize("begins", ["cancel", "resolve"])
async def test_a_task_is_cancelled_while_what_it_waits_for_is_folded(
    stage: Stage, props: Props, outcome: Outcome, begins: str
) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first = job.task()
        waiting = job.task(first)
        last = job.task(waiting, rule="all_done")
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first])
        await hands.end(job[first], outcome=outcome)
        acts: dict[str, Act] = {"cancel": lambda db: cancel(db, [job[waiting]]), "resolve": resolves()}
        names = [begins, *({*acts} - {begins})]
        results = dict(zip(names, await play.run(**{name: acts[name] for name in names}), strict=True))
        assert results["resolve"] is None
        await settle(props.db)
        is_cancelled = (await statuses(props.db, job.id))[job[waiting]] == "CANCELLED"
        assert results["cancel"] == ({job[waiting]} if is_cancelled else set())
        assert is_cancelled or outcome is FAILS, "one that opens is met in line"
        assert await hands.run() == [job[last]]
        assert (await job_row(props.db, job.id))["status"] == "FAILED"
        await nothing_is_left(props.db, job.id)

    await stage.in_every_order(scene, preemptions=2)


@pytest.mark.parametrize("begins", ["stop", "resolve"])
async def test_a_job_is_cancelled_while_it_closes(stage: Stage, props: Props, begins: str) -> None:
    async def stop(db: Database) -> None:
        await cancel_job(db, job_ids[-1], by="me")
        await work_once(db)

    job_ids: list[int] = []

    async def scene(play: Play) -> None:
        job = Job()
        only = job.task()
        await job.submit(props.db)
        job_ids.append(job.id)
        hands = await Hands.register(props.db)
        await hands.take(job[only])
        await hands.end(job[only])
        acts: dict[str, Act] = {"stop": stop, "resolve": resolves()}
        names = [begins, *({*acts} - {begins})]
        results = dict(zip(names, await play.run(**{name: acts[name] for name in names}), strict=True))
        assert results["resolve"] is None
        while await work_once(props.db):
            pass
        await settle(props.db)
        status = (await job_row(props.db, job.id))["status"]
        assert status == ("COMPLETED" if isinstance(results["stop"], JobEnded) else "CANCELLED"), results
        assert [row["type"] for row in await props.db.fetch(ENDS_OF_JOB, job.id)] == [f"JOB_{status}"]
        await nothing_is_left(props.db, job.id)

    await stage.in_every_order(scene, preemptions=2)


class Mortal(Database):
    """A connection that is cut before the statement of that number."""

    def __init__(self, settings: Settings, dies_before: int) -> None:
        super().__init__(settings, size=1, flow=True)
        self.left = dies_before

    async def _connect(self) -> Connection:
        return _Cut((await super()._connect()).raw, schema=self.schema, begin=None, of=self)


class _Cut(Connection):
    def __init__(self, raw: Any, *, of: Mortal, **given: Any) -> None:
        super().__init__(raw, **given)
        self._of = of

    async def fetch(self, sql: str, *args: Any) -> Any:
        self._of.left -= 1
        if self._of.left < 0:
            self.raw.terminate()
        rows: list[Record] = list(await super().fetch(sql, *args))
        return rows


async def test_a_gate_whose_resolver_dies_at_any_step_between_its_pages_is_opened_by_another(
    settings: Settings, props: Props
) -> None:
    for steps in itertools.count():
        job = Job()
        first = job.task()
        many = job.tasks(5, first)
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first])
        await hands.end(job[first])
        survives = False
        async with Mortal(settings, steps) as db:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await resolves(6, page=2)(db)
                survives = True
        other = Resolver(props.db)
        async with asyncio.timeout(20):
            while (done := await other.resolve_once(page=2)).more or done.held:
                pass  # until Postgres knows that the other is dead
        assert not await props.db.fetch("SELECT FROM aaiclick_queue.waiting")
        assert {*await hands.run()} == {*job.of(many)}
        assert (await job_row(props.db, job.id))["status"] == "COMPLETED"
        await nothing_is_left(props.db, job.id)
        if survives:
            break
    assert steps > 6, "it did not get from page to page"


async def test_two_open_a_gate_page_by_page_and_stop_anywhere(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first = job.task()
        many = job.tasks(4, first)
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first])
        await hands.end(job[first])
        results = await play.run(one=resolves(2, page=1), other=resolves(2, page=2))
        assert results == [None, None]
        assert sorted(await hands.run()) == sorted(job.of(many))
        await nothing_is_left(props.db, job.id)

    await stage.in_every_order(scene, preemptions=2)


class Growing:
    """A job of nested groups that ten add to while its tasks end."""

    def __init__(self, settings: Settings, props: Props, *, until: float) -> None:
        self._settings = settings
        self._props = props
        self._until = until
        self.job = Job()
        outer = self.job.group()
        groups = [outer, self.job.group(parent=outer), self.job.group(group_before(outer))]
        [self._first, *_] = [self.job.tasks(3, group=group)[0] for group in groups]
        self.groups, self.added = groups, 0

    async def act(self, act: Any, seed: int) -> None:
        async with Database(self._settings, size=1, flow=True) as db:
            await act(db, random.Random(seed))

    async def add(self, db: Database, rng: random.Random) -> None:
        while time.monotonic() < self._until:
            nodes = [*(Previous(self.job[one], "group") for one in self.groups[:2]), Previous(self.job[self._first])]
            rows = await db.fetch("SELECT id FROM aaiclick_queue.tasks WHERE job_id = $1", self.job.id)
            nodes += [Previous(row["id"]) for row in rng.sample(rows, min(len(rows), 3))]
            after = {one.number: one for one in rng.sample(nodes, 2)}.values()
            group = rng.choice([None, *self.job.of(self.groups)])
            new = [
                planned(901, after=after, rule="all_done"),
                planned(902, group=group, after=[901][: rng.randint(0, 1)]),
            ]
            with suppress(BadJob, GroupClosed, JobEnded):
                async with db.transaction() as tx:
                    await add_to_job(tx, Adding(self.job.id), Plan(new), self._props.take)
                self.added += 1
            await asyncio.sleep(rng.random() * 0.02)

    async def work(self, db: Database, rng: random.Random) -> None:
        hands = Hands(db, await self._props.worker())
        while time.monotonic() < self._until:
            await hands.take()
            for task_id in rng.sample([*hands.held], len(hands.held) // 2):
                if rng.random() < 0.3:
                    with suppress(LeaseLost, GroupClosed):
                        await hands.continue_by(task_id, self.job.id, planned(900))
                else:
                    await hands.end(task_id, outcome=FAILS if rng.random() < 0.3 else WELL)
            await asyncio.sleep(rng.random() * 0.02)
        await hands.end(*hands.held)

    async def resolve(self, db: Database, rng: random.Random) -> None:
        resolver = Resolver(db)
        while time.monotonic() < self._until:
            await resolver.resolve_once(limit=rng.randint(1, 30), page=rng.randint(1, 10))
            await asyncio.sleep(rng.random() * 0.005)


async def test_ten_add_to_one_job_while_its_tasks_end_and_none_of_them_is_in_a_deadlock(
    settings: Settings, props: Props
) -> None:
    growing = Growing(settings, props, until=time.monotonic() + 5)
    await growing.job.submit(props.db)
    acts = [*[growing.add] * 10, *[growing.work] * 3, *[growing.resolve] * 3]
    async with asyncio.timeout(60):
        await asyncio.gather(*(growing.act(act, seed) for seed, act in enumerate(acts)))
    assert growing.added > 10
    assert not await props.db.fetchval(DEADLOCKS)
    await (await Hands.register(props.db)).run()
    assert await props.db.fetchval(OPEN_TASKS, growing.job.id) == 0
    await nothing_is_left(props.db, growing.job.id)
