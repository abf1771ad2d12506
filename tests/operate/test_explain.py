"""Why a task does not run: every reason is made for real, and what mends it is a command that there is."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from aaiclick_queue import task
from aaiclick_queue.cli import main
from aaiclick_queue.explaining import CODES, Explanation, explain_task
from aaiclick_queue.flags import STOPS
from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.job_control import cancel_job, pause_job
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.pause import pause_queue
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.operations import work_to_end
from aaiclick_queue.outcome import Error, Failed, Later, Skipped, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.dag.hands import FAILS, Hands, settle
from tests.planned import Job, group_before
from tests.tools import (
    age,
    claim,
    end,
    leased,
    make_due,
    put,
    put_one,
    register_worker,
    running_worker,
    until,
)

DOCS = Path(__file__).parents[2] / "docs" / "explain.md"
NO_LUCK = Error("ValueError", "no luck")


async def explained(db: Database, task_id: int, code: str, *, among: bool = False) -> Explanation:
    """The explanation, once its answer is that one, or `among` its lines, and every fix can be done."""
    found = await explain_task(db, task_id)
    assert found is not None
    assert code in ([line.code for line in found.lines] if among else [found.code]), found
    assert found.lines[0].sentence == found.sentence
    for line in found.lines:
        assert line.code in CODES
        assert line.sentence.endswith(".")
        assert line.fix
        if line.fix.startswith("aaiclick-queue "):
            parse(line.fix)
    assert json.loads(msgspec.json.encode(found))["task_id"] == str(task_id)
    return found


def parse(command: str) -> None:
    """Refuses what click would refuse."""
    _, *words = shlex.split(command)
    found: click.Command = main
    context = click.Context(main, info_name="aaiclick-queue")
    while isinstance(found, click.Group):
        name, inner, words = found.resolve_command(context, words)
        assert inner is not None
        context = click.Context(inner, parent=context, info_name=name)
        found = inner
    found.make_context(found.name or "", list(words), parent=context.parent)


async def serve(db: Database, *, queues: str = "default", slots: int = 10, entrypoints: list[str] | None = None) -> int:
    """A worker that lives and does nothing."""
    worker_id = await register_worker(db)
    await db.fetch(
        "UPDATE aaiclick_queue.workers SET queues = $2, slots = $3, entrypoints = $4 WHERE id = $1",
        worker_id, queues.split(), slots, entrypoints,
    )  # fmt: skip
    return worker_id


# The end.


async def test_one_that_is_not_there_has_no_explanation(db: Database) -> None:
    assert await explain_task(db, 1) is None


async def test_completed(db: Database) -> None:
    run = await leased(db)
    assert await end(db, run, Succeeded("1"))
    assert (await explained(db, run.task_id, "completed")).status == "COMPLETED"


async def test_failed_says_how_often_it_was_tried_and_how_many_failed_alike(db: Database) -> None:
    for _ in range(2):
        run = await leased(db, max_attempts=1)
        assert await end(db, run, Failed(NO_LUCK))
    found = await explained(db, run.task_id, "failed")
    assert "attempt 1 of 1" in found.sentence
    assert "ValueError: no luck" in found.sentence
    assert "2 tasks have failed like it" in found.sentence
    assert found.fix == f"aaiclick-queue task retry {run.task_id}"


async def test_cancelled_expired_and_skipped(db: Database) -> None:
    by_hand = await put_one(db)
    await cancel(db, [by_hand])
    await explained(db, by_hand, "cancelled")
    late = await put_one(db)
    await cancel(db, [late], error=Error("Expired", "its expiry passed before it started"))
    await explained(db, late, "expired")
    run = await leased(db)
    assert await end(db, run, Skipped(Error("Skip", "nothing to do")))
    assert "nothing to do" in (await explained(db, run.task_id, "skipped")).sentence


async def test_upstream_failed_names_the_first_that_failed_however_far_up(db: Database) -> None:
    job = Job()
    first = job.task(name="load")
    second = job.task(first, name="clean")
    third = job.task(second, name="store")
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[first]: FAILS})
    found = await explained(db, job[third], "upstream_failed")
    assert found.facts["cause"] == str(job[first])
    assert "load" in found.sentence
    assert "2 steps before it" in found.sentence


async def test_upstream_failed_through_a_group_names_its_member(db: Database) -> None:
    job = Job()
    group = job.group(name="parts")
    members = job.tasks(3, group=group)
    after = job.task(group_before(group))
    await job.submit(db)
    hands = await Hands.register(db)
    await hands.run({job[members[1]]: FAILS})
    assert (await explained(db, job[after], "upstream_failed")).facts["cause"] == str(job[members[1]])


# Jobs.


async def test_a_task_of_a_cancelled_job_says_so_before_and_after_its_end(db: Database) -> None:
    job = Job(name="etl")
    only = job.task()
    await job.submit(db)
    operation = await cancel_job(db, job.id, by="anna")
    found = await explained(db, job[only], "job_cancelled")
    assert "anna" in found.sentence
    await work_to_end(db, operation)
    assert (await explained(db, job[only], "job_cancelled")).status == "CANCELLED"


async def test_a_task_of_a_job_that_fails_at_its_deadline_is_being_ended(db: Database) -> None:
    job = Job(timeout=100)
    only = job.task()
    await job.submit(db)
    await db.fetch("UPDATE aaiclick_queue.jobs SET deadline_at = now() - interval '1 s'")
    await db.fetch("UPDATE aaiclick_queue.jobs SET failing_at = now()")
    await explained(db, job[only], "job_failing")
    await db.fetch("UPDATE aaiclick_queue.jobs SET failing_at = NULL, deadline_at = now() + interval '1 h'")


async def test_waiting_names_the_tasks_and_groups_before_it(db: Database) -> None:
    job = Job()
    group = job.group(name="parts")
    job.tasks(2, group=group)
    before = job.task(name="load")
    after = job.task(before, group_before(group))
    await job.submit(db)
    found = await explained(db, job[after], "waiting_for_tasks")
    assert "2 of the 2" in found.sentence
    assert "load" in found.sentence
    assert "parts" in found.sentence
    assert found.fix == f"aaiclick-queue task explain {job[before]}"


async def test_a_paused_job(db: Database) -> None:
    job = Job(name="etl")
    only = job.task()
    await job.submit(db)
    operation = await pause_job(db, job.id, by="anna", reason="db work")
    assert operation
    await work_to_end(db, operation)
    found = await explained(db, job[only], "job_paused")
    assert "by anna" in found.sentence
    assert "db work" in found.sentence


async def test_max_parallel_of_a_job_and_of_a_group(db: Database) -> None:
    job = Job(max_parallel=1)
    both = job.tasks(2)
    await job.submit(db)
    await settle(db)
    held = [one for one in job.of(both) if await held_there(db, one)]
    await serve(db)
    assert "max_parallel=1 of its job" in (await explained(db, held[0], "max_parallel")).sentence
    other = Job()
    group = other.group(name="parts", max_parallel=1)
    both = other.tasks(2, group=group)
    await other.submit(db)
    await settle(db)
    held = [one for one in other.of(both) if await held_there(db, one)]
    assert "group parts" in (await explained(db, held[0], "max_parallel")).sentence


async def held_there(db: Database, task_id: int) -> bool:
    return bool(await db.fetch("SELECT 1 FROM aaiclick_queue.held WHERE task_id = $1", task_id))


# Later.


@pytest.mark.parametrize(("kind", "code"), [("RETRYING", "backoff"), ("SNOOZED", "snoozed"), ("UNKNOWN", "cool_down")])
async def test_due_later_after_a_run(db: Database, kind: Any, code: str) -> None:
    run = await leased(db, max_attempts=3)
    await serve(db)
    assert await end(db, run, Later(kind, NO_LUCK, 60.0))
    found = await explained(db, run.task_id, code)
    assert "no luck" in found.sentence
    assert "in 1.0 min" in found.sentence or "in 60.0 s" in found.sentence
    if code == "backoff":
        assert "number 2 of 3" in found.sentence


async def test_due_later_by_its_eta_and_what_is_due_and_nobody_moves(db: Database) -> None:
    task_id = await put_one(db, task={"countdown": 60.0})
    assert (await explained(db, task_id, "scheduled")).fix.startswith("It gets in line by itself in")
    await make_due(db)
    assert (await explained(db, task_id, "scheduled")).fix == "aaiclick-queue background"
    await Reaper(db).due_once()


async def test_a_lost_run_waits_a_little(db: Database) -> None:
    run = await leased(db)
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST', stopped_at = now()")
    await Reaper(db).reap_once()
    assert "WorkerLost" in (await explained(db, run.task_id, "lost_run")).sentence


# In line.


async def test_a_paused_queue_and_a_paused_entrypoint(db: Database) -> None:
    task_id = await put_one(db, queue="mail", entrypoint="shop.mail.send")
    await serve(db, queues="mail")
    await pause_queue(db, "mail", by="anna", reason="smtp is down")
    found = await explained(db, task_id, "queue_paused")
    assert re.search(r"paused by anna .* ago: smtp is down", found.sentence)
    assert found.fix == "aaiclick-queue queue resume mail"
    await db.fetch("UPDATE aaiclick_queue.queues SET paused_at = NULL")
    operation = await set_limit(db, NewLimit("task", "shop.mail.send", "pause", lasts=600, reason="bug"), by="ben")
    assert operation
    await work_to_end(db, operation)
    found = await explained(db, task_id, "entrypoint_paused")
    assert "by ben" in found.sentence
    assert found.fix == "aaiclick-queue task resume shop.mail.send"


async def test_a_queue_that_a_new_limit_has_closed_names_the_transaction_it_waits_for(db: Database) -> None:
    async with db.transaction() as old:
        await old.fetch("SELECT pg_current_xact_id()")
        [row] = await old.fetch("SELECT pg_backend_pid() AS pid")
        task_id = await put_one(db, queue="mail")
        operation = await set_limit(db, NewLimit("queue", "mail", "running", 5), by="me")
        assert operation
        found = await explained(db, task_id, "queue_paused")
        assert f"the process {row['pid']} of Postgres" in found.fix
    found = await explained(db, task_id, "queue_paused")
    assert found.fix == "It opens when the operation is done."
    await work_to_end(db, operation)


async def test_no_worker_listens(db: Database) -> None:
    task_id = await put_one(db, queue="mail", entrypoint="shop.mail.send")
    assert "none has for an hour" in (await explained(db, task_id, "no_worker")).sentence
    await serve(db, queues="mail")
    await db.fetch("UPDATE aaiclick_queue.workers SET status = 'STOPPED', stopped_at = now()")
    found = await explained(db, task_id, "no_worker")
    assert "the last one was seen" in found.sentence
    assert found.fix == "aaiclick-queue worker -A shop.mail -Q mail"
    await explained(db, task_id, "in_line", among=True)


async def test_workers_listen_and_none_has_the_code(db: Database) -> None:
    task_id = await put_one(db, entrypoint="shop.mail.send")
    await serve(db, entrypoints=["shop.report.build"])
    await explained(db, task_id, "no_code")
    await serve(db)  # one that has not said what it knows
    assert (await explained(db, task_id, "in_line")).sentence == "It is the next in line in default."


async def test_a_task_that_comes_back_only_to_workers_without_its_code_says_so_first(db: Database) -> None:
    run = await leased(db)
    assert await end(db, run, Later("UNKNOWN", NO_LUCK, 60.0))
    await serve(db, entrypoints=["shop.report.build"])
    found = await explained(db, run.task_id, "no_code")
    assert found.fix.startswith("aaiclick-queue worker -A ")
    await explained(db, run.task_id, "cool_down", among=True)
    await serve(db)
    await explained(db, run.task_id, "cool_down")


async def test_a_limit_names_its_holders(db: Database) -> None:
    operation = await set_limit(db, NewLimit("queue", "mail", "running", 1), by="me")
    assert operation
    await work_to_end(db, operation)
    first, second = await put(db, count=2, queue="mail")
    await Admission(db).admit_once()
    await serve(db, queues="mail")
    found = await explained(db, second, "limit_reached")
    assert "1 of 1" in found.sentence
    assert found.facts["holders"] == [str(first)]
    assert found.fix == "aaiclick-queue queue limit mail --max-running 2"
    await cancel(db, [first])
    await explained(db, second, "let_in_soon")


async def test_a_rate_says_when_the_next_slot_is(db: Database) -> None:
    operation = await set_limit(db, NewLimit("queue", "mail", "rate", 1, seconds=60.0), by="me")
    assert operation
    await work_to_end(db, operation)
    first, second = await put(db, count=2, queue="mail")
    await Admission(db).admit_once()
    worker_id = await serve(db, queues="mail")
    [run] = await claim(db, worker_id, queues=["mail"])
    assert run.task_id == first
    await Admission(db).admit_once()
    found = await explained(db, second, "rate_reached")
    assert 0 < found.facts["next_slot_seconds"] <= 60


async def test_fair_turns(db: Database) -> None:
    operation = await set_limit(db, NewLimit("queue", "mail", "fair", 1), by="me")
    assert operation
    await work_to_end(db, operation)
    both = await put(db, count=2, queue="mail")
    await Admission(db).admit_once()
    await serve(db, queues="mail")
    [held] = [one for one in both if await held_there(db, one)]
    await explained(db, held, "fair_turns")


async def test_strict_order_names_the_one_before(db: Database) -> None:
    first = await put_one(db, task={"order_by": "customer-1"}, flags=STOPS)
    second = await put_one(db, task={"order_by": "customer-1"})
    third = await put_one(db, task={"order_by": "customer-1"})
    worker_id = await serve(db)
    await Admission(db).admit_once()
    assert (await explained(db, second, "strict_order")).facts["behind"] == str(first)
    [run] = await claim(db, worker_id)
    assert await end(db, run, Failed(NO_LUCK))
    found = await explained(db, third, "strict_order")
    assert found.fix == f"aaiclick-queue task unblock {first}"


async def test_a_place_in_line_and_how_long_that_takes(db: Database) -> None:
    *_, last = await put(db, count=31)
    await serve(db)
    assert (await explained(db, last, "in_line")).facts["ahead"] == 30
    await db.fetch(
        """INSERT INTO aaiclick_queue.figures (minute, queue, entrypoint, completed, waits, runs)
           SELECT date_trunc('minute', now()) - make_interval(mins => m), 'default', 'x', 60, '{}', '{}'
           FROM generate_series(1, 5) AS m"""
    )
    found = await explained(db, last, "in_line")
    assert found.facts["seconds"] == pytest.approx(30, rel=0.3)
    assert "a minute" in found.sentence


async def test_workers_are_full(db: Database) -> None:
    worker_id = await serve(db, slots=1)
    await put(db, count=2)
    await claim(db, worker_id, 1)
    [waiting] = [row["task_id"] for row in await db.fetch("SELECT task_id FROM aaiclick_queue.ready")]
    assert "its only slot is taken" in (await explained(db, waiting, "workers_full")).sentence
    await explained(db, waiting, "in_line", among=True)


async def test_a_wake_up_that_was_not_relayed(redis_settings: Settings) -> None:
    async with Database(redis_settings, size=2) as db:
        task_id = await put_one(db)
        await serve(db)
        assert (await explained(db, task_id, "not_relayed")).facts["outbox_age_seconds"] >= 0


# Running.


async def test_a_run_says_where_and_since_when_and_until_when(db: Database) -> None:
    run = await leased(db)
    found = await explained(db, run.task_id, "running")
    assert "somewhere" in found.sentence
    assert found.status == "RUNNING"
    assert found.facts["deadline_seconds"] > 0
    await age(db, "leases", "deadline_at", 100_000)
    await explained(db, run.task_id, "past_deadline")
    await explained(db, run.task_id, "running", among=True)
    await cancel(db, [run.task_id])


async def test_a_lease_that_expired(db: Database) -> None:
    run = await leased(db)
    await age(db, "workers", "lease_expires_at", 3600)
    await explained(db, run.task_id, "lease_expired")
    await db.fetch("UPDATE aaiclick_queue.workers SET lease_expires_at = now() + interval '1 h'")


@pytest.mark.breaks_invariants
async def test_a_task_between_two_places(db: Database) -> None:
    task_id = await put_one(db)
    await db.fetch("DELETE FROM aaiclick_queue.ready")
    await explained(db, task_id, "on_the_move")


@task
async def waits_for_a_word() -> None:
    await asyncio.sleep(3600)


async def test_a_real_worker_is_named(db: Database, quick: Settings) -> None:
    async with running_worker(quick) as worker:
        task_id = await put_one(db, entrypoint=waits_for_a_word.entrypoint)
        await until(lambda: db.fetch("SELECT 1 FROM aaiclick_queue.leases"))
        assert str(worker.worker_id) in (await explained(db, task_id, "running")).sentence


# The command and the page.


async def test_the_command_tells_the_answer_first(db: Database, invoke: Invoke) -> None:
    task_id = await put_one(db, queue="mail")
    ran = await asyncio.to_thread(invoke, "task", "explain", str(task_id))
    assert ran.exit_code == 0, ran.output
    assert ran.output.startswith("No worker serves queue mail")
    assert "Also: It is the next in line in mail" in ran.output
    whole = await asyncio.to_thread(invoke, "task", "explain", str(task_id), "--json")
    assert json.loads(whole.stdout)["code"] == "no_worker"
    assert (await asyncio.to_thread(invoke, "task", "explain", "1")).exit_code == 4


def test_the_page_lists_every_reason() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE)) == set(CODES)


def test_every_reason_of_the_code_has_a_test() -> None:
    source = Path(__file__).read_text()
    assert [code for code in CODES if f'"{code}"' not in source] == []


def test_a_command_that_is_none_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parse("aaiclick-queue task mend 1")
    with pytest.raises(click.UsageError):
        parse("aaiclick-queue queue resume mail --nothing")
