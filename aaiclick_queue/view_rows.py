"""The statements of views.py: tasks in lists, one task, its attempts and events. Each is bounded."""

from __future__ import annotations

from .flow.place import in_line
from .flow.wanted import alike
from .job_nodes import of_job
from .searching import HIT

PLACES = f"""
LEFT JOIN aaiclick_queue.leases l ON t.status IS NULL AND l.task_id = t.id
LEFT JOIN aaiclick_queue.delayed d ON t.status IS NULL AND d.task_id = t.id
LEFT JOIN aaiclick_queue.held h ON t.status IS NULL AND h.task_id = t.id
LEFT JOIN aaiclick_queue.waiting w ON t.status IS NULL AND w.gate_id = t.wait_gate AND w.task_id = t.id
LEFT JOIN aaiclick_queue.ready r ON t.status IS NULL AND {in_line("r", "t")}
"""
_STATUS = """coalesce(t.status, CASE WHEN l.task_id IS NOT NULL THEN 'RUNNING'
                                WHEN d.task_id IS NOT NULL THEN 'SCHEDULED'
                                WHEN h.task_id IS NOT NULL OR w.task_id IS NOT NULL THEN 'PENDING'
                                WHEN r.task_id IS NOT NULL THEN 'QUEUED' END)"""
_WHY_HELD = """CASE WHEN h.task_id IS NULL THEN NULL WHEN h.chain <> '' THEN format('order_by %s', h.chain)
            ELSE coalesce((SELECT CASE m.scope WHEN 'job' THEN 'job ' ELSE '' END || 'paused'
                                  || coalesce(': ' || m.reason, '') FROM aaiclick_queue.limits m
                           WHERE m.kind = 'pause' AND (m.scope = 'task' AND m.name = h.entrypoint
                                 OR m.scope = 'job' AND m.name = split_part(h.crowd, '/', 1))
                           ORDER BY m.scope LIMIT 1),
                          CASE WHEN h.crowd LIKE '%/%' THEN 'max_parallel' ELSE 'limit' END) END"""
_REASON = f"coalesce(d.reason, {_WHY_HELD}, CASE WHEN w.task_id IS NOT NULL THEN 'other tasks of its job' END)"
# Whether a task is where it is asked for, by the one place that says so: with the joins of all places, listing what is
# queued behind 100,000 others touched 800,000 pages, five times as many.
ANY, ENDED = "ANY", "ENDED"
_IS_AT = {
    ANY: "$3::text IS NULL",
    ENDED: "t.status = $3::text",
    "RUNNING": "EXISTS (SELECT FROM aaiclick_queue.leases p WHERE p.task_id = t.id)",
    "SCHEDULED": "EXISTS (SELECT FROM aaiclick_queue.delayed p WHERE p.task_id = t.id)",
    "PENDING": """(EXISTS (SELECT FROM aaiclick_queue.held p WHERE p.task_id = t.id) OR EXISTS (
        SELECT FROM aaiclick_queue.waiting p WHERE p.gate_id = t.wait_gate AND p.task_id = t.id))""",
    "QUEUED": f"EXISTS (SELECT FROM aaiclick_queue.ready p WHERE {in_line('p', 't')})",
}
_OPEN = "t.status IS NULL AND $3::text IS NOT NULL AND "
_CHOSEN = """
SELECT {columns} FROM {source}
WHERE {is_at} AND ($4::text IS NULL OR t.queue = $4)
  AND ($5::text IS NULL OR t.entrypoint = $5 OR right(t.entrypoint, length($5) + 1) = '.' || $5)
"""
_COLUMNS = f"""t.id::text AS id, {_STATUS} AS status, t.name, t.entrypoint, t.queue, t.priority,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt, t.max_attempts, t.created_at,
       coalesce(t.started_at, l.claimed_at) AS started_at, t.finished_at,
       coalesce(t.worker_id, l.worker_id)::text AS worker_id, d.not_before, {_REASON} AS reason,
       t.error->>'type' AS error_type, left(t.error->>'message', 300) AS error_message, t.job_id::text AS job_id,
       coalesce(t.ready_at, l.ready_at, r.ready_at) AS ready_at, now() AS read_at"""
