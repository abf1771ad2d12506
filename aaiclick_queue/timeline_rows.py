"""What happened, as statements: event rows, and what the rows of tasks, leases, gates and attempts show.

Part of timelines.py. An ordinary run writes no event: when it got in line, started and ended is on the rows that it
left. A statement looks at a bounded number of rows and gives keys of moments, whose rest is read for a page alone.
"""

from __future__ import annotations

from typing import NamedTuple

from .flow.place import in_line
from .job_nodes import of_job

# The order of what happens in one moment: a task is ready, in line, starts, ends; its job ends after it.
RANKS = {
    "JOB_CREATED": 0, "JOB_REOPENED": 1, "TASK_CLEARED": 2, "TASK_RETRIED": 2, "TASK_READY": 3, "TASK_QUEUED": 4,
    "JOB_STARTED": 5, "TASK_RUNNING": 6, "TASK_CHECKPOINT": 7, "TASK_COMPLETED": 8, "TASK_FAILED": 8, "TASK_LOST": 8,
    "TASK_RETRYING": 9, "JOB_COMPLETED": 12, "JOB_FAILED": 12, "JOB_CANCELLED": 12,
}  # fmt: skip
_OTHER_RANK = 10
_RANKED = ", ".join(f"('{kind}', {rank})" for kind, rank in RANKS.items())
_COLUMNS = "id, job_id, queue, priority, status, run_epoch, wait_gate, created_at, ready_at, started_at, finished_at"
_TASKS_OF = {
    "job": f"SELECT {_COLUMNS} FROM aaiclick_queue.tasks WHERE {of_job('$1')} ORDER BY job_id, id LIMIT $2",
    "task": f"SELECT {_COLUMNS} FROM aaiclick_queue.tasks WHERE id = $1 LIMIT $2",
}
# Runs that did not end their task: those of a job are found by the events that they have written, of a tenth as many
# tasks as are looked at, and 5,000 at most. Each is looked for in every day that is kept: 3,000 took 0.15 s.
_ATTEMPTS_OF = {
    "job": """SELECT a.task_id, a.run_epoch, a.outcome, a.ready_at, a.started_at, a.finished_at
    FROM (SELECT DISTINCT task_id FROM noted
          WHERE kind IN ('TASK_RETRYING', 'TASK_LOST', 'TASK_SNOOZED', 'TASK_UNKNOWN', 'TASK_CLEARED', 'TASK_RETRIED')
             OR (kind = 'TASK_CANCELLED' AND data->>'error' = 'Cleared') LIMIT least(5000, $2::int / 10 + 1)) AS tried
    CROSS JOIN LATERAL (SELECT task_id, run_epoch, outcome, ready_at, started_at, finished_at
                        FROM aaiclick_queue.attempts WHERE task_id = tried.task_id OFFSET 0) AS a LIMIT $3""",
    "task": """SELECT task_id, run_epoch, outcome, ready_at, started_at, finished_at FROM aaiclick_queue.attempts
    WHERE task_id = $1 ORDER BY run_epoch LIMIT $3""",
}
_GATES_OF = {
    "job": "job_id = $1",
    "task": "id = (SELECT wait_gate FROM aaiclick_queue.tasks WHERE id = $1)",
}
# Events of a job older than the history that is kept are read from its own row.
_JOBS_OF = {
    "job": """UNION ALL
    SELECT j.at, j.kind, NULL::bigint, NULL::int, '{}'::jsonb
    FROM (SELECT created_at AS at, 'JOB_CREATED' AS kind FROM aaiclick_queue.jobs WHERE id = $1
          UNION ALL SELECT started_at, 'JOB_STARTED' FROM aaiclick_queue.jobs WHERE id = $1) AS j
    WHERE j.at IS NOT NULL AND NOT EXISTS (
        SELECT FROM aaiclick_queue.events e WHERE e.job_id = $1 AND e.task_id IS NULL AND e.type = j.kind)""",
    "task": "",
}
# LATERAL and OFFSET 0: looked up for open tasks alone. Joined, a plan made the key of a place for all tasks, 0.3 s.
PLACES = f"""LEFT JOIN LATERAL (SELECT run_epoch, ready_at, claimed_at FROM aaiclick_queue.leases
                       WHERE t.status IS NULL AND task_id = t.id OFFSET 0) AS l ON true
    LEFT JOIN LATERAL (SELECT r.run_epoch, r.ready_at FROM aaiclick_queue.ready r
                       WHERE t.status IS NULL AND {in_line("r", "t")} OFFSET 0) AS r ON true"""
