"""Pages over the places, for tasks that a filter means: what an operation does with a thousand rows of one place.

Before: operate. In the order of each place's own key, so that the next page goes on behind this one.
"""

from __future__ import annotations

from .move import AT_GATE, MOVED, MOVED_LATER, at_gate_again, delayed_again, in_line_again, not_yet
from .retry import retry_ended
from .settle import SETTLE
from .wanted import alike, of_names, wanted

# $1 after which key, $2 how many, $3 filter, $4 no newer than.
WANTED = "t.id <= $4::bigint AND " + wanted("$3::jsonb")
_BY_GATE = {
    "shown": "p.gate_id",
    "page": """(p.gate_id, p.task_id) > (coalesce(($1::jsonb->>0)::bigint, 0),
        coalesce(($1::jsonb->>1)::bigint, 0))""",
    "order": "p.gate_id, p.task_id",
    "key": "jsonb_build_array(gate_id, task_id)",
}
_BY_TASK = {
    "shown": "p.queue, p.rank, p.order_key",
    "page": "p.task_id > coalesce(($1::jsonb->>0)::bigint, 0)",
    "order": "p.task_id",
    "key": "jsonb_build_array(task_id)",
}
# In line order, so that what would be claimed next is taken first.
_BY_LINE = {
    "shown": "p.queue, p.rank, p.order_key",
    "page": """(p.queue, p.rank, p.order_key, p.task_id) > (coalesce($1::jsonb->>0, $3::jsonb->>'queue', ''),
        coalesce(($1::jsonb->>1)::int, -2147483648), coalesce(($1::jsonb->>2)::bigint, 0),
        coalesce(($1::jsonb->>3)::bigint, 0))
        AND ($3::jsonb->>'queue' IS NULL OR p.queue = $3::jsonb->>'queue')""",
    "order": "p.queue, p.rank, p.order_key, p.task_id",
    "key": "jsonb_build_array(queue, rank, order_key, task_id)",
}
# LATERAL and OFFSET 0 as in a count: each of the thousand is looked up by its id, and not by a pass over all tasks.
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT p.ctid, p.task_id, {shown}{columns} FROM aaiclick_queue.{place} p
    WHERE {page} ORDER BY {order} LIMIT $2
), wanted AS MATERIALIZED (
    SELECT page.task_id, page.ctid FROM page CROSS JOIN LATERAL (
        SELECT FROM aaiclick_queue.tasks t WHERE t.id = page.task_id AND {wanted} OFFSET 0) AS found
), taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM aaiclick_queue.{place} p JOIN wanted ON p.ctid = wanted.ctid AND p.task_id = wanted.task_id
        FOR UPDATE OF p SKIP LOCKED))
    RETURNING {returning}
), {action}
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM wanted) AS wanted,
       (SELECT count(*) FROM taken) AS taken, (SELECT {key} FROM page ORDER BY {last} LIMIT 1) AS after