_FROM_PLACE = """(SELECT task_id FROM aaiclick_queue.{place} WHERE task_id < $1 ORDER BY task_id DESC LIMIT $2) AS p
JOIN aaiclick_queue.tasks t ON t.id = p.task_id"""
_NAMES = (
    *("id", "status", "name", "entrypoint", "queue", "priority", "attempt", "max_attempts", "created_at", "ready_at"),
    *("started_at", "finished_at", "worker_id", "error", "job_id", "wait_gate"),
)
_OF_ROW = ", ".join(_NAMES)
_OF_T = ", ".join(f"t.{name}" for name in _NAMES)
# What waits at gates has no index by task, so it is looked for among the newest. LATERAL and OFFSET 0: each is looked
# up by its id; joined, four million tasks were read in the order of the list.
_FROM_HELD_OR_GATES = f"""(SELECT task_id FROM (
    (SELECT task_id FROM aaiclick_queue.held WHERE task_id < $1 ORDER BY task_id DESC LIMIT $2)
    UNION ALL
    SELECT id FROM (SELECT id, status, wait_gate FROM aaiclick_queue.tasks WHERE id < $1 ORDER BY id DESC LIMIT $2) AS n
    WHERE n.status IS NULL AND EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = n.wait_gate
                                       AND w.task_id = n.id)) AS u
    ORDER BY task_id DESC) AS p
CROSS JOIN LATERAL (SELECT {_OF_ROW} FROM aaiclick_queue.tasks WHERE id = p.task_id OFFSET 0) AS t"""
_OF_TASKS = f"(SELECT {_OF_ROW} FROM aaiclick_queue.tasks WHERE {{page}} LIMIT $2) AS t"
# Those that failed alike; $7 is their fingerprint, and behind a slash their job.
_ORDERS = {"job": "t.job_id DESC, t.id DESC", "PENDING": "p.task_id DESC"}
_AFTERWARDS = {"p.task_id DESC": "t.id DESC", "p.id DESC": "t.id DESC"}  # once the page is there
_ALIKE = f"""(SELECT task_id FROM aaiclick_queue.failures WHERE {alike("split_part($7::text, '/', 1)")}
        AND task_id < $1 ORDER BY fingerprint DESC, task_id DESC LIMIT $2) AS p
CROSS JOIN LATERAL (SELECT {_OF_ROW} FROM aaiclick_queue.tasks WHERE id = p.task_id AND (
    split_part($7::text, '/', 2) = '' OR job_id = nullif(split_part($7::text, '/', 2), '')::bigint) OFFSET 0) AS t"""
_SOURCES = {
    "newest": _OF_TASKS.format(page="id < $1 ORDER BY id DESC"),
    "RUNNING": _FROM_PLACE.format(place="leases"),
    "SCHEDULED": _FROM_PLACE.format(place="delayed"),
    "FAILED": _FROM_PLACE.format(place="failures"),
    "PENDING": _FROM_HELD_OR_GATES,
    "job": _OF_TASKS.format(page=f"{of_job('$7::bigint')} AND id < $1 ORDER BY job_id DESC, id DESC"),
    "alike": _ALIKE,
}


def _chosen(source: str, kind: str, columns: str) -> str:
    """Those of the source that are wanted, looked at one by one until there are enough."""
    is_at = _IS_AT[kind] if kind in (ANY, ENDED) else _OPEN + _IS_AT[kind]
    return _CHOSEN.format(columns=columns, source=source, is_at=is_at)


def _listed(source: str, kind: str, order: str = "t.id DESC") -> str:
    """A page, and only then the places of what is on it."""
    page = f"{_chosen(source, kind, _OF_T)}ORDER BY {order} LIMIT $6"
    return f"SELECT {_COLUMNS}\nFROM ({page}) AS t\n{PLACES}\nORDER BY {_AFTERWARDS.get(order, order)}"


def _searched(source: str, kind: str) -> str:
    source = source.replace("status, name,", "status, kwargs, name,")
    hit = HIT if "$7" in source else f"{HIT} AND $7::text IS NULL"
    looked = _chosen(source, kind, f"t.id, {hit} AS is_hit")
    return f"""WITH looked AS MATERIALIZED ({looked})
SELECT (SELECT count(*) FROM looked) AS searched,
       ARRAY(SELECT id FROM looked WHERE is_hit ORDER BY id DESC LIMIT $6) AS ids"""


def kind_of(status: str | None) -> str:
    """Which of the statements lists tasks of a status."""
    return ANY if status is None else status if status in _IS_AT else ENDED