_KIND = "CASE WHEN type = 'TASK_CANCELLED' AND data->>'error' = 'Expired' THEN 'TASK_EXPIRED' ELSE type END"
_RUNS = f"""
WITH noted AS MATERIALIZED (
    SELECT created_at AS at, {_KIND} AS kind, task_id, run_epoch, data
    FROM aaiclick_queue.events WHERE {{of}}_id = $1
    {{jobs}}
), run AS MATERIALIZED (
    SELECT t.id AS task_id, coalesce(t.run_epoch, l.run_epoch, r.run_epoch + 1, 0) AS run_epoch, t.status,
           coalesce(t.ready_at, l.ready_at, r.ready_at) AS ready_at, coalesce(t.started_at, l.claimed_at) AS started_at,
           t.finished_at, CASE WHEN t.wait_gate IS NULL THEN t.created_at ELSE g.decided_at END AS opened_at
    FROM ({{tasks}}) AS t
    LEFT JOIN (SELECT id, decided_at FROM aaiclick_queue.gates WHERE {{gates}} AND state = 'OPEN') AS g
        ON g.id = t.wait_gate
    {PLACES}
), tried AS MATERIALIZED ({{attempts}})
"""


class _Shown(NamedTuple):
    """What rows show by themselves: a type of event, when it was, and which rows show it."""

    kind: str
    at: str
    source: str
    so: str
    run_epoch: str = "run_epoch"


_SHOWN = (
    _Shown("TASK_READY", "opened_at", "run", "opened_at <= coalesce(started_at, finished_at, 'infinity')", "0"),
    _Shown("TASK_QUEUED", "ready_at", "run", "ready_at IS NOT NULL"),
    _Shown("TASK_RUNNING", "started_at", "run", "started_at IS NOT NULL"),
    _Shown("TASK_COMPLETED", "finished_at", "run", "status = 'COMPLETED'"),
    _Shown("TASK_FAILED", "finished_at", "run", "status = 'FAILED'"),
    _Shown("TASK_QUEUED", "ready_at", "tried", "ready_at IS NOT NULL AND outcome <> 'UNKNOWN'"),
    _Shown("TASK_RUNNING", "started_at", "tried", "started_at IS NOT NULL AND outcome <> 'UNKNOWN'"),
    _Shown("TASK_COMPLETED", "finished_at", "tried", "outcome = 'COMPLETED'"),
    _Shown("TASK_FAILED", "finished_at", "tried", "outcome IN ('RETRYING', 'FAILED')"),
)
_MOMENT = f"""SELECT n.at, n.kind, coalesce(k.rank, {_OTHER_RANK}) AS rank, coalesce(n.task_id, 0) AS task_id,
             coalesce(n.run_epoch, 0) AS run_epoch, n.data
      FROM noted n LEFT JOIN (VALUES {_RANKED}) AS k(kind, rank) ON k.kind = n.kind"""
_WANTED = "($4::text[] IS NULL OR kind = ANY($4))"
_BEYOND = "($5::timestamptz IS NULL OR (at, rank, task_id, run_epoch) {beyond} ($5, $6::int, $7::bigint, $8::int))"
_ORDER = "ORDER BY at {order}, rank {order}, task_id {order}, run_epoch {order} LIMIT $9"
_SOME = """(SELECT at, kind, rank, task_id, run_epoch, data FROM ({source}) AS m WHERE {wanted} AND {beyond} {order})"""


def _page(of: str, *, beyond: str, order: str) -> str:
    """A page of moments: of each type as many as the page could need, and of those the first."""
    ordered = _ORDER.format(order=order)
    sources = [_MOMENT] + [
        f"""SELECT {one.at} AS at, '{one.kind}' AS kind, {RANKS[one.kind]} AS rank, task_id,
             {one.run_epoch} AS run_epoch, NULL::jsonb AS data FROM {one.source} WHERE {one.so}"""
        for one in _SHOWN
    ]
    some = [
        _SOME.format(source=source, wanted=_WANTED, beyond=_BEYOND.format(beyond=beyond), order=ordered)
        for source in sources
    ]
    return f"""{_runs(of)}
SELECT at, kind, rank, task_id, run_epoch, data FROM (
{" UNION ALL ".join(some)}
) AS moments {ordered}"""


def _summary(of: str) -> str:
    """How many there are of each type, and when the first and the last of them were."""
    counted = ["SELECT kind, count(*) AS n, min(at) AS first, max(at) AS last FROM noted GROUP BY kind"] + [
        f"SELECT '{one.kind}', count(*), min({one.at}), max({one.at}) FROM {one.source} WHERE {one.so}"
        for one in _SHOWN
    ]
    return f"""{_runs(of)}
SELECT kind, sum(n)::bigint AS n, min(first) AS first, max(last) AS last FROM (
{" UNION ALL ".join(counted)}
) AS counted WHERE n > 0 AND {_WANTED} GROUP BY kind"""


