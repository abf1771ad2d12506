"""The doctor finds what is not true of jobs, and says nothing of whatever the flow itself does, step by step."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from aaiclick_queue import doctor
from aaiclick_queue.errors import BadJob
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.graph import Previous
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.job_checks import JOB_CHECKS
from aaiclick_queue.outcome import Cancelled, Error, Failed, Outcome, Released, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.spec import RULES
from aaiclick_queue.stalls import stalled_jobs
from tests.planned import Job, group_before, resolve
from tests.tools import claim, end, register_worker, rows

ERROR = Error("ValueError", "no")
PLACE = "every open task is in exactly one place"
MEMBERS = "the gates of jobs and groups count their tasks"
ENDS = "gates count what leads to them"
DECIDED = "what a gate has decided is carried out"
EARLY = "nothing starts before its dependencies allow it"
CROWDED = "no more of a job is at work than its max_parallel"
STALLS = "no open job stalls"


async def broken(db: Database) -> set[str]:
    return {one.name for one in await doctor.check(db) if not one.ok}


async def run_one(db: Database, outcome: Outcome | None = None) -> Claimed:
    [run] = await claim(db, await register_worker(db), 1)
    assert await end(db, run, outcome or Succeeded(None))
    return run


async def a_chain(db: Database) -> Job:
    """Two tasks in a group, a third behind them, a fourth behind the group."""
    job = Job()
    group = job.group()
    first = job.task(group=group)
    second = job.task(first, group=group)
    job.task(first, second, group=group)
    job.task(group_before(group))
    return await job.submit(db)


@pytest.mark.parametrize("column", ["remaining", "total", "failed", "skipped"])
@pytest.mark.parametrize("kind", ["JOB", "GROUP"])
@pytest.mark.breaks_invariants
async def test_a_count_that_is_not_that_of_the_tasks_is_found(db: Database, kind: str, column: str) -> None:
    await a_chain(db)
    await run_one(db)
    assert await broken(db) == set(), "what has arrived is as good as counted"
    await resolve(db)
    assert await broken(db) == set()
    await db.fetch(f"UPDATE aaiclick_queue.gates SET {column} = {column} + 1 WHERE kind = $1", kind)
    assert await broken(db) == {MEMBERS}


@pytest.mark.breaks_invariants
async def test_an_arrival_that_is_lost_or_doubled_is_found(db: Database) -> None:
    await a_chain(db)
    await run_one(db)
    await db.fetch("INSERT INTO aaiclick_queue.arrivals (gate_id, n) SELECT gate_id, n FROM aaiclick_queue.arrivals")
    assert await broken(db) == {MEMBERS, ENDS}
    await db.fetch("DELETE FROM aaiclick_queue.arrivals")
    assert await broken(db) == {MEMBERS, ENDS, STALLS}


@pytest.mark.breaks_invariants
async def test_a_gate_that_nobody_will_look_at_again_is_found(db: Database) -> None:
    job = await a_chain(db)
    await db.fetch("UPDATE aaiclick_queue.gates SET state = 'OPEN' WHERE kind = 'WAIT'")
    assert await broken(db) == {DECIDED}
    await db.fetch("INSERT INTO aaiclick_queue.arrivals (gate_id, n) SELECT id, 0 FROM aaiclick_queue.gates")
    assert await broken(db) == set(), "somebody will come by"
    await db.fetch("DELETE FROM aaiclick_queue.arrivals")
    await db.fetch("DELETE FROM aaiclick_queue.waiting")
    await db.fetch("UPDATE aaiclick_queue.gates SET state = 'OPEN' WHERE kind = 'TASK'")
    assert DECIDED in await broken(db)
    assert await stalled_jobs(db, [job.id]) == []


@pytest.mark.parametrize("place", ["ready", "held", "delayed", "leases", "ended"])
@pytest.mark.breaks_invariants
async def test_a_task_that_started_before_what_it_depends_on_is_found(db: Database, place: str) -> None:
    job = Job()
    group = job.group()
    job.task(group=group)
    late = job.task(group_before(group))
    await job.submit(db)
    task_id = job[late]
    await db.fetch("DELETE FROM aaiclick_queue.waiting")
    key = "queue, rank, order_key, task_id"
    if place == "ended":
        await db.fetch(
            "UPDATE aaiclick_queue.tasks SET status = 'COMPLETED', started_at = now() WHERE id = $1", task_id
        )
        assert EARLY in await broken(db)
        return
    if place in ("ready", "held"):
        await db.fetch(f"INSERT INTO aaiclick_queue.{place} ({key}) VALUES ('default', 0, $1, $2)", job.id, task_id)
    elif place == "delayed":
        await db.fetch(
            f"INSERT INTO aaiclick_queue.delayed ({key}, not_before, reason) VALUES ('default', 0, $1, $2, now(), '')",
            job.id,
            task_id,
        )
    else:
        await db.fetch(
            f"""INSERT INTO aaiclick_queue.leases ({key}, worker_id, ready_at, deadline_at, run_epoch, attempt,
                                                   lost_count, snoozes, flags)
                VALUES ('default', 0, $1, $2, $3, now(), now() + interval '1 hour', 1, 1, 0, 0, 0)""",
            job.id,
            task_id,
            await register_worker(db),
        )
    assert await broken(db) == {EARLY}


@pytest.mark.parametrize("how", ["by its choice", "in a group", "in a group of a group", "any of", "by failure"])
@pytest.mark.breaks_invariants
async def test_every_kind_of_dependency_is_looked_at(db: Database, how: str) -> None:
    job = Job()
    first = job.task()
    match how:
        case "by its choice":
            late = job.task(Previous(first, choices=("left",), known=("left", "right")), rule="all_done")
        case "in a group":
            late = job.task(group=job.group(first))
        case "in a group of a group":
            late = job.task(group=job.group(parent=job.group(first)))
        case "any of":
            late = job.task(Previous(first, any_of=True))
        case _:
            late = job.task(first, rule="none_failed")
    await job.submit(db)
    await run_one(db, Succeeded('"right"') if how == "by its choice" else Failed(ERROR))
    await resolve(db)
    assert await broken(db) == set()
    await db.fetch("UPDATE aaiclick_queue.tasks SET started_at = now() WHERE id = $1", job[late])
    assert await broken(db) == {EARLY}


@pytest.mark.breaks_invariants
async def test_more_at_work_than_a_cap_allows_is_found(db: Database) -> None:
    job = Job(max_parallel=1)
    group = job.group(max_parallel=1)
    job.tasks(2, group=group)
    await job.submit(db)
    await Admission(db).admit_once()
    assert await broken(db) == set()
    [held] = await rows(db, "held")
    await db.fetch("INSERT INTO aaiclick_queue.slots (task_id, limit_id) VALUES ($1, $2)", held["task_id"], job[group])
    assert CROWDED in await broken(db)


@pytest.mark.breaks_invariants
async def test_a_stall_is_told_with_its_reason(db: Database) -> None:
    job = await a_chain(db)
    ids = sorted(job.ids.values())
    tasks = await db.fetch("SELECT id FROM aaiclick_queue.tasks ORDER BY id")

    async def reason() -> str:
        [one] = await stalled_jobs(db)
        assert (one.job_id, one.name) == (job.id, "a job")
        assert [one] == await stalled_jobs(db, [job.id])
        assert await stalled_jobs(db, ids) == [], "those are no jobs"
        return one.reason

    assert await stalled_jobs(db) == []
    await db.fetch("DELETE FROM aaiclick_queue.ready")
    assert "is open and in no place" in await reason()
    await db.fetch("UPDATE aaiclick_queue.tasks SET status = 'COMPLETED' WHERE id = $1", tasks[0]["id"])
    assert "waits at a gate that nothing will open: it counts on one more end" in await reason()
    await db.fetch("UPDATE aaiclick_queue.gates SET state = 'FAIL' WHERE kind = 'WAIT'")
    assert "waits at a gate that was decided, FAIL, and nobody looks at it" in await reason()
    await db.fetch("DELETE FROM aaiclick_queue.waiting")
    await db.fetch("UPDATE aaiclick_queue.tasks SET status = 'COMPLETED'")
    assert await reason() == "its gate counts 4 open tasks, and there are none"
    await db.fetch("UPDATE aaiclick_queue.gates SET remaining = 0 WHERE kind = 'JOB'")
    assert await reason() == "all its tasks have ended, and nobody has ended the job"
    await db.fetch("INSERT INTO aaiclick_queue.arrivals (gate_id, n) VALUES ($1, 0)", job.id)
    assert await stalled_jobs(db) == [], "somebody will come by"
    await resolve(db)
    assert await stalled_jobs(db) == []


@pytest.mark.parametrize("place", ["ready", "held", "delayed", "leases", "operation"])
@pytest.mark.breaks_invariants
async def test_a_job_with_anything_on_its_way_does_not_stall(db: Database, place: str) -> None:
    job = Job(max_parallel=1 if place == "held" else None)
    first = job.task(countdown=60.0 if place == "delayed" else None)
    job.task(first)
    await job.submit(db)
    if place == "leases":
        await claim(db, await register_worker(db))
    if place == "operation":
        await db.fetch("DELETE FROM aaiclick_queue.ready")
        await db.fetch(
            """INSERT INTO aaiclick_queue.operations (kind, filter, arguments, up_to, made_by)
               VALUES ('cancel_job', jsonb_build_object('job', $1::text), '{}', 0, 'a test')""",
            str(job.id),
        )
    assert await stalled_jobs(db) == []


# Whatever the flow does is right by the doctor, in each moment.


def _random_job(chance: random.Random) -> Job:
    job = Job(max_parallel=chance.choice([None, None, 2]))
    groups: list[int] = []
    tasks: list[int] = []
    for _ in range(chance.randrange(1, 16)):
        group = chance.choice([None, *groups])
        rule = chance.choice([*RULES, "all_success", "all_success"])
        before = _previous(chance, tasks, groups)
        if chance.random() < 0.25:
            groups.append(job.group(*before, parent=group, rule=rule))
        else:
            tasks.append(job.task(*before, group=group, rule=rule, critical=chance.random() < 0.9))
    return job


def _previous(chance: random.Random, tasks: list[int], groups: list[int]) -> list[Previous]:
    found = []
    for one in chance.sample(tasks, min(len(tasks), chance.choice([0, 0, 1, 1, 2, 3]))):
        choices = chance.choice([(), (), (), ("left",), ("?true",), ("*",)])
        known = ("left", "right") if choices and choices != ("?true",) else ()
        found.append(Previous(one, choices=choices, known=known, any_of=not choices and chance.random() < 0.2))
    found += [group_before(one) for one in groups if chance.random() < 0.2]
    return found


@pytest.mark.parametrize("seed", range(10))
async def test_the_doctor_agrees_with_every_step_of_a_random_job(db: Database, seed: int) -> None:
    chance = random.Random(seed)
    job = await _submitted(db, chance)
    worker_id, running = await register_worker(db), list[Claimed]()
    resolver, admission = Resolver(db), Admission(db)
    well: list[Outcome] = [Succeeded('"left"'), Succeeded('"right"'), Succeeded("0"), Succeeded(None)]
    outcomes: list[Outcome] = [*well, *well, *well, Failed(ERROR), Skipped(ERROR), Cancelled(ERROR), Released()]
    for _ in range(400):
        match chance.choice(["claim", "end", "end", "resolve", "resolve", "admit", "cancel"]):
            case "claim":
                running += await claim(db, worker_id, chance.randrange(1, 4))
            case "end" if running:
                run = running.pop(chance.randrange(len(running)))
                await end(db, run, chance.choice(outcomes), worker_id=worker_id)
            case "resolve":
                await resolver.resolve_once(limit=chance.choice([1, 3, 100]), page=chance.choice([1, 2, 100]))
            case "admit":
                await admission.admit_once()
            case "cancel" if chance.random() < 0.1:
                await cancel(db, [chance.choice(await rows(db, "tasks"))["id"]])
        wrong = [check.name for check in JOB_CHECKS if await _found(db, check)]
        assert wrong == [], f"seed {seed}\n{await _graph(db)}"
        if (await rows(db, "jobs"))[0]["status"] not in ("PENDING", "RUNNING"):
            break
    else:
        raise AssertionError(f"job {job.id} has not ended: {await stalled_jobs(db)}")


async def _submitted(db: Database, chance: random.Random) -> Job:
    while True:
        with suppress(BadJob):  # a cycle, as a group was before a task of its own
            return await _random_job(chance).submit(db)


async def _found(db: Database, check: Any) -> list[Any]:
    return list(await db.fetch(check.sql, *check.arguments(db.settings)))


async def _graph(db: Database) -> str:
    """What there was, for whoever looks into a failure."""
    parts = {
        "dependencies": "previous_id, previous_type, next_id, next_type, any_of, choices, known",
        "tasks": "id, name, group_id, rule, critical, status, result, wait_gate, exit_gate, started_at",
        "groups": "id, parent_group_id, rule, entry_gate",
        "gates": "id, kind, rule, total, remaining, failed, skipped, vetoed, state",
        "gate_edges": "gate_id, next_gate_id, choices",
        "arrivals": "id, gate_id, n, failed, skipped, vetoed",
        "waiting": "gate_id, task_id",
    }
    found = {table: await db.fetch(f"SELECT {what} FROM aaiclick_queue.{table}") for table, what in parts.items()}
    return "\n".join(f"{table} {tuple(row.values())}" for table, some in found.items() for row in some)
