"""Millions of tasks of every kind, written by SQL: what pages and routes are timed with."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from aaiclick_queue import Settings, connect, register_job
from aaiclick_queue.buckets import RUN_BUCKETS, WAIT_BUCKETS
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.postgres import Database

from .apps.ours import wide

SLICE = 500_000
QUEUES, ENTRYPOINTS, WORKERS, SCHEDULES = 20, 40, 6, 500
DAYS = 7
# The n-th task: spread over a week, with an id as the product draws them. Of fifty one FAILED.
_ID = "((extract(epoch FROM at) * 1000)::bigint << 22) + mod(n, 4096)"
_GIVEN = f"""
SELECT n, at, {_ID} AS id, 'queue-' || mod(n, {QUEUES}) AS queue,
       'shop.tasks.work_' || mod(n, {ENTRYPOINTS}) AS entrypoint
FROM (SELECT n, %(first)s::timestamptz + n * (interval '{DAYS} days' / %(whole)s) AS at
      FROM generate_series(%(start)s::bigint, %(end)s::bigint) AS n) AS given
"""
_KWARGS = """jsonb_build_object('n', n, 'customer', 'customer-' || mod(n, 1000),
        'address', jsonb_build_object('city', 'Ulm'))"""
FINISHED = f"""
WITH given AS ({_GIVEN}), new AS (
    INSERT INTO aaiclick_queue.tasks (id, created_at, queue, entrypoint, kwargs, status, attempt, run_epoch, worker_id,
                                      max_attempts, ready_at, started_at, finished_at, result, error)
    SELECT id, at, queue, entrypoint, {_KWARGS}, CASE WHEN mod(n, 50) = 0 THEN 'FAILED' ELSE 'COMPLETED' END,
           1, 1, 1, 3, at, at + interval '50 ms', at + interval '150 ms',
           CASE WHEN mod(n, 50) <> 0 THEN to_jsonb(n) END,
           CASE WHEN mod(n, 50) = 0 THEN jsonb_build_object(
               'type', 'ConnectionError', 'message', 'host ' || mod(n, 12) || ' is gone', 'traceback', 'Traceback') END
    FROM given RETURNING id, queue, entrypoint, status, finished_at
)
INSERT INTO aaiclick_queue.failures (task_id, failed_at, fingerprint, queue, entrypoint, error_type)
SELECT id, finished_at, md5(mod(id, 12)::text), queue, entrypoint, 'ConnectionError' FROM new WHERE status = 'FAILED'
"""
WAITING = f"""
WITH given AS ({_GIVEN}), new AS (
    INSERT INTO aaiclick_queue.tasks (id, created_at, queue, entrypoint, kwargs, max_attempts)
    SELECT id, at, queue, entrypoint, {_KWARGS}, 3 FROM given RETURNING id, queue
), later AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason)
    SELECT id, now() + interval '1 day', id, 0, queue, 'eta' FROM new WHERE mod(id, 4) = 0
)
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
SELECT queue, 0, id, id FROM new WHERE mod(id, 4) <> 0
"""
# Twelve tasks each, of which one in ten failed, in a row of the table of tasks.
JOBS = f"""
WITH given AS ({_GIVEN}), new AS (
    INSERT INTO aaiclick_queue.jobs (id, name, status, created_at, started_at, finished_at, run_type)
    SELECT id, 'nightly-' || mod(n, 30), CASE WHEN mod(n, 10) = 0 THEN 'FAILED' ELSE 'COMPLETED' END, at, at,
           at + interval '9 s', 'MANUAL' FROM given RETURNING id, status, started_at
), gates AS (
    INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, failed, kind, rule, state, decided_at)
    SELECT id, id, 12, 0, (status = 'FAILED')::int, 'JOB', 'whole', 'OPEN', now() FROM new
)
INSERT INTO aaiclick_queue.tasks (id, job_id, member_gate, created_at, queue, entrypoint, name, kwargs, status, attempt,
                                  run_epoch, worker_id, ready_at, started_at, finished_at)
SELECT new.id + 4096 * part, new.id, new.id, started_at, 'queue-' || part, 'shop.jobs.step_' || part,
       'step ' || part, '{{}}', CASE WHEN part = 1 THEN new.status ELSE 'COMPLETED' END, 1, 1, 1, started_at,
       started_at, started_at + interval '700 ms'
