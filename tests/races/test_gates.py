"""Gates under many hands: resolvers that fold the same ones, rows that somebody holds, adders, cancels and closing."""

from __future__ import annotations

import asyncio

from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.enqueue import TakeIds, id_source
from aaiclick_queue.flow.graph import Plan, PlannedTask
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, Hands, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job
from tests.races.orders import Play, Stage
from tests.races.props import Props

HOLD_GATE = "SELECT id FROM aaiclick_queue.gates WHERE id = $1 FOR UPDATE"
HOLD_JOB = "SELECT id FROM aaiclick_queue.jobs WHERE id = $1 FOR SHARE"
HOLD_WAITING = "SELECT task_id FROM aaiclick_queue.waiting WHERE task_id = $1 FOR UPDATE"


async def add_plan(db: Database, take: TakeIds, job_id: int, *tasks: PlannedTask) -> dict[int, int]:
    """Somebody outside adds to the job."""
    async with db.transaction() as tx:
        return (await add_to_job(tx, Adding(job_id), Plan([*tasks]), take)).ids


async def resolve(db: Database, passes: int = 2) -> None:
    resolver = Resolver(db)
    for _ in range(passes):
        await resolver.resolve_once()


async def one_task(db: Database, hands: Hands) -> Job:
    """A job whose only task has ended, and nobody has folded that yet."""
    job = Job()
    only = job.task()
    await job.submit(db)
    await hands.take(job[only])
    await hands.end(job[only])
    return job


async def test_a_job_whose_row_is_held_closes_later_though_another_gate_is_held_too(props: Props) -> None:
    hands = await Hands.register(props.db)
    other, job = await one_task(props.db, hands), await one_task(props.db, hands)
    async with props.db.transaction() as tx:
        await tx.fetch(HOLD_GATE, other.id)
        await tx.fetch(HOLD_JOB, job.id)
        assert (await Resolver(props.db).resolve_once()).held
    await settle(props.db)
    for one in (job, other):
        assert (await job_row(props.db, one.id))["status"] == "COMPLETED"


async def test_a_waiting_row_that_is_held_opens_later_though_another_gate_is_held_too(props: Props) -> None:
    hands = await Hands.register(props.db)
    other = await one_task(props.db, hands)
    job = Job()
    first = job.task()
    second = job.task(first)
    await job.submit(props.db)
    await hands.take(job[first])
    await hands.end(job[first])
    async with props.db.transaction() as tx:
        await tx.fetch(HOLD_GATE, other.id)
        await tx.fetch(HOLD_WAITING, job[second])
        assert (await Resolver(props.db).resolve_once()).held
    assert await hands.run() == [job[second]]
    assert (await job_row(props.db, job.id))["status"] == "COMPLETED"


async def test_a_task_is_added_to_a_group_while_its_entry_opens(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first = job.task()
        group = job.group(first)
        inside = job.task(group=group)
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first])
        await hands.end(job[first])
        take = (await id_source(props.db)).take
        [added, _] = await play.run(
            add=lambda db: add_plan(db, take, job.id, planned(901, group=job[group])), resolve=resolve
        )
        assert {*await hands.run()} == {job[inside], added[901]}
        assert (await job_row(props.db, job.id))["status"] == "COMPLETED"

    await stage.in_every_order(scene, preemptions=2)


async def test_no_end_waits_for_who_adds_behind_its_task(props: Props) -> None:
    job = Job()
    running, other = job.task(), job.task()
    waiting = job.task(other)
    await job.submit(props.db)
    hands = await Hands.register(props.db)
    await hands.take(job[running], job[other])
    take = (await id_source(props.db)).take
    async with props.db.transaction() as tx:
        plan = Plan([planned(901, after=[job[running]]), planned(902, after=[job[waiting]])])
        added = (await add_to_job(tx, Adding(job.id), plan, take)).ids
        async with asyncio.timeout(20):  # it would be for ever
            await hands.end(job[running])
            await hands.end(job[other], outcome=FAILS)
            await resolve(props.db)
            assert await cancel(props.db, [job[waiting]]) <= {job[waiting]}
    assert await hands.run() == [added[901]]
    assert (await statuses(props.db, job.id))[added[902]] == "UPSTREAM_FAILED"


