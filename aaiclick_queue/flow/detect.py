"""Detection: what is wrong is an alarm as long as it is so, and an event when it begins and when it is over.

Before: the watch's look at the queues. Level-triggered: each look says what is wrong now, whoever said so before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ..schema import Transaction
from ..settings import Settings
from .lines import COUNT_LIMIT, exact_ready
from .place import IS_ON_ITS_WAY

MOST = 100  # alarms of one kind
JOBS, TASKS, MOST_TASKS = 200, 20_000, 200_000  # of a pass, and of one job that is looked at at all
LOST_SECONDS = 600.0
EVENTS = {
    "stall": "ORCHESTRATOR_STALL",
    "zombie": "ORCHESTRATOR_ZOMBIE",
    "stuck": "ORCHESTRATOR_STUCK",
    "backpressure": "ORCHESTRATOR_BACKPRESSURE",
    "clock_skew": "ORCHESTRATOR_CLOCK_SKEW",
    "without_workers": "QUEUE_WITHOUT_WORKERS",
    "lost_worker": "WORKER_LOST",
}
CLEARED = "ORCHESTRATOR_CLEARED"

# Only the first look of many that see the same writes the row, and with it the event.
KEEP_ALARMS = """
WITH raised AS (
    INSERT INTO aaiclick_queue.alarms AS a (kind, what, data)
    SELECT $1::text, run.what, run.data::jsonb FROM unnest($2::text[], $3::text[]) AS run(what, data)
    ON CONFLICT (kind, what) DO UPDATE SET seen_at = now(), data = excluded.data
    RETURNING a.what, a.data, a.xmax = 0 AS is_new
), over AS (
    DELETE FROM aaiclick_queue.alarms WHERE kind = $1::text AND what <> ALL($2::text[]) RETURNING what, since, data
), noted AS (
    INSERT INTO aaiclick_queue.system_events (type, made_by, data)
    SELECT $4::text, 'detection', data || jsonb_build_object('kind', $1::text, 'what', what) FROM raised WHERE is_new
    UNION ALL
    SELECT $5::text, 'detection', jsonb_build_object('kind', $1::text, 'what', what, 'since', since, 'seconds',
        round(extract(epoch FROM now() - since)), 'was', data->>'text') FROM over
)
SELECT (SELECT count(*) FROM raised WHERE is_new) AS raised, (SELECT count(*) FROM over) AS cleared
"""
ANY_ALARM = "SELECT DISTINCT kind FROM aaiclick_queue.alarms"
# As many leases as there are slots; the reaper looks at them all more often than this.
OVERDUE_LEASES = """
SELECT l.task_id, l.worker_id, l.queue, extract(epoch FROM now() - l.deadline_at)::float8 AS seconds
FROM aaiclick_queue.leases l WHERE l.deadline_at < now() - make_interval(secs => $1::float8)
ORDER BY l.deadline_at LIMIT $2
"""
WORKERS_IN_TROUBLE = """
SELECT w.id, w.hostname, w.pid, w.skew_seconds, w.status, extract(epoch FROM now() - w.stopped_at)::float8 AS seconds
FROM aaiclick_queue.workers w
WHERE (w.status IN ('ACTIVE', 'STOPPING') AND w.lease_expires_at > now() AND abs(w.skew_seconds) > $1::float8)
   OR (w.status = 'LOST' AND w.stopped_at > now() - make_interval(secs => $2::float8))
