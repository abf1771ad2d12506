"""Operations: changes of many waiting tasks by filter, a bounded page a transaction, until a whole pass finds nothing.

Before: a person. After: the line. An operation is a row: whoever works on it, a crash goes on where it was, and it
applies to the tasks that were there when it was made. A page shares its rows with everybody else by SKIP LOCKED.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ..outcome import Error
from ..postgres import Database
from ..schema import Transaction
from .outbox import append_from
from .place import enter_line
from .settle import SETTLE

MAKE_OPERATION = """
WITH made AS (
    INSERT INTO aaiclick_queue.operations (kind, filter, arguments, up_to, made_by, total)
    VALUES ($1::text, $2::text::jsonb, $3::text::jsonb, aaiclick_queue.new_id(), $4::text, $5::bigint)
    RETURNING id, kind, filter, arguments
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'OPERATION_' || upper(kind), jsonb_build_object(
               'operation', id::text, 'filter', filter, 'arguments', arguments, 'by', $4::text) FROM made
)
SELECT id FROM made
"""
NEXT_OPERATION = """
SELECT id, kind, filter, arguments, up_to, place, after FROM aaiclick_queue.operations
WHERE status = 'OPEN' AND id = coalesce($1::bigint, id) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
KEEP_OPERATION = """
UPDATE aaiclick_queue.operations SET place = $2::text, after = $3::text::jsonb, found = found OR $4::boolean,
       done = done + $5::bigint, updated_at = now() WHERE id = $1
"""
# At the end of a pass: again if it has found anything. One for a new limit goes on until every transaction that could
# not see the limit is over, and then opens the queue that it had closed.
END_PASS = """
WITH ended AS (
    UPDATE aaiclick_queue.operations o SET place = '', after = NULL, found = false, updated_at = now(),
           status = CASE WHEN o.found OR NOT seen.by_all THEN 'OPEN' ELSE 'DONE' END,
           finished_at = CASE WHEN o.found OR NOT seen.by_all THEN NULL ELSE now() END
    FROM (SELECT coalesce((SELECT (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint > m.made_xid
                           FROM aaiclick_queue.limits m WHERE m.id = $2::bigint), true) AS by_all) AS seen
    WHERE o.id = $1 RETURNING o.status, o.id
), opened AS (
    UPDATE aaiclick_queue.queues q SET paused_at = NULL, paused_by = NULL, reason = NULL FROM ended
    WHERE ended.status = 'DONE' AND q.paused_by = format('operation %s', ended.id) RETURNING q.name
)
SELECT status, (SELECT count(*) FROM opened) AS opened FROM ended
"""
FAIL_OPERATION = """
UPDATE aaiclick_queue.operations SET status = 'FAILED', error = $2::text, finished_at = now() WHERE id = $1
"""
# $1 after which key, $2 how many, $3 filter, $4 no newer than; NULL in the filter is any.
_WANTED = """t.id <= $4::bigint
        AND ($3::jsonb->>'queue' IS NULL OR t.queue = $3::jsonb->>'queue')
        AND ($3::jsonb->>'entrypoint' IS NULL OR t.entrypoint = $3::jsonb->>'entrypoint'
             OR t.entrypoint LIKE '%.' || replace(replace($3::jsonb->>'entrypoint', '_', '\\_'), '%', '\\%'))
        AND ($3::jsonb->>'key' IS NULL OR t.concurrency_key = $3::jsonb->>'key')
        AND ($3::jsonb->>'correlation_id' IS NULL OR t.correlation_id = $3::jsonb->>'correlation_id')
        AND ($3::jsonb->>'priority' IS NULL OR t.priority = ($3::jsonb->>'priority')::int)
        AND ($3::jsonb->>'older_than' IS NULL
             OR t.created_at < now() - make_interval(secs => ($3::jsonb->>'older_than')::float8))"""
_BY_TASK = {
    "page": "p.task_id > coalesce(($1::jsonb->>0)::bigint, 0)",
    "order": "p.task_id",
    "key": "jsonb_build_array(task_id)",
}
# In line order, so that what would be claimed next is taken first.
_BY_LINE = {
    "page": """(p.queue, p.rank, p.order_key, p.task_id) > (coalesce($1::jsonb->>0, $3::jsonb->>'queue', ''),
        coalesce(($1::jsonb->>1)::int, -2147483648), coalesce(($1::jsonb->>2)::bigint, 0),
        coalesce(($1::jsonb->>3)::bigint, 0))
        AND ($3::jsonb->>'queue' IS NULL OR p.queue = $3::jsonb->>'queue')""",
    "order": "p.queue, p.rank, p.order_key, p.task_id",
    "key": "jsonb_build_array(queue, rank, order_key, task_id)",
}
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT p.ctid, p.task_id, p.queue, p.rank, p.order_key FROM aaiclick_queue.{place} p
    WHERE {page} ORDER BY {order} LIMIT $2
), wanted AS MATERIALIZED (
    SELECT page.task_id, page.ctid FROM page JOIN aaiclick_queue.tasks t ON t.id = page.task_id WHERE {wanted}
), taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM aaiclick_queue.{place} p JOIN wanted ON p.ctid = wanted.ctid AND p.task_id = wanted.task_id
        FOR UPDATE OF p SKIP LOCKED))
    RETURNING {returning}
), {action}
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM wanted) AS wanted,
       (SELECT count(*) FROM taken) AS taken, (SELECT {key} FROM page ORDER BY {last} LIMIT 1) AS after