async def test_who_adds_behind_an_ended_task_and_a_waiting_one_meets_the_resolver_that_fails_it(
    stage: Stage, props: Props
) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        ended = job.task()
        waiting = job.task(ended)
        job.task(ended, rule="all_done")
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[ended])
        await hands.end(job[ended], outcome=FAILS)
        take = (await id_source(props.db)).take
        new = planned(901, after=[job[ended], job[waiting]], rule="all_done")
        [added, _] = await play.run(add=lambda db: add_plan(db, take, job.id, new), resolve=resolve)
        assert added[901] in await hands.run()
        assert (await statuses(props.db, job.id))[job[waiting]] == "UPSTREAM_FAILED"
        assert (await job_row(props.db, job.id))["status"] == "FAILED"

    await stage.in_every_order(scene, preemptions=2)


async def test_a_task_is_continued_while_another_is_added_behind_it(stage: Stage, props: Props) -> None:
    async def scene(play: Play) -> None:
        job = Job()
        first, last = job.task(), job.task()
        job.task(first)
        await job.submit(props.db)
        hands = await Hands.register(props.db)
        await hands.take(job[first], job[last])
        take = (await id_source(props.db)).take

        async def go_on(db: Database) -> list[int]:
            by = Hands(db, hands.worker_id)
            by.held = {job[first]: hands.held[job[first]]}
            return await by.continue_by(job[first], job.id, planned(900))

        new = planned(901, after=[job[first]])
        [added, [more], _] = await play.run(
            add=lambda db: add_plan(db, take, job.id, new), go_on=go_on, resolve=lambda db: resolve(db, 1)
        )
        del hands.held[job[first]]
        await settle(props.db)
        assert (await statuses(props.db, job.id))[added[901]] == "PENDING"
        await hands.take(more)
        await hands.end(more)
        await hands.end(job[last])
        assert added[901] in await hands.run()
        assert (await job_row(props.db, job.id))["status"] == "COMPLETED"
        assert not await props.db.fetch("SELECT FROM aaiclick_queue.gates WHERE remaining <> 0")

    await stage.in_every_order(scene, preemptions=1)


async def test_a_gate_that_somebody_holds_for_long_keeps_no_other_job_waiting(props: Props) -> None:
    hands = await Hands.register(props.db)
    held = Job()
    many = held.tasks(30)
    await held.submit(props.db)
    await hands.take(*held.of(many))
    for number in many:
        await hands.end(held[number])
    other = await one_task(props.db, hands)
    resolver = Resolver(props.db)
    async with props.db.transaction() as tx:
        await tx.fetch(HOLD_GATE, held.id)
        for _ in range(10):
            await resolver.resolve_once(limit=10)
        assert (await job_row(props.db, other.id))["status"] == "COMPLETED"
        assert (await job_row(props.db, held.id))["status"] == "RUNNING"
    await settle(props.db)
    assert (await job_row(props.db, held.id))["status"] == "COMPLETED"


async def test_an_arrival_at_a_gate_that_is_gone_is_dropped(props: Props) -> None:
    hands = await Hands.register(props.db)
    await props.db.fetch("INSERT INTO aaiclick_queue.arrivals (gate_id, n) SELECT 1, 1 FROM generate_series(1, 30)")
    job = await one_task(props.db, hands)
    resolver = Resolver(props.db)
    while (done := await resolver.resolve_once(limit=10)).more or done.held:
        pass
    assert (await job_row(props.db, job.id))["status"] == "COMPLETED"
    assert not await props.db.fetch("SELECT FROM aaiclick_queue.arrivals")
