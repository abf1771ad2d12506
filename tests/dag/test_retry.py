"""Tasks of a job that FAILED or were CANCELLED run again, and what they had kept from starting waits for them again."""

from __future__ import annotations

import pytest

from aaiclick_queue import Client, recovery
from aaiclick_queue.errors import BadTask, UnknownJob, UnknownTask, WrongContext
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.fenced import keep_checkpoint, load_checkpoint
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.operations import retry, retry_where
from aaiclick_queue.outcome import Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import FAILS, SKIPS, Hands, assert_counted, gate_row, job_row, settle, statuses
from tests.dag.written import planned
from tests.planned import Job, group_before
from tests.tools import end, leased, place_of, put_one


async def retried(db: Database, job: Job, *numbers: int) -> set[int]:
    async with db.transaction() as tx:
        return await retry_in_job(tx, job.id, job.of(numbers) or None, by="me")


async def test_a_failed_task_runs_again_and_lifts_what_it_kept_from_starting(db: Database) -> None:
    job = Job()
    first = job.task()
    left, right = job.task(first), job.task(first)
    last, other = job.task(left, right), job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS})
    assert (await job_row(db, job.id))["status"] == "FAILED"
    assert await retried(db, job, first) == {job[first]}
    found = await job_row(db, job.id)
    assert (found["status"], found["error"], found["finished_at"]) == ("RUNNING", None, None)
    assert await statuses(db, job.id) == {
        job[first]: "QUEUED",
        job[left]: "PENDING",
        job[right]: "PENDING",
        job[last]: "PENDING",
        job[other]: "COMPLETED",
    }
    started = await hands.run()
    assert (started[0], started[-1]) == (job[first], job[last])
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)
    told = await db.fetch("SELECT type, task_id FROM aaiclick_queue.events WHERE job_id = $1", job.id)
    assert [row["task_id"] for row in told if row["type"] == "TASK_RETRIED"] == [job[first]]
    assert {row["task_id"] for row in told if row["type"] == "TASK_CLEARED"} == {*job.of([left, right, last])}


async def test_what_has_run_behind_a_failure_stays_as_it_is(db: Database) -> None:
    job = Job()
    first = job.task()
    cleanup, strict = job.task(first, rule="all_done"), job.task(first)
    report = job.task(cleanup)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS})
    await retried(db, job)
    assert await hands.run() == [job[first], job[strict]]
    assert {*(await statuses(db, job.id)).values()} == {"COMPLETED"}
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)
    assert job[report]


async def test_what_another_failure_keeps_from_starting_is_not_lifted(db: Database) -> None:
    job = Job()
    one, other = job.task(), job.task()
    last = job.task(one, other)
    behind = job.task(last)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[one]: FAILS, job[other]: FAILS})
    assert await retried(db, job, one) == {job[one]}
    assert await hands.run() == [job[one]]
    found = await statuses(db, job.id)
    assert (found[job[last]], found[job[behind]]) == ("UPSTREAM_FAILED", "UPSTREAM_FAILED")
    assert (await job_row(db, job.id))["status"] == "FAILED"
    await assert_counted(db, job.id)
    assert await retried(db, job) == {job[other]}
    assert await hands.run() == [job[other], job[last], job[behind]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"


async def test_skips_that_came_of_a_failure_are_lifted_and_others_are_not(db: Database) -> None:
    job = Job()
    group = job.group()
    first = job.task(group=group)
    choice = job.task()
    untaken = job.task(Previous(choice, choices=("?false",)))
    one_of = job.task(first, untaken, rule="one_success")
    after = job.task(group_before(group))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: SKIPS, job[choice]: Succeeded("true")})
    found = await statuses(db, job.id)
    assert (found[job[one_of]], found[job[after]]) == ("SKIPPED", "SKIPPED")
    assert await retried(db, job) == set()
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    assert found == await statuses(db, job.id)


async def test_a_critical_skip_below_a_failure_waits_again(db: Database) -> None:
    job = Job()
    first = job.task(critical=False)
    last = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS})
    assert (await statuses(db, job.id))[job[last]] == "SKIPPED"
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await retried(db, job, first)
    assert await hands.run() == [job[first], job[last]]
    await assert_counted(db, job.id)


async def test_a_failure_in_a_nested_group_is_retried_and_the_groups_around_it_count_anew(db: Database) -> None:
    job = Job()
    outer = job.group()
    inner = job.group(parent=outer)
    bad = job.tasks(2, group=inner)
    job.task(group=outer)
    last = job.task(group_before(outer))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run(dict.fromkeys(job.of(bad), FAILS))
    await retried(db, job, bad[0])
    gates = [await gate_row(db, gate) for gate in (*job.of([inner, outer]), job.id)]
    assert [(gate["remaining"], gate["failed"]) for gate in gates] == [(1, 1), (1, 1), (2, 1)]
    await hands.run()
    assert (await statuses(db, job.id))[job[last]] == "UPSTREAM_FAILED"
    await retried(db, job)
    assert [*(await hands.run())] == [job[bad[1]], job[last]]
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)


async def test_the_checkpoint_and_the_children_of_a_retried_task_are_kept(db: Database) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take(job[first])
    assert await keep_checkpoint(db, hands.fence(job[first]), '{"at": 7}')
    [child] = await hands.spawn(job[first], job.id, planned(900, task={"spawn_key": "a"}))
    await hands.end(job[first], outcome=FAILS)
    await hands.run()
    await retried(db, job, first)
    assert await load_checkpoint(db, job[first]) == {"at": 7}
    assert await hands.run() == [job[first]]
    assert (await statuses(db, job.id))[child] == "COMPLETED"
    await assert_counted(db, job.id)


