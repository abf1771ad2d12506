"""Races of runs that add to their job: with the end of their lease, with their own next attempt, with a cancel."""

from __future__ import annotations

from typing import Any

import pytest

from aaiclick_queue import task
from aaiclick_queue.context import Current, Services
from aaiclick_queue.errors import LeaseLost
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.enqueue import TakeIds
from aaiclick_queue.flow.execute import Run
from aaiclick_queue.flow.graph import Plan, Previous
from aaiclick_queue.flow.job_control import cancel_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.growing import Adds, write_end
from aaiclick_queue.postgres import Database
from tests.dag.hands import Hands, settle, statuses
from tests.dag.written import planned
from tests.planned import Job
from tests.races.orders import Play, Stage
from tests.races.props import Props, claim
from tests.tools import make_due


@task
async def child(value: int) -> int:
    return value


class Running:
    """A run of a job's first task, in its only group, and what it adds."""

    def __init__(self, props: Props, job: Job, claimed: Claimed, worker_id: int) -> None:
        self.props = props
        self.job = job
        self.claimed = claimed
        self.worker_id = worker_id

    @classmethod
    async def start(cls, props: Props) -> Running:
        job = Job()
        group = job.group()
        first = job.task(group=group)
        job.task(Previous(group, "group"))
        await job.submit(props.db)
        worker_id = await props.worker()
        [claimed] = await Hands(props.db, worker_id).take(job[first])
        return cls(props, job, claimed, worker_id)

    def _run(self) -> Run:
        return Run(self.claimed, child, self.props.db.settings, self.worker_id)

    async def end(self, db: Database) -> None:
        """End, continued by a new node."""
        adds = Adds('{"$node":901}', Plan([planned(901)]), (Previous(901),))
        async with db.transaction() as tx:
            await write_end(tx, self._run(), adds, self.props.take)

    async def enqueue(self, db: Database, key: str | None = None) -> int:
        """Put a child into the job at once."""
        services = _Services(db, self.props.take)
        given = {} if key is None else {"key": key}
        return int((await Current(self._run(), services).enqueue(child, 1, **given)).id)

    async def again(self) -> Running:
        """The next attempt, after this one lost its lease."""
        await make_due(self.props.db)
        await Reaper(self.props.db).due_once()
        worker_id = await self.props.worker()
        [claimed] = await claim(self.props.db, worker_id, limit=1)
        assert claimed.task_id == self.claimed.task_id
        return Running(self.props, self.job, claimed, worker_id)

    async def added(self) -> list[int]:
        return [one for one in await statuses(self.props.db, self.job.id) if one not in self.job.ids.values()]

    async def finish(self) -> None:
        """All that is left runs, each once, and the counts are right."""
        started = await (await Hands.register(self.props.db)).run()
        assert len({*started}) == len(started)
        assert {*(await statuses(self.props.db, self.job.id)).values()} == {"COMPLETED"}
        assert not await self.props.db.fetch("SELECT FROM aaiclick_queue.gates WHERE remaining <> 0")
        status = await self.props.db.fetchval("SELECT status FROM aaiclick_queue.jobs WHERE id = $1", self.job.id)
        assert status == "COMPLETED"


class _Services(Services):
    """A worker's services whose statements wait for their turn; its ids are there already."""

    def __init__(self, db: Database, take: TakeIds) -> None:
        super().__init__(db.settings, db, "", lambda _: None)
        self._source: Any = type("Ids", (), {"take": staticmethod(take)})

    async def ids(self) -> Any:
        return self._source


async def reap(db: Database) -> int:
    return (await Reaper(db).reap_once()).lost


async def test_a_run_adds_and_ends_or_its_lease_is_taken_and_nothing_was_added(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        running = await Running.start(props)
        await props.lose(running.worker_id)
        ended, lost = await play.run(end=running.end, reap=reap)
        assert (ended is None) == (lost == 0), (ended, lost)
        assert ended is None or isinstance(ended, LeaseLost)
        assert len(await running.added()) == (lost == 0)
        if lost:
            again = await running.again()
            await again.end(props.db)
            assert len(await running.added()) == 1
        await running.finish()

    await stage.in_every_order(scene, preemptions=2)


async def test_of_two_attempts_that_end_only_the_one_with_the_lease_adds(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        first = await Running.start(props)
        await props.lose(first.worker_id)
        assert await reap(props.db) == 1
        second = await first.again()
        late, ended = await play.run(late=first.end, ended=second.end)
        assert isinstance(late, LeaseLost)
        assert ended is None
        assert len(await first.added()) == 1
        await first.finish()

    await stage.in_every_order(scene, preemptions=2)


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_child_is_there_once_however_the_lease_is_lost_around_it(
    stage: Stage, props: Props, key: str | None
) -> None:
    async def scene(play: Play) -> None:
        first = await Running.start(props)
        await props.lose(first.worker_id)
        made, lost = await play.run(spawn=lambda db: first.enqueue(db, key), reap=reap)
        assert isinstance(made, int | LeaseLost), made
        if not lost:
            assert isinstance(made, int)
            assert await reap(props.db) == 1
        second = await first.again()
        again = await second.enqueue(props.db, key)
        assert await first.added() == [again]
        assert made == again or isinstance(made, LeaseLost)
        await second.end(props.db)
        await first.finish()

    await stage.in_every_order(scene, preemptions=2)


async def test_two_calls_with_one_key_give_one_child(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        running = await Running.start(props)
        one, other = await play.run(one=lambda db: running.enqueue(db, "k"), other=lambda db: running.enqueue(db, "k"))
        assert one == other
        assert await running.added() == [one]
        await running.end(props.db)
        await running.finish()

    await stage.in_every_order(scene, preemptions=2)


@pytest.mark.parametrize("how", ["end", "enqueue"])
async def test_nothing_joins_a_job_after_its_cancel(stage: Stage, props: Props, how: str) -> None:
    async def scene(play: Play) -> None:
        running = await Running.start(props)

        async def cancel(db: Database) -> list[int]:
            await cancel_job(db, running.job.id, by="me")
            return await running.added()  # what the sweep that follows will find

        act = running.end if how == "end" else running.enqueue
        added, there = await play.run(add=act, cancel=cancel)
        assert not isinstance(added, Exception) or isinstance(added, LeaseLost), added
        assert await running.added() == there
        assert len(there) == (not isinstance(added, LeaseLost))
        while await work_once(props.db):
            pass
        left = {*(await statuses(props.db, running.job.id)).values()}
        assert left == ({"CANCELLED", "COMPLETED"} if there and how == "end" else {"CANCELLED"})

    await stage.in_every_order(scene, preemptions=2)


async def test_a_group_is_not_over_while_its_last_task_adds_to_it(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        running = await Running.start(props)

        async def resolve(db: Database) -> None:
            for _ in range(3):
                await Resolver(db).resolve_once()

        await play.run(end=running.end, resolve=resolve)
        await settle(props.db)
        [behind] = [one for one in running.job.ids.values() if (await statuses(props.db, running.job.id)).get(one)][1:]
        assert (await statuses(props.db, running.job.id))[behind] == "PENDING"
        await running.finish()

    await stage.in_every_order(scene, preemptions=2)
