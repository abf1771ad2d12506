"""No more tasks of a job, or of a group in it, are at work than its max_parallel; a paused job starts none."""

from __future__ import annotations

import pytest

from aaiclick_queue import Settings, Status, task
from aaiclick_queue.flow.admit import Admission, give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.choose import Lane, lanes_of
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.limits import NewLimit, drop_limit, list_limits, set_limit
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Cancelled, Error, Failed, Later, Lost, Outcome, Released, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.views import TaskFilter, list_tasks
from tests.planned import Job, group_before, resolve
from tests.tools import (
    claim,
    count,
    end,
    make_due,
    place_of,
    register_worker,
    rows,
    running_worker,
    until,
)

ERROR = Error("ValueError", "no")


async def admit(db: Database) -> int:
    """Rounds of admission until one lets nobody in."""
    admission, total = Admission(db), 0
    while (admitted := await admission.admit_once()).count or admitted.more:
        total += admitted.count
    return total


async def places(db: Database, job: Job, numbers: list[int]) -> list[list[str]]:
    return [await place_of(db, one) for one in job.of(numbers)]


async def pause(db: Database, job: Job) -> None:
    await set_limit(db, NewLimit("job", str(job.id), "pause", reason="a look"), by="a test")
    while await work_once(db):
        pass


async def resume(db: Database, job: Job) -> bool:
    return await drop_limit(db, NewLimit("job", str(job.id), "pause"), by="a test")


async def finish(db: Database, *jobs: Job) -> dict[str, int]:
    """Run whatever can run, by one worker that does nothing, until the jobs have ended; the most at work by crowd."""
    worker_id, most = await register_worker(db), dict[str, int]()
    while True:
        await resolve(db)
        await admit(db)
        runs = await claim(db, worker_id, 100)
        if not runs:
            break
        for crowd in {run.crowd or "" for run in runs}:
            most[crowd] = max(most.get(crowd, 0), sum((run.crowd or "") == crowd for run in runs))
        for run in runs:
            assert await end(db, run, Succeeded(None))
    statuses = {row["id"]: row["status"] for row in await rows(db, "jobs")}
    assert [statuses[job.id] for job in jobs] == ["COMPLETED"] * len(jobs)
    assert await count(db, "slots") == 0
    return most


async def test_a_capped_jobs_tasks_wait_in_held_and_get_in_as_others_end(db: Database) -> None:
    job = Job(max_parallel=2)
    numbers = job.tasks(4)
    await job.submit(db)
    assert await places(db, job, numbers) == [["held"]] * 4
    assert await admit(db) == 2
    worker_id = await register_worker(db)
    first, _ = await claim(db, worker_id)
    assert await admit(db) == 0
    await end(db, first, Succeeded(None))
    assert await admit(db) == 1
    assert await places(db, job, numbers) == [["COMPLETED"], ["leases"], ["ready"], ["held"]]
    for run in [*await claim(db, worker_id), _]:
        await end(db, run, Succeeded(None))
    await finish(db, job)


async def test_the_caps_of_a_job_of_its_groups_and_of_groups_in_them_all_hold(db: Database) -> None:
    job = Job(max_parallel=5)
    outer = job.group(max_parallel=4)
    inner, other = job.group(parent=outer, max_parallel=2), job.group(parent=outer)
    numbers = {place: job.tasks(6, group=place) for place in (None, outer, inner, other)}
    await job.submit(db)
    ids = {place: set(job.of(some)) for place, some in numbers.items()}
    worker_id, running = await register_worker(db), dict[int, Claimed]()
    seen: dict[int | None, int] = {}
    while True:
        await resolve(db)
        await admit(db)
        running |= {run.task_id: run for run in await claim(db, worker_id, 100)}
        if not running:
            break
        counts: dict[int | None, int] = {place: len(running.keys() & some) for place, some in ids.items()}
        assert len(running) <= 5
        assert counts[outer] + counts[inner] + counts[other] <= 4
        assert counts[inner] <= 2
        if await count(db, "held"):
            assert len(running) == 5 or counts[outer] + counts[inner] + counts[other] == 4, "a slot was left unused"
        seen = {place: max(seen.get(place, 0), n) for place, n in counts.items()}
        run = running.pop(next(iter(running)))
        assert await end(db, run, Succeeded(None))
    assert seen == {None: 5, outer: 4, inner: 2, other: 2}
    assert await count(db, "slots") == 0


async def test_what_opens_behind_a_gate_waits_for_its_turn_too(db: Database) -> None:
    job = Job()
    root = job.task()
    group = job.group(max_parallel=3)
    fan = job.tasks(10, root, group=group)
    job.task(group_before(group))
    await job.submit(db)
    assert await count(db, "ready") == 1, "the job itself has no cap"
    most = await finish(db, job)
    assert most == {"": 1, f"{job[group]}=3": 3}
    assert all(place == ["COMPLETED"] for place in await places(db, job, fan))


