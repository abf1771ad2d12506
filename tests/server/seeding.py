"""A database with something of everything: jobs that run, ended and failed, retries, schedules, limits, pauses."""

from __future__ import annotations

from typing import Any

import msgspec

from aaiclick_queue import Client, Settings, connect
from aaiclick_queue.flow.pause import pause_queue
from aaiclick_queue.limits import limit_queue, limit_task, pause_task
from aaiclick_queue.operations import cancel_where, work_to_end
from aaiclick_queue.postgres import Database
from aaiclick_queue.registered import register_job
from tests.server import shop
from tests.tools import running_worker, until

FIGURES = """
INSERT INTO aaiclick_queue.figures
    (minute, queue, entrypoint, completed, failed, retried, lost, cancelled, wait_seconds, run_seconds, waits, runs)
SELECT date_trunc('minute', now()) - make_interval(mins => n), queue, queue || '.work',
       (40 + 30 * sin(n / 7.0) + 10 * sin(n / 2.0))::int, (n % 11 = 0)::int * 6 + (n BETWEEN 12 AND 16)::int * 14,
       (n % 5 = 0)::int * 4, 0, 0, 12, 40, ARRAY[30, 8, 2], ARRAY[5, 25, 10]
FROM generate_series(1, 180) AS n CROSS JOIN unnest(ARRAY['default', 'mail', 'reports']) AS queue
ON CONFLICT DO NOTHING
"""
SAMPLES = """
INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held, created, oldest_seconds)
SELECT date_trunc('minute', now()) - make_interval(mins => n), queue, (60 + 55 * sin(n / 9.0))::int, 4, 2, 0,
       45, 20 + 18 * sin(n / 9.0)
FROM generate_series(1, 180) AS n CROSS JOIN unnest(ARRAY['default', 'mail', 'reports']) AS queue
ON CONFLICT DO NOTHING
"""
ALARM = """
INSERT INTO aaiclick_queue.alarms (kind, what, data) VALUES ('without_workers', 'reports', $1::text::jsonb)
ON CONFLICT DO NOTHING
"""
OPEN_TASKS = "SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL AND queue = ANY($1::text[])"


class Seeded(msgspec.Struct, frozen=True):
    """Ids of what pages are asked for."""

    done_job: str
    failed_job: str
    running_job: str
    failed_task: str
    scheduled_task: str
    held_task: str
    done_task: str
    queued_task: str


async def seed(settings: Settings, *, figures: bool = True) -> Seeded:
    """Fill the database by enqueueing and working, as people do."""
    async with connect(settings=settings) as client, Database(settings, size=2) as db:
        done = await shop.etl.enqueue(client=client)
        failed = await shop.etl.enqueue(broken=True, client=client)
        mails = [await shop.send_mail.options(client=client).enqueue(f"user{n}@example.com") for n in range(12)]
        bad = [await shop.send_mail.options(client=client).enqueue(f"user{n}@shop.invalid") for n in range(4)]
        for address in ("https://a.example/", "https://slow.example/", "https://slow.example/2"):
            await shop.fetch_page.options(client=client).enqueue(address)
        async with running_worker(settings, queues={"default": 1, "mail": 1}):
            await until(lambda: _is_worked(db))
        found = await _leave_open(settings, client)
        await _register(client)
        await _limit(client, db)
        if figures:
            await db.fetch(FIGURES)
            await db.fetch(SAMPLES)
            await db.fetch(
                ALARM, msgspec.json.encode({"text": "20 tasks wait in reports and no worker takes it"}).decode()
            )
        return Seeded(str(done.id), str(failed.id), done_task=str(mails[0].id), failed_task=str(bad[0].id), **found)


async def _is_worked(db: Database) -> bool:
    return not await db.fetchval(OPEN_TASKS, ["default", "mail"])


async def _leave_open(settings: Settings, client: Client) -> dict[str, str]:
    """What has not ended when somebody looks."""
    running = await shop.etl.options(client=client).enqueue(slow=3600)
    later = await shop.send_mail.options(client=client, countdown=3600).enqueue("later@example.com")
    reports = [await shop.build_report.options(client=client).enqueue(n) for n in range(20)]
    held = await shop.nap.options(client=client, queue="slow").enqueue(1)
    return {
        "running_job": str(running.id),
        "scheduled_task": str(later.id),
        "held_task": str(held.id),
        "queued_task": str(reports[-1].id),
    }


async def _register(client: Client) -> None:
    options: dict[str, Any] = {"timezone": "Europe/Berlin", "description": "What was sold, by country"}
    await register_job("nightly_rollup", shop.etl, schedule="0 2 * * *", client=client, **options)
    await register_job("sweep", shop.etl, interval=300, client=client)
    await register_job("by_hand", shop.etl, client=client)


async def _limit(client: Client, db: Database) -> None:
    begun = await limit_queue("reports", max_running=2, client=client, by="anna")
    begun += await limit_task(shop.send_mail, rate="100/min", client=client, by="anna")
    begun += await pause_task(shop.nap, reason="the bed is made", client=client, by="anna")
    for operation in begun:
        await work_to_end(db, operation)
    await pause_queue(db, "archive", by="anna", reason="disk is exchanged")
    await cancel_where(queue="nowhere", client=client)
