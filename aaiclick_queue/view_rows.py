"""The statements of views.py: tasks in lists, one task, its attempts and events. Each is bounded."""

from __future__ import annotations

from .flow.place import in_line
from .flow.wanted import alike, of_words
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
_OPEN = "t.status IS NULL AND $3::text IS NOT NULL"
_OF_NAMES = """({row}.queue = $4::text OR $4::text IS NULL) AND ($5::text IS NULL OR {row}.entrypoint = $5
  OR right({row}.entrypoint, length($5) + 1) = '.' || $5)"""
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
# A row says of which queue and entrypoint it is: looked up as tasks at first, 50,000 that were not meant took 0.2 s.
_FROM_FAILURES = f"""(SELECT task_id FROM (
    SELECT task_id, queue, entrypoint FROM aaiclick_queue.failures WHERE task_id < $1
    ORDER BY task_id DESC LIMIT $2) AS f WHERE {_OF_NAMES.format(row="f")}) AS p
CROSS JOIN LATERAL (SELECT {_OF_ROW} FROM aaiclick_queue.tasks WHERE id = p.task_id OFFSET 0) AS t"""
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
_ORDERS = {"job": "t.job_id DESC, t.id DESC", "PENDING": "p.task_id DESC", "FAILED": "p.task_id DESC"}
_AFTERWARDS = {"p.task_id DESC": "t.id DESC", "p.id DESC": "t.id DESC"}  # once the page is there
_ALIKE_PAGE = f"""{alike("split_part($7::text, '/', 1)")} AND task_id < $1
        ORDER BY fingerprint DESC, task_id DESC"""
_OF_JOB = "(split_part($7::text, '/', 2) = '' OR job_id = nullif(split_part($7::text, '/', 2), '')::bigint)"
_ALIKE = f"""(SELECT task_id FROM aaiclick_queue.failures WHERE {_ALIKE_PAGE} LIMIT $2) AS p
CROSS JOIN LATERAL (SELECT {_OF_ROW} FROM aaiclick_queue.tasks WHERE id = p.task_id AND {_OF_JOB} OFFSET 0) AS t"""
_SOURCES = {
    "newest": _OF_TASKS.format(page="id < $1 ORDER BY id DESC"),
    "RUNNING": _FROM_PLACE.format(place="leases"),
    "SCHEDULED": _FROM_PLACE.format(place="delayed"),
    "FAILED": _FROM_FAILURES,
    "PENDING": _FROM_HELD_OR_GATES,
    "job": _OF_TASKS.format(page=f"{of_job('$7::bigint')} AND id < $1 ORDER BY job_id DESC, id DESC"),
    "alike": _ALIKE,
}


def _listed(source: str, kind: str, order: str = "t.id DESC", *, words: str = "true") -> str:
    """A page of those that are wanted, looked at one by one; and only then the places of what is on it."""
    is_at = _IS_AT[kind] if kind in (ANY, ENDED) else f"{_OPEN} AND {_IS_AT[kind]}"
    page = f"""SELECT {_OF_T} FROM {source}
WHERE {is_at} AND {_OF_NAMES.format(row="t")} AND {words}
ORDER BY {order} LIMIT $6"""
    return f"SELECT {_COLUMNS}\nFROM ({page}) AS t\n{PLACES}\nORDER BY {_AFTERWARDS.get(order, order)}"


def _with_words(source: str) -> str:
    """The source with the columns of words that are rarely asked for, which other statements need not read."""
    source = source.replace("status, name,", "status, concurrency_key, correlation_id, name,")
    return source.replace("r.kwargs, r.status,", "r.kwargs, r.concurrency_key, r.correlation_id, r.status,")


def _which(source: str) -> str:
    """The parameter of sources that take one, where the source does not."""
    return "true" if "$7" in source else "$7::text IS NULL"


def _searched(source: str, kind: str, *, words: str = "true") -> str:
    """A part of the source: which of it are meant, how many were passed, and the last of them.

    What a row says by itself comes first, then its arguments, and its place is looked up for the few that match.
    """
    source = source.replace("id, status,", "id, kwargs, status,")
    own, place = (_IS_AT[kind], "true") if kind in (ANY, ENDED) else (_OPEN, _IS_AT[kind])
    hit = f"{own} AND {_OF_NAMES.format(row='t')} AND {words} AND {_which(source)} AND {HIT} AND {place}"
    return f"""WITH looked AS MATERIALIZED (SELECT t.id, {hit} AS is_hit FROM {source})
SELECT ARRAY(SELECT id FROM looked WHERE is_hit ORDER BY id DESC LIMIT $6) AS ids, count(*) AS passed, min(id) AS last
FROM looked"""


def kind_of(status: str | None) -> str:
    """Which of the statements lists tasks of a status."""
    return ANY if status is None else status if status in _IS_AT else ENDED


LISTED = {
    (name, kind): _listed(source, kind, _ORDERS.get(name, "t.id DESC"))
    for name, source in _SOURCES.items()
    for kind in _IS_AT
}
LISTED_BY_WORDS = {
    (name, kind): _listed(
        _with_words(source),
        kind,
        _ORDERS.get(name, "t.id DESC"),
        words=f"{_which(source)} AND {of_words('$8::jsonb')}",
    )
    for name, source in _SOURCES.items()
    for kind in _IS_AT
}
# Parts of one source follow each other by id, which those of two places would not: what is held is found among all.
# Each of a part is told of, also one that has no task or is not meant: it ends where fewer are told of than asked for.
_PART = """(SELECT p.task_id AS id, {columns}
    FROM (SELECT task_id{more} FROM aaiclick_queue.{place} WHERE {page} LIMIT $2) AS p
    LEFT JOIN LATERAL (SELECT {row} FROM aaiclick_queue.tasks WHERE id = p.task_id AND {meant} OFFSET 0) AS r ON true
) AS t"""


def _part(place: str, page: str = "task_id < $1 ORDER BY task_id DESC", *, more: str = "", meant: str = "true") -> str:
    columns = ", ".join(f"r.{name}" for name in ("kwargs", *_NAMES[1:]))
    return _PART.format(columns=columns, place=place, page=page, more=more, row=_OF_ROW, meant=meant)


_SEARCHED_IN = {
    "newest": _SOURCES["newest"],
    "PENDING": _SOURCES["newest"],
    "job": _SOURCES["job"],
    "RUNNING": _part("leases"),
    "SCHEDULED": _part("delayed"),
    "FAILED": _part("failures", more=", queue, entrypoint", meant=_OF_NAMES.format(row="p")),
    "alike": _part("failures", _ALIKE_PAGE, meant=_OF_JOB),
}
SEARCHED = {(name, kind): _searched(source, kind) for name, source in _SEARCHED_IN.items() for kind in _IS_AT}
SEARCHED_BY_WORDS = {
    (name, kind): _searched(_with_words(source), kind, words=of_words("$13::jsonb"))
    for name, source in _SEARCHED_IN.items()
    for kind in _IS_AT
}
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
