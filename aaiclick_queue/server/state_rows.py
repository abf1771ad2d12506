"""The statements behind the gauges: however much there is, each reads a bounded number of rows.

At five million tasks and a million in line they take 11 ms together on two busy cores; counts that would read on end
at a limit, and what lies beyond it is estimated from Postgres' own statistics.
"""

from __future__ import annotations

from ..job_nodes import of_job

# $1: rows of all lines together that are counted, shared out among the queues. $2: names. $3: rows of a place without
# an index by queue. The oldest of a rank need not be its first, so the first twenty are looked at; of the ranks the
# twenty that go first and, where there are others, the ten that go last, for those starve. What a line longer than
# its share has is told as the background has seen it last; a sample beyond 10,000 may have been cut.
QUEUE_STATE = """
WITH RECURSIVE line AS (
    (SELECT queue FROM aaiclick_queue.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
    FROM line WHERE line.queue IS NOT NULL
), over_limit AS (
    (SELECT queue FROM aaiclick_queue.held ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT h.queue FROM aaiclick_queue.held h WHERE h.queue > o.queue ORDER BY h.queue LIMIT 1)
    FROM over_limit o WHERE o.queue IS NOT NULL
), later AS MATERIALIZED (
    SELECT queue, count(*) AS n, count(*) FILTER (WHERE not_before < now() - interval '1 s') AS overdue
    FROM (SELECT queue, not_before FROM aaiclick_queue.delayed ORDER BY not_before, task_id LIMIT $3) AS d
    GROUP BY queue
), leased AS MATERIALIZED (
    SELECT queue, count(*) AS n, min(claimed_at) AS oldest
    FROM (SELECT queue, claimed_at FROM aaiclick_queue.leases LIMIT 3 * $3) AS l GROUP BY queue
), alive AS MATERIALIZED (
    SELECT queues, slots, running FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()
), named AS MATERIALIZED (
    SELECT name FROM (
        SELECT queue AS name FROM line UNION SELECT queue FROM over_limit UNION SELECT queue FROM later
        UNION SELECT queue FROM leased UNION SELECT name FROM aaiclick_queue.queues
        UNION SELECT unnest(queues) FROM alive
    ) AS known WHERE name <> '*' ORDER BY name LIMIT $2
), share AS MATERIALIZED (
    SELECT greatest(100, $1 / greatest(count(*), 1)) AS n FROM named
)
SELECT named.name, coalesce(q.paused_at IS NOT NULL, false) AS paused, q.objective_seconds, share.n AS share,
       CASE WHEN s.ready <= 10000 AND coalesce(q.ready_counted_at < s.minute, true) THEN s.ready
            WHEN q.ready_counted_at > now() - interval '2 minutes' THEN q.ready_count END AS counted,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = named.name
                              LIMIT (SELECT n FROM share)) AS capped) AS ready,
       (SELECT count(*) FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = named.name
                              LIMIT (SELECT n FROM share)) AS capped) AS held,
       (WITH RECURSIVE ranks AS (
            (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name ORDER BY r.rank LIMIT 1)
            UNION ALL
            SELECT (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank > ranks.rank
                    ORDER BY r.rank LIMIT 1)
            FROM ranks WHERE ranks.rank IS NOT NULL
        ), last AS (
            (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name
                 AND (SELECT rank FROM ranks OFFSET 20 LIMIT 1) IS NOT NULL
             ORDER BY r.queue DESC, r.rank DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT r.rank FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank < last.rank
                    ORDER BY r.queue DESC, r.rank DESC LIMIT 1)
            FROM last WHERE last.rank IS NOT NULL)
        SELECT extract(epoch FROM now() - min(first.ready_at))::float8
        FROM ((SELECT rank FROM ranks WHERE rank IS NOT NULL LIMIT 20)
              UNION (SELECT rank FROM last WHERE rank IS NOT NULL LIMIT 10)) AS k
        CROSS JOIN LATERAL (
            SELECT r.ready_at FROM aaiclick_queue.ready r WHERE r.queue = named.name AND r.rank = k.rank
            ORDER BY r.order_key, r.task_id LIMIT 20) AS first) AS oldest_seconds,
       coalesce(later.n, 0) AS delayed, coalesce(later.overdue, 0) AS overdue, coalesce(leased.n, 0) AS running,
       coalesce(extract(epoch FROM now() - leased.oldest)::float8, 0) AS oldest_running,
       (SELECT count(*) FROM alive WHERE named.name = ANY(queues) OR '*' = ANY(queues)) AS consumers,
       (SELECT coalesce(sum(slots), 0) FROM alive WHERE named.name = ANY(queues) OR '*' = ANY(queues))::bigint AS slots,
       (SELECT coalesce(sum(least(running, slots)), 0) FROM alive
        WHERE named.name = ANY(queues) OR '*' = ANY(queues))::bigint AS used
FROM named CROSS JOIN share
LEFT JOIN later ON later.queue = named.name
LEFT JOIN leased ON leased.queue = named.name
LEFT JOIN aaiclick_queue.queues q ON q.name = named.name
LEFT JOIN LATERAL (
    SELECT ready, minute FROM aaiclick_queue.samples WHERE queue = named.name AND minute = ANY(ARRAY[
        date_trunc('minute', now()), date_trunc('minute', now()) - interval '1 min'])
    ORDER BY minute DESC LIMIT 1) AS s ON true
ORDER BY named.name
"""
SYSTEM_STATE = """
SELECT (SELECT count(*) FROM (SELECT FROM aaiclick_queue.outbox LIMIT $1) AS o) AS outbox,
       coalesce(extract(epoch FROM now() - (SELECT created_at FROM aaiclick_queue.outbox ORDER BY id LIMIT 1))::float8,
                0) AS outbox_age,
       (SELECT count(*) FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()) AS active,
       coalesce(extract(epoch FROM now() - (SELECT min(last_heartbeat) FROM aaiclick_queue.workers
                                            WHERE status = 'ACTIVE'))::float8, 0) AS heartbeat_age,
       EXISTS (SELECT FROM aaiclick_queue.loops WHERE name = 'background' AND expires_at > now()) AS is_led,
       EXISTS (SELECT FROM aaiclick_queue.workers WHERE status IN ('ACTIVE', 'STOPPING')
               AND lease_expires_at < now() - interval '60 s') AS is_unreaped,
       coalesce(extract(epoch FROM now() - (SELECT next_run_at FROM aaiclick_queue.registered_jobs
                                            WHERE next_run_at < now() ORDER BY next_run_at LIMIT 1))::float8, 0)
           AS schedule_lag
"""
WORKER_STATES = "SELECT status, count(*) AS n FROM aaiclick_queue.workers GROUP BY status"
OPEN_JOBS = """
SELECT status, count(*) AS n FROM (
    SELECT status FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') ORDER BY id LIMIT $1) AS j
GROUP BY status
"""
# Of the oldest ten that are not paused: what was claimed last, what ended last of the newest tasks and of those that
# stand before the first one in line, and when a gate was decided. No column that an end writes has an index, so ends
# elsewhere are not found here: `mark` is another one whenever the job's gate has counted some. An arrival that nobody
# has counted yet is a change of this moment.
JOB_PROGRESS = f"""
WITH oldest AS MATERIALIZED (
    SELECT id, created_at, started_at FROM aaiclick_queue.jobs
    WHERE status IN ('PENDING', 'RUNNING') AND paused_at IS NULL ORDER BY id LIMIT 10
), running AS MATERIALIZED (
    SELECT order_key, max(claimed_at) AS at
    FROM (SELECT order_key, claimed_at FROM aaiclick_queue.leases LIMIT 6000) AS l GROUP BY order_key
), coming AS MATERIALIZED (
    SELECT g.job_id FROM (SELECT gate_id FROM aaiclick_queue.arrivals ORDER BY id LIMIT 200) AS a
    CROSS JOIN LATERAL (SELECT job_id FROM aaiclick_queue.gates WHERE id = a.gate_id OFFSET 0) AS g
), newest AS MATERIALIZED (
    SELECT oldest.id AS job_id, t.finished_at, t.queue, t.rank FROM oldest CROSS JOIN LATERAL (
        SELECT finished_at, queue, -priority::int AS rank FROM aaiclick_queue.tasks WHERE {of_job("oldest.id")}
        ORDER BY job_id DESC, id DESC LIMIT 30) AS t
), line AS MATERIALIZED (
    SELECT its.job_id, head.task_id
    FROM (SELECT DISTINCT job_id, queue, rank FROM newest LIMIT 50) AS its CROSS JOIN LATERAL (
        SELECT r.task_id FROM aaiclick_queue.ready r
        WHERE r.queue = its.queue AND r.rank = its.rank AND r.order_key = its.job_id
        ORDER BY r.order_key, r.task_id LIMIT 1) AS head
), before AS MATERIALIZED (
    SELECT line.job_id, t.finished_at FROM line CROSS JOIN LATERAL (
        SELECT finished_at FROM aaiclick_queue.tasks WHERE {of_job("line.job_id")} AND id < line.task_id
        ORDER BY job_id DESC, id DESC LIMIT 30) AS t
)
SELECT oldest.id, concat_ws('/', its.xmin, its.total, its.remaining) AS mark,
       CASE WHEN oldest.id IN (SELECT job_id FROM coming) THEN 0 ELSE extract(epoch FROM now() - greatest(
           oldest.created_at, oldest.started_at, running.at,
           (SELECT max(finished_at) FROM newest WHERE newest.job_id = oldest.id),
           (SELECT max(finished_at) FROM before WHERE before.job_id = oldest.id),
           (SELECT max(decided_at) FROM (
               SELECT decided_at FROM aaiclick_queue.gates WHERE {of_job("oldest.id")}
               ORDER BY job_id DESC, id DESC LIMIT 30) AS g))) END::float8 AS age
FROM oldest
LEFT JOIN running ON running.order_key = oldest.id
LEFT JOIN LATERAL (
    SELECT xmin, total, remaining FROM aaiclick_queue.gates WHERE id = oldest.id OFFSET 0) AS its ON true
"""
UNACKNOWLEDGED = """
SELECT queue, count(*) AS n FROM (
    SELECT f.queue FROM aaiclick_queue.failures f
    WHERE f.failed_at > now() - interval '24 h' AND NOT EXISTS (
        SELECT FROM aaiclick_queue.failure_groups g WHERE g.fingerprint = f.fingerprint
        AND (g.acknowledged_at >= f.failed_at OR g.muted_until > now()))
    ORDER BY f.failed_at DESC LIMIT $1) AS failed
GROUP BY queue
"""
AT_GATES = """
SELECT t.queue, count(*) AS n FROM (SELECT task_id FROM aaiclick_queue.waiting LIMIT $1) AS w
CROSS JOIN LATERAL (SELECT queue FROM aaiclick_queue.tasks WHERE id = w.task_id OFFSET 0) AS t GROUP BY t.queue
"""
SCHEDULES = """
SELECT r.name, r.enabled AND NOT r.is_gone AS enabled, extract(epoch FROM r.next_run_at)::float8 AS next,
       (SELECT extract(epoch FROM t.created_at)::float8 FROM aaiclick_queue.ticks t
        WHERE t.registered_job_id = r.id ORDER BY t.registered_job_id, t.fire_at DESC LIMIT 1) AS last
FROM (SELECT id, name, enabled, is_gone, next_run_at FROM aaiclick_queue.registered_jobs ORDER BY id LIMIT $1) AS r
"""
SCHEDULE_STATES = """
SELECT CASE WHEN enabled AND NOT is_gone THEN 'enabled' ELSE 'disabled' END AS state, count(*) AS n
FROM (SELECT enabled, is_gone FROM aaiclick_queue.registered_jobs ORDER BY id LIMIT $1) AS r GROUP BY 1
"""
# How the rows of a place are shared out among queues, as of its last ANALYZE.
LINE_SHARES = """
SELECT queue, share::float8 AS share FROM pg_stats s
CROSS JOIN LATERAL unnest(s.most_common_vals::text::text[], s.most_common_freqs) AS common(queue, share)
WHERE s.schemaname = $1 AND s.tablename = 'ready' AND s.attname = 'queue'
"""
ALARMS = "SELECT kind, count(*) AS n FROM aaiclick_queue.alarms GROUP BY kind"
VIOLATIONS = "SELECT what, data->>'count' AS n FROM aaiclick_queue.alarms WHERE kind = 'invariant'"
# Pages as of the last VACUUM or ANALYZE: asking the file system takes 6 ms for sixty tables and their indexes.
TABLES = """
SELECT coalesce(p.relname, c.relname)::text AS name,
       sum((c.relpages + coalesce((SELECT sum(i.relpages) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
                                   WHERE x.indrelid = c.oid), 0))::bigint * 8192)::bigint AS bytes,
       sum(greatest(s.n_dead_tup, 0))::bigint AS dead, sum(greatest(s.n_live_tup, 0))::bigint AS live
FROM pg_class c
LEFT JOIN pg_inherits h ON h.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = h.inhparent
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND c.relkind = 'r'
GROUP BY 1
"""
# How much of the range of ids is older than the policy, times the share of the oldest thousand that it is over for.
PRUNABLE = """
SELECT (SELECT id FROM aaiclick_queue.tasks ORDER BY id LIMIT 1) AS first,
       (SELECT id FROM aaiclick_queue.tasks ORDER BY id DESC LIMIT 1) AS last,
       (SELECT count(*) FILTER (WHERE finished_at < now() - make_interval(secs => CASE WHEN status = 'FAILED'
                                                                               THEN $2::float8 ELSE $1::float8 END))
        FROM (SELECT finished_at, status FROM aaiclick_queue.tasks WHERE id > 0 ORDER BY id LIMIT 1000) AS oldest)
           AS prunable
"""
