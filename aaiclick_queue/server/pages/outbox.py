"""Page of the outbox and the tables: the way of a wake-up with the lag of each leg, and what Postgres stores."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from ... import doctor
from ...errors import PostgresUnavailable
from ...flow.lines import COUNTED, QUEUES_LIMIT
from ...queue_views import list_queues, read_worker_totals
from .visiting import Visit, Visiting
from .waking import look_at_redis

router = APIRouter(include_in_schema=False)
COUNT_LIMIT = 10_000
OUTBOX = """
SELECT (SELECT count(*) FROM (SELECT FROM aaiclick_queue.outbox LIMIT $1) AS counted) AS n,
       (SELECT extract(epoch FROM now() - created_at)::float8 FROM aaiclick_queue.outbox ORDER BY id LIMIT 1) AS oldest
"""
LOOPS = """
SELECT l.name, l.holder::text AS holder, l.expires_at > now() AS is_held, w.hostname, w.pid, w.last_heartbeat
FROM aaiclick_queue.loops l LEFT JOIN aaiclick_queue.workers w ON w.id = l.holder
WHERE l.name <> 'timeline' ORDER BY l.name LIMIT 50
"""
# Of pg_class and the statistics' own counters, never of the rows; a partition counts for its table.
TABLES = """
SELECT coalesce(p.relname, s.relname) AS name, sum(s.n_live_tup)::bigint AS live, sum(s.n_dead_tup)::bigint AS dead,
       sum(pg_total_relation_size(s.relid))::bigint AS bytes, sum(pg_indexes_size(s.relid))::bigint AS index_bytes,
       max(greatest(s.last_vacuum, s.last_autovacuum)) AS vacuumed_at,
       max(greatest(s.last_analyze, s.last_autoanalyze)) AS analyzed_at, count(*) AS parts
FROM pg_stat_user_tables s LEFT JOIN pg_inherits i ON i.inhrelid = s.relid LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE s.schemaname = $1 AND (p.oid IS NOT NULL OR NOT EXISTS (SELECT FROM pg_inherits c WHERE c.inhparent = s.relid))
GROUP BY 1 ORDER BY bytes DESC LIMIT 50
"""
STORE = """
SELECT now() AS now, pg_database_size(current_database()) AS bytes, current_setting('server_version') AS version,
       extract(epoch FROM now() - pg_postmaster_start_time())::float8 AS up,
       current_setting('max_connections')::int AS most,
       (SELECT sum(numbackends) FROM pg_stat_database)::int AS connections,
       (SELECT extract(epoch FROM max(now() - xact_start))::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend') AS oldest_transaction
"""


@router.get("/outbox")
async def outbox(at: Visiting) -> HTMLResponse:
    """Delivery and storage."""
    db = at.db
    [row] = await db.fetch(OUTBOX, COUNT_LIMIT + 1)
    queues = await list_queues(db, limit=QUEUES_LIMIT, counted=COUNTED)
    tables: list[dict[str, Any]] = [dict(one) for one in await db.fetch(TABLES, at.desk.settings.postgres_schema)]
    [store] = await db.fetch(STORE)
    return await at.show(
        "outbox.html",
        section="outbox",
        title="Outbox and tables",
        topics="outbox",
        waiting=min(row["n"], COUNT_LIMIT),
        is_more=row["n"] > COUNT_LIMIT,
        oldest=row["oldest"],
        loops=await db.fetch(LOOPS),
        ready=sum(one.ready for one in queues),
        running=sum(one.running for one in queues),
        oldest_ready=max((one.oldest_seconds or 0 for one in queues), default=0),
        live=(await read_worker_totals(db)).active,
        redis=await look_at_redis(at, [one.name for one in queues]),
        **await checked(at),
        tables=tables,
        store=store,
    )


async def checked(at: Visit) -> dict[str, Any]:
    """What the doctor says, if it was asked for: once, and not again whenever a part of the page is drawn anew."""
    if not at.asked("checks") or "x-region" in at.request.headers:
        return {"checks": None, "findings": [], "no_checks": None}
    try:
        found = await doctor.check_soon(at.db)
    except PostgresUnavailable as error:
        return {"checks": 0, "findings": [], "no_checks": str(error)}
    return {"checks": len(found), "findings": [one for one in found if not one.ok or one.notice], "no_checks": None}
