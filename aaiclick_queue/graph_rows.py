"""The nodes of a job as statements, a bounded number of rows for any job. Part of job_graphs.py.

Tasks that wait at one gate, tell one gate and have one name are alike: a job of many is read folded by that.
"""

from __future__ import annotations

from .flow.place import in_line
from .job_nodes import of_job

GROUPS = """
SELECT p.id, p.parent_group_id, p.name, p.mapped, p.max_parallel, p.entry_gate, p.rule, p.created_at, p.spawned_by,
       g.total, g.remaining, g.failed, g.skipped, g.decided_at
FROM aaiclick_queue.groups p JOIN aaiclick_queue.gates g ON g.id = p.id
WHERE p.job_id = $1 ORDER BY p.job_id, p.id LIMIT $2
"""
# How many items a map has is its last index, which an index has; who made them has none.
MAPS = """
SELECT wanted.id, coalesce(items.last + 1, 0) AS items, expander.id AS expander, expander.status AS expander_status,
       coalesce(expander.wait_gate, (SELECT wait_gate FROM aaiclick_queue.tasks WHERE group_id = wanted.id
                                     AND map_index = 0 LIMIT 1)) AS wait_gate,
       (SELECT min(started_at) FROM (SELECT started_at FROM aaiclick_queue.tasks WHERE group_id = wanted.id
                                     ORDER BY group_id, map_index LIMIT 200) AS first) AS started_at
FROM unnest($1::bigint[]) AS wanted(id)
CROSS JOIN LATERAL (SELECT max(map_index) AS last FROM aaiclick_queue.tasks WHERE group_id = wanted.id) AS items
LEFT JOIN LATERAL (
    SELECT id, coalesce(status, 'OPEN') AS status, wait_gate FROM aaiclick_queue.tasks
    WHERE group_id = wanted.id AND map_index IS NULL AND entrypoint = 'aaiclick_queue.expand' LIMIT 1
) AS expander ON true
"""
RUNNING_IN_GROUPS = """
SELECT t.group_id, count(*) AS n, min(l.claimed_at) AS since
FROM (SELECT task_id, claimed_at FROM aaiclick_queue.leases WHERE flags & 128 = 128 LIMIT 10000) AS l
CROSS JOIN LATERAL (SELECT group_id FROM aaiclick_queue.tasks WHERE id = l.task_id AND job_id = $1 OFFSET 0) AS t
GROUP BY t.group_id
"""
# In a job that is one map and little else, most of its tasks are only passed over. What has left the job, because the
# task that had added it runs again, is a member of nothing.
_TASKS = """SELECT id, name, entrypoint, queue, priority, job_id, group_id, parent_id, wait_gate, exit_gate, after_gate,
             rule, critical, status, attempt, max_attempts, ready_at, started_at, finished_at
      FROM aaiclick_queue.tasks
      WHERE {of_job} AND member_gate IS NOT NULL AND (group_id IS NULL OR group_id <> ALL($2::bigint[]))
      ORDER BY job_id, id LIMIT {limit}"""
