"""What is added to a job while the nodes that it waits for end, and gates whose rows somebody holds for a moment."""

from __future__ import annotations

from contextlib import suppress

import pytest

from aaiclick_queue.flow.cancel import TAKE_AT_GATE
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.graph import Plan, Previous
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.postgres import Database
from tests.dag.hands import Hands, settle, statuses
from tests.dag.written import planned
from tests.planned import Job
from tests.races.orders import Play, Stage
from tests.races.props import Props


async def add_behind(db: Database, take: object, job_id: int, *previous: Previous) -> int:
    async with db.transaction() as tx:
        made = await add_to_job(tx, Adding(job_id), Plan([planned(901, after=previous)]), take)  # type: ignore[arg-type]
    return made.ids[901]


async def resolve(db: Database) -> None:
    resolver = Resolver(db)
    for _ in range(3):
        await resolver.resolve_once()


async def finish(db: Database, job: Job) -> None:
    """All that is left runs, each once, and the counts are right."""
    started = await (await Hands.register(db)).run()
    assert len({*started}) == len(started)
    assert {*(await statuses(db, job.id)).values()} == {"COMPLETED"}
    assert not await db.fetch("SELECT FROM aaiclick_queue.gates WHERE remaining <> 0")
    assert not await db.fetch("SELECT FROM aaiclick_queue.arrivals")


@pytest.mark.parametrize("kind", ["task", "group"])
@pytest.mark.parametrize("behind", [0, 1])
async def test_a_node_ends_while_another_is_added_behind_it(stage: Stage, props: Props, kind: str, behind: int) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        group = job.group()
        first, _ = job.task(group=group), job.task()
        for _ in range(behind):
            job.task(first)
            job.task(Previous(group, "group"))
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        [run] = await hands.take(job[first])
        previous = Previous(job[first]) if kind == "task" else Previous(job[group], "group")

        async def end(db: Database) -> None:
            await Hands(db, hands.worker_id).finish([run])
            await resolve(db)

        take = (await id_source(props.db)).take
        results = await play.run(add=lambda db: add_behind(db, take, job.id, previous), end=end)
        assert not [one for one in results if isinstance(one, Exception)] or kind == "group", results
        await hands.end(*(one for one in hands.held if one != run.task_id))
        await finish(props.db, job)

    await stage.in_every_order(scene, preemptions=1)


async def test_what_continues_a_task_ends_while_another_is_added_behind_it(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first, _ = job.task(), job.task()
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first])
        [more] = await hands.continue_by(job[first], job.id, planned(900))
        await settle(props.db)
        [run] = await hands.take(more)

        async def end(db: Database) -> None:
            await Hands(db, hands.worker_id).finish([run])
            await resolve(db)

        take = (await id_source(props.db)).take
        await play.run(add=lambda db: add_behind(db, take, job.id, Previous(job[first])), end=end)
        await hands.end(*(one for one in hands.held if one != more))
        await finish(props.db, job)

    await stage.in_every_order(scene, preemptions=1)


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_group_begins_while_a_task_is_added_to_it(stage: Stage, props: Props, behind: int) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first, other = job.task(), job.task()
        group = job.group(first)
        job.task(group=group)
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        [run] = await hands.take(job[first])
        after = [Previous(job[other])] * behind

        async def end(db: Database) -> None:
            await Hands(db, hands.worker_id).finish([run])
            await resolve(db)

        async def add(db: Database) -> None:
            async with db.transaction() as tx:
                plan = Plan([planned(901, group=job[group], after=after)])
                await add_to_job(tx, Adding(job.id), plan, take)

        take = (await id_source(props.db)).take
        assert not [one for one in await play.run(add=add, end=end) if isinstance(one, Exception)]
        await hands.end(*(one for one in hands.held if one != run.task_id))
        await finish(props.db, job)

    await stage.in_every_order(scene, preemptions=1)


async def test_two_add_behind_the_same_task(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first, _ = job.task(), job.task()
        await job.submit(props.db)
        take = (await id_source(props.db)).take
        previous = Previous(job[first])
        results = await play.run(
            one=lambda db: add_behind(db, take, job.id, previous),
            other=lambda db: add_behind(db, take, job.id, previous),
        )
        assert not [one for one in results if isinstance(one, Exception)], results
        await finish(props.db, job)

    await stage.in_every_order(scene, preemptions=1)


async def test_a_gate_opens_for_a_task_whose_cancel_was_rolled_back(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first = job.task()
        waiting = job.task(first)
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first])
        await hands.end(job[first])

        async def cancel(db: Database) -> None:
            with suppress(ZeroDivisionError):
                async with db.transaction() as tx:
                    await tx.fetch(TAKE_AT_GATE, [job[waiting]], '{"type": "Cancelled"}')
                    await tx.fetch("SELECT 1")
                    raise ZeroDivisionError

        await play.run(cancel=cancel, resolve=resolve)
        await finish(props.db, job)

    await stage.in_every_order(scene)
