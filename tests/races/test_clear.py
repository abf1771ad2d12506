"""A task is cleared while something else happens to it or around it: either one comes first, and both have happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aaiclick_queue.errors import LeaseLost, TasksBusy
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.graph import Plan
from aaiclick_queue.flow.job_control import cancel_job
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.outcome import Later, Released
from aaiclick_queue.postgres import Database
from tests.dag.hands import ERROR, FAILS, Hands, assert_counted, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.races.orders import Play, Stage
from tests.races.props import Props
from tests.tools import claim

Act = Callable[[Database], Awaitable[Any]]


class Scene:
    """A small job in the middle of its life: first → second → last, and one in a group that `last` waits for too."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.job = Job()
        self.first = self.job.task()
        self.second = self.job.task(self.first)
        self.group = self.job.group()
        self.beside = self.job.task(group=self.group)
        self.last = self.job.task(self.second, group_before(self.group))

    async def begin(self, *, ended: int = 1) -> Hands:
        """Run so many of the chain; what can start then is taken."""
        await self.job.submit(self.db)
        hands = await Hands.register(self.db)
        for number in (self.first, self.second)[:ended]:
            await hands.take(self.job[number])
            await hands.end(self.job[number])
            await settle(self.db)
        return hands

    async def finish(self, *, status: str = "COMPLETED") -> list[int]:
        """What is left runs to its end; every task ran as often as its epochs say, and the counts are right."""
        await self.db.fetch("UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 s'")
        await Reaper(self.db).due_once()
        started = await (await Hands.register(self.db)).run()
        assert len({*started}) == len(started)
        assert (await job_row(self.db, self.job.id))["status"] == status
        await assert_counted(self.db, self.job.id)
        assert not await self.db.fetch(
            "SELECT FROM aaiclick_queue.tasks t WHERE t.job_id = $1 AND t.status IS NULL", self.job.id
        )
        places = ["waiting", "held", "delayed", "ready", "leases"]
        for place in places:
            assert not await self.db.fetch(f"SELECT FROM aaiclick_queue.{place}")
        return started


def clears(task_id: int) -> Act:
    return lambda db: clear_task(db, task_id, by="me")


async def resolve(db: Database) -> None:
    resolver = Resolver(db)
    for _ in range(2):
        await resolver.resolve_once()


class Begins:
    """Who begins: with one preemption each, the clear is stopped by the others at every step, or they by the clear."""

    def __init__(self, clear_first: bool) -> None:
        self._clear_first = clear_first

    async def __call__(self, play: Play, **acts: Act) -> list[Any]:
        names = list(acts) if self._clear_first else [*[name for name in acts if name != "clear"], "clear"]
        results = dict(zip(names, await play.run(**{name: acts[name] for name in names}), strict=True))
        return [results[name] for name in acts]


@pytest.fixture(params=[True, False], ids=["clear first", "clear last"])
def begins(request: pytest.FixtureRequest) -> Begins:
    return Begins(request.param)


def failures(results: list[Any]) -> list[Exception]:
    return [one for one in results if isinstance(one, Exception)]


@pytest.mark.parametrize("number", ["first", "second"])
async def test_while_what_is_right_before_it_or_itself_ends(
    stage: Stage, props: Props, begins: Begins, number: str
) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        [run] = await hands.take(scene.job[scene.second])

        async def end(db: Database) -> None:
            await Hands(db, hands.worker_id).finish([run])

        cleared = scene.job[getattr(scene, number)]
        results = await begins(play, clear=clears(cleared), end=end, resolve=resolve)
        assert not failures(results)
        hands.held.pop(run.task_id)
        await hands.end(*hands.held)
        started = await scene.finish()
        assert {cleared, scene.job[scene.second], scene.job[scene.last]} <= {*started}

    await stage.in_every_order(scene, preemptions=1)


async def test_while_something_else_ends_that_the_same_task_waits_for(
    stage: Stage, props: Props, begins: Begins
) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin(ended=2)
        [run] = await hands.take(scene.job[scene.beside])

        async def end(db: Database) -> None:
            await Hands(db, hands.worker_id).finish([run])
            await resolve(db)

        results = await begins(play, clear=clears(scene.job[scene.second]), end=end)
        assert not failures(results)
        started = await scene.finish()
        assert started == [scene.job[scene.second], scene.job[scene.last]] or started == [
            scene.job[scene.last],
            scene.job[scene.second],
            scene.job[scene.last],
        ]

    await stage.in_every_order(scene, preemptions=1)


async def test_while_its_arrivals_are_folded_by_two(stage: Stage, props: Props, begins: Begins) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        await hands.take(scene.job[scene.second], scene.job[scene.beside])
        await hands.end(scene.job[scene.beside])
        await hands.end(scene.job[scene.second])
        results = await begins(play, clear=clears(scene.job[scene.beside]), one=resolve, other=resolve)
        assert not failures(results)
        started = await scene.finish()
        assert {*started} == {scene.job[scene.beside], scene.job[scene.last]}

    await stage.in_every_order(scene, preemptions=1)


@pytest.mark.parametrize("at", ["ready", "leases", "waiting"])
async def test_while_it_is_cancelled(stage: Stage, props: Props, begins: Begins, at: str) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        task_id = scene.job[scene.last if at == "waiting" else scene.second]
        if at == "leases":
            await hands.take(task_id)
        results = await begins(play, clear=clears(task_id), cancel=lambda db: cancel(db, [task_id]))
        assert not failures(results)
        await settle(props.db)
        is_cancelled = (await statuses(props.db, scene.job.id))[task_id] == "CANCELLED"
        hands.held.pop(task_id, None)
        await hands.end(*hands.held)
        await scene.finish(status="FAILED" if is_cancelled else "COMPLETED")

    await stage.in_every_order(scene, preemptions=1)


