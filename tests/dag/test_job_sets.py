"""Acts on many jobs are operations: page by page, whoever works on them, and each job takes the act once."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aaiclick_queue import operations
from aaiclick_queue.flow import job_sets
from aaiclick_queue.flow.job_control import cancel_job_in
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.operate import Worked, work_once
from aaiclick_queue.operations import begin, cancel_operation, carry_out, changing_jobs, read_operation, work_to_end
from aaiclick_queue.postgres import Database
from aaiclick_queue.schema import Transaction
from tests.dag.hands import FAILS, Hands, job_row, settle, statuses
from tests.planned import Job
from tests.tools import count, until

EVERY = {"status": "PENDING"}


@pytest.fixture
def two_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_sets, "JOBS_A_PAGE", 2)
    monkeypatch.setattr(job_sets, "JOBS_SECONDS", 0.0)


async def jobs_of(db: Database, many: int) -> list[int]:
    made = []
    for _ in range(many):
        job = Job()
        job.tasks(2)
        await job.submit(db)
        made.append(job.id)
    return made


async def begun(db: Database, act: str, where: dict[str, object] | None = None) -> int:
    change = changing_jobs(act, where or EVERY)
    return await begin(db, change, await change.count(db), by="me")


async def found_statuses(db: Database, jobs: list[int]) -> list[str]:
    return [(await job_row(db, one))["status"] for one in jobs]


@pytest.mark.usefixtures("two_a_page")
async def test_an_operation_on_jobs_goes_on_where_a_crash_has_left_it(db: Database) -> None:
    jobs = await jobs_of(db, 5)
    operation = await begun(db, "cancel")
    assert (await read_operation(db, operation)).total == 5
    for done in (2, 4):
        worked = await work_once(db, operation)
        assert worked
        assert (worked.status, (await read_operation(db, operation)).done) == ("OPEN", done)
    assert await found_statuses(db, jobs) == ["CANCELLED"] * 4 + ["PENDING"]
    ended = await work_to_end(db, operation)
    assert (ended.status, ended.done) == ("DONE", 5)
    while await work_once(db):  # of the two pages before the crash
        pass
    assert {one for job in jobs for one in (await statuses(db, job)).values()} == {"CANCELLED"}
    assert await count(db, "ready") == 0


@pytest.mark.usefixtures("two_a_page")
async def test_an_operation_on_jobs_that_was_stopped_leaves_the_rest(db: Database) -> None:
    jobs = await jobs_of(db, 5)
    operation = await begun(db, "pause")
    await work_once(db, operation)
    assert await cancel_operation(db, operation)
    assert (await work_to_end(db, operation)).status == "CANCELLED"
    assert [(await job_row(db, one))["paused_at"] is not None for one in jobs] == [True, True, False, False, False]


async def test_a_job_that_somebody_holds_is_met_by_another_pass(db: Database) -> None:
    jobs = await jobs_of(db, 3)
    operation = await begun(db, "cancel")
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = $1 FOR SHARE", jobs[1])
        worked = await work_once(db, operation)
        assert worked
        assert (worked.status, worked.taken) == ("OPEN", 2)
    assert (await work_to_end(db, operation)).done == 3
    assert await found_statuses(db, jobs) == ["CANCELLED"] * 3


async def test_what_a_person_does_to_a_job_that_took_the_act_stays(db: Database) -> None:
    jobs = await jobs_of(db, 3)
    operation = await begun(db, "cancel", {"ids": [str(one) for one in jobs]})
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = $1 FOR SHARE", jobs[1])
        for one in (await work_once(db, operation)).begun:  # type: ignore[union-attr]
            await work_to_end(db, one)
        async with db.transaction() as by_hand:
            assert len(await retry_in_job(by_hand, jobs[0], by="a person")) == 2
        again = await work_once(db, operation)
        assert again
        assert (again.status, again.taken, again.pause > 0) == ("OPEN", 0, True)
    assert (await work_to_end(db, operation)).done == 3
    assert (await found_statuses(db, jobs))[1:] == ["CANCELLED"] * 2
    assert (await job_row(db, jobs[0]))["finished_at"] is None


@pytest.mark.usefixtures("two_a_page")
async def test_as_many_jobs_as_are_kept_by_id_come_before_further_ones(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_sets, "BUSY_MOST", 2)
    jobs = await jobs_of(db, 5)
    operation = await begun(db, "cancel")
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.jobs WHERE id = ANY($1) FOR SHARE", jobs[:3])
        for _ in range(3):
            assert (await work_once(db, operation)).taken == 0  # type: ignore[union-attr]
    assert (await work_to_end(db, operation)).done == 5
    assert await found_statuses(db, jobs) == ["CANCELLED"] * 5


async def test_a_job_that_is_started_meanwhile_is_no_pending_one_any_more(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await jobs_of(db, 2)
    hands = await Hands.register(db)

    async def slowly(tx: Transaction, job_id: int, *, by: str) -> int:
        begun = await cancel_job_in(tx, job_id, by=by)
        await hands.take()
        await settle(db)
        return begun

    monkeypatch.setattr(job_sets, "cancel_job_in", slowly)
    operation = await begun(db, "cancel")
    assert (await work_once(db, operation)).status == "DONE"  # type: ignore[union-attr]
    assert await found_statuses(db, jobs) == ["CANCELLED", "RUNNING"]


async def test_a_job_that_fails_again_is_not_retried_again_by_the_same_operation(db: Database) -> None:
    job = Job()
    job.task()
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.take()
    await hands.end(*hands.held, outcome=FAILS)
    await settle(db)
    operation = await begun(db, "retry", {"status": "FAILED"})
    assert (await work_once(db, operation)).taken == 1  # type: ignore[union-attr]
    await hands.take()
    await hands.end(*hands.held, outcome=FAILS)
    await settle(db)
    ended = await work_to_end(db, operation)
    assert (ended.status, ended.done, (await job_row(db, job.id))["status"]) == ("DONE", 1, "FAILED")


async def test_jobs_are_paused_and_go_on_and_new_ones_are_left_alone(db: Database) -> None:
    jobs = await jobs_of(db, 2)
    assert (await carry_out(db, changing_jobs("pause", EVERY))).done == 2
    assert await count(db, "ready") == 0
    jobs += await jobs_of(db, 1)
    assert (await carry_out(db, changing_jobs("resume", {"ids": [str(one) for one in jobs]}))).done == 2
    assert [(await job_row(db, one))["paused_at"] for one in jobs] == [None] * 3


@pytest.mark.usefixtures("two_a_page")
async def test_tasks_of_jobs_come_before_further_jobs(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_sets, "OPEN_MOST", 2)
    jobs = await jobs_of(db, 4)
    operation = await begun(db, "cancel")
    taken = [(await work_once(db, operation)).taken for _ in range(3)]  # type: ignore[union-attr]
    assert taken == [2, 0, 0]
    while await work_once(db):
        pass
    assert await found_statuses(db, jobs) == ["CANCELLED"] * 4


async def test_operations_on_jobs_do_not_wait_for_each_other(db: Database) -> None:
    jobs = await jobs_of(db, 2)
    operations = [await begun(db, "cancel", {"ids": [str(one) for one in jobs]}) for _ in range(job_sets.OPEN_MOST)]
    assert (await work_to_end(db, operations[0])).done == 2
    assert (await work_to_end(db, operations[-1])).status == "DONE"
    assert await found_statuses(db, jobs) == ["CANCELLED"] * 2


@pytest.mark.usefixtures("two_a_page")
async def test_what_waits_for_an_old_transaction_stops_no_further_jobs(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_sets, "OPEN_MOST", 2)
    jobs = await jobs_of(db, 5)
    async with db.transaction() as old:
        await old.fetch("SELECT pg_current_xact_id()")
        operation = await begun(db, "pause")
        while (await read_operation(db, operation)).status == "OPEN":
            worked = await work_once(db, operation)
            for one in worked.begun if worked else ():
                while not (await work_once(db, one)).pause:  # type: ignore[union-attr]
                    pass
            assert worked
            assert worked.taken or worked.status == "DONE"
        assert [(await job_row(db, one))["paused_at"] is not None for one in jobs] == [True] * 5


@pytest.mark.usefixtures("two_a_page")
async def test_jobs_are_resumed_though_many_operations_are_open(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = await jobs_of(db, 3)
    assert (await work_to_end(db, await begun(db, "pause"))).done == 3
    monkeypatch.setattr(job_sets, "OPEN_MOST", 0)
    assert (await work_once(db, await begun(db, "pause"))).pause  # type: ignore[union-attr]
    assert (await work_to_end(db, await begun(db, "resume"))).done == 3
    assert [(await job_row(db, one))["paused_at"] for one in jobs] == [None] * 3


async def test_jobs_are_paused_though_an_old_transaction_stays_open(db: Database) -> None:
    jobs = await jobs_of(db, 3)
    async with db.transaction() as old:
        await old.fetch("SELECT pg_current_xact_id()")
        async with asyncio.timeout(30):
            assert (await carry_out(db, changing_jobs("pause", EVERY))).done == 3
        assert await count(db, "ready") == 0
        assert [(await job_row(db, one))["paused_at"] is not None for one in jobs] == [True] * 3
    while await work_once(db):
        pass


async def test_what_waits_for_somebody_is_looked_at_with_pauses(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await jobs_of(db, 1)
    looks: dict[int, list[float]] = {}

    async def looked(db: Database, operation_id: int) -> Worked | None:
        worked = await work_once(db, operation_id)
        if worked and worked.pause:
            looks.setdefault(operation_id, []).append(asyncio.get_running_loop().time())
        return worked

    monkeypatch.setattr(operations, "work_once", looked)
    async with db.transaction() as tx:
        await tx.fetch("SELECT FROM aaiclick_queue.ready FOR UPDATE")
        operation = asyncio.create_task(carry_out(db, changing_jobs("cancel", EVERY)))
        await until(lambda: any(len(times) > 2 for times in looks.values()))
    assert (await operation).done == 1
    [times] = looks.values()
    assert min(later - before for before, later in itertools.pairwise(times)) > 0.4
