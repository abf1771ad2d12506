"""A cleared task runs again with everything behind it, whatever it was at; upstream is left as it is."""

from __future__ import annotations

import pytest

from aaiclick_queue.errors import UnknownTask, WrongContext
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.fenced import keep_checkpoint, keep_progress
from aaiclick_queue.flow.graph import PlannedGroup, Previous
from aaiclick_queue.flow.submit import Adding
from aaiclick_queue.outcome import Later, Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import ERROR, FAILS, WELL, Hands, add, assert_counted, gate_row, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.tools import count, put_one, row


async def events(db: Database, job_id: int) -> list[str]:
    rows = await db.fetch("SELECT type FROM aaiclick_queue.events WHERE job_id = $1 ORDER BY created_at", job_id)
    return [row["type"] for row in rows]


async def attempts(db: Database, task_id: int) -> list[tuple[int, str]]:
    rows = await db.fetch("SELECT * FROM aaiclick_queue.attempts WHERE task_id = $1 ORDER BY run_epoch", task_id)
    return [(row["run_epoch"], row["outcome"]) for row in rows]


async def test_a_task_of_a_job_that_completed_runs_again_with_all_behind_it_and_nothing_else(db: Database) -> None:
    job = Job()
    first = job.task()
    left, right = job.task(first), job.task(first)
    last = job.task(left, right)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    assert await clear_task(db, job[left], by="me") == {job[left], job[last]}
    assert await statuses(db, job.id) == {
        job[first]: "COMPLETED",
        job[left]: "QUEUED",
        job[right]: "COMPLETED",
        job[last]: "PENDING",
    }
    found = await job_row(db, job.id)
    assert (found["status"], found["finished_at"], found["error"]) == ("RUNNING", None, None)
    await assert_counted_but_for_looks(db, job.id)
    assert await hands.run() == [job[left], job[last]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)
    told = await events(db, job.id)
    assert told.count("TASK_CLEARED") == 2
    assert told.count("JOB_REOPENED") == 1
    assert told.count("JOB_COMPLETED") == 2
    assert await attempts(db, job[left]) == [(1, "COMPLETED")]
    again = await row(db, "tasks", job[left])
    assert (again["run_epoch"], again["attempt"]) == (3, 1)


async def assert_counted_but_for_looks(db: Database, job_id: int) -> None:
    """As `assert_counted`, while gates are still to be looked at."""
    assert not await db.fetch("SELECT FROM aaiclick_queue.arrivals WHERE n <> 0")
    await settle(db)
    await assert_counted(db, job_id)


async def test_a_run_that_was_cleared_loses_its_lease_and_what_it_comes_to_counts_no_more(db: Database) -> None:
    job = Job()
    first = job.task()
    last = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    [run] = await hands.take(job[first])
    await clear_task(db, job[first], by="me")
    assert await hands.finish([run]) == set()
    assert await statuses(db, job.id) == {job[first]: "QUEUED", job[last]: "PENDING"}
    assert await attempts(db, job[first]) == [(1, "CLEARED")]
    hands.held.clear()
    [again] = await hands.take(job[first])
    assert (again.run_epoch, again.attempt) == (3, 1)
    assert await hands.run() == [job[first], job[last]]
    await assert_counted(db, job.id)


async def test_a_cleared_task_forgets_its_checkpoint_and_its_progress(db: Database) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    assert await keep_checkpoint(db, hands.fence(job[first]), "{}")
    assert await keep_progress(db, hands.fence(job[first]), "{}")
    await clear_task(db, job[first], by="me")
    assert (await count(db, "checkpoints"), await count(db, "progress")) == (0, 0)
    hands.held.clear()
    await hands.run()


@pytest.mark.parametrize(
    "at", ["waiting", "held", "delayed", "ready", "leases", "retry", "COMPLETED", "FAILED", "CANCELLED"]
)
async def test_wherever_a_task_is_it_runs_once_after_a_clear(db: Database, at: str) -> None:
    job = Job(max_parallel=1) if at == "held" else Job()
    before, first = job.task(), job.task(countdown=3600 if at == "delayed" else None)
    task = job.task(before) if at == "waiting" else first
    last = job.task(task)
    await job.submit(db)
    hands = await Hands.register(db)
    match at:
        case "leases":
            await hands.take(job[task])
        case "retry":
            await hands.take(job[task])
            await hands.end(job[task], outcome=Later("RETRYING", ERROR, 3600))
        case "COMPLETED":
            await hands.take(job[task])
            await hands.end(job[task])
        case "FAILED":
            await hands.take(job[task])
            await hands.end(job[task], outcome=FAILS)
            await settle(db)
        case "CANCELLED":
            await cancel(db, [job[task]])
            await settle(db)
    assert await clear_task(db, job[task], by="me") == {job[task], job[last]}
    await settle(db)
    assert (await statuses(db, job.id))[job[last]] == "PENDING"
    if at == "delayed":
        assert (await statuses(db, job.id))[job[task]] == "SCHEDULED"
        await cancel(db, [job[before], job[task]])
        await settle(db)
        return
    hands.held.pop(job[task], None)
    started = await hands.run()
    assert started.count(job[task]) == started.count(job[last]) == 1
    assert {*(await statuses(db, job.id)).values()} == {"COMPLETED"}
    await assert_counted(db, job.id)


