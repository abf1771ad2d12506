"""What a process counts of itself: off, nothing; on, what happened; and never more labels than it may."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter

from aaiclick_queue import Settings, connect, current, job, task
from aaiclick_queue.exposition import process_metrics
from aaiclick_queue.flow.loop import Holder
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.flow.watch import Watch
from aaiclick_queue.integrations.prometheus import Metrics
from aaiclick_queue.measuring import measure_worker
from aaiclick_queue.meters import LABELS_LIMIT, METERS
from aaiclick_queue.metric_families import FAMILIES, PREFIX
from aaiclick_queue.postgres import Database
from aaiclick_queue.tasks import registry
from tests.operate.looking import samples, value
from tests.tools import ENTRYPOINT, age, changed, declarations_of_its_own, leased, put, running_worker, until


@task(entrypoint="tests.meters.fine", queue="mail")
async def fine(n: int = 1) -> int:
    return n


@task(entrypoint="tests.meters.fails", queue="mail", max_attempts=2, retry_delay=0)
async def fails() -> None:
    raise ValueError("no luck")


@task(entrypoint="tests.meters.slow", queue="mail", timeout=0.05, max_attempts=1)
async def slow() -> None:
    await asyncio.sleep(30)


@job("meters")
def small() -> Any:
    return fine(1)


@pytest.fixture(autouse=True)
def _meters() -> Iterator[None]:
    with declarations_of_its_own():
        # Those of other files in this process would push these out of the names that have series of their own.
        for entrypoint in [name for name in registry if not name.startswith("tests.meters.")]:
            del registry[entrypoint]
        yield


def scraped() -> Any:
    return samples(process_metrics())


async def test_what_a_worker_does_is_counted(settings: Settings) -> None:
    quick = changed(settings, heartbeat_seconds=0.1, poll_max_seconds=0.05)
    async with running_worker(quick, queues={"mail": 1}) as worker, connect(settings=quick) as client:
        measure_worker(worker)
        before = scraped()
        for outcome in ("succeeded", "failed", "retried"):
            labels = {"queue": "mail", "entrypoint": "tests.meters.fine", "outcome": outcome}
            assert value(before, "attempts_finished_total", **labels) == 0
        for _ in range(3):
            await (await fine.enqueue(client=client)).result(timeout=30)
        failing, late = await fails.enqueue(client=client), await slow.enqueue(client=client)
        run = await small.enqueue(client=client)
        await run.result(timeout=30)
        await until(lambda: value(scraped(), "jobs_completed_total", job="meters"))
        for handle in (failing, late):
            with pytest.raises(Exception, match=r"no luck|timeout"):
                await handle.result(timeout=30)
        await until(lambda: value(scraped(), "event_loop_lag_seconds_count"))  # looked at four times a second
        found = scraped()
    mail_fine = {"queue": "mail", "entrypoint": "tests.meters.fine"}
    mail_fails = {"queue": "mail", "entrypoint": "tests.meters.fails"}
    assert value(found, "tasks_created_total", **mail_fine) == 4
    assert value(found, "tasks_claimed_total", queue="mail") == 7
    assert value(found, "tasks_completed_total", **mail_fine) == 4
    assert value(found, "tasks_failed_total", **mail_fails) == 1
    assert value(found, "attempts_finished_total", **mail_fails, outcome="retried") == 1
    assert (
        value(found, "attempts_finished_total", queue="mail", entrypoint="tests.meters.slow", outcome="timed_out") == 1
    )
    assert value(found, "task_wait_seconds_count", queue="mail") == 7
    assert value(found, "task_duration_seconds_count", **mail_fine) == 4
    assert value(found, "task_duration_seconds_bucket", **mail_fine, le="+Inf") == 4
    assert value(found, "worker_task_execution_time_seconds_count") == 7
    assert value(found, "jobs_created_total", job="meters") == 1
    assert value(found, "job_duration_seconds_count", job="meters") == 1
    assert value(found, "payload_bytes_count", direction="in") == 7
    assert value(found, "running_tasks", queue="mail") is not None
    assert (value(found, "lease_renewals_total", result="ok") or 0) > 0
    assert (value(found, "db_statement_seconds_count", statement="claim") or 0) > 0
    assert (value(found, "db_statement_seconds_count", statement="complete") or 0) > 0
    assert (value(found, "event_loop_lag_seconds_count") or 0) > 0
    assert value(found, "stale_completions_total") == 0


async def test_while_it_is_off_a_worker_counts_no_task(settings: Settings) -> None:
    async with running_worker(settings, queues={"mail": 1}), connect(settings=settings) as client:
        await (await fine.enqueue(client=client)).result(timeout=30)
    for name in ("tasks_created_total", "tasks_claimed_total", "attempts_finished_total"):
        assert METERS.counts[name] == {}
    assert METERS.histograms["task_wait_seconds"] == {}


def test_labels_are_bounded_and_only_registered_entrypoints_have_names() -> None:
    METERS.turn_on(registered={"shop.mail": "mail"}, queues=["mail"])
    METERS.created("mail", "shop.mail", 1)
    METERS.created("mail", "made.up.by.somebody", 2)
    for n in range(2 * LABELS_LIMIT):
        METERS.created(f"tenant-{n}", "shop.mail", 1)
    found = scraped()
    assert value(found, "tasks_created_total", queue="mail", entrypoint="other") == 2
    queues = {dict(labels)["queue"] for name, labels in found if name == "aaiclick_queue_tasks_created_total"}
    assert len(queues) == LABELS_LIMIT + 1
    assert value(found, "tasks_created_total", queue="other", entrypoint="shop.mail") == LABELS_LIMIT + 1


def test_no_metric_has_a_label_that_grows_without_end() -> None:
    labels = {label for family in FAMILIES.values() for label in family.labels}
    assert labels & {"worker", "worker_id", "host", "hostname", "pod", "task", "task_id", "job_id", "error"} == set()


def test_every_metric_of_a_process_is_served_from_its_first_moment() -> None:
    METERS.turn_on()
    text = process_metrics().decode()
    for family in FAMILIES.values():
        if family.scope == "process":
            assert f"# TYPE {PREFIX}{family.name}" in text, family.name


def test_what_tasks_count_themselves_is_served_too_and_our_names_once() -> None:
    mine = Counter("shop_letters", "Letters.")
    middleware = Metrics(REGISTRY)
    try:
        mine.inc()
        METERS.turn_on()
        text = process_metrics().decode()
    finally:
        REGISTRY.unregister(mine)
        ours = {one for name, one in REGISTRY._names_to_collectors.items() if name.startswith(PREFIX)}
        for collector in ours:
            REGISTRY.unregister(collector)
    assert middleware is not None
    assert "shop_letters_total 1.0" in text
    assert text.count("# TYPE aaiclick_queue_tasks_created_total counter") == 1


async def test_runs_that_were_taken_back_are_counted(db: Database, settings: Settings) -> None:
    from aaiclick_queue.flow.reaper import Reaper, ensure_partitions

    METERS.turn_on()
    await ensure_partitions(db)
    await leased(db, queue="mail")
    await age(db, "leases", "deadline_at", 4000)
    await Reaper(db).reap_once()
    found = scraped()
    assert value(found, "leases_lapsed_total", queue="mail", reason="overrun") == 1
    assert value(found, "rescued_tasks_total", reason="lease") == 1
    unknown = {"queue": "mail", "entrypoint": ENTRYPOINT}
    assert value(found, "attempts_finished_total", **unknown, outcome="timed_out") == 1
    assert value(found, "tasks_failed_total", **unknown) is None
    await leased(db, queue="mail", max_attempts=1)
    await db.fetch("UPDATE aaiclick_queue.leases SET lost_count = 10")
    await age(db, "workers", "lease_expires_at", 4000)
    await Reaper(db).reap_once()
    found = scraped()
    assert value(found, "leases_lapsed_total", queue="mail", reason="worker_lost") == 1
    assert value(found, "attempts_finished_total", **unknown, outcome="lost") == 1
    assert value(found, "tasks_failed_total", **unknown) == 1


def test_lapses_of_the_queues_of_a_worker_are_counted_from_zero() -> None:
    METERS.turn_on(registered={"shop.mail": "mail"}, queues=["reports"])
    found = scraped()
    for queue in ("mail", "reports"):
        for reason in ("worker_lost", "overrun"):
            assert value(found, "leases_lapsed_total", queue=queue, reason=reason) == 0


def test_the_first_failure_of_a_job_is_an_increase() -> None:
    METERS.turn_on()
    METERS.job_created("sums")
    for name in ("jobs_completed_total", "jobs_failed_total"):
        assert value(scraped(), name, job="sums") == 0


async def test_who_holds_the_loops_counts_every_queue_and_schedule_from_zero(db: Database) -> None:
    METERS.turn_on()
    await put(db, queue="of-another-worker")
    await db.fetch(
        "INSERT INTO aaiclick_queue.registered_jobs (name, entrypoint, schedule, anchor_at, fire_at, next_run_at) "
        "VALUES ('yearly', 'tests.meters.fine', ARRAY['0 0 1 1 *'], now(), now() + interval '1 year', "
        "        now() + interval '1 year')"
    )
    holder = Holder(7)
    await holder.hold_once(db)
    await Watch(db, holder)._watch_pass()
    found = scraped()
    assert value(found, "leases_lapsed_total", queue="of-another-worker", reason="worker_lost") == 0
    assert value(found, "schedule_ticks_total", schedule="yearly", result="missed") == 0
    assert value(found, "jobs_failed_total", job="yearly") == 0
    await db.fetch("TRUNCATE aaiclick_queue.registered_jobs")


async def test_ticks_of_schedules_are_counted(db: Database, settings: Settings) -> None:
    METERS.turn_on()
    await db.fetch(
        "INSERT INTO aaiclick_queue.registered_jobs (name, entrypoint, schedule, anchor_at, fire_at, next_run_at) "
        "VALUES ('nightly', 'tests.meters.fine', ARRAY['* * * * *'], now(), "
        "        date_trunc('minute', now() at time zone 'utc'), now())"
    )
    await Scheduler(db).fire_once()
    found = scraped()
    assert value(found, "schedule_ticks_total", schedule="nightly", result="fired") == 1
    assert value(found, "jobs_created_total", job="nightly") == 1
    await db.fetch("TRUNCATE aaiclick_queue.registered_jobs")


@pytest.mark.breaks_invariants
async def test_a_tick_that_cannot_be_made_is_an_error(db: Database, settings: Settings) -> None:
    METERS.turn_on()
    await db.fetch(
        "INSERT INTO aaiclick_queue.registered_jobs (name, entrypoint, schedule, anchor_at, fire_at, next_run_at) "
        "VALUES ('broken', 'tests.meters.fine', ARRAY['every now and then'], now(), "
        "        date_trunc('minute', now() at time zone 'utc'), now())"
    )
    await Scheduler(db).fire_once()
    assert value(scraped(), "schedule_ticks_total", schedule="broken", result="error") == 1
    await db.fetch("TRUNCATE aaiclick_queue.registered_jobs")


async def test_wake_ups_are_counted_from_the_relay_to_the_claim(redis_settings: Settings) -> None:
    quick = changed(redis_settings, heartbeat_seconds=0.1)
    async with running_worker(quick, queues={"mail": 1}) as worker, connect(settings=quick) as client:
        measure_worker(worker)
        await until(lambda: worker._claimer.listener is not None and worker._claimer.listener._listening.is_set())
        await (await fine.enqueue(client=client)).result(timeout=30)
        async with Database(quick, size=1) as db:
            await put(db, queue="mail", entrypoint="tests.meters.fine")
            await until(lambda: (value(scraped(), "tasks_claimed_total", queue="mail") or 0) >= 2)
        await until(lambda: (value(scraped(), "outbox_published_total", result="ok") or 0) >= 2)
        await until(lambda: (value(scraped(), "notice_delay_seconds_count") or 0) >= 1)
        await until(
            lambda: sum(value(scraped(), "notices_received_total", result=r) or 0 for r in ("claimed", "taken")) >= 1
        )


async def test_an_outcome_that_came_too_late_is_counted(settings: Settings, db: Database) -> None:
    METERS.turn_on()
    quick = changed(settings, heartbeat_seconds=0.5)
    async with running_worker(quick, queues={"mail": 1}), connect(settings=quick) as client:
        handle = await loses.enqueue(client=client)
        await until(lambda: value(scraped(), "stale_completions_total") == 1)
        await db.fetch(
            "UPDATE aaiclick_queue.tasks SET status = 'CANCELLED', finished_at = now() WHERE id = $1", handle.id
        )


@task(entrypoint="tests.meters.loses", queue="mail", max_attempts=1)
async def loses() -> None:
    async with current()._services.db.transaction() as tx:
        await tx.fetch("DELETE FROM aaiclick_queue.leases WHERE task_id = $1", current().id)