"""
_MOVED = "task_id, run_epoch, attempt, lost_count, snoozes, flags"
# Out of its place and in again, with another queue or priority where those are given.
_AGAIN = """changed AS (
    UPDATE aaiclick_queue.tasks t SET queue = coalesce($5::jsonb->>'queue', t.queue),
        priority = coalesce(($5::jsonb->>'priority')::int, t.priority)
    FROM taken WHERE t.id = taken.task_id AND $5::jsonb <> '{{}}'::jsonb
), given_back AS (
    DELETE FROM aaiclick_queue.slots s USING taken
    WHERE taken.flags & 2 = 2 AND s.task_id = taken.task_id AND s.stopping = 0 AND s.limit_id <> 0
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, run_epoch, type, data)
    SELECT task_id, run_epoch, 'TASK_MOVED', $5::jsonb FROM taken WHERE $5::jsonb <> '{{}}'::jsonb
), again AS (
    SELECT taken.task_id, t.id AS order_key, taken.run_epoch, taken.attempt, taken.lost_count, taken.snoozes,
           taken.flags, coalesce($5::jsonb->>'queue', t.queue) AS queue,
           -coalesce(($5::jsonb->>'priority')::int, t.priority) AS rank, t.entrypoint, t.concurrency_key,
           t.order_by {more}
    FROM taken JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
), {enter}"""
_IN_LINE_AGAIN = _AGAIN.format(more="", enter=enter_line("again") + ", told AS (" + append_from("entered") + ")")
_DELAYED_AGAIN = _AGAIN.format(
    more=", taken.not_before, taken.reason",
    enter="""entered AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, run_epoch, attempt, lost_count, snoozes,
                                        flags, queue, reason)
    SELECT task_id, not_before, order_key, rank, run_epoch, attempt, lost_count, snoozes, flags, queue, reason
    FROM again ON CONFLICT DO NOTHING
)""",
)
_NOT_YET = (
    " AND ($5::jsonb = '{}'::jsonb OR t.queue <> $5::jsonb->>'queue' OR t.priority <> ($5::jsonb->>'priority')::int)"
)


def _page(place: str, scan: dict[str, str], *, action: str, returning: str, wanted: str = "") -> str:
    last = ", ".join(f"{column.removeprefix('p.')} DESC" for column in scan["order"].split(", "))
    return _PAGE.format(place=place, action=action, returning=returning, wanted=_WANTED + wanted, last=last, **scan)


MOVE_PAGE = {
    "held": _page("held", _BY_TASK, action=_IN_LINE_AGAIN, returning=_MOVED, wanted=_NOT_YET),
    "delayed": _page(
        "delayed", _BY_TASK, action=_DELAYED_AGAIN, returning=_MOVED + ", not_before, reason", wanted=_NOT_YET
    ),
    "ready": _page("ready", _BY_LINE, action=_IN_LINE_AGAIN, returning=_MOVED, wanted=_NOT_YET),
}
_CANCEL = """task_id, run_epoch, {worker_id} AS worker_id, attempt, lost_count, snoozes, flags, queue, rank, order_key,
              {started_at} AS started_at, 'CANCELLED' AS kind, $5::text AS error, NULL::float8 AS seconds,
              NULL::text AS retry, {stops} AS stops"""
_NOT_STARTED = _CANCEL.format(worker_id="NULL::bigint", started_at="NULL::timestamptz", stops="false")
CANCEL_PAGE = {
    "held": _page("held", _BY_TASK, action=SETTLE, returning=_NOT_STARTED),
    "delayed": _page("delayed", _BY_TASK, action=SETTLE, returning=_NOT_STARTED),
    "ready": _page("ready", _BY_LINE, action=SETTLE, returning=_NOT_STARTED),
    "leases": _page(
        "leases",
        _BY_TASK,
        action=SETTLE,
        returning=_CANCEL.format(worker_id="worker_id", started_at="claimed_at", stops="true"),
    ),
}
# For a new limit: whatever it applies to and has not got in by it. `$6` is its number.
_BY_NEW_LIMIT = """ AND EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.id = $6::bigint
        AND (NOT m.per_key OR t.concurrency_key IS NOT NULL)
        AND m.name = CASE m.scope WHEN 'queue' THEN t.queue WHEN 'task' THEN t.entrypoint ELSE t.concurrency_key END)
        AND NOT EXISTS (SELECT FROM aaiclick_queue.slots s WHERE s.task_id = t.id AND s.limit_id = $6::bigint)"""
LIMIT_PAGE = {
    "held": _page(
        "held",
        _BY_TASK,
        action=_IN_LINE_AGAIN,
        returning=_MOVED,
        wanted=_BY_NEW_LIMIT + " AND EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.task_id = t.id"
        " AND h.entrypoint = '') AND EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'task'"
        " AND m.name = t.entrypoint)",
    ),
    "ready": _page("ready", _BY_LINE, action=_IN_LINE_AGAIN, returning=_MOVED, wanted=_BY_NEW_LIMIT),
}
# What runs already when a limit is made counts against it.
ADOPT_RUNS = """
INSERT INTO aaiclick_queue.slots (task_id, limit_id, key, seconds, ends_at, adopted)
SELECT l.task_id, m.id, CASE WHEN m.per_key THEN t.concurrency_key ELSE '' END, m.seconds,
       l.claimed_at + make_interval(secs => m.seconds), true
