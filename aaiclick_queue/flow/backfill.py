"""Backfill: runs of the past, one for each tick of a range that has none. An operation, a page a transaction.

Before: a person. After: the line. A tick is unique by its name: the scheduler and a backfill that meet make one run.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from ..schema import Transaction
from ..ticking import Tick
from .enqueue import id_source
from .firing import DUE_COLUMNS, fire_ticks, tick_row
from .schedule_rows import naive, schedule_of

REGISTERED = f"SELECT {DUE_COLUMNS} FROM aaiclick_queue.registered_jobs r WHERE r.id = $1::bigint"
TICKS_WITH_RUNS = """
SELECT fire_at FROM aaiclick_queue.ticks WHERE registered_job_id = $1::bigint AND fire_at >= $2::timestamp
  AND fire_at <= $3::timestamp AND (job_id IS NOT NULL OR outcome = 'QUEUED')
"""
OPEN_RUNS = """
SELECT count(*) AS n FROM aaiclick_queue.jobs WHERE registered_job_id = $1::bigint
  AND status IN ('PENDING', 'RUNNING') AND run_type = 'BACKFILL'
"""
KEEP = """
UPDATE aaiclick_queue.operations SET after = $2::text::jsonb, done = done + $3::bigint, updated_at = now(),
       status = CASE WHEN $4::boolean THEN 'DONE' ELSE 'OPEN' END, finished_at = CASE WHEN $4::boolean THEN now() END
WHERE id = $1
"""
BACKFILL = "BACKFILL"
AT_A_TIME = 100
FULL_SECONDS = 0.5  # as many run as may: the next look


async def missing(tx: Transaction, row: Any, start: datetime, end: datetime, *, limit: int) -> list[datetime]:
    """The first ticks of the range that have no run."""
    schedule, found = schedule_of(row), list[datetime]()
    while start < end and len(found) < limit:
        page = list(islice(schedule.between(start, end), AT_A_TIME))
        if not page:
            break
        rows = await tx.fetch(TICKS_WITH_RUNS, row["id"], naive(page[0]), naive(page[-1]))
        there = {one["fire_at"] for one in rows}
        found += [one for one in page if naive(one) not in there]
        start = page[-1] + timedelta(microseconds=1)
    return found[:limit]


async def backfill_page(tx: Transaction, operation: Any, *, seconds: float) -> tuple[str, int, float]:
    """Work a page of the operation: its status, how many runs that made, and the pause before the next one.

    `seconds` is the time of a job that names none.
    """
    where, arguments = json.loads(operation["filter"]), json.loads(operation["arguments"])
    rows = await tx.fetch(REGISTERED, int(where["registered"]))
    if not rows:
        return "FAILED", 0, 0.0
    start = datetime.fromisoformat(json.loads(operation["after"]) if operation["after"] else arguments["start"])
    end, room = datetime.fromisoformat(arguments["end"]), AT_A_TIME
    if arguments["max_running"] is not None:
        [at_work] = await tx.fetch(OPEN_RUNS, rows[0]["id"])
        room = min(AT_A_TIME, arguments["max_running"] - at_work["n"])
        if room <= 0:
            await tx.fetch(KEEP, operation["id"], operation["after"], 0, False)
            return "OPEN", 0, FULL_SECONDS
    fires = await missing(tx, rows[0], start, end, limit=room)
    row = dict(rows[0]) | {"jitter_seconds": 0.0, "next_run_at": None}
    ticks = [tick_row(row, Tick(one)) for one in fires]
    take = (await id_source(tx)).take
    made = await fire_ticks(tx, ticks, take, seconds=seconds, run_type=BACKFILL) if ticks else 0
    is_over = len(fires) < room
    after = None if is_over else json.dumps((fires[-1] + timedelta(microseconds=1)).isoformat())
    await tx.fetch(KEEP, operation["id"], after, made, is_over)
    return "DONE" if is_over else "OPEN", made, 0.0
