"""A finished job is pruned whole, when it is old enough, and nothing of it is left; no other job ever is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aaiclick_queue import doctor
from aaiclick_queue.errors import UnknownJob
from aaiclick_queue.flow.job_graph import hold_job
from aaiclick_queue.flow.prune import DAY, Policy, Pruner, Walk
from aaiclick_queue.flow.prune_by_hand import prune_all
from aaiclick_queue.flow.prune_jobs import PARTS, Remover
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.sweep_gates import GateSweep
from aaiclick_queue.outcome import Error, Failed, Outcome, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.planned import Job, group_before, resolve
from tests.tools import age, claim, count, end, put, register_worker, rows

WEEK = Policy(7 * DAY, 30 * DAY)
TABLES = ("jobs", "tasks", "groups", "dependencies", "gates", "gate_edges", "waiting", "arrivals", "progress",
          "checkpoints", "timers", "dedupe")  # fmt: skip


async def finished(db: Database, *, days: float, outcome: Outcome | None = None) -> Job:
    """A job of all kinds of rows that ended so many days ago."""
    job = Job()
    group = job.group()
    inner = job.group(parent=group)
    first = job.task(group=group)
    job.tasks(3, first, group=inner)
    job.tasks(2, group_before(group), first)
    await job.submit(db)
    worker_id = await register_worker(db)
    while runs := await claim(db, worker_id):
        for run in runs:
            assert await end(db, run, outcome or Succeeded(None))
        await resolve(db)
    await make_old(db, job, days)
    return job


async def make_old(db: Database, job: Job, days: float) -> None:
    for table in ("jobs", "tasks"):
        await db.fetch(
            f"""UPDATE aaiclick_queue.{table} SET created_at = created_at - make_interval(secs => $2::float8),
                finished_at = finished_at - make_interval(secs => $2::float8)
                WHERE {"id" if table == "jobs" else "job_id"} = $1""",
            job.id,
            days * DAY,
        )


async def left(db: Database) -> set[int]:
    return {row["id"] for row in await rows(db, "jobs")}


async def rows_left(db: Database) -> dict[str, int]:
    return {table: n for table in TABLES if (n := await count(db, table))}


async def test_a_job_goes_when_it_is_older_than_its_kind_is_kept_and_all_that_belongs_to_it_goes_along(
    db: Database,
) -> None:
    old, young = await finished(db, days=8), await finished(db, days=6)
    failed = await finished(db, days=29, outcome=Failed(Error("ValueError", "no")))
    task_id = min(row["id"] for row in await rows(db, "tasks") if row["job_id"] == old.id)
    for table in ("progress", "checkpoints"):
        await db.fetch(
            f"INSERT INTO aaiclick_queue.{table} (task_id, run_epoch, data) SELECT id, 1, '1' FROM aaiclick_queue.tasks"
        )
    await db.fetch("INSERT INTO aaiclick_queue.timers (task_id, due_at) VALUES ($1, now())", task_id)
    keys = (
        "INSERT INTO aaiclick_queue.dedupe (scope, key, task_id, until) VALUES ($1, $2, $3, now() + $4::text::interval)"
    )
    await db.fetch(keys, "job:a job", "its", old.id, None)
    await db.fetch(keys, "job:a job", "for a while", old.id, "1 hour")
    assert (await prune_all(db, WEEK, dry_run=True)).jobs == 1
    assert await left(db) == {old.id, young.id, failed.id}
    before = await rows_left(db)
    pruned = await prune_all(db, WEEK)
    assert (pruned.jobs, pruned.tasks_of_jobs, pruned.tasks) == (1, 6, 0)
    assert await left(db) == {young.id, failed.id}
    after = await rows_left(db)
    for table in ("tasks", "groups", "dependencies", "gates", "gate_edges", "progress", "checkpoints"):
        assert 3 * after[table] == 2 * before[table], table
    assert [row["key"] for row in await rows(db, "dedupe")] == ["for a while"]
    assert (await prune_all(db, WEEK)).jobs == 0
    await make_old(db, failed, 2)
    await make_old(db, young, 2)
    assert (await prune_all(db, WEEK)).jobs == 2
    assert await rows_left(db) == {"dedupe": 1}


async def test_a_cancelled_job_is_kept_as_long_as_a_failed_one(db: Database) -> None:
    job = await finished(db, days=8)
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'CANCELLED'")
    assert (await prune_all(db, WEEK)).jobs == 0
    await make_old(db, job, 23)
    assert (await prune_all(db, WEEK)).jobs == 1


async def test_tasks_of_a_job_do_not_go_one_by_one(db: Database) -> None:
    job = Job()
    job.task()
    job.task(job.task())
    await job.submit(db)
    for run in await claim(db, await register_worker(db)):
        await end(db, run, Succeeded(None))
    await make_old(db, job, 100)
    pruned = await prune_all(db, Policy(DAY, DAY, max_tasks=1))
    assert (pruned.tasks, pruned.jobs) == (0, 0)
    assert await count(db, "tasks") == 3


@pytest.mark.parametrize("status", ["RUNNING", "CANCELLED"])
async def test_a_job_with_something_open_stays_however_old(db: Database, status: str) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    await make_old(db, job, 100)
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = $1, finished_at = created_at", status)
    assert (await prune_all(db, WEEK)).jobs == 0
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'RUNNING', finished_at = NULL")


async def test_a_job_whose_failed_task_stops_a_strict_order_stays(db: Database) -> None:
    await finished(db, days=100)
    task_id = (await rows(db, "tasks"))[0]["id"]
    await db.fetch("UPDATE aaiclick_queue.tasks SET order_stops = true, order_by = 'o' WHERE id = $1", task_id)
    await db.fetch("INSERT INTO aaiclick_queue.slots (task_id, limit_id, key) VALUES ($1, 0, 'o')", task_id)
    assert (await prune_all(db, WEEK)).jobs == 0
    await db.fetch("DELETE FROM aaiclick_queue.slots")
    assert (await prune_all(db, WEEK)).jobs == 1


async def test_the_count_keeps_the_newest_and_takes_a_job_with_its_last_task(db: Database) -> None:
    old, new = await finished(db, days=0), await finished(db, days=0)
    assert (await prune_all(db, Policy(None, None, max_tasks=7))).jobs == 0, "the seventh is one of the old job"
    assert (await prune_all(db, Policy(None, None, max_tasks=6))).jobs == 1
    assert await left(db) == {new.id}
    assert old.id < new.id


async def test_a_crash_at_any_step_goes_on_and_nobody_opens_the_job_meanwhile(db: Database) -> None:
    for steps in range(3 * len(PARTS)):
        job = await finished(db, days=7.5)
        assert (await Walk(7 * DAY, of_jobs=True).step(db, WEEK))["jobs"] == 1
        remover = Remover()
        for _ in range(steps):
            await remover.step(db, rows=2)
        if await left(db):
            with pytest.raises(UnknownJob):
                await _hold(db, job)
        assert [one.name for one in await doctor.check(db) if not one.ok] == []
        assert (await prune_all(db, WEEK)).jobs == 0, "it was counted when it was marked"
        assert await rows_left(db) == {}


async def _hold(db: Database, job: Job) -> None:
    async with db.transaction() as tx:
        await hold_job(tx, job.id)


async def test_two_pruners_side_by_side_take_each_job_once(db: Database, settings: Settings) -> None:
    for _ in range(8):
        await finished(db, days=8)
    async with Database(settings, size=1) as one, Database(settings, size=1) as other:
        done = await asyncio.gather(prune_all(one, WEEK), prune_all(other, WEEK), prune_all(db, WEEK))
    assert sum(pruned.jobs for pruned in done) == 8
    await prune_all(db, WEEK)
    assert await rows_left(db) == {}


async def test_a_clear_that_holds_the_job_keeps_it(db: Database, settings: Settings) -> None:
    job = await finished(db, days=8)
    async with Database(settings, size=1) as other, other.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = $1 FOR UPDATE", job.id)
        assert (await prune_all(db, WEEK)).jobs == 0
        await tx.fetch("UPDATE aaiclick_queue.jobs SET status = 'RUNNING', finished_at = NULL WHERE id = $1", job.id)
    assert (await prune_all(db, WEEK)).jobs == 0
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'COMPLETED', finished_at = now() WHERE id = $1", job.id)


async def test_the_loop_prunes_jobs_too(db: Database) -> None:
    await finished(db, days=8)
    await put(db)
    pruner = Pruner(db, WEEK)
    for _ in range(2 * len(PARTS)):
        await pruner.prune_once()
    assert (pruner.pruned.jobs, await count(db, "jobs"), await count(db, "tasks")) == (1, 0, 1)


@pytest.mark.breaks_invariants
async def test_the_doctor_sees_a_job_that_is_overdue_for_a_day(db: Database) -> None:
    async def unwell() -> list[str]:
        return [one.name for one in await doctor.check(db) if not one.ok]

    job = await finished(db, days=7.5)
    assert await unwell() == []
    await make_old(db, job, 1)
    assert await unwell() == ["finished jobs are pruned by policy"]


# The net behind the resolver.


async def test_a_gate_that_was_decided_and_forgotten_is_carried_out_by_the_sweep(db: Database) -> None:
    job = Job()
    first = job.task()
    behind = job.tasks(2, first)
    job.task(*behind, first)
    await job.submit(db)
    [run] = await claim(db, await register_worker(db))
    await end(db, run, Succeeded(None))
    [waiting, *_] = await db.fetch("SELECT gate_id, task_id, run_epoch, flags FROM aaiclick_queue.waiting LIMIT 1")
    await resolve(db)
    await db.fetch("DELETE FROM aaiclick_queue.ready WHERE task_id = $1", waiting["task_id"])
    put_back = "INSERT INTO aaiclick_queue.waiting (gate_id, task_id, run_epoch, flags) VALUES ($1, $2, $3, $4)"
    await db.fetch(put_back, *waiting.values())
    await Reaper(db).sweep_once()
    assert await count(db, "arrivals") == 0, "somebody is at it, maybe"
    await age(db, "gates", "decided_at", 60)
    await Reaper(db).sweep_once()
    await resolve(db)
    assert await count(db, "ready") == 2
    assert await GateSweep().step(db) == []


async def test_a_job_that_was_not_closed_is_closed_by_the_sweep(db: Database) -> None:
    job = await finished(db, days=0)
    await db.fetch("UPDATE aaiclick_queue.jobs SET status = 'RUNNING', finished_at = NULL")
    await age(db, "gates", "decided_at", 60)
    await Reaper(db).sweep_once()
    await resolve(db)
    assert {row["status"] for row in await rows(db, "jobs")} == {"COMPLETED"}
    assert job.id


async def test_the_sweep_goes_over_all_gates_page_by_page_and_round_again(db: Database) -> None:
    jobs = [Job() for _ in range(3)]
    for job in jobs:
        job.task(job.task())
        await job.submit(db)
    seen: list[Any] = []
    sweep = GateSweep()
    for _ in range(5):
        await sweep.step(db, limit=2)
        seen.append(sweep._after)
    gates = sorted((row["job_id"], row["id"]) for row in await rows(db, "gates"))
    assert seen == [gates[1], gates[3], gates[5], (0, 0), gates[1]]


async def test_arrivals_of_gates_that_are_gone_are_forgotten(db: Database) -> None:
    await db.fetch("INSERT INTO aaiclick_queue.arrivals (gate_id, n) VALUES (1, 1)")
    assert (await Resolver(db).resolve_once()).folded == 0
    await Reaper(db).sweep_once()
    assert await count(db, "arrivals") == 0
