"""What an explanation looks at: statements about one task, each bounded. Part of explaining.py."""

from __future__ import annotations

from .view_rows import PLACES

COUNT_LIMIT = 10_000
SERVING_LIMIT = 200
SHOWN = 5
ALIKE_LIMIT = 1000

EXPLAINED = f"""
SELECT t.id, t.status, t.name, t.entrypoint, t.queue, t.priority, t.job_id, t.concurrency_key, t.max_attempts,
       t.created_at, t.finished_at, t.error->>'type' AS error_type, left(t.error->>'message', 300) AS error_message,
       coalesce(t.attempt, l.attempt, d.attempt, h.attempt, r.attempt, 0) AS attempt,
       coalesce(l.lost_count, d.lost_count, h.lost_count, r.lost_count, 0) AS lost_count,
       coalesce(t.worker_id, l.worker_id) AS worker_id, l.claimed_at, l.deadline_at, d.not_before, d.reason AS delay,
       h.held_at, h.order_key AS held_key, h.chain, h.crowd, w.task_id IS NOT NULL AS at_gate, g.total, g.remaining,
       r.rank, r.order_key, r.ready_at, q.paused_at AS queue_paused_at, q.paused_by AS queue_paused_by,
       q.reason AS queue_reason, j.name AS job_name, j.status AS job_status, j.paused_at AS job_paused_at,
       j.paused_by AS job_paused_by, j.reason AS job_reason, j.failing_at, j.error->>'message' AS job_error,
       now() AS read_at
FROM aaiclick_queue.tasks t
{PLACES}
LEFT JOIN aaiclick_queue.gates g ON w.task_id IS NOT NULL AND g.id = t.wait_gate
LEFT JOIN aaiclick_queue.queues q ON q.name = t.queue
LEFT JOIN aaiclick_queue.jobs j ON j.id = t.job_id
WHERE t.id = $1
"""
LAST_ATTEMPT = """
SELECT attempt, outcome, error->>'type' AS error_type, left(error->>'message', 300) AS error_message, finished_at
FROM aaiclick_queue.attempts WHERE task_id = $1 ORDER BY run_epoch DESC LIMIT 1
"""
# A worker that has not said which tasks it knows may know this one.
SERVING = f"""
SELECT w.id::text AS id, w.hostname, w.version, w.slots,
       (SELECT count(*) FROM aaiclick_queue.leases l WHERE l.worker_id = w.id) AS running,
       w.entrypoints IS NULL OR $2::text = ANY(w.entrypoints) OR starts_with($2::text, 'aaiclick_queue.') AS has_code
FROM aaiclick_queue.workers w
WHERE w.status = 'ACTIVE' AND w.lease_expires_at > now() AND ($1::text = ANY(w.queues) OR '*' = ANY(w.queues))
ORDER BY w.id LIMIT {SERVING_LIMIT}
"""
LAST_SERVED = """
SELECT max(last_heartbeat) AS at FROM aaiclick_queue.workers WHERE $1::text = ANY(queues) OR '*' = ANY(queues)
"""
LIMITS_OF_TASK = f"""
SELECT m.id, m.scope, m.name, m.kind, m.per_key, m.n, m.seconds, m.until, m.made_by, m.reason, m.created_at,
       used.n AS used, used.next_end, used.holders
FROM (VALUES ('queue', $1::text), ('task', $2::text), ('key', $3::text), ('job', $4::text)) AS its(scope, name)
JOIN aaiclick_queue.limits m ON m.scope = its.scope AND m.name = its.name
CROSS JOIN LATERAL (
    SELECT count(*) AS n, extract(epoch FROM min(s.ends_at) - now())::float8 AS next_end,
           (array_agg(s.task_id::text))[1:{SHOWN}] AS holders
    FROM (SELECT s.task_id, s.ends_at FROM aaiclick_queue.slots s WHERE s.limit_id = m.id
          AND (m.kind = 'fair' OR s.key = CASE WHEN m.per_key THEN coalesce($3::text, '') ELSE '' END)
          AND (s.ends_at IS NULL OR s.ends_at > now()) LIMIT {COUNT_LIMIT}) AS s) AS used
WHERE (m.until IS NULL OR m.until > now()) AND (NOT m.per_key OR $3::text IS NOT NULL)
ORDER BY m.kind, m.scope, m.id
"""
CAPS_USED = f"""
SELECT cap.id, (SELECT g.name FROM aaiclick_queue.groups g WHERE g.id = cap.id) AS group_name, used.n AS used,
       used.holders
FROM unnest($1::bigint[]) WITH ORDINALITY AS cap(id, at)
CROSS JOIN LATERAL (
    SELECT count(*) AS n, (array_agg(s.task_id::text))[1:{SHOWN}] AS holders
    FROM (SELECT s.task_id FROM aaiclick_queue.slots s WHERE s.limit_id = cap.id LIMIT {COUNT_LIMIT}) AS s) AS used
ORDER BY cap.at
"""
# Who has the turn of a strict order, or is before this one in it.
TURN_OF_ORDER = """
SELECT s.task_id::text AS id, t.status, t.name, t.entrypoint FROM aaiclick_queue.slots s
LEFT JOIN aaiclick_queue.tasks t ON t.id = s.task_id
WHERE s.limit_id = 0 AND s.key = $1::text AND s.task_id <> $3::bigint
UNION ALL
(SELECT h.task_id::text, t.status, t.name, t.entrypoint FROM aaiclick_queue.held h
 JOIN aaiclick_queue.tasks t ON t.id = h.task_id
 WHERE h.chain = $1::text AND h.chain <> '' AND (h.order_key, h.task_id) < ($2::bigint, $3::bigint)
 ORDER BY h.chain, h.order_key, h.task_id LIMIT 1)
LIMIT 1
"""
POSITION = f"""
SELECT (SELECT count(*) FROM (
            SELECT FROM aaiclick_queue.ready r WHERE r.queue = $1::text
            AND (r.rank, r.order_key, r.task_id) < ($2::int, $3::bigint, $4::bigint) LIMIT {COUNT_LIMIT + 1}) AS line
       ) AS ahead, done.n AS done, extract(epoch FROM now() - done.since)::float8 AS seconds
FROM (SELECT sum(f.completed + f.failed + f.retried + f.cancelled + f.snoozed) AS n, min(f.minute) AS since
      FROM aaiclick_queue.figures f
      WHERE f.minute >= now() - interval '10 minutes' AND f.queue = $1::text) AS done
"""
NOT_RELAYED = """
SELECT extract(epoch FROM clock_timestamp() - o.created_at)::float8 AS age
FROM (SELECT created_at, queue, n, task_ids FROM aaiclick_queue.outbox ORDER BY id LIMIT 1000) AS o
WHERE o.queue = $1::text AND ($2::bigint = ANY(o.task_ids) OR o.n > cardinality(o.task_ids)) LIMIT 1
"""
WORKER_OF_RUN = """
SELECT status, hostname, pid, last_heartbeat, lease_expires_at, now() AS read_at
FROM aaiclick_queue.workers WHERE id = $1
"""
BACKGROUND_LIVES = "SELECT EXISTS (SELECT FROM aaiclick_queue.loops WHERE name = 'background' AND expires_at > now())"
FAILED_MEMBER = """
SELECT m.id, m.name, m.status FROM (
    SELECT id, name, status FROM aaiclick_queue.tasks WHERE group_id = $1 ORDER BY group_id, map_index, id LIMIT 10000
) AS m WHERE m.status IN ('FAILED', 'CANCELLED', 'UPSTREAM_FAILED')
ORDER BY array_position(ARRAY['FAILED', 'CANCELLED', 'UPSTREAM_FAILED'], m.status) LIMIT 1
"""
ERROR_OF = """
SELECT id::text AS id, name, entrypoint, status, error->>'type' AS error_type,
       left(error->>'message', 300) AS error_message FROM aaiclick_queue.tasks WHERE id = $1
"""
CANCELS_JOB = """
SELECT id FROM aaiclick_queue.operations WHERE status = 'OPEN' AND kind = 'cancel_job' AND filter->>'job' = $1::text
LIMIT 1
"""
SAME_FAILURES = f"""
SELECT f.fingerprint, (SELECT count(*) FROM (SELECT FROM aaiclick_queue.failures s WHERE s.fingerprint = f.fingerprint
                                             LIMIT {ALIKE_LIMIT}) AS alike) AS n
FROM aaiclick_queue.failures f WHERE f.task_id = $1
"""
# What a new limit's operation waits for: SEEN_BY_ALL of flow/operate.py. Nothing for a role that may not see others.
OLDER_TRANSACTION = """
SELECT a.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds, a.application_name
FROM aaiclick_queue.operations o
JOIN aaiclick_queue.limits m ON m.id = (o.arguments->>'limit_id')::bigint
CROSS JOIN pg_stat_activity a
WHERE o.id = $1::bigint AND o.status = 'OPEN' AND o.kind = 'limit' AND a.pid <> pg_backend_pid()
  AND age(a.backend_xid) >= (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint - m.made_xid
ORDER BY a.xact_start LIMIT 1
"""