ORDER BY w.started_at LIMIT $3
"""
# A page of open jobs from where the last look stopped, and those that have an alarm. A job is looked at by its open
# tasks until one is on its way, so that of a job that works a few rows are read.
STALLED_JOBS = f"""
WITH page AS MATERIALIZED (
    SELECT id, name, created_at, started_at, paused_at FROM (
        SELECT id, name, created_at, started_at, paused_at FROM aaiclick_queue.jobs
        WHERE status IN ('PENDING', 'RUNNING') AND id > $1::bigint ORDER BY id LIMIT $2) AS next
    UNION
    SELECT j.id, j.name, j.created_at, j.started_at, j.paused_at
    FROM (SELECT what::bigint AS id FROM aaiclick_queue.alarms
          WHERE kind = 'stall' AND CASE WHEN what ~ '^[0-9]{{1,19}}$' THEN what::numeric < 9223372036854775808
                                        ELSE false END LIMIT {MOST}) AS a
    CROSS JOIN LATERAL (
        SELECT id, name, created_at, started_at, paused_at FROM aaiclick_queue.jobs
        WHERE id = a.id AND status || '' IN ('PENDING', 'RUNNING') OFFSET 0) AS j
), sized AS MATERIALIZED (
    SELECT page.id, page.name, page.started_at, page.created_at, g.remaining,
           sum(g.total) OVER (ORDER BY page.id) - g.total AS before
    FROM page CROSS JOIN LATERAL (
        SELECT total, remaining FROM aaiclick_queue.gates WHERE id = page.id OFFSET 0) AS g
    WHERE page.created_at < now() - make_interval(secs => $3::float8) AND page.paused_at IS NULL
      AND g.total <= {MOST_TASKS}
), looked AS MATERIALIZED (
    SELECT id, name, remaining, created_at, started_at FROM sized WHERE before < {TASKS}
), coming AS MATERIALIZED (
    SELECT DISTINCT g.job_id FROM (SELECT gate_id FROM aaiclick_queue.arrivals ORDER BY id LIMIT 1000) AS a
    CROSS JOIN LATERAL (SELECT job_id FROM aaiclick_queue.gates WHERE id = a.gate_id OFFSET 0) AS g
), changing AS MATERIALIZED (
    SELECT o.filter->>'job' AS job FROM aaiclick_queue.operations o
    WHERE o.status = 'OPEN' AND o.filter->>'job' IS NOT NULL ORDER BY o.id LIMIT 1000
), stalled AS MATERIALIZED (
    SELECT looked.id, looked.name, looked.remaining, looked.created_at, looked.started_at FROM looked
    WHERE looked.id NOT IN (SELECT job_id FROM coming)
      AND looked.id::text NOT IN (SELECT job FROM changing)
      AND (SELECT true FROM aaiclick_queue.tasks t WHERE t.job_id = looked.id AND t.status IS NULL
           AND {IS_ON_ITS_WAY} LIMIT 1) IS NULL
)
SELECT s.id, s.name, s.remaining, extract(epoch FROM now() - greatest(s.created_at, s.started_at, last.at))::float8
       AS seconds, edge.last, edge.is_full
FROM (SELECT CASE WHEN EXISTS (SELECT FROM sized WHERE before >= {TASKS}) THEN (SELECT max(id) FROM looked)
                  ELSE (SELECT max(id) FROM page WHERE id > $1::bigint) END AS last,
             (SELECT count(*) FROM page WHERE id > $1::bigint) >= $2 OR EXISTS (
                 SELECT FROM sized WHERE before >= {TASKS}) AS is_full) AS edge