"""
NOT_YET = " AND " + not_yet("$5::jsonb")


def _page(  # noqa: PLR0913 - the parts of one statement
    place: str, scan: dict[str, str], *, action: str, returning: str, wanted: str = "", columns: str = ""
) -> str:
    last = ", ".join(f"{column.removeprefix('p.')} DESC" for column in scan["order"].split(", "))
    return _PAGE.format(
        place=place, columns=columns, action=action, returning=returning, wanted=WANTED + wanted, last=last, **scan
    )


# What waits at a gate is changed where it stands: it gets in line as its row says when the gate opens.
MOVE_PAGE = {
    "waiting": _page("waiting", _BY_GATE, action=at_gate_again("$5::jsonb"), returning=AT_GATE, wanted=NOT_YET),
    "held": _page("held", _BY_TASK, action=in_line_again("$5::jsonb"), returning=MOVED, wanted=NOT_YET),
    "delayed": _page("delayed", _BY_TASK, action=delayed_again("$5::jsonb"), returning=MOVED_LATER, wanted=NOT_YET),
    "ready": _page("ready", _BY_LINE, action=in_line_again("$5::jsonb"), returning=MOVED, wanted=NOT_YET),
}
_CANCEL = """task_id, run_epoch, {worker_id} AS worker_id, {so_far}, flags, {line},
              {ready_at} AS ready_at, {started_at} AS started_at, 'CANCELLED' AS kind, $5::text AS error,
              NULL::float8 AS seconds, NULL::text AS retry, {stops} AS stops"""
_ON_ITS_WAY = {"so_far": "attempt, lost_count, snoozes", "line": "queue, rank, order_key"}
_NOWHERE_YET = {
    "so_far": "0 AS attempt, 0 AS lost_count, 0 AS snoozes",
    "line": "'' AS queue, 0 AS rank, 0 AS order_key",
}
_NOT_STARTED = {"worker_id": "NULL::bigint", "started_at": "NULL::timestamptz", "stops": "false"}
_NOT_READY = {"ready_at": "NULL::timestamptz", **_NOT_STARTED}
_RUNNING = {"worker_id": "worker_id", "ready_at": "ready_at", "started_at": "claimed_at", "stops": "true"}
# What the rows of each place are for whoever settles them as cancelled, with error $5.
CANCELLED_FROM = {
    "waiting": _CANCEL.format(**_NOT_READY, **_NOWHERE_YET),
    "held": _CANCEL.format(**_NOT_READY, **_ON_ITS_WAY),
    "delayed": _CANCEL.format(**_NOT_READY, **_ON_ITS_WAY),
    "ready": _CANCEL.format(**_NOT_STARTED, **_ON_ITS_WAY, ready_at="ready_at"),
    "leases": _CANCEL.format(**_RUNNING, **_ON_ITS_WAY),
}
_SCANS = {"waiting": _BY_GATE, "ready": _BY_LINE}
CANCEL_PAGE = {
    place: _page(place, _SCANS.get(place, _BY_TASK), action=SETTLE, returning=returning)
    for place, returning in CANCELLED_FROM.items()
}
# For a new limit: whatever it applies to and has not got in by it. `$6` is its number.
_BY_NEW_LIMIT = """ AND EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.id = $6::bigint
        AND (NOT m.per_key OR t.concurrency_key IS NOT NULL)
        AND m.name = CASE m.scope WHEN 'queue' THEN t.queue WHEN 'task' THEN t.entrypoint ELSE t.concurrency_key END)
        AND NOT EXISTS (SELECT FROM aaiclick_queue.slots s WHERE s.task_id = t.id AND s.limit_id = $6::bigint)"""
# The lane of a held row is taken from the page: looked up in `held` again, a plan made while that was empty read all of
# it for each row (77 s for 60,000 tasks in line, with their queue closed, instead of 2).
LIMIT_PAGE = {
    "held": _page(
        "held",
        _BY_TASK,
        action=in_line_again("$5::jsonb"),
        returning=MOVED,
        wanted=_BY_NEW_LIMIT + " AND page.entrypoint = '' AND EXISTS (SELECT FROM aaiclick_queue.limits m"
        " WHERE m.scope = 'task' AND m.name = t.entrypoint)",
        columns=", p.entrypoint",
    ),
    "ready": _page("ready", _BY_LINE, action=in_line_again("$5::jsonb"), returning=MOVED, wanted=_BY_NEW_LIMIT),
}
# Of what had ended when the operation was made ($6): whatever fails again is not tried again by it.
_RETRY_PAGE = f"""
WITH page AS MATERIALIZED (
    {{page}}
), wanted AS MATERIALIZED (
    SELECT page.task_id AS id, found.job_id FROM page CROSS JOIN LATERAL (
        SELECT t.job_id FROM aaiclick_queue.tasks t
        WHERE t.id = page.task_id AND t.status = coalesce($3::jsonb->>'status', 'FAILED')
        AND (t.job_id IS NULL OR t.member_gate IS NOT NULL)
        AND t.finished_at <= $6::timestamptz AND {WANTED} OFFSET 0) AS found
    WHERE {{likely}}
), {retry_ended("SELECT id FROM wanted WHERE job_id IS NULL", by="$5::text")}
SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM wanted) AS wanted,
       (SELECT count(*) FROM open) AS taken, (SELECT jsonb_build_array(max(task_id)) FROM page) AS after,
       (SELECT array_agg(DISTINCT job_id) FROM wanted WHERE job_id IS NOT NULL) AS jobs
"""
# The status is read with the page, and only what has it is looked up by its filter: of five million tasks that is few.
RETRY_PAGE = _RETRY_PAGE.replace(
    "{page}",
    """SELECT id AS task_id, status FROM aaiclick_queue.tasks
    WHERE id > coalesce(($1::jsonb->>0)::bigint, 0) AND id <= $4::bigint ORDER BY id LIMIT $2""",
).replace("{likely}", "page.status = coalesce($3::jsonb->>'status', 'FAILED')")
# What is FAILED, by the rows that say so: among all tasks it would be one of fifty that are read.
RETRY_FAILED_PAGE = _RETRY_PAGE.replace(
    "{page}",
    """SELECT task_id, queue, entrypoint FROM aaiclick_queue.failures
    WHERE task_id > coalesce(($1::jsonb->>0)::bigint, 0) AND task_id <= $4::bigint ORDER BY task_id LIMIT $2""",
).replace("{likely}", of_names("page", "$3::jsonb"))
# Of those that failed alike, by their own index.
RETRY_ALIKE_PAGE = _RETRY_PAGE.replace(
    "{page}",
    f"""SELECT task_id FROM aaiclick_queue.failures WHERE {alike("($3::jsonb->>'fingerprint')")}
    AND task_id > coalesce(($1::jsonb->>0)::bigint, 0) AND task_id <= $4::bigint
    ORDER BY fingerprint, task_id LIMIT $2""",
).replace("{likely}", "true")
# Of one job, by its own index.
RETRY_OF_JOB_PAGE = _RETRY_PAGE.replace(
    "{page}",
    """SELECT id AS task_id, status FROM aaiclick_queue.tasks WHERE job_id = ($3::jsonb->>'job_id')::bigint
    AND id > coalesce(($1::jsonb->>0)::bigint, 0) AND id <= $4::bigint ORDER BY job_id, id LIMIT $2""",
).replace("{likely}", "page.status = coalesce($3::jsonb->>'status', 'FAILED')")
# The same for all tasks of one job at once: retried one by one they would be counted as often.
RETRIED_OF_JOB = f"""
SELECT t.id FROM aaiclick_queue.tasks t
WHERE t.job_id = $1::bigint AND t.member_gate IS NOT NULL AND t.status = coalesce($3::jsonb->>'status', 'FAILED')
  AND t.finished_at <= $2::timestamptz AND {WANTED}
"""
