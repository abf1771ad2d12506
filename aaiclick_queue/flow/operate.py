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
from .move import MOVED, MOVED_LATER, delayed_again, in_line_again, not_yet
from .retry import retry_ended
from .settle import SETTLE
from .wanted import places_of, wanted

# Ids are made by clients, a little ahead of this clock where many are made at once: what is there belongs to it. A
# limit applies to whatever got in line without it, by a transaction that could not see it.
MAKE_OPERATION = """
WITH made AS (
    INSERT INTO aaiclick_queue.operations (kind, filter, arguments, up_to, made_by, total)
    SELECT $1::text, $2::text::jsonb, $3::text::jsonb, CASE WHEN $1::text = 'limit' THEN 9223372036854775807
               ELSE greatest(aaiclick_queue.new_id(), (SELECT max(id) FROM aaiclick_queue.tasks)) END,
           $4::text, $5::bigint
    RETURNING id, kind, filter, arguments
), noted AS (
    INSERT INTO aaiclick_queue.events (type, data)
    SELECT 'OPERATION_' || upper(kind), jsonb_build_object(
               'operation', id::text, 'filter', filter, 'arguments', arguments, 'by', $4::text) FROM made
)
SELECT id FROM made
"""
# The one that was longest without a page: one that waits for an old transaction must not keep the others. Limits of
# one name come one by one: the last of them opens the queue that they have closed. A process that freezes inside its
# page must not stop all others: Postgres ends its transaction.
NEXT_OPERATION = """
SELECT o.id, o.kind, o.filter, o.arguments, o.up_to, o.place, o.after, o.made_by, o.created_at,
       set_config('idle_in_transaction_session_timeout', '5s', true)
FROM aaiclick_queue.operations o
WHERE o.status = 'OPEN' AND o.id = coalesce($1::bigint, o.id) AND NOT (o.kind = 'limit' AND EXISTS (
    SELECT FROM aaiclick_queue.operations before WHERE before.status = 'OPEN' AND before.kind = 'limit'
    AND before.id < o.id AND before.filter = o.filter))
ORDER BY o.updated_at, o.id LIMIT 1 FOR UPDATE OF o SKIP LOCKED
"""
KEEP_OPERATION = """
UPDATE aaiclick_queue.operations SET place = $2::text, after = $3::text::jsonb, found = found OR $4::boolean,
       done = done + $5::bigint, updated_at = now() WHERE id = $1
"""
# One for a new limit goes on until a whole pass was made after every transaction that could not see the limit was
# over: asked at the end of the pass instead, a row that was committed behind its last page would stay in line.
SEEN_BY_ALL = """
SELECT coalesce((SELECT (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint > m.made_xid
                 FROM aaiclick_queue.limits m WHERE m.id = $1::bigint), true) AS seen
"""
# At the end of a pass: again if it has found anything; else the queue that it had closed is opened.
END_PASS = """
WITH ended AS (
    UPDATE aaiclick_queue.operations o SET place = '', after = NULL, found = false, updated_at = now(),
           status = CASE WHEN o.found THEN 'OPEN' ELSE 'DONE' END,
           finished_at = CASE WHEN o.found THEN NULL ELSE now() END
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
# $1 after which key, $2 how many, $3 filter, $4 no newer than.
_WANTED = "t.id <= $4::bigint AND " + wanted("$3::jsonb")
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
_NOT_YET = " AND " + not_yet("$5::jsonb")


def _page(place: str, scan: dict[str, str], *, action: str, returning: str, wanted: str = "") -> str:
    last = ", ".join(f"{column.removeprefix('p.')} DESC" for column in scan["order"].split(", "))
    return _PAGE.format(place=place, action=action, returning=returning, wanted=_WANTED + wanted, last=last, **scan)


MOVE_PAGE = {
    "held": _page("held", _BY_TASK, action=in_line_again("$5::jsonb"), returning=MOVED, wanted=_NOT_YET),
    "delayed": _page("delayed", _BY_TASK, action=delayed_again("$5::jsonb"), returning=MOVED_LATER, wanted=_NOT_YET),
    "ready": _page("ready", _BY_LINE, action=in_line_again("$5::jsonb"), returning=MOVED, wanted=_NOT_YET),
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
        action=in_line_again("$5::jsonb"),
        returning=MOVED,
        wanted=_BY_NEW_LIMIT + " AND EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.task_id = t.id"
        " AND h.entrypoint = '') AND EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'task'"
        " AND m.name = t.entrypoint)",
    ),
    "ready": _page("ready", _BY_LINE, action=in_line_again("$5::jsonb"), returning=MOVED, wanted=_BY_NEW_LIMIT),
}
# Of what had ended when the operation was made ($6): whatever fails again is not tried again by it.
RETRY_PAGE = f"""
WITH page AS MATERIALIZED (
    SELECT id AS task_id FROM aaiclick_queue.tasks
    WHERE id > coalesce(($1::jsonb->>0)::bigint, 0) AND id <= $4::bigint ORDER BY id LIMIT $2
), wanted AS MATERIALIZED (
    SELECT t.id FROM page JOIN aaiclick_queue.tasks t ON t.id = page.task_id
    WHERE t.status = coalesce($3::jsonb->>'status', 'FAILED') AND t.finished_at <= $6::timestamptz AND {_WANTED}
), {retry_ended("SELECT id FROM wanted", by="$5::text")}
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM wanted) AS wanted,
       (SELECT count(*) FROM open) AS taken, (SELECT jsonb_build_array(max(task_id)) FROM page) AS after