NODES = f"""
SELECT t.id, t.name, t.entrypoint, t.group_id, t.parent_id, t.wait_gate, t.exit_gate, t.after_gate, t.rule, t.critical,
       coalesce(t.status, CASE WHEN l.task_id IS NOT NULL THEN 'RUNNING' WHEN d.task_id IS NOT NULL THEN 'SCHEDULED'
                               WHEN r.task_id IS NOT NULL THEN 'QUEUED' ELSE 'PENDING' END) AS status,
       coalesce(t.attempt, l.attempt, d.attempt) AS attempt, t.max_attempts,
       coalesce(t.started_at, l.claimed_at) AS started_at, t.finished_at, coalesce(t.ready_at, r.ready_at) AS ready_at,
       d.not_before, coalesce(d.reason, CASE WHEN h.task_id IS NOT NULL THEN 'held' END) AS reason,
       (SELECT p.data FROM aaiclick_queue.progress p WHERE l.task_id IS NOT NULL AND p.task_id = t.id) AS progress
FROM ({_TASKS.format(of_job=of_job("$1"), limit="$3")}) AS t
LEFT JOIN LATERAL (SELECT task_id, attempt, claimed_at FROM aaiclick_queue.leases
                   WHERE t.status IS NULL AND task_id = t.id OFFSET 0) AS l ON true
LEFT JOIN LATERAL (SELECT task_id, attempt, not_before, reason FROM aaiclick_queue.delayed
                   WHERE t.status IS NULL AND task_id = t.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT task_id FROM aaiclick_queue.held
                   WHERE t.status IS NULL AND task_id = t.id OFFSET 0) AS h ON true
LEFT JOIN LATERAL (SELECT r.task_id, r.ready_at FROM aaiclick_queue.ready r
                   WHERE t.status IS NULL AND {in_line("r", "t")} OFFSET 0) AS r ON true
ORDER BY t.id
"""
_FOLDS = f"""
SELECT min(id) AS id, name, group_id, {{gates}} NULL::text AS rule, count(*) AS count, min(parent_id) AS parent_id,
       count(*) FILTER (WHERE status = 'COMPLETED') AS completed,
       count(*) FILTER (WHERE status = 'FAILED') AS failed,
       count(*) FILTER (WHERE status = 'UPSTREAM_FAILED') AS upstream_failed,
       count(*) FILTER (WHERE status = 'CANCELLED') AS cancelled, count(*) FILTER (WHERE status = 'SKIPPED') AS skipped,
       count(*) FILTER (WHERE running) AS running, count(*) FILTER (WHERE status IS NULL AND NOT running) AS open,
       min(started_at) AS started_at, max(finished_at) AS finished_at
FROM (SELECT t.id, regexp_replace(coalesce(t.name, t.entrypoint), '(#\\d+|\\[\\d+\\])$', '') AS name, t.group_id,
             t.parent_id, t.wait_gate, t.exit_gate, t.after_gate, t.status, t.finished_at,
             coalesce(t.started_at, l.claimed_at) AS started_at, l.task_id IS NOT NULL AS running
      FROM ({_TASKS.format(of_job=of_job("$1"), limit="$4")}) AS t
      LEFT JOIN LATERAL (SELECT task_id, claimed_at FROM aaiclick_queue.leases
                         WHERE t.status IS NULL AND task_id = t.id OFFSET 0) AS l ON true) AS looked
GROUP BY name, group_id{{by}} ORDER BY min(id) LIMIT $3
"""
FOLDED_NODES = _FOLDS.format(
    gates="wait_gate, exit_gate, after_gate,",
    by=", wait_gate, exit_gate, after_gate",
)
# Gates of one of them stand for those of all: where each waits for another one, no two have the same.
NAMED_NODES = _FOLDS.format(
    gates="min(wait_gate) AS wait_gate, min(exit_gate) AS exit_gate, NULL::bigint AS after_gate,", by=""
)
EDGES = """
SELECT gate_id, next_gate_id, choices FROM aaiclick_queue.gate_edges WHERE gate_id = ANY($1::bigint[])
ORDER BY gate_id, next_gate_id LIMIT $2
"""
# A node that always runs waits at no gate: what comes before it is known by its dependencies alone.
BEFORE_NODES = """
SELECT previous_id, next_id FROM aaiclick_queue.dependencies WHERE job_id = $1 AND next_id = ANY($2::bigint[]) LIMIT $3
"""
FAILED_TASKS = f"""
SELECT id, coalesce(name, entrypoint) AS name, attempt, error->>'type' AS error_type,
       left(error->>'message', 1000) AS error_message, critical IS NOT FALSE AS critical
FROM aaiclick_queue.tasks WHERE {of_job("$1")} AND status = 'FAILED' ORDER BY job_id, id LIMIT $2
"""