LISTED = {
    (name, kind): _listed(source, kind, _ORDERS.get(name, "t.id DESC"))
    for name, source in _SOURCES.items()
    for kind in _IS_AT
}
SEARCHED = {(name, kind): _searched(source, kind) for name, source in _SOURCES.items() for kind in _IS_AT}
_IN_ORDER = _OF_TASKS.format(page=f"{of_job('$7::bigint')} AND id > $1 ORDER BY job_id, id")
FIRST_OF_JOB = {kind: _listed(_IN_ORDER, kind, "t.job_id, t.id") for kind in _IS_AT}
# One by one, as above: joined, all five million tasks were read in their order, 20 s for a search that found one.
TASKS_BY_ID = _listed(
    f"""(SELECT id FROM unnest($7::bigint[]) AS u(id) WHERE id < $1 AND $2::int > 0 ORDER BY id DESC) AS p
CROSS JOIN LATERAL (SELECT {_OF_ROW} FROM aaiclick_queue.tasks WHERE id = p.id OFFSET 0) AS t""",
    ANY,
    "p.id DESC",
)
_BEYOND = "SELECT id FROM aaiclick_queue.tasks WHERE {page} OFFSET $2 LIMIT 1"
BEYOND_SCAN = _BEYOND.format(page="id < $1 ORDER BY id DESC")
BEYOND_IN_JOB = _BEYOND.format(page=f"{of_job('$3::bigint')} AND id < $1 ORDER BY job_id DESC, id DESC")
BEYOND_FAILED = """
SELECT task_id FROM aaiclick_queue.failures WHERE task_id < $1 ORDER BY task_id DESC OFFSET $2 LIMIT 1
"""
BEYOND_ALIKE = f"""
SELECT task_id FROM aaiclick_queue.failures WHERE {alike("split_part($3::text, '/', 1)")} AND task_id < $1
ORDER BY fingerprint DESC, task_id DESC OFFSET $2 LIMIT 1
"""

# The children first and then their order: asked for both at once, four million tasks were read in the order of ids.
TASK = f"""
SELECT t.id::text AS id, {_STATUS} AS status, t.name, t.entrypoint, t.queue, t.priority, t.kwargs, t.result, t.error,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt, t.max_attempts,
       coalesce(t.run_epoch, l.run_epoch, d.run_epoch, h.run_epoch, r.run_epoch) AS run_epoch,
       coalesce(l.lost_count, d.lost_count, h.lost_count, r.lost_count) AS lost_count,
       coalesce(l.snoozes, d.snoozes, h.snoozes, r.snoozes) AS snoozes, t.concurrency_key, t.order_by, t.keep, t.hooks,
       t.timeout_seconds::float8 AS timeout_seconds, t.retry, t.correlation_id, t.metadata,
       t.parent_id::text AS parent_id,
       t.created_at, t.eta, t.expires_at, coalesce(t.started_at, l.claimed_at) AS started_at, t.finished_at,
       coalesce(t.worker_id, l.worker_id)::text AS worker_id,
       coalesce(t.ready_at, r.ready_at, l.ready_at) AS ready_at, l.claimed_at, l.deadline_at, d.not_before, h.held_at,
       {_REASON} AS reason, now() AS read_at,
       EXISTS (SELECT FROM aaiclick_queue.slots s WHERE s.task_id = t.id AND s.stopping > 0) AS stopping,
       (SELECT k.key FROM aaiclick_queue.dedupe k WHERE k.task_id = t.id AND k.scope NOT LIKE 'http %' LIMIT 1)
           AS dedupe_key,
       (SELECT p.data FROM aaiclick_queue.progress p WHERE p.task_id = t.id) AS progress,
       (SELECT c.data FROM aaiclick_queue.checkpoints c WHERE c.task_id = t.id) AS checkpoint,
       ARRAY(SELECT c.id::text FROM (SELECT id FROM aaiclick_queue.tasks WHERE parent_id = t.id LIMIT 10000) AS c
             ORDER BY c.id LIMIT 100) AS children
FROM aaiclick_queue.tasks t
{PLACES}
WHERE t.id = $1
"""
ATTEMPTS = """
SELECT run_epoch, attempt, outcome, worker_id::text AS worker_id, started_at, finished_at, error, ready_at
FROM aaiclick_queue.attempts WHERE task_id = $1 ORDER BY run_epoch DESC LIMIT $2
"""
EVENTS = """
SELECT created_at, type, run_epoch, data FROM aaiclick_queue.events WHERE task_id = $1 ORDER BY created_at DESC LIMIT $2
"""
TASKS_ENDING_IN = """
SELECT id FROM (SELECT id FROM aaiclick_queue.tasks ORDER BY id DESC LIMIT $3) AS t WHERE id % $2 = $1 LIMIT 2
"""
TASK_EXISTS = "SELECT id FROM aaiclick_queue.tasks WHERE id = $1"