"""
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
LOOKED_AT = {"retry": 5}  # few of the tasks that are kept have failed
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
    """Work a page of the open operation that waits longest, or of the one given; None when there is none to be had."""
    async with db.transaction() as tx:
        rows = await tx.fetch(NEXT_OPERATION, operation_id)
        if not rows:
            return None
        operation, arguments = rows[0], json.loads(rows[0]["arguments"])
        pages = _pages(operation["kind"], json.loads(operation["filter"]), arguments)
        if pages is None:
            await tx.fetch(FAIL_OPERATION, operation["id"], f"this version knows no operation {operation['kind']!r}")
            return Worked(operation["id"], "FAILED")
        place = operation["place"] or next(iter(pages))
        begun = await _begin_pass(tx, operation, arguments)
        limit *= LOOKED_AT.get(operation["kind"], 1)
        page = await _work_page(tx, operation, pages[place], limit)
        if page["seen"] < limit:
            places = [*pages, ""]
            place, after = places[places.index(place) + 1], None
        else:
            after = page["after"]
        again = page["wanted"] > 0 or not begun
        await tx.fetch(KEEP_OPERATION, operation["id"], place, after, again, page["taken"])
        status, opened = "OPEN", 0
        if not place:
            if operation["kind"] == "limit":  # what was claimed between the pass's beginning and its page of the line
                await tx.fetch(ADOPT_RUNS, arguments["limit_id"])
            [end] = await tx.fetch(END_PASS, operation["id"])
            status, opened = end["status"], end["opened"]
    pause = AGAIN_SECONDS if not place and status == "OPEN" and not page["taken"] else 0.0
    return Worked(operation["id"], status, page["taken"], bool(page["taken"] or opened), pause)


async def _begin_pass(tx: Transaction, operation: Any, arguments: dict[str, Any]) -> bool:
    """Whether this pass may be the last one, as far as its beginning goes."""
    if operation["kind"] != "limit" or operation["place"]:
        return True
    [row] = await tx.fetch(SEEN_BY_ALL, arguments["limit_id"])
    await tx.fetch(ADOPT_RUNS, arguments["limit_id"])
    return bool(row["seen"])


def _pages(kind: str, where: dict[str, Any], arguments: dict[str, Any]) -> dict[str, str] | None:
    match kind:
        case "move":
            return {place: MOVE_PAGE[place] for place in places_of(where, running=False)}
        case "limit":
            return LIMIT_PAGE
        case "cancel":
            running = arguments.get("running", False)
            return {place: CANCEL_PAGE[place] for place in places_of(where, running=running)}
        case "retry":
            return {"tasks": RETRY_PAGE}
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
        case "retry":
            more = [operation["made_by"], operation["created_at"]]
        case _:
            more = [json.dumps(arguments)]
    [row] = await tx.fetch(sql, operation["after"], limit, operation["filter"], operation["up_to"], *more)
    return row