LEFT JOIN stalled s ON true
LEFT JOIN LATERAL (SELECT max(t.finished_at) AS at FROM aaiclick_queue.tasks t WHERE t.job_id = s.id) AS last ON true
"""


class Found(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    kind: str
    what: str
    text: str
    data: dict[str, Any]


async def keep_alarms(tx: Transaction, kind: str, found: Sequence[Found], *, event: str) -> tuple[int, int]:
    """Make what was found the alarms of that kind; how many were raised, and cleared."""
    texts = [json.dumps({"text": one.text} | one.data) for one in found]
    [kept] = await tx.fetch(KEEP_ALARMS, kind, [one.what for one in found], texts, event, CLEARED)
    return kept["raised"], kept["cleared"]


class Detector:
    """The detection of one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._after = 0

    async def detect_once(self, tx: Transaction, queues: Sequence[Any], *, jobs: int | None = None) -> tuple[int, int]:
        """Look for all that may be wrong, `queues` being the rows of a look; alarms raised, and cleared."""
        found = [one for row in queues for one in self._of_queue(row)]
        found += await self._zombies(tx)
        found += await self._workers(tx)
        found += await self._stalls(tx, jobs or JOBS)
        rung = {row["kind"] for row in await tx.fetch(ANY_ALARM)}
        raised = cleared = 0
        for kind, event in EVENTS.items():
            some = sorted((one for one in found if one.kind == kind), key=lambda one: one.what)[:MOST]
            if not some and kind not in rung:
                continue
            kept = await keep_alarms(tx, kind, some, event=event)
            raised, cleared = raised + kept[0], cleared + kept[1]
        return raised, cleared

    def _of_queue(self, row: Any) -> list[Found]:
        name, oldest, found = row["name"], row["oldest_seconds"] or 0.0, []
        ready = exact_ready(row) or min(row["ready"], COUNT_LIMIT)
        if row["max_depth"] is not None:
            depth = row["ready"] + row["held"] if row["max_depth"] <= COUNT_LIMIT else row["depth"] or 0
            if depth >= row["max_depth"] * self._settings.backpressure_percent / 100:
                text = f"queue {name} holds {depth:,} of at most {row['max_depth']:,} tasks"
                found.append(Found("backpressure", name, text, {"depth": depth, "max_depth": row["max_depth"]}))
        if row["paused_at"] is not None:
            return found
        waits = {"oldest_seconds": round(oldest, 1), "ready": ready}
        if oldest > self._settings.stuck_seconds:
            text = f"the oldest task of queue {name} has waited for {oldest / 60:,.0f} min"
            found.append(Found("stuck", name, text, waits))
        if not row["workers"] and oldest > self._settings.without_workers_seconds:
            waited = f"{oldest:,.0f} s" if oldest < 120 else f"{oldest / 60:,.0f} min"
            text = f"no worker serves queue {name}, in which tasks have waited for {waited}"
            found.append(Found("without_workers", name, text, waits))
        return found

    async def _zombies(self, tx: Transaction) -> list[Found]:
        return [
            Found(
                "zombie",
                str(row["task_id"]),
                f"task {row['task_id']} runs {row['seconds']:,.0f} s past its deadline on worker {row['worker_id']}",
                {"worker_id": str(row["worker_id"]), "queue": row["queue"], "seconds": round(row["seconds"], 1)},
            )
            for row in await tx.fetch(OVERDUE_LEASES, self._settings.zombie_seconds, MOST)
        ]

    async def _workers(self, tx: Transaction) -> list[Found]:
        found = []
        for row in await tx.fetch(WORKERS_IN_TROUBLE, self._settings.skew_seconds, LOST_SECONDS, 2 * MOST):
            who = f"worker {row['id']} ({row['hostname']} pid {row['pid']})"
            data = {"hostname": row["hostname"], "pid": row["pid"]}
            if row["status"] == "LOST":
                text = f"{who} was lost {row['seconds']:,.0f} s ago: it did not renew its lease"
                found.append(Found("lost_worker", str(row["id"]), text, data))
            else:
                skew = row["skew_seconds"]
                text = f"the clock of {who} is {abs(skew):,.1f} s {'ahead of' if skew > 0 else 'behind'} the database's"
                found.append(Found("clock_skew", str(row["id"]), text, data | {"skew_seconds": round(skew, 3)}))
        return found

    async def _stalls(self, tx: Transaction, jobs: int) -> list[Found]:
        rows = await tx.fetch(STALLED_JOBS, self._after, jobs, self._settings.stall_seconds)
        self._after = rows[0]["last"] if rows[0]["is_full"] and rows[0]["last"] is not None else 0
        return [
            Found(
                "stall",
                str(row["id"]),
                f"job {row['name']} ({row['id']}) has {row['remaining']:,} open tasks and none is on its way",
                {"name": row["name"], "open": row["remaining"], "seconds": round(row["seconds"])},
            )
            for row in rows
            if row["id"] is not None and row["seconds"] > self._settings.stall_seconds
        ]