async def test_a_clear_below_a_failure_comes_to_the_same_again(db: Database) -> None:
    job = Job()
    first = job.task()
    second = job.task(first)
    third = job.task(second)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS})
    await clear_task(db, job[second], by="me")
    await settle(db)
    assert await statuses(db, job.id) == {
        job[first]: "FAILED",
        job[second]: "UPSTREAM_FAILED",
        job[third]: "UPSTREAM_FAILED",
    }
    assert (await job_row(db, job.id))["status"] == "FAILED"
    await assert_counted(db, job.id)


async def test_what_waits_for_a_group_is_behind_each_task_in_its_subtree(db: Database) -> None:
    job = Job()
    outer = job.group()
    inner = job.group(parent=outer)
    deep, other = job.task(group=inner), job.task(group=outer)
    after = job.group(group_before(outer))
    nested = job.group(parent=after)
    member, free = job.task(group=nested), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    assert await clear_task(db, job[deep], by="me") == {job[deep], job[member]}
    assert (await gate_row(db, job[outer]))["remaining"] == 1
    assert (await gate_row(db, job[inner]))["remaining"] == 1
    assert (await gate_row(db, job[nested]))["remaining"] == 1
    assert await hands.run() == [job[deep], job[member]]
    await assert_counted(db, job.id)
    assert other
    assert free


@pytest.mark.parametrize("late", [False, True])
async def test_a_task_of_a_group_that_waits_is_behind_what_the_group_waits_for(db: Database, late: bool) -> None:
    job = Job()
    first, other = job.task(), job.task()
    group = job.group(first)
    member = job.task(group=group)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [added] = [0]
    if late:
        [added] = await add(db, Adding(job.id), planned(900, group=job[group]))
    await hands.end(job[first])
    await settle(db)
    if not late:  # when the group has begun
        [added] = await add(db, Adding(job.id), planned(900, group=job[group]))
    await hands.end(job[other])
    await hands.run()
    assert await clear_task(db, job[first], by="me") == {job[first], job[member], added}
    started = await hands.run()
    assert (started[0], {*started[1:]}) == (job[first], {job[member], added})
    await assert_counted(db, job.id)


async def test_a_task_that_is_added_behind_one_that_has_ended_is_behind_it_in_a_clear_too(db: Database) -> None:
    job = Job()
    first, keep = job.task(), job.task()
    group = job.group()
    inside = job.task(group=group)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first], job[inside])
    await hands.end(job[first])
    await hands.end(job[inside])
    await settle(db)
    behind_task, behind_group = await add(
        db, Adding(job.id), planned(900, after=[job[first]]), planned(901, after=[Previous(job[group], "group")])
    )
    await hands.end(job[keep])
    await hands.run()
    assert await clear_task(db, job[first], by="me") == {job[first], behind_task}
    assert await hands.run() == [job[first], behind_task]
    assert await clear_task(db, job[inside], by="me") == {job[inside], behind_group}
    assert await hands.run() == [job[inside], behind_group]
    await assert_counted(db, job.id)


async def test_what_a_cleared_task_had_added_leaves_the_job_and_its_new_run_adds_anew(db: Database) -> None:
    job = Job()
    group = job.group()
    first = job.task(group=group)
    last = job.task(group_before(group))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    nodes = (
        PlannedGroup(number=900, name="mapped", parent=job[group]),
        planned(901, group=900, task={"spawn_key": "a"}),
        planned(902, after=[901], group=job[group], task={"spawn_key": "b"}),
    )
    made, child, grandchild = await hands.spawn(job[first], job.id, *nodes, group=job[group])
    await hands.take(child)
    [deep] = await hands.spawn(child, job.id, planned(910), group=made)
    await hands.end(child)
    await clear_task(db, job[first], by="me")
    hands.held.clear()
    found = await statuses(db, job.id)
    assert [found[one] for one in (child, grandchild, deep)] == ["CANCELLED"] * 3
    assert (await gate_row(db, job[group]))["total"] == 1
    assert await count(db, "groups") == 1
    assert not await db.fetch("SELECT FROM aaiclick_queue.dependencies WHERE next_id = $1", grandchild)
    assert await attempts(db, child) == [(1, "COMPLETED")]
    await hands.take(job[first])
    _, again, _ = await hands.spawn(job[first], job.id, *nodes, group=job[group])
    assert again != child
    await hands.run()
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)
    with pytest.raises(UnknownTask, match="has left its job"):
        await clear_task(db, child, by="me")
    assert job[last]


