"""The lines of queues: sampled once a minute, counted exactly where they are long, forgotten in time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aaiclick_queue.flow.background import Background
from aaiclick_queue.flow.lines import COUNT_LIMIT, FRESH_SECONDS, LEAST_COUNTED, count_long_lines, look_at_queues
from aaiclick_queue.flow.prune_operate import prune_operate
from aaiclick_queue.flow.sample import sample_once
from aaiclick_queue.flow.tally import COMPLETED, Tallied, Tally
from aaiclick_queue.postgres import Database
from aaiclick_queue.queue_views import list_queues
from tests.tools import age, count, put, register_worker, rows, until

LONG = COUNT_LIMIT + 2345
FILL = """
WITH task AS (
    INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs)
    SELECT i, 'long', 'a', '{}' FROM generate_series(1, $1::int) AS i RETURNING id
)
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) SELECT 'long', 0, id, id FROM task
"""


async def test_a_minute_is_sampled_once(db: Database) -> None:
    await register_worker(db)
    await put(db, count=3)
    await put(db, count=2, queue="mail")
    queues = await look_at_queues(db)
    assert await sample_once(db, queues) in (0, 2)
    await db.fetch("DELETE FROM aaiclick_queue.samples")
    assert sum([await sample_once(db, queues) for _ in range(3)]) in (2, 4)  # a minute may end meanwhile
    found = {row["queue"]: row for row in await rows(db, "samples")}
    assert (found["default"]["ready"], found["mail"]["ready"], found["mail"]["running"]) == (3, 2, 0)
    assert found["default"]["oldest_seconds"] is not None


async def test_what_was_created_in_the_minute_before_is_counted_by_ids(db: Database) -> None:
    await db.fetch(
        """INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs, status, finished_at)
        SELECT (((extract(epoch FROM date_trunc('minute', now())) * 1000)::bigint - 60000 + 2000 * i) << 22),
               'gone', 'a', '{}', 'COMPLETED', now() FROM generate_series(-5, 24) AS i"""
    )
    await sample_once(db, [])
    [row] = await rows(db, "samples")
    assert (row["queue"], row["created"], row["ready"]) == ("gone", 25, 0)


async def test_a_long_line_is_counted_exactly_in_the_background(db: Database) -> None:
    await db.fetch(FILL, LONG)
    [queue] = await list_queues(db)
    assert (queue.ready, queue.ready_is_more, queue.ready_at_seconds) == (COUNT_LIMIT, True, None)
    assert await count_long_lines(db) == 1
    [queue] = await list_queues(db)
    assert (queue.ready, queue.ready_is_more) == (LONG, False)
    assert queue.ready_at_seconds is not None
    await sample_once(db, await look_at_queues(db))
    assert [row["ready"] for row in await rows(db, "samples")] == [LONG]
    await age(db, "queues", "ready_counted_at", FRESH_SECONDS + 1)
    [queue] = await list_queues(db)
    assert (queue.ready, queue.ready_is_more) == (COUNT_LIMIT, True)
    await db.fetch("DELETE FROM aaiclick_queue.ready WHERE task_id > 5")
    assert await count_long_lines(db) == 0
    [queue] = await list_queues(db)
    assert (queue.ready, queue.ready_at_seconds) == (5, None)
    await db.fetch("DELETE FROM aaiclick_queue.tasks WHERE id > 5")


async def test_people_count_a_share_of_each_line_and_are_told_what_the_last_minute_had(db: Database) -> None:
    counted = 2 * LEAST_COUNTED
    await db.fetch(FILL, LEAST_COUNTED + 7)
    await put(db, count=3, queue="mail")
    found = {one.name: (one.ready, one.ready_is_more) for one in await list_queues(db, counted=counted)}
    assert found == {"long": (LEAST_COUNTED, True), "mail": (3, False)}
    await sample_once(db, await look_at_queues(db))
    [queue] = [one for one in await list_queues(db, counted=counted) if one.name == "long"]
    assert (queue.ready, queue.ready_is_more) == (LEAST_COUNTED + 7, False)
    assert queue.ready_at_seconds is not None
    [queue] = await list_queues(db, name="long", counted=counted)
    assert (queue.ready, queue.ready_at_seconds) == (LEAST_COUNTED + 7, None)


async def test_the_holder_of_the_loops_samples_and_counts(db: Database) -> None:
    await db.fetch(FILL, LONG)
    running = asyncio.create_task(Background(db, None, holder=7).run())

    async def watched() -> bool:
        [queue] = await list_queues(db)
        return queue.ready == LONG and await count(db, "samples") > 0

    await until(watched)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_what_is_old_is_forgotten_page_by_page(db: Database) -> None:
    figures = Tally()
    figures.count([Tallied("default", f"task {n}", 0.1, 0.1, COMPLETED) for n in range(5)])
    await figures.flush(db, patience=1)
    await put(db)
    await sample_once(db, await look_at_queues(db))
    await db.fetch("INSERT INTO aaiclick_queue.system_events (type) VALUES ('A'), ('B')")
    await db.fetch(
        """INSERT INTO aaiclick_queue.operations (kind, status, up_to, finished_at)
        VALUES ('cancel', 'DONE', 1, now()), ('cancel', 'FAILED', 1, now() - interval '31 days')"""
    )
    await db.fetch("INSERT INTO aaiclick_queue.orchestrators (id, pid, hostname, version) VALUES (1, 2, 'here', '0')")
    assert not await prune_operate(db)
    tables = ("figures", "samples", "system_events", "operations", "orchestrators")
    assert [await count(db, table) for table in tables] == [5, 1, 2, 1, 1]
    await age(db, "figures", "minute", 9 * 86400)
    await age(db, "samples", "minute", 9 * 86400)
    await age(db, "system_events", "created_at", 91 * 86400)
    await age(db, "orchestrators", "seen_at", 3601)
    assert await prune_operate(db, rows=3)
    assert not await prune_operate(db, rows=3)
    assert [await count(db, table) for table in tables] == [0, 0, 0, 1, 0]
