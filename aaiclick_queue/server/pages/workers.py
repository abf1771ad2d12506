"""Pages of workers: who lives, what each holds, how it is; and one with its runs and its stacks."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ...queue_views import PLACE, WorkerView, get_worker, list_workers, read_worker_totals
from ..drawing.charts import state_bar
from .trouble import not_found
from .visiting import Visit, Visiting

router = APIRouter(include_in_schema=False)
SHOWN = 200
STALE_SECONDS = 3600.0
MORE = """
SELECT id::text AS id, rss_bytes, lag_seconds, skew_seconds, entrypoints, asked, stacks, stacks_at
FROM aaiclick_queue.workers WHERE id = ANY($1::bigint[])
"""
RUNS = """
SELECT l.task_id::text AS id, l.queue, l.attempt, l.claimed_at, l.deadline_at, t.entrypoint, t.name
FROM (SELECT task_id, queue, attempt, claimed_at, deadline_at FROM aaiclick_queue.leases
      WHERE worker_id = $1 ORDER BY task_id LIMIT 200) AS l
CROSS JOIN LATERAL (SELECT entrypoint, name FROM aaiclick_queue.tasks WHERE id = l.task_id OFFSET 0) AS t
ORDER BY l.claimed_at
"""


async def _rows(at: Visit, found: list[WorkerView]) -> list[dict[str, Any]]:
    more = {row["id"]: row for row in await at.db.fetch(MORE, [int(one.id) for one in found])} if found else {}
    newest = max((one.version for one in found if one.status == "ACTIVE"), default="")
    return [
        {
            "view": one,
            "more": more[one.id],
            "is_old": one.status == "ACTIVE" and one.version != newest,
            "bar": state_bar(
                [("running", one.running), ("free", max(0, one.slots - one.running))],
                label=f"{one.running} of {one.slots} slots run",
                width=96,
            ),
        }
        for one in found
        if one.id in more
    ]


@router.get("/workers")
async def workers(at: Visiting) -> HTMLResponse:
    """Workers, those that live first; one that ended is shown for an hour."""
    after = at.asked("after") if re.match(PLACE, at.asked("after")) else None
    found = await list_workers(at.db, limit=SHOWN + 1, after=after)
    shown = [one for one in found[:SHOWN] if _is_recent(one)]
    return await at.show(
        "workers.html",
        section="workers",
        title="Workers",
        topics="workers",
        rows=await _rows(at, shown),
        totals=await read_worker_totals(at.db),
        is_first=after is None,
        more=found[SHOWN - 1].place if len(found) > SHOWN and _is_recent(found[SHOWN]) else None,
    )


@router.get("/workers/{worker_id}")
async def worker(at: Visiting, worker_id: str) -> HTMLResponse:
    """One worker incarnation."""
    is_number = worker_id.isascii() and worker_id.isdigit() and len(worker_id) < 20 and int(worker_id) < 2**63
    found = await get_worker(at.db, int(worker_id)) if is_number else None
    if found is None:
        return await not_found(
            at, f"there is no worker {worker_id}: those that ended are forgotten after a while", section="workers"
        )
    [row] = await _rows(at, [found])
    runs = await at.db.fetch(RUNS, int(worker_id))
    return await at.show(
        "worker.html", section="workers", title=f"Worker {found.hostname}", topics="workers", row=row, runs=runs
    )


def _is_recent(one: WorkerView) -> bool:
    return one.status in ("ACTIVE", "STOPPING") or one.heartbeat_seconds < STALE_SECONDS