@pytest.mark.parametrize("behind", [0, 1, 2])
async def test_a_task_that_others_continued_ends_by_itself_when_it_runs_again(db: Database, behind: int) -> None:
    job = Job()
    first, other = job.task(), job.task()
    waiting = [job.task(first, rule=rule) for rule in ("all_success", "all_done")[:behind]]
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(900))
    late = await add(
        db,
        Adding(job.id),
        planned(901, after=[job[first]]),
        planned(902, after=[Previous(job[first], choices=("?true",))]),
    )
    await hands.end(job[other])
    await hands.run()
    assert await clear_task(db, job[first], by="me") == {job[first], *job.of(waiting), *late}
    assert (await statuses(db, job.id))[more] == "CANCELLED"
    assert not await db.fetch("SELECT FROM aaiclick_queue.gates WHERE kind = 'AFTER'")
    started = await hands.run()
    assert started[0] == job[first]
    assert {*started[1:]} == {*job.of(waiting), *late}
    await assert_counted(db, job.id)


async def test_what_continues_a_task_takes_with_it_what_is_behind_that_task(db: Database) -> None:
    job = Job()
    first = job.task()
    last = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    [more] = await hands.continue_by(job[first], job.id, planned(900))
    await hands.run()
    assert await clear_task(db, more, by="me") == {more, job[last]}
    assert await hands.run() == [more, job[last]]
    await assert_counted(db, job.id)


async def test_a_branch_may_go_the_other_way_when_it_is_chosen_again(db: Database) -> None:
    job = Job()
    choose = job.task()
    yes, no = job.task(Previous(choose, choices=("?true",))), job.task(Previous(choose, choices=("?false",)))
    join = job.task(yes, no)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[choose]: Succeeded("true")})
    found = await statuses(db, job.id)
    assert (found[job[yes]], found[job[no]], found[job[join]]) == ("COMPLETED", "SKIPPED", "COMPLETED")
    await clear_task(db, job[choose], by="me")
    await hands.run({job[choose]: Succeeded("false")})
    found = await statuses(db, job.id)
    assert (found[job[yes]], found[job[no]], found[job[join]]) == ("SKIPPED", "COMPLETED", "COMPLETED")
    await assert_counted(db, job.id)


async def test_only_a_branch_behind_the_choice_is_cleared_and_the_choice_stands(db: Database) -> None:
    job = Job()
    choose = job.task()
    yes, no = job.task(Previous(choose, choices=("?true",))), job.task(Previous(choose, choices=("?false",)))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[choose]: Succeeded("true")})
    await clear_task(db, job[no], by="me")
    await clear_task(db, job[yes], by="me")
    await hands.run()
    found = await statuses(db, job.id)
    assert (found[job[yes]], found[job[no]]) == ("COMPLETED", "SKIPPED")
    await assert_counted(db, job.id)


async def test_one_success_opens_by_the_parent_that_was_not_cleared(db: Database) -> None:
    job = Job()
    one, other = job.task(), job.task()
    last = job.task(one, other, rule="one_success")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    await clear_task(db, job[one], by="me")
    found = await statuses(db, job.id)
    assert (found[job[one]], found[job[last]]) == ("QUEUED", "QUEUED")
    await hands.run()
    await assert_counted(db, job.id)


async def test_a_job_that_was_cancelled_runs_again_where_it_was_cleared(db: Database) -> None:
    job = Job()
    first = job.task()
    last, other = job.task(first), job.task()
    await job.submit(db)
    await cancel(db, job.of([first, last, other]))
    await settle(db)
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'CANCELLED', finished_at = now()")
    await clear_task(db, job[first], by="me")
    hands = await Hands.register(db)
    assert await hands.run() == [job[first], job[last]]
    assert (await job_row(db, job.id))["status"] == "FAILED"
    await assert_counted(db, job.id)


async def test_tasks_that_cannot_be_cleared_are_refused(db: Database) -> None:
    with pytest.raises(UnknownTask, match="no task 4711"):
        await clear_task(db, 4711, by="me")
    alone = await put_one(db)
    with pytest.raises(WrongContext, match="in no job"):
        await clear_task(db, alone, by="me")
    job = Job()
    first = job.task()
    await job.submit(db)
    await (await Hands.register(db)).run()
    await db.fetch("UPDATE aaiclick_queue.jobs SET pruned_at = now()")
    with pytest.raises(LookupError, match="pruned"):
        await clear_task(db, job[first], by="me")
    assert WELL