FROM aaiclick_queue.limits m
JOIN aaiclick_queue.leases l ON true JOIN aaiclick_queue.tasks t ON t.id = l.task_id
WHERE m.id = $1 AND m.kind IN ('running', 'rate') AND (NOT m.per_key OR t.concurrency_key IS NOT NULL)
  AND m.name = CASE m.scope WHEN 'queue' THEN t.queue WHEN 'task' THEN t.entrypoint ELSE t.concurrency_key END
  AND NOT EXISTS (SELECT FROM aaiclick_queue.slots s WHERE s.task_id = l.task_id AND s.limit_id = m.id)
ON CONFLICT DO NOTHING
"""
PURGED = Error("Purged", "purged from its queue by hand")
AT_A_TIME = 1000
AGAIN_SECONDS = 0.5


class Worked(msgspec.Struct, frozen=True):
    """What one page came to; `status` is the operation's."""

    operation_id: int
    status: str
    taken: int = 0
    moved: bool = False
    pause: float = 0.0


async def make_operation(  # noqa: PLR0913 - a row
    tx: Transaction, kind: str, where: dict[str, Any], arguments: dict[str, Any], *, by: str, total: int | None = None
) -> int:
    """Write an operation down; returns its number."""
    [row] = await tx.fetch(MAKE_OPERATION, kind, json.dumps(where), json.dumps(arguments), by, total)
    operation_id: int = row["id"]
    return operation_id


async def work_once(db: Database, operation_id: int | None = None, *, limit: int = AT_A_TIME) -> Worked | None:
    """Work a page of the oldest open operation, or of the one given; None when there is none to be had."""
    async with db.transaction() as tx:
        rows = await tx.fetch(NEXT_OPERATION, operation_id)
        if not rows:
            return None
        operation = rows[0]
        arguments = json.loads(operation["arguments"])
        pages = _pages(operation["kind"], arguments)
        if pages is None:
            await tx.fetch(FAIL_OPERATION, operation["id"], f"this version knows no operation {operation['kind']!r}")
            return Worked(operation["id"], "FAILED")
        place = operation["place"] or next(iter(pages))
        if operation["kind"] == "limit" and not operation["place"]:
            await tx.fetch(ADOPT_RUNS, arguments["limit_id"])
        page = await _work_page(tx, operation, pages[place], limit)
        if page["seen"] < limit:
            places = [*pages, ""]
            place, after = places[places.index(place) + 1], None
        else:
            after = page["after"]
        await tx.fetch(KEEP_OPERATION, operation["id"], place, after, page["wanted"] > 0, page["taken"])
        status, opened = "OPEN", 0
        if not place:
            [end] = await tx.fetch(END_PASS, operation["id"], arguments.get("limit_id"))
            status, opened = end["status"], end["opened"]
    pause = AGAIN_SECONDS if not place and status == "OPEN" and not page["taken"] else 0.0
    return Worked(operation["id"], status, page["taken"], bool(page["taken"] or opened), pause)


def _pages(kind: str, arguments: dict[str, Any]) -> dict[str, str] | None:
    match kind:
        case "move":
            return MOVE_PAGE
        case "limit":
            return LIMIT_PAGE
        case "cancel":
            running = arguments.get("running", False)
            return {place: sql for place, sql in CANCEL_PAGE.items() if running or place != "leases"}
        case _:
            return None


async def _work_page(tx: Transaction, operation: Any, sql: str, limit: int) -> Any:
    arguments = json.loads(operation["arguments"])
    more: list[Any]
    match operation["kind"]:
        case "cancel":
            more = [Error(arguments.get("error", PURGED.type), arguments.get("message", PURGED.message)).text()]
        case "limit":
            more = ["{}", arguments["limit_id"]]
        case _:
            more = [json.dumps(arguments)]
    [row] = await tx.fetch(sql, operation["after"], limit, operation["filter"], operation["up_to"], *more)
    return row
