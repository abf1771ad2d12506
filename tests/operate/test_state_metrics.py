"""The gauges of the whole system: true, bounded in what they read, and there while Postgres or Redis is not."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from aaiclick_queue import Settings
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.pause import pause_queue
from aaiclick_queue.flow.reaper import ensure_partitions
from aaiclick_queue.metric_families import FAMILIES
from aaiclick_queue.outcome import Error, Failed, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.server import create_app, metrics, state_rows
from aaiclick_queue.server.metrics import CACHE_SECONDS, Collector, state_metrics
from tests.operate.looking import Samples, samples, value
from tests.planned import Job, resolve
from tests.plans.explain import Node
from tests.tools import age, changed, claim, end, leased, make_due, put, register_worker, running_worker

MANY = 60_000
SAMPLED_LINE = """
INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held, created, oldest_seconds)
VALUES (date_trunc('minute', now()), 'mail', $1, 0, 0, 0, 0, 0)
"""
COUNTED_LINE = """
INSERT INTO aaiclick_queue.queues (name, ready_count, ready_counted_at)
VALUES ('mail', 15000, now() - make_interval(secs => $1))
"""


async def look(db: Database) -> Samples:
    from aaiclick_queue.exposition import made, rendered

    return samples(rendered([made(FAMILIES[name], found) for name, found in (await Collector(db).read()).items()]))


async def test_an_empty_system_has_its_gauges_all_the_same(db: Database) -> None:
    found = await look(db)
    assert value(found, "up", component="postgres") == 1
    assert value(found, "up", component="relay") == 0  # nobody leads
    assert value(found, "workers_active") == 0
    assert value(found, "outbox_oldest_age_seconds") == 0
    assert value(found, "workers", state="LOST") == 0
    assert value(found, "jobs", state="RUNNING") == 0
    assert value(found, "oldest_job_progress_age_seconds") == 0
    assert value(found, "prune_backlog_rows") == 0
    for kind in (
        "stall",
        "zombie",
        "stuck",
        "backpressure",
        "clock_skew",
        "without_workers",
        "lost_worker",
        "invariant",
    ):
        assert value(found, "alarms", kind=kind) == 0


async def test_gauges_tell_what_is_there(db: Database) -> None:
    await ensure_partitions(db)
    await put(db, queue="mail", count=5)
    await put(db, queue="reports", count=2)
    await age(db, "ready", "ready_at", 100)
    worker_id = await register_worker(db)
    await claim(db, worker_id, 2, queues=["mail"])
    await age(db, "leases", "claimed_at", 50)
    await db.fetch("INSERT INTO aaiclick_queue.queues (name, objective_seconds) VALUES ('mail', 30)")
    await db.fetch("INSERT INTO aaiclick_queue.alarms (kind, what) VALUES ('stuck', 'mail'), ('stuck', 'reports')")
    found = await look(db)
    assert value(found, "task_queue_depth", queue="mail") == 3
    assert value(found, "tasks", queue="mail", state="QUEUED") == 3
    assert value(found, "tasks", queue="mail", state="RUNNING") == 2
    assert 100 <= (value(found, "oldest_ready_age_seconds", queue="mail") or 0) < 160
    assert 50 <= (value(found, "oldest_running_age_seconds", queue="mail") or 0) < 110
    assert value(found, "oldest_running_age_seconds", queue="reports") == 0
    assert value(found, "queue_latency_objective_seconds", queue="mail") == 30
    assert value(found, "queue_latency_objective_seconds", queue="reports") == 300
    assert value(found, "queue_consumers", queue="default") == 1
    assert value(found, "queue_consumers", queue="mail") == 0
    assert value(found, "worker_slots", queue="default", state="free") == 10
    assert value(found, "workers_active") == 1
    assert value(found, "alarms", kind="stuck") == 2
    assert (value(found, "outbox_entries") or 0) > 0


async def test_the_age_is_that_of_claimable_tasks_alone(db: Database) -> None:
    await ensure_partitions(db)
    await put(db, queue="mail", count=2)
    await age(db, "ready", "ready_at", 100)
    await pause_queue(db, "mail", by="a test", reason=None)
    found = await look(db)
    assert value(found, "oldest_ready_age_seconds", queue="mail") == 0
    assert value(found, "queue_paused", queue="mail") == 1
    assert value(found, "task_queue_depth", queue="mail") == 2


async def test_tasks_that_starve_behind_many_other_priorities_are_seen(db: Database) -> None:
    await ensure_partitions(db)
    for priority in range(60):
        await put(db, queue="mail", priority=priority)
    await db.fetch("UPDATE aaiclick_queue.ready SET ready_at = now() - interval '1 h' WHERE rank = 0")
    assert (value(await look(db), "oldest_ready_age_seconds", queue="mail") or 0) >= 3600


@pytest.mark.parametrize(
    ("sampled", "counted_seconds_ago", "depth"),
    [(700, None, 700), (700, 119, 700), (20_000, 100, 15_000), (700, 0, 15_000)],
)
async def test_a_long_line_is_as_long_as_the_background_saw_it_last(
    db: Database, sampled: int, counted_seconds_ago: int | None, depth: int
) -> None:
    await put(db, queue="mail", count=650)
    await db.fetch(SAMPLED_LINE, sampled)
    if counted_seconds_ago is not None:
        await db.fetch(COUNTED_LINE, counted_seconds_ago)
    for number in range(4):  # lines have less than 650 of what is counted
        await put(db, queue=f"other{number}")
    assert value(await look(db), "task_queue_depth", queue="mail") == depth


async def test_delayed_tasks_that_are_due_are_told(db: Database) -> None:
    from aaiclick_queue.flow.enqueue import NewTask

    await put(db, NewTask("{}", countdown=3600.0), NewTask("{}", countdown=3600.0), queue="mail")
    found = await look(db)
    assert value(found, "tasks", queue="mail", state="SCHEDULED") == 2
    assert value(found, "overdue_scheduled_tasks", queue="mail") == 0
    assert value(found, "oldest_ready_age_seconds", queue="mail") == 0
    await make_due(db)
    await age(db, "delayed", "not_before", 60)
    assert value(await look(db), "overdue_scheduled_tasks", queue="mail") == 2


async def test_failures_count_until_somebody_has_seen_them(db: Database) -> None:
    await ensure_partitions(db)
    run = await leased(db, queue="mail")
    assert await end(db, run, Failed(Error("ValueError", "no luck", where="mail.py:9 in send")))
    assert value(await look(db), "failed_tasks", queue="mail") == 1
    await db.fetch(
        "INSERT INTO aaiclick_queue.failure_groups (fingerprint) SELECT fingerprint FROM aaiclick_queue.failures"
    )
    assert value(await look(db), "failed_tasks", queue="mail") in (0, None)


async def large_job(db: Database, *, ended: int) -> None:
    """An old job of 200 tasks in line, of which the first have just ended."""
    job = Job()
    job.tasks(200)
    await job.submit(db)
    await work(db, ended)
    for column in ("created_at", "started_at"):
        await age(db, "jobs", column, 7200)


async def work(db: Database, count: int) -> None:
    for run in await claim(db, await register_worker(db), count):
        assert await end(db, run, Succeeded(None))
    await resolve(db)


async def test_a_large_job_that_goes_on_is_not_taken_for_one_that_stands_still(db: Database) -> None:
    await large_job(db, ended=100)
    assert (value(await look(db), "oldest_job_progress_age_seconds") or 0) < 60
    await age(db, "tasks", "finished_at", 3600)
    assert 3600 <= (value(await look(db), "oldest_job_progress_age_seconds") or 0) < 3700
    [run] = await claim(db, await register_worker(db), 1)
    assert (value(await look(db), "oldest_job_progress_age_seconds") or 0) < 60
    await age(db, "leases", "claimed_at", 1800)
    assert 1800 <= (value(await look(db), "oldest_job_progress_age_seconds") or 0) < 1900
    assert await end(db, run, Succeeded(None))


async def test_what_a_gate_counts_between_two_looks_is_progress(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    await large_job(db, ended=1)
    await age(db, "tasks", "finished_at", 7200)
    collector = Collector(db)

    async def found() -> float:
        return (await collector.read())["oldest_job_progress_age_seconds"][()]

    assert await found() >= 7200
    await work(db, 1)
    await age(db, "tasks", "finished_at", 7200)  # as if it stood where nobody looks
    assert await found() < 60
    assert await found() < 60


async def test_a_led_system_is_up(settings: Settings, db: Database) -> None:
    async with running_worker(changed(settings, heartbeat_seconds=0.2), queues={"mail": 1}):
        found: Samples = {}
        for _ in range(200):
            found = await look(db)
            if value(found, "up", component="rescue") == 1:
                break
            await asyncio.sleep(0.05)
    for component in ("postgres", "relay", "scheduler", "rescue"):
        assert value(found, "up", component=component) == 1, component
    assert value(found, "up", component="redis") is None  # none is used


async def test_redis_is_asked_and_may_be_away(redis_settings: Settings) -> None:
    from aaiclick_queue.streams import Hint, Streams

    assert redis_settings.redis_url is not None
    streams = Streams(redis_settings.redis_url, prefix=redis_settings.redis_prefix)
    await streams.publish([Hint("mail", 0, 1, 1, (1,))])
    await streams.close()
    async with Database(redis_settings, size=2) as db:
        await put(db, queue="mail")
        found: Samples = {}
        for _ in range(100):  # fifty milliseconds may be short on a busy machine
            found = await look(db)
            if value(found, "up", component="redis") == 1:
                break
        assert value(found, "stream_length", queue="mail") == 1
    async with Database(changed(redis_settings, redis_url="redis://127.0.0.1:1/0"), size=2) as db:
        found = await look(db)
        assert value(found, "up", component="redis") == 0
        assert value(found, "up", component="postgres") == 1
        assert value(found, "stream_length", queue="mail") is None


async def test_without_postgres_only_that_is_told() -> None:
    async with Database(Settings.load({}, postgres_url="postgresql://nobody@127.0.0.1:1/nothing"), size=1) as db:
        assert await Collector(db).read() == {"up": {("postgres",): 0.0}}
        with pytest.raises(PostgresUnavailable):
            await db.fetch("SELECT 1")


async def test_who_asks_often_gets_what_is_known(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await state_metrics(db)
    await put(db, queue="mail")
    assert await state_metrics(db) == first
    monkeypatch.setattr("aaiclick_queue.server.metrics.CACHE_SECONDS", 0.0)
    assert await state_metrics(db) != first
    assert CACHE_SECONDS == 5.0


def test_the_command_prints_them_once(settings: Settings) -> None:
    from tests.cli.running import environment, run

    ran = run("metrics", env=environment(settings))
    assert ran.returncode == 0, ran.stderr
    assert value(samples(ran.stdout + "\n"), "workers_active") == 0


# The server.


async def test_the_server_serves_state_its_own_counts_and_probes(settings: Settings, db: Database) -> None:
    await put(db, queue="mail", count=3)
    app = create_app(settings, auth="open")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        assert (await client.get("/livez")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).status_code == 200
        health = (await client.get("/healthz")).json()
        parts = {part["name"]: part["ok"] for part in health["components"]}
        assert parts == {"postgres": True, "relay": False, "scheduler": False, "reaper": False, "workers": False}
        await client.get("/nothing/of/the/kind")
        for method in ("BREW", "COFFEE"):
            await client.request(method, "/livez")
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(answer.text)
    assert value(found, "task_queue_depth", queue="mail") == 3
    assert value(found, "http_requests_total", route="/livez", method="GET", status="200") == 1
    assert value(found, "http_requests_total", route="(none)", method="GET", status="404") == 1
    assert value(found, "http_request_seconds_count", route="/healthz", method="GET") == 1
    methods = {dict(labels)["method"] for name, labels in found if name == "aaiclick_queue_http_requests_total"}
    assert "other" in methods
    assert methods.isdisjoint({"BREW", "COFFEE"})
    assert any(name == "aaiclick_queue_build_info" for name, _ in found)


async def test_a_server_without_postgres_lives_and_is_not_ready(settings: Settings) -> None:
    app = create_app(settings, auth="open")
    async with app.router.lifespan_context(app):
        desk = await app.state.opening.desk()
        await desk.db.close()
        desk.db._dsn = "postgresql://nobody@127.0.0.1:1/nothing"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/livez")).status_code == 200
            unready = await client.get("/readyz")
            assert unready.status_code == 503
            assert unready.json()["components"][0]["detail"] == "PostgresUnavailable"
            health = await client.get("/healthz")
            assert (health.status_code, health.json()["degraded"]) == (200, ["postgres"])
            assert (await client.get("/metrics")).status_code == 200


# What it costs.

FILL = f"""
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
SELECT 'q' || i % 10, i % 3, i, i FROM generate_series(1, {MANY}) AS i
"""
FILL_DELAYED = f"""
INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason)
SELECT -i, now() + interval '1 h', i, 0, 'q' || i % 10, 'eta' FROM generate_series(1, {MANY}) AS i
"""
FILL_OUTBOX = f"""
INSERT INTO aaiclick_queue.outbox (order_key, rank, n, queue, task_ids)
SELECT i, 0, 1, 'q1', ARRAY[i] FROM generate_series(1, {MANY}) AS i
"""
FILL_JOBS = f"INSERT INTO aaiclick_queue.jobs (id, name) SELECT i, 'j' FROM generate_series(1, {MANY}) AS i"
FILL_TASKS = f"""
INSERT INTO aaiclick_queue.tasks (id, job_id, queue, entrypoint, kwargs)
SELECT i, 1 + i / 3000, 'q1', 'e', '{{}}' FROM generate_series(1, {MANY}) AS i
"""
FILL_GATES = f"""
INSERT INTO aaiclick_queue.gates (id, job_id, kind, rule, total, remaining)
SELECT i, 1 + i / 3000, 'WAIT', 'all_success', 1, 1 FROM generate_series(1, {MANY}) AS i
"""
FILL_ARRIVALS = f"INSERT INTO aaiclick_queue.arrivals (gate_id, n) SELECT i, 1 FROM generate_series(1, {MANY}) AS i"
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "QUEUE_STATE": (6000, 200, 2000),
    "SYSTEM_STATE": (2000,),
    "OPEN_JOBS": (2000,),
    "JOB_PROGRESS": (),
    "UNACKNOWLEDGED": (500,),
    "AT_GATES": (200,),
    "SCHEDULES": (200,),
    "SCHEDULE_STATES": (2000,),
    "PRUNABLE": (1.0, 1.0),
}
MOST_READ = 7000


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("analysed", [False, True])
async def test_however_much_there_is_a_scrape_reads_a_bounded_number_of_rows(
    settings: Settings, analysed: bool
) -> None:
    async with Database(settings, size=1, flow=True) as db, db.connection() as connection:
        for fill in (FILL, FILL_DELAYED, FILL_OUTBOX, FILL_JOBS, FILL_TASKS, FILL_GATES, FILL_ARRIVALS):
            await connection.fetch(fill)
        if analysed:
            await connection.alone("ANALYZE")
        for name, arguments in ARGUMENTS.items():
            await connection.raw.execute(f"PREPARE {name} AS {getattr(state_rows, name)}")
            given = f"({', '.join(map(str, arguments))})" if arguments else ""
            [[found]] = await connection.raw.fetch(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {name}{given}")
            plan = msgspec.convert(msgspec.json.decode(found)[0]["Plan"], Node, strict=False)
            read = {node.relation_name: node.read for node in plan.walk() if node.relation_name is not None}
            assert all(rows <= MOST_READ for rows in read.values()), f"{name}: {read}\n{plan}"


@pytest.mark.breaks_invariants
async def test_beyond_what_is_counted_the_depth_is_estimated(db: Database) -> None:
    await db.fetch(FILL)
    for _ in range(100):  # Postgres' statistics come a moment later
        found = await look(db)
        depths = [value(found, "task_queue_depth", queue=f"q{n}") or 0 for n in range(10)]
        if sum(depths) > MANY / 2:
            break
        await asyncio.sleep(0.05)
    assert abs(sum(depths) - MANY) < MANY / 10
    assert all(abs(one - MANY / 10) < MANY / 20 for one in depths)


async def test_what_changes_slowly_is_read_less_often(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CACHE_SECONDS", 0.0)
    collector, asked, look_around = Collector(db), [], metrics._look_around

    async def counted(*given: Any) -> Any:
        asked.append(given)
        return await look_around(*given)

    monkeypatch.setattr(metrics, "_look_around", counted)
    await put(db, count=2)
    assert (await collector.read())["task_queue_depth"]["default",] == 2
    await put(db, count=1)
    values = await collector.read()
    assert values["task_queue_depth"]["default",] == 3
    assert ("tasks",) in values["db_table_bytes"]
    assert len(asked) == 1
    monkeypatch.setattr(metrics, "SLOW_SECONDS", 0.0)
    await collector.read()
    assert len(asked) == 2