def _runs(of: str) -> str:
    return _RUNS.format(of=of, jobs=_JOBS_OF[of], tasks=_TASKS_OF[of], gates=_GATES_OF[of], attempts=_ATTEMPTS_OF[of])


FIRST_MOMENTS = {of: _page(of, beyond=">", order="ASC") for of in _TASKS_OF}
LAST_MOMENTS = {of: _page(of, beyond="<", order="DESC") for of in _TASKS_OF}
COUNTED_MOMENTS = {of: _summary(of) for of in _TASKS_OF}
# What has a row of its own, from the newest back: tasks are not looked at, however many there are.
LAST_NOTED_OF_JOB = f"""
WITH noted AS MATERIALIZED (
    (SELECT created_at AS at, {_KIND} AS kind, task_id, run_epoch, data
     FROM aaiclick_queue.events WHERE job_id = $1 ORDER BY created_at DESC LIMIT $2)
    {_JOBS_OF["job"]}
)
SELECT at, kind, rank, task_id, run_epoch, data FROM ({_MOMENT}) AS moments
ORDER BY at DESC, rank DESC, task_id DESC, run_epoch DESC LIMIT $2
"""
TASKS_NAMED = f"""
SELECT t.id FROM (SELECT id, coalesce(name, entrypoint) AS name FROM aaiclick_queue.tasks
                  WHERE {of_job("$1")} ORDER BY job_id, id LIMIT $3) AS t
WHERE t.name = $2::text LIMIT $4
"""
TASKS_OF_PAGE = """
SELECT t.id, t.name, t.entrypoint, t.queue, t.parent_id, t.group_id, t.wait_gate,
       coalesce(t.attempt, l.attempt) AS attempt, coalesce(t.run_epoch, l.run_epoch) AS run_epoch,
       coalesce(t.worker_id, l.worker_id) AS worker_id, coalesce(t.started_at, l.claimed_at) AS started_at,
       t.finished_at, t.error->>'type' AS error_type, left(t.error->>'message', 300) AS error_message
FROM aaiclick_queue.tasks t LEFT JOIN aaiclick_queue.leases l ON t.status IS NULL AND l.task_id = t.id
WHERE t.id = ANY($1::bigint[])
"""
ATTEMPTS_OF_PAGE = """
SELECT a.task_id, a.run_epoch, a.attempt, a.outcome, a.worker_id, a.started_at, a.finished_at,
       a.error->>'type' AS error_type, left(a.error->>'message', 300) AS error_message
FROM unnest($1::bigint[], $2::int[]) AS wanted(task_id, run_epoch)
JOIN aaiclick_queue.attempts a ON a.task_id = wanted.task_id AND a.run_epoch = wanted.run_epoch
"""
GROUPS_ABOVE = """
WITH RECURSIVE above AS (
    SELECT g.id AS start, g.id, g.parent_group_id FROM aaiclick_queue.groups g WHERE g.id = ANY($1::bigint[])
    UNION
    SELECT above.start, g.id, g.parent_group_id FROM above JOIN aaiclick_queue.groups g ON g.id = above.parent_group_id
)
SELECT start, id FROM above
"""
# By the key's first column: there is no index by what comes next.
OPENED_BY = """
SELECT d.next_id, count(*) AS n, (array_agg(d.previous_id))[1:5] AS first
FROM (SELECT next_id, previous_id FROM aaiclick_queue.dependencies WHERE job_id = $1) AS d
JOIN unnest($2::bigint[]) AS wanted(id) ON wanted.id = d.next_id GROUP BY d.next_id
"""
NAMES = """
SELECT id, coalesce(name, entrypoint) AS name FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[])
UNION ALL SELECT id, name FROM aaiclick_queue.groups WHERE id = ANY($1::bigint[])
"""
_WITH_RETRIES = """
SELECT coalesce(t.name, t.entrypoint) AS name FROM aaiclick_queue.tasks t WHERE t.id = ANY(ARRAY(
    SELECT DISTINCT task_id FROM aaiclick_queue.events WHERE {of}_id = $1 AND type = 'TASK_RETRYING' LIMIT $2))
ORDER BY t.id
"""
TASKS_WITH_RETRIES = {of: _WITH_RETRIES.format(of=of) for of in _TASKS_OF}
TASKS_OF_JOB = "SELECT total FROM aaiclick_queue.gates WHERE id = $1"
JOB_OF_TASK = "SELECT job_id FROM aaiclick_queue.tasks WHERE id = $1"
