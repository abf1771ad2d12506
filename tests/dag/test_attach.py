"""Nodes that are added to a job wait for others of it whatever those have come to, and every tie between them stays."""

from __future__ import annotations

import asyncio

import pytest

from aaiclick_queue.errors import GroupClosed, LeaseLost, UnknownJob
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.fenced import Fence
from aaiclick_queue.flow.graph import Plan, PlannedGroup, Previous
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, Submitted, add_to_job
from aaiclick_queue.outcome import Outcome, Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, SKIPS, WELL, Hands, add, assert_counted, settle, statuses
from tests.dag.written import planned
from tests.planned import Job
from tests.tools import until

SIDES = ("?true", "?false")


async def edges(db: Database) -> set[tuple[int, int]]:
    rows = await db.fetch("SELECT gate_id, next_gate_id FROM aaiclick_queue.gate_edges")
    return {(row["gate_id"], row["next_gate_id"]) for row in rows}


async def wait_gate(db: Database, task_id: int) -> int:
    return int(await db.fetchval("SELECT wait_gate FROM aaiclick_queue.tasks WHERE id = $1", task_id))


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(WELL, "QUEUED"), (FAILS, "UPSTREAM_FAILED"), (SKIPS, "SKIPPED")],
    ids=["well", "fail", "skip"],
)
@pytest.mark.parametrize("behind", [0, 1, 2])
@pytest.mark.parametrize("folded", [True, False])
async def test_a_task_that_is_added_behind_one_that_has_ended_hears_of_its_end_once(
    db: Database, outcome: Outcome, status: str, behind: int, folded: bool
) -> None:
    job = Job()
    first, other = job.task(), job.task()
    for _ in range(behind):
        job.task(first, rule="all_done")
        job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=outcome)
    if folded:
        await settle(db)
    late, later = await add(db, Adding(job.id), planned(901, after=[job[first]]), planned(902, after=[job[first]]))
    await settle(db)
    found = await statuses(db, job.id)
    assert {found[late], found[later]} == {status}
    assert (job[first], await wait_gate(db, late)) in await edges(db)
    await hands.end(job[other])
    await hands.run()
    assert not await db.fetch("SELECT FROM aaiclick_queue.gates WHERE remaining <> 0")


@pytest.mark.parametrize("folded", [True, False])
async def test_the_failure_of_a_task_that_is_not_critical_is_a_skip_for_what_is_added_behind_it(
    db: Database, folded: bool
) -> None:
    job = Job()
    first, _ = job.task(critical=False), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=FAILS)
    if folded:
        await settle(db)
    [late] = await add(db, Adding(job.id), planned(901, after=[job[first]]))
    await settle(db)
    assert (await statuses(db, job.id))[late] == "SKIPPED"
    await hands.end(*hands.held)
    await hands.run()


@pytest.mark.parametrize("behind", [0, 1, 2])
async def test_a_task_that_runs_tells_those_behind_it_and_what_is_added_there(db: Database, behind: int) -> None:
    job = Job()
    first, other = job.tasks(2)
    before = [job.task(first, *more) for more in ([], [other])[:behind]]
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[other])
    [late] = await add(db, Adding(job.id), planned(901, after=[job[first]]))
    await settle(db)
    await hands.end(job[first], job[other])
    assert {*await hands.run()} >= {late, *job.of(before)}
    await assert_counted(db, job.id)


async def test_a_task_that_is_continued_before_its_new_gate_is_looked_at_tells_it_by_what_continues_it(
    db: Database,
) -> None:
    job = Job()
    first = job.task()
    behind = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [late] = await add(db, Adding(job.id), planned(901, after=[job[first]]))
    [more] = await hands.continue_by(job[first], job.id, planned(902))
    await settle(db)
    found = await statuses(db, job.id)
    assert (found[late], found[job[behind]], found[more]) == ("PENDING", "PENDING", "QUEUED")
    assert await hands.run() == [more, *sorted([job[behind], late])]
    await assert_counted(db, job.id)