async def test_all_that_was_cancelled_runs_again_in_its_order(db: Database) -> None:
    job = Job()
    first = job.task()
    second = job.task(first)
    third = job.task(second)
    await job.submit(db)
    await cancel(db, job.of([third, second, first]))
    await settle(db)
    assert await retried(db, job) == {*job.of([first, second, third])}
    assert await (await Hands.register(db)).run() == job.of([first, second, third])
    await assert_counted(db, job.id)


async def test_a_task_that_is_retried_below_one_that_is_not_ends_as_before(db: Database) -> None:
    job = Job()
    first = job.task()
    second = job.task(first)
    await job.submit(db)
    await cancel(db, job.of([second, first]))
    await settle(db)
    assert await retried(db, job, second) == {job[second]}
    await settle(db)
    assert (await statuses(db, job.id))[job[second]] == "UPSTREAM_FAILED"
    await assert_counted(db, job.id)


async def test_a_retried_task_does_not_wait_for_its_countdown_again(db: Database) -> None:
    job = Job()
    first = job.task()
    last = job.task(first, countdown=3600)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    await db.fetch("UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 s'")
    assert await place_of(db, job[last]) == ["delayed"]
    await cancel(db, [job[last]])
    await settle(db)
    await retried(db, job, last)
    assert await hands.run() == [job[last]]


async def test_a_failed_task_of_a_job_is_retried_by_whoever_retries_tasks(db: Database, client: Client) -> None:
    job = Job()
    first = job.task()
    last = job.task(first)
    await job.submit(db)
    hands = await Hands.register(db)
    for way in range(3):
        await hands.run({job[first]: FAILS})
        assert (await job_row(db, job.id))["status"] == "FAILED"
        alone = await leased(db, queue="other")
        assert await end(db, alone, FAILS)
        match way:
            case 0:
                assert await retry([job[first], alone.task_id, 4711], client=client) == {job[first], alone.task_id}
            case 1:
                assert await retry_where(everything=True, client=client) == 2
            case 2:
                assert await recovery.retry_task(job[first], client=client)
                assert await recovery.retry_task(alone.task_id, client=client)
        assert await statuses(db, job.id) == {job[first]: "QUEUED", job[last]: "PENDING"}
        await cancel(db, [alone.task_id])
    await hands.run()
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    await assert_counted(db, job.id)


async def test_many_jobs_are_retried_by_a_filter_some_a_page(db: Database, client: Client) -> None:
    jobs, firsts, lasts = [], set[int](), set[int]()
    for _ in range(25):
        job = Job()
        first = job.task()
        last = job.task(first)
        jobs.append(await job.submit(db))
        firsts.add(job[first])
        lasts.add(job[last])
    hands = await Hands.register(db)
    await hands.run(dict.fromkeys(firsts, FAILS))
    assert await retry_where(entrypoint="nowhere", client=client) == 25
    assert {*(await hands.run())} == firsts | lasts
    for job in jobs:
        assert (await job_row(db, job.id))["status"] == "COMPLETED"
        await assert_counted(db, job.id)


async def test_only_what_has_failed_is_retried_and_the_rest_says_what_to_do(db: Database, client: Client) -> None:
    job = Job()
    first = job.task()
    await job.submit(db)
    with pytest.raises(WrongContext, match=r"is QUEUED: only those that FAILED or were CANCELLED .* clear_task"):
        await recovery.retry_task(job[first], client=client)
    with pytest.raises(UnknownTask, match="no task 4711"):
        await recovery.retry_task(4711, client=client)
    with pytest.raises(UnknownJob, match="no job 4711"):
        await recovery.retry_failed_tasks(4711, client=client)
    for nonsense in ("12a", "-1", "²", None, True, 1.5):
        with pytest.raises(BadTask, match="is no task"):
            await recovery.retry_task(nonsense, client=client)  # type: ignore[arg-type]
    assert await recovery.retry_failed_tasks(job.id, client=client) == set()
    await (await Hands.register(db)).run()
    assert (await job_row(db, job.id))["status"] == "COMPLETED"
    alone = await put_one(db)
    await cancel(db, [alone])
    assert await recovery.retry_task(alone, client=client)
    await cancel(db, [alone])


async def test_a_job_is_run_again_from_a_task_by_its_name(db: Database, client: Client) -> None:
    job, other = Job(), Job()
    first = job.task(name="extract")
    last = job.task(first, name="load")
    job.tasks(2, name="twice")
    stranger = other.task(name="extract")
    await job.submit(db)
    await other.submit(db)
    hands = await Hands.register(db)
    await hands.run()
    assert await recovery.rerun(job, from_="load", client=client) == {job[last]}
    assert await hands.run() == [job[last]]
    assert await recovery.rerun(job.id, from_=job[first], client=client) == {job[first], job[last]}
    assert await hands.run() == [job[first], job[last]]
    for wrong, why in (
        ("nothing", "none of the tasks"),
        ("twice", "2 of the tasks"),
        (other[stranger], "is not in job"),
    ):
        with pytest.raises(UnknownTask, match=why):
            await recovery.rerun(job, from_=wrong, client=client)