FROM new CROSS JOIN generate_series(1, 12) AS part
"""
# A row a minute for seven hours, an hour before that, of each entrypoint on two queues.
FIGURES = f"""
INSERT INTO aaiclick_queue.figures (minute, queue, entrypoint, completed, failed, retried, wait_seconds, run_seconds,
                                    waits, runs)
SELECT at.at, 'queue-' || mod(e + q, {QUEUES}), 'shop.tasks.work_' || e, 60, 1, 2, 9.5, 31.0,
       (SELECT array_agg(i * 3) FROM generate_series(0, {len(WAIT_BUCKETS)}) AS i),
       (SELECT array_agg(i * 3) FROM generate_series(0, {len(RUN_BUCKETS)}) AS i)
FROM (SELECT date_trunc('minute', now()) - make_interval(mins => n) AS at FROM generate_series(0, 419) AS n
      UNION ALL SELECT date_trunc('hour', now()) - make_interval(hours => n) FROM generate_series(8, 167) AS n) AS at
CROSS JOIN generate_series(0, {ENTRYPOINTS - 1}) AS e CROSS JOIN generate_series(0, 1) AS q ON CONFLICT DO NOTHING
"""
SAMPLES = f"""
INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held, created, oldest_seconds)
SELECT date_trunc('minute', now()) - make_interval(mins => n), 'queue-' || q, 7000 + n, 4, 2000, 0, 60, 20
FROM generate_series(0, 419) AS n CROSS JOIN generate_series(0, {QUEUES - 1}) AS q
"""


class Crowd(NamedTuple):
    """Ids that pages are asked for."""

    small_job: str
    job: str
    large_job: str
    failed_task: str
    waiting_task: str
    tasks: int


async def crowd(settings: Settings, count: int) -> Crowd:
    """Fill the migrated database that the settings name with that many tasks and all that belongs to them."""
    assert settings.postgres_url
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        _write(connection, count)
        job, large_job = await _by_the_product(settings, count)
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")
        [tasks] = _one(connection, "SELECT count(*) FROM aaiclick_queue.tasks")
        return Crowd(
            str(_one(connection, "SELECT max(id) FROM aaiclick_queue.jobs WHERE name LIKE 'nightly%'")[0]),
            job,
            large_job,
            str(_one(connection, "SELECT max(task_id) FROM aaiclick_queue.failures")[0]),
            str(_one(connection, "SELECT max(task_id) FROM aaiclick_queue.ready WHERE queue = 'queue-1'")[0]),
            tasks,
        )


def _write(connection: psycopg.Connection[Any], count: int) -> None:
    [first] = _one(connection, f"SELECT now() - interval '{DAYS} days'")
    waiting, jobs = count // 26, count // 240
    parts = ((FINISHED, 0, count - waiting), (WAITING, count - waiting, count), (JOBS, 0, jobs))
    for statement, start, end in parts:
        whole = jobs if statement is JOBS else count
        for at in range(start, end, SLICE):
            last = min(at + SLICE, end) - 1
            connection.execute(statement, {"first": first, "whole": whole, "start": at, "end": last})
    connection.execute(FIGURES)
    connection.execute(SAMPLES)


async def _by_the_product(settings: Settings, count: int) -> tuple[str, str]:
    """Wide jobs, schedules and workers, as the product writes them."""
    sizes = [max(10, size * count // 5_000_000) for size in (2_000, 100_000)]
    async with connect(settings=settings) as client, Database(settings, size=1) as db:
        job, large_job = [str((await wide.enqueue(size, client=client)).id) for size in sizes]
        for n in range(min(SCHEDULES, count // 100)):
            await register_job(f"schedule-{n}", "shop.tasks.work_1", schedule=f"{n % 60} * * * *", client=client)
        for n in range(1, WORKERS + 1):
            served = tuple(f"queue-{queue}" for queue in range(QUEUES - 1))
            await register(db, Identity(n, n, 100, f"host-{n}", "1.0", served), lease_seconds=86_400)
    return job, large_job


def _one(connection: psycopg.Connection[Any], sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row