async def test_what_a_task_has_told_is_not_told_again_though_a_later_gate_has_an_id_before_it(db: Database) -> None:
    job = Job()
    first, other = job.tasks(2)
    behind = job.task(first, other)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[other])
    await hands.end(job[first])
    async with db.transaction() as tx:
        plan = Plan([planned(901, after=[job[first]])])
        late = (await add_to_job(tx, Adding(job.id), plan, lambda n: list(range(1000, 1000 + n)))).ids[901]
    await settle(db)
    [later] = await add(db, Adding(job.id), planned(902, after=[job[first]]))
    await settle(db)
    found = await statuses(db, job.id)
    assert (found[late], found[later], found[job[behind]]) == ("QUEUED", "QUEUED", "PENDING")
    await hands.end(job[other])
    await hands.run()
    await assert_counted(db, job.id)


async def test_no_resolver_waits_for_who_holds_a_task_and_it_gets_its_gate_later(db: Database) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [late] = await add(db, Adding(job.id), planned(901, after=[job[first]]))
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.tasks WHERE id = $1 FOR UPDATE", job[first])
        async with asyncio.timeout(10):  # it would be for ever
            assert (await Resolver(db).resolve_once()).held
    await settle(db)
    await hands.end(job[first])
    assert await hands.run() == [late]


async def test_a_branch_behind_the_cursor_of_a_task_goes_by_what_continues_that(db: Database) -> None:
    job = Job()
    first, other = job.tasks(2)
    job.task(first)
    job.task(first, other)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(900))
    await settle(db)
    await hands.take(more)
    await hands.end(more, outcome=Succeeded("false"))
    await settle(db)
    await db.fetch("UPDATE aaiclick_queue.gates SET edge_cursor = 9223372036854775807 WHERE id = $1", job[first])
    sides = [planned(901 + at, after=[Previous(job[first], choices=(side,))]) for at, side in enumerate(SIDES)]
    yes, no = await add(db, Adding(job.id), *sides)
    await settle(db)
    found = await statuses(db, job.id)
    assert (found[yes], found[no]) == ("SKIPPED", "QUEUED")
    await hands.end(*hands.held)
    await hands.run()


async def test_a_gate_whose_id_lies_behind_the_cursor_of_what_it_waits_for_is_told_at_once(db: Database) -> None:
    job = Job()
    first, other = job.task(), job.task()
    job.task(first)
    job.task(first, other)  # so that the first tells two gates, by one of its own
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first])
    await settle(db)
    await db.fetch("UPDATE aaiclick_queue.gates SET edge_cursor = 9223372036854775807 WHERE id = $1", job[first])
    before = (await id_source(db)).take(10)
    group = PlannedGroup(number=900, name="g", previous=[Previous(job[first])])
    async with db.transaction() as tx:
        made = await add_to_job(tx, Adding(job.id), Plan([planned(901, group=900)], [group]), lambda n: before[:n])
    await settle(db)
    assert (await statuses(db, job.id))[made.ids[901]] == "QUEUED"
    await hands.take(job[other])
    await hands.run()


@pytest.mark.parametrize("choices", [(), ("?true",)])
@pytest.mark.parametrize("behind", [0, 1, 2])
@pytest.mark.parametrize("ends", ["before", "after"])
async def test_a_task_that_is_added_behind_one_that_others_continue_waits_for_those(
    db: Database, choices: tuple[str, ...], behind: int, ends: str
) -> None:
    job = Job()
    first, other = job.task(), job.task()
    job.tasks(behind, first)
    if behind == 2:
        job.task(first, rule="all_done")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(900))
    await settle(db)
    await hands.take(more)
    if ends == "before":
        await hands.end(more)
        await settle(db)
    [late] = await add(db, Adding(job.id), planned(901, after=[Previous(job[first], choices=choices)]))
    await settle(db)
    if ends == "after":
        assert (await statuses(db, job.id))[late] == "PENDING"
        await hands.end(more)
        await settle(db)
    assert (await statuses(db, job.id))[late] == "QUEUED"
    await hands.run()
    assert not await db.fetch("SELECT FROM aaiclick_queue.gates WHERE remaining <> 0")
    assert job[other]