async def test_while_it_is_claimed(stage: Stage, props: Props, begins: Begins) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        task_id = scene.job[scene.second]
        results = await begins(play, clear=clears(task_id), claim=lambda db: claim(db, hands.worker_id))
        assert not failures(results)
        held = await props.db.fetch("SELECT task_id, run_epoch FROM aaiclick_queue.leases")
        fences = {(row["task_id"], row["run_epoch"]) for row in held}
        runs = [run for run in results[1] if (run.task_id, run.run_epoch) in fences]
        await hands.end(*hands.held)
        assert await hands.finish(results[1]) == {run.task_id for run in runs}
        started = await scene.finish()
        assert (task_id in started) == (task_id not in {run.task_id for run in runs})

    await stage.in_every_order(scene, preemptions=1)


@pytest.mark.parametrize("kind", ["lost", "released", "retried"])
async def test_while_its_run_comes_back(stage: Stage, props: Props, begins: Begins, kind: str) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        task_id = scene.job[scene.second]
        [run] = await hands.take(task_id)
        others = [one for one in hands.held if one != task_id]
        await hands.end(*others)
        if kind == "lost":
            await props.lose(hands.worker_id)

        async def back(db: Database) -> None:
            match kind:
                case "lost":
                    await Reaper(db).reap_once()
                case "released":
                    await Hands(db, hands.worker_id).finish([run], Released())
                case "retried":
                    await Hands(db, hands.worker_id).finish([run], Later("RETRYING", ERROR, 0.0))

        results = await begins(play, clear=clears(task_id), back=back)
        assert not failures(results)
        started = await scene.finish()
        assert started == [task_id, scene.job[scene.last]]

    await stage.in_every_order(scene, preemptions=1)


@pytest.mark.parametrize("by", ["itself", "beside", "outside"])
async def test_while_tasks_are_added_to_the_job(stage: Stage, props: Props, begins: Begins, by: str) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        task_id, beside = scene.job[scene.second], scene.job[scene.beside]
        await hands.take(task_id, beside)
        take = (await id_source(props.db)).take
        fence = None if by == "outside" else hands.fence(task_id if by == "itself" else beside)
        adding = Adding(scene.job.id, by=fence, group=scene.job[scene.group] if by == "beside" else None)
        after = [scene.job[scene.second]] if by != "itself" else []

        async def add(db: Database) -> Any:
            async with db.transaction() as tx:
                made = await add_to_job(tx, adding, Plan([planned(900, after=after, task={"spawn_key": "a"})]), take)
            return made.ids[900]

        added: Any
        cleared, added = await begins(play, clear=clears(task_id), add=add)
        assert not isinstance(cleared, Exception) or isinstance(cleared, TasksBusy)
        assert not isinstance(added, Exception) or (by == "itself" and isinstance(added, LeaseLost))
        if isinstance(cleared, TasksBusy):
            await clear_task(props.db, task_id, by="me")
        hands.held.pop(task_id)
        await hands.end(*hands.held)
        started = await scene.finish()
        if by == "itself" and not isinstance(added, Exception):
            assert added not in started
        elif by != "itself":
            assert not isinstance(added, Exception)
            assert started.index(added) > started.index(task_id)

    await stage.in_every_order(scene, preemptions=1)


async def test_while_the_job_is_cancelled(stage: Stage, props: Props, begins: Begins) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        task_id = scene.job[scene.second]
        await hands.take(task_id)

        async def stop(db: Database) -> None:
            await cancel_job(db, scene.job.id, by="me")
            for _ in range(6):
                await work_once(db)

        results = await begins(play, clear=clears(task_id), stop=stop)
        assert not failures(results)
        while await work_once(props.db):
            pass
        await settle(props.db)
        status = (await job_row(props.db, scene.job.id))["status"]
        assert status in ("CANCELLED", "RUNNING")
        if status == "CANCELLED":
            assert not [
                one for one in (await statuses(props.db, scene.job.id)).values() if one in ("QUEUED", "PENDING")
            ]
            await scene.finish(status="CANCELLED")
            return
        gone = {row["task_id"] for row in await props.db.fetch("SELECT task_id FROM aaiclick_queue.leases")}
        for one in [*hands.held]:
            if one not in gone or one == task_id:
                hands.held.pop(one)
        await hands.end(*hands.held)
        started = await scene.finish(status=(await _status_to_come(props.db, scene)))
        assert task_id in started

    await stage.in_every_order(scene, preemptions=1)


async def _status_to_come(db: Database, scene: Scene) -> str:
    """FAILED if the cancel got some task that was not cleared."""
    found = await statuses(db, scene.job.id)
    return "FAILED" if "CANCELLED" in found.values() else "COMPLETED"


async def test_while_it_is_retried_and_cleared_by_another(stage: Stage, props: Props, begins: Begins) -> None:
    async def scene(play: Play) -> None:
        scene = Scene(props.db)
        hands = await scene.begin()
        await hands.take(scene.job[scene.second])
        await hands.end(*[one for one in hands.held if one != scene.job[scene.second]])
        await hands.end(scene.job[scene.second], outcome=FAILS)

        async def retry(db: Database) -> set[int]:
            async with db.transaction() as tx:
                return await retry_in_job(tx, scene.job.id, by="me")

        results = await begins(play, clear=clears(scene.job[scene.second]), retry=retry, resolve=resolve)
        assert not failures(results)
        assert await scene.finish() == [scene.job[scene.second], scene.job[scene.last]]

    await stage.in_every_order(scene, preemptions=1)
