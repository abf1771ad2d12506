"""Failures in groups: every way into FAILED makes a row, every way out takes it away; groups are shown and acted on."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aaiclick_queue import Client, doctor, operations, task
from aaiclick_queue.errors import BadTask, Fail
from aaiclick_queue.failing import FailureGroup, acknowledge_failure, get_failure, list_failures, mute_failure
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.prune import DAY, Policy
from aaiclick_queue.flow.prune_by_hand import prune_all
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.retry import retry_tasks
from aaiclick_queue.outcome import Error, Failed, Later
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.views import TaskFilter, list_tasks
from tests.cli.conftest import Invoke
from tests.dag.hands import FAILS, Hands
from tests.planned import Job
from tests.tools import age, changed, claim, end, leased, place_of, put_one, register_worker, running_worker, until

FIRST_LINE = Error("ValueError", "bad row 1", where="rows.py:88 in read")
MOVED_LINE = Error("ValueError", "bad row 2", where="rows.py:91 in read")
ELSEWHERE = Error("ValueError", "bad row 3", where="rows.py:12 in write")


async def fail(db: Database, error: Error = FIRST_LINE, **spec: Any) -> int:
    """A task that has failed so."""
    run = await leased(db, **spec)
    assert await end(db, run, Failed(error))
    return run.task_id


async def rows_of(db: Database) -> dict[int, str]:
    return {row["task_id"]: row["error_type"] for row in await db.fetch(
        "SELECT task_id, error_type FROM aaiclick_queue.failures")}  # fmt: skip


async def only_group(db: Database, **given: Any) -> FailureGroup:
    [group] = (await list_failures(db, **given)).groups
    return group


# Into FAILED.


@task(max_attempts=1)
async def raises(what: str) -> None:
    if what == "Fail":
        raise Fail("for good")
    if what == "TimedOut":
        await asyncio.sleep(3600)
    raise ValueError(what)


@pytest.mark.parametrize("error_type", ["ValueError", "Fail", "TimedOut"])
async def test_a_run_that_fails_in_a_worker_makes_a_row(
    db: Database, client: Client, quick: Settings, error_type: str
) -> None:
    seconds = 0.05 if error_type == "TimedOut" else 60.0
    async with running_worker(quick):
        handle = await raises.options(timeout=seconds).enqueue(what=error_type, client=client)
        found = await until(lambda: rows_of(db))
    assert found == {handle.id: error_type}


async def test_a_run_that_gives_up_after_its_attempts_makes_a_row(db: Database) -> None:
    run = await leased(db, max_attempts=2)
    assert await end(db, run, Later("RETRYING", FIRST_LINE, 0.0))
    assert await rows_of(db) == {}
    await Reaper(db).due_once()
    [again] = await claim(db, await register_worker(db))
    assert await end(db, again, Failed(FIRST_LINE))
    assert await rows_of(db) == {run.task_id: "ValueError"}


async def test_a_task_that_was_lost_too_often_makes_a_row(db: Database, settings: Settings) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = 100")
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")
    await Reaper(db).reap_once()
    assert await rows_of(db) == {run.task_id: "WorkerLost"}


async def test_a_run_past_its_deadline_makes_a_row(db: Database) -> None:
    run = await leased(db, max_attempts=1)
    await age(db, "leases", "deadline_at", 100_000)
    await Reaper(db).reap_once()
    assert await rows_of(db) == {run.task_id: "TimedOut"}


async def test_an_entrypoint_that_stays_unknown_makes_a_row(db: Database, quick: Settings) -> None:
    task_id = await put_one(db)
    run = (await claim(db, await register_worker(db)))[0]
    assert await end(db, run, Later("UNKNOWN", Error("UnknownEntrypoint", "no code"), 0.0))
    await age(db, "attempts", "finished_at", 60)
    await Reaper(db).due_once()
    async with running_worker(changed(quick, unknown_task_seconds=1)):
        assert await until(lambda: rows_of(db)) == {task_id: "UnknownEntrypoint"}


# Out of FAILED.


async def test_a_retry_takes_the_row_away(db: Database) -> None:
    task_id = await fail(db)
    async with db.transaction() as tx:
        await retry_tasks(tx, [task_id], by="me")
    assert await rows_of(db) == {}


async def test_clearing_a_task_of_a_job_takes_the_row_away(db: Database) -> None:
    job = Job()
    only = job.task()
    await job.submit(db)
    await (await Hands.register(db)).run({job[only]: FAILS})
    assert set(await rows_of(db)) == {job[only]}
    await clear_task(db, job[only], by="me")
    assert await rows_of(db) == {}


async def test_pruning_and_deleting_take_the_row_away(db: Database) -> None:
    await fail(db)
    for column in ("created_at", "finished_at"):
        await age(db, "tasks", column, 100 * DAY)
    await prune_all(db, Policy(7 * DAY, 30 * DAY))
    assert await rows_of(db) == {}
    task_id = await fail(db)
    await db.fetch("DELETE FROM aaiclick_queue.tasks WHERE id = $1", task_id)
    assert await rows_of(db) == {}


@pytest.mark.breaks_invariants
async def test_the_doctor_finds_a_failure_too_few_and_one_too_many(db: Database) -> None:
    await fail(db)
    assert await broken(db) == []
    await db.fetch("DELETE FROM aaiclick_queue.failures")
    assert await broken(db) == ["every failed task is among the failures, and nothing else is"]
    await fail(db, queue="other")
    await db.fetch("UPDATE aaiclick_queue.failures SET task_id = 1")
    assert await broken(db) == ["every failed task is among the failures, and nothing else is"]


async def broken(db: Database) -> list[str]:
    return [one.name for one in await doctor.check(db) if not one.ok]


# Groups.


async def test_a_line_that_moved_is_the_same_trouble_and_another_function_is_not(db: Database) -> None:
    for error in (FIRST_LINE, MOVED_LINE, ELSEWHERE):
        await fail(db, error, queue="mail")
    page = await list_failures(db)
    assert [group.count for group in page.groups] == [2, 1]
    first = page.groups[0]
    assert first.place == "rows.py:91 in read"
    assert first.queues == ["mail"]
    assert first.message == "bad row 2"
    assert sum(first.trend) == 2
    assert first.trend[-1] == 2
    assert (page.looked, page.is_cut) == (3, False)
    assert (await list_failures(db, limit=1)).is_cut


async def test_a_group_is_new_when_nothing_failed_like_it_before_the_youngest_worker(db: Database) -> None:
    await fail(db)
    await age(db, "workers", "started_at", 100)
    assert (await only_group(db)).is_new
    await age(db, "failures", "failed_at", 1000)
    assert not (await only_group(db)).is_new


async def test_one_group_has_its_newest_tasks_and_counts_its_jobs(db: Database) -> None:
    job = Job()
    both = job.tasks(2)
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run(dict.fromkeys(job.of(both), FAILS))
    [group] = (await list_failures(db)).groups
    found = await get_failure(db, group.fingerprint)
    assert found
    assert found.total == 2
    assert {one.id for one in found.tasks} == {str(one) for one in job.of(both)}
    assert found.group.jobs == 1
    assert await get_failure(db, "0" * 16) is None
    with pytest.raises(BadTask, match="16 digits"):
        await get_failure(db, "abc")


async def test_an_acknowledged_group_comes_back_with_the_next_failure(db: Database) -> None:
    await fail(db)
    group = await only_group(db)
    assert await acknowledge_failure(db, group.fingerprint, by="anna", reason="fixed")
    assert (await list_failures(db)).groups == []
    known = await only_group(db, acknowledged=True)
    assert (known.acknowledged_by, known.reason) == ("anna", "fixed")
    await fail(db)
    assert (await only_group(db)).count == 2
    assert not await acknowledge_failure(db, "0" * 16)


async def test_a_muted_group_stays_away_whatever_fails_until_its_time(db: Database) -> None:
    await fail(db)
    group = await only_group(db)
    assert await mute_failure(db, group.fingerprint, datetime.now(UTC) + timedelta(hours=1))
    await fail(db)
    assert (await list_failures(db)).groups == []
    await age(db, "failure_groups", "muted_until", 7200)
    assert (await only_group(db)).count == 2


async def test_what_failed_before_is_not_looked_at(db: Database) -> None:
    await fail(db)
    await age(db, "failures", "failed_at", 2 * 3600)
    assert (await list_failures(db, hours=1)).groups == []
    assert len((await list_failures(db, hours=3)).groups) == 1


# Acts on a group.


async def test_all_of_a_group_are_retried_and_others_are_not(db: Database, client: Client) -> None:
    alike = [await fail(db), await fail(db, MOVED_LINE)]
    other = await fail(db, ELSEWHERE)
    job = Job()
    only = job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[only]: Failed(FIRST_LINE)})
    fingerprint = next(one.fingerprint for one in (await list_failures(db)).groups if one.count == 3)
    found = await list_tasks(db, TaskFilter(fingerprint=fingerprint))
    assert {int(one.id) for one in found.tasks} == {*alike, job[only]}
    of_job = await list_tasks(db, TaskFilter(fingerprint=fingerprint, job_id=job.id))
    assert [int(one.id) for one in of_job.tasks] == [job[only]]
    assert len((await list_tasks(db, TaskFilter(fingerprint=fingerprint), limit=2)).tasks) == 2
    assert await operations.retry_where(fingerprint=fingerprint, client=client) == 3
    assert [await place_of(db, one) for one in alike] == [["ready"], ["ready"]]
    assert await place_of(db, other) == ["FAILED"]
    with pytest.raises(BadTask, match="16 digits"):
        await operations.retry_where(fingerprint="all", client=client)


async def test_cancelling_a_group_ends_those_that_wait_for_another_attempt(db: Database, client: Client) -> None:
    await fail(db)
    fingerprint = (await only_group(db)).fingerprint
    waits = await leased(db, max_attempts=3)
    assert await end(db, waits, Later("RETRYING", MOVED_LINE, 3600.0))
    other = await leased(db, max_attempts=3)
    assert await end(db, other, Later("RETRYING", ELSEWHERE, 3600.0))
    assert await operations.cancel_where(fingerprint=fingerprint, client=client) == 1
    assert await place_of(db, waits.task_id) == ["CANCELLED"]
    assert await place_of(db, other.task_id) == ["delayed"]


async def test_the_commands(db: Database, invoke: Invoke) -> None:
    task_id = await fail(db)
    fingerprint = (await only_group(db)).fingerprint

    async def run(*words: str) -> str:
        ran = await asyncio.to_thread(invoke, *words)
        assert ran.exit_code == 0, ran.output
        return ran.output

    assert "bad row 1" in await run("failures")
    assert json.loads(await run("failures", "--json"))["groups"][0]["sample_task_id"] == str(task_id)
    assert str(task_id) in await run("failures", "show", fingerprint)
    assert str(task_id) in await run("task", "list", "--fingerprint", fingerprint)
    assert "would retry 1 task" in await run("failures", "retry", fingerprint, "--dry-run")
    assert "until it happens again" in await run("failures", "ack", fingerprint)
    assert "nothing has failed" in await run("failures")
    assert fingerprint in await run("failures", "--all")
    assert "put back in line: 1 task" in await run("task", "retry", "--where", f"fingerprint={fingerprint}", "--yes")
    gone = await asyncio.to_thread(invoke, "failures", "show", fingerprint)
    assert gone.exit_code == 4