async def test_a_branch_that_is_added_behind_a_task_that_has_ended_goes_by_its_result(db: Database) -> None:
    job = Job()
    first, _ = job.task(), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=Succeeded("false"))
    yes, no = await add(
        db,
        Adding(job.id),
        planned(901, after=[Previous(job[first], choices=("?true",))]),
        planned(902, after=[Previous(job[first], choices=("?false",))]),
    )
    await settle(db)
    found = await statuses(db, job.id)
    assert (found[yes], found[no]) == ("SKIPPED", "QUEUED")
    await hands.run()


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(WELL, "QUEUED"), (FAILS, "UPSTREAM_FAILED"), (SKIPS, "SKIPPED")],
    ids=["well", "fail", "skip"],
)
async def test_a_task_that_is_added_behind_a_group_that_has_ended_hears_how_that_was(
    db: Database, outcome: Outcome, status: str
) -> None:
    job = Job()
    group = job.group()
    first, _ = job.task(group=group), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=outcome)
    await settle(db)
    [late] = await add(db, Adding(job.id), planned(901, after=[Previous(job[group], "group")]))
    await settle(db)
    assert (await statuses(db, job.id))[late] == status
    await hands.end(*hands.held)
    await hands.run()


@pytest.mark.parametrize("outcome", [FAILS, SKIPS], ids=["fail", "skip"])
async def test_a_group_that_will_not_start_takes_no_more_tasks(db: Database, outcome: Outcome) -> None:
    job = Job()
    first, _ = job.task(), job.task()
    group = job.group(first)
    job.task(group=group)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    await hands.end(job[first], outcome=outcome)
    await Resolver(db).resolve_once()  # its entry is decided, and what that ended is not counted yet
    with pytest.raises(GroupClosed, match="will not start"):
        await add(db, Adding(job.id), planned(901, group=job[group]))
    await hands.end(*hands.held)
    await hands.run()


async def test_only_the_run_that_has_the_lease_adds_to_its_job(db: Database) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    held = hands.fence(job[first])
    for epoch, worker_id in ((held.run_epoch + 1, held.worker_id), (held.run_epoch, held.worker_id + 1)):
        stale = Fence(held.task_id, epoch, worker_id)
        with pytest.raises(LeaseLost, match="not this run's any more"):
            await add(db, Adding(job.id, by=stale), planned(901))
    assert len(await statuses(db, job.id)) == 1
    await hands.end(job[first])
    await hands.run()


async def test_what_is_added_again_while_the_first_try_is_on_its_way_is_written_once(db: Database) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    ids = await id_source(db)

    async def again(before: Submitted) -> Submitted:
        async with db.transaction() as tx:
            return await add_to_job(tx, Adding(job.id), Plan([planned(901)]), ids.take, before=before)

    async with db.transaction() as tx:
        made = await add_to_job(tx, Adding(job.id), Plan([planned(901)]), ids.take)
        trying = asyncio.create_task(again(made))
        await until(lambda: waits_for_a_lock(db))
    assert (await trying).ids == made.ids
    assert len(await statuses(db, job.id)) == 2
    assert len(await (await Hands.register(db)).run()) == 2


async def waits_for_a_lock(db: Database) -> bool:
    sql = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await db.fetch(sql))


async def test_a_node_of_another_job_is_refused(db: Database) -> None:
    one, other = Job(), Job()
    stranger = one.task()
    group = one.group()
    one.task(group=group)
    other.task()
    await one.submit(db)
    await other.submit(db)
    for previous in (Previous(one[stranger]), Previous(one[group], "group"), Previous(4711)):
        with pytest.raises(UnknownJob, match="give one of this job's"):
            await add(db, Adding(other.id), planned(901, after=[previous]))
    await (await Hands.register(db)).run()