async def test_two_jobs_have_each_their_own_cap(db: Database) -> None:
    jobs = [Job(max_parallel=1), Job(max_parallel=2)]
    for job in jobs:
        job.tasks(5)
        await job.submit(db)
    assert await admit(db) == 3
    assert await finish(db, *jobs) == {f"{jobs[0].id}=1": 1, f"{jobs[1].id}=2": 2}


async def test_limits_of_queue_and_key_hold_beside_a_cap(db: Database) -> None:
    await set_limit(db, NewLimit("queue", "default", "running", 3), by="a test")
    await set_limit(db, NewLimit("key", "acme", "running", 1), by="a test")
    job = Job(max_parallel=2)
    job.tasks(4, concurrency_key="acme")
    job.tasks(4)
    await job.submit(db)
    other = Job()
    other.tasks(4)
    await other.submit(db)
    assert await admit(db) == 3
    held = {row["crowd"] for row in await rows(db, "held")}
    assert held == {"", f"{job.id}/{job.id}=2"}, "a job without a cap is no lane of its own"
    assert {row["limit_id"] for row in await rows(db, "slots")} >= {job.id}
    await finish(db, job, other)


@pytest.mark.parametrize(
    ("outcome", "place"),
    [
        (Succeeded("1"), ["COMPLETED"]),
        (Failed(ERROR), ["FAILED"]),
        (Cancelled(ERROR), ["CANCELLED"]),
        (Skipped(ERROR), ["SKIPPED"]),
        (Later("RETRYING", ERROR, 60.0), ["delayed"]),
        (Later("SNOOZED", ERROR, 60.0), ["delayed"]),
        (Lost(ERROR), ["delayed"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Outcome) else "",
)
async def test_every_way_out_of_a_lease_gives_the_slots_of_job_and_group_back(
    db: Database, outcome: Outcome, place: list[str]
) -> None:
    job = Job(max_parallel=1)
    group = job.group(max_parallel=1)
    first, second = job.tasks(2, group=group)
    await job.submit(db)
    assert await admit(db) == 1
    assert await count(db, "slots") == 2
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await end(db, run, outcome)
    assert await place_of(db, job[first]) == place
    assert await count(db, "slots") == 0
    assert await admit(db) == 1
    assert await place_of(db, job[second]) == ["ready"]


async def test_a_run_that_is_handed_back_keeps_its_slots_in_line(db: Database) -> None:
    job = Job(max_parallel=1)
    first, _ = job.tasks(2)
    await job.submit(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await end(db, run, Released())
    assert await place_of(db, job[first]) == ["ready"]
    assert await admit(db) == 0, "its slot is taken"
    await finish(db, job)


async def test_the_slot_of_a_cancelled_run_is_free_when_its_worker_says_that_it_has_ended(db: Database) -> None:
    job = Job(max_parallel=1)
    first, _ = job.tasks(2)
    await job.submit(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    assert await cancel(db, [job[first]]) == {job[first]}
    await Reaper(db).sweep_once()
    assert await admit(db) == 0, "its code may still run"
    await give_back_stopped(db, [(run.task_id, run.run_epoch)], worker_id=worker_id)
    assert await admit(db) == 1


@pytest.mark.parametrize("place", ["held", "ready"])
async def test_cancelling_a_waiting_task_leaves_no_slot(db: Database, place: str) -> None:
    job = Job(max_parallel=1)
    [first] = job.tasks(1)
    await job.submit(db)
    if place == "ready":
        await admit(db)
    assert await place_of(db, job[first]) == [place]
    assert await cancel(db, [job[first]])
    assert await count(db, "slots") == 0


async def test_a_retry_that_is_due_waits_for_its_turn_in_its_job(db: Database) -> None:
    job = Job(max_parallel=1)
    first, second = job.tasks(2)
    await job.submit(db)
    await admit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id)
    await end(db, run, Later("RETRYING", ERROR, 60.0))
    assert await admit(db) == 1
    await make_due(db)
    await Reaper(db).due_once()
    assert await places(db, job, [first, second]) == [["held"], ["ready"]]
    await finish(db, job)


async def test_the_next_of_a_crowd_is_looked_for_where_a_run_of_it_ended(db: Database) -> None:
    job, first_lane = Job(max_parallel=1), Job(max_parallel=1)
    job.tasks(2)
    first_lane.tasks(2, queue="a")
    for one in (job, first_lane):
        await one.submit(db)
    await admit(db)
    [run] = await claim(db, await register_worker(db))
    lane = Lane("default", "", "", "", f"{job.id}/{job.id}=1")
    assert lane in lanes_of(run)
    assert (lane.job, lane.caps) == (str(job.id), [(job.id, 1)])
    await end(db, run, Succeeded(None))
    admission = Admission(db)
    admission.freed(lanes_of(run))
    assert (await admission.admit_once(lanes=1)).count == 1


async def test_more_crowds_than_a_page_of_lanes_all_get_in(db: Database) -> None:
    jobs = [Job(max_parallel=1) for _ in range(7)]
    for job in jobs:
        job.tasks(2)
        await job.submit(db)
    admission, total = Admission(db), 0
    while True:
        admitted = await admission.admit_once(lanes=2)
        total += admitted.count
        if not admitted.more:
            break
    assert total == 7
    await finish(db, *jobs)


async def test_a_paused_job_starts_nothing_and_goes_on_where_it_was(db: Database) -> None:
    job, other = Job(), Job()
    root = job.task()
    numbers = [*job.tasks(3), job.task(root), job.task(countdown=60.0)]
    other.tasks(2)
    await job.submit(db)
    await other.submit(db)
    worker_id = await register_worker(db)
    [run] = await claim(db, worker_id, 1)
    assert run.task_id == job[root]
    await pause(db, job)
    await end(db, run, Succeeded(None))
    await resolve(db)
    await make_due(db)
    await Reaper(db).due_once()
    assert await admit(db) == 0
    assert await places(db, job, numbers) == [["held"]] * 5
    others = await claim(db, worker_id)
    assert {one.job_id for one in others} == {other.id}
    assert [one["scope"] for one in await rows(db, "limits")] == ["job"]
    assert await list_limits(db) == [], "it is no limit to be edited"
    [shown] = {one.reason for one in (await list_tasks(db, TaskFilter(status=Status.PENDING))).tasks}
    assert shown == "job paused: a look"
    assert await resume(db, job)
    assert not await resume(db, job)
    for one in others:
        await end(db, one, Succeeded(None))
    await finish(db, job, other)


@pytest.mark.parametrize("max_parallel", [None, 2])
async def test_a_pause_reaches_what_is_held_for_another_reason(db: Database, max_parallel: int | None) -> None:
    await set_limit(db, NewLimit("queue", "default", "running", 3), by="a test")
    job, other = Job(max_parallel=max_parallel), Job()
    job.tasks(4)
    other.tasks(2)
    await job.submit(db)
    await admit(db)
    await other.submit(db)
    await pause(db, job)
    assert await admit(db) == 2, "those of the other job"
    assert {one["order_key"] for one in await rows(db, "ready")} == {other.id}
    assert len(await rows(db, "slots")) == 2, "what went out of line has given its slots back"
    await resume(db, job)
    await finish(db, job, other)


async def test_a_run_of_a_paused_job_that_is_handed_back_is_held(db: Database) -> None:
    job = Job(max_parallel=2)
    [number] = job.tasks(1)
    await job.submit(db)
    await admit(db)
    [run] = await claim(db, await register_worker(db))
    await pause(db, job)
    await end(db, run, Released())
    assert await place_of(db, job[number]) == ["held"]
    assert await count(db, "slots") == 0
    assert await admit(db) == 0
    await resume(db, job)
    await finish(db, job)


async def test_a_pause_that_lapses_lets_the_job_go_on(db: Database) -> None:
    job = Job()
    job.tasks(2)
    await set_limit(db, NewLimit("task", "another", "pause"), by="a test")
    await job.submit(db)
    await pause(db, job)
    await db.fetch("UPDATE aaiclick_queue.limits SET until = now() WHERE name = $1", str(job.id))
    await Reaper(db).sweep_once()
    assert await count(db, "limits") == 1
    await finish(db, job)


@task(entrypoint="tests.crowd.nothing")
async def nothing() -> None:
    """Take no time."""


@pytest.mark.timeout(300)
async def test_three_thousand_children_three_at_a_time(settings: Settings, db: Database) -> None:
    job = Job()
    group = job.group(max_parallel=3)
    job.tasks(3_000, group=group, entrypoint=nothing.entrypoint)
    last = job.task(group_before(group), entrypoint=nothing.entrypoint)
    await job.submit(db)
    over: list[int] = []

    async def is_over() -> bool:
        over.append(await db.fetchval("SELECT count(*) FROM aaiclick_queue.slots"))
        return bool(await db.fetchval("SELECT status = 'COMPLETED' FROM aaiclick_queue.tasks WHERE id = $1", job[last]))

    async with running_worker(settings, slots=20):
        await until(is_over, patience=250)
    assert max(over) == 3
    await resolve(db)
    assert {row["status"] for row in await rows(db, "jobs")} == {"COMPLETED"}
