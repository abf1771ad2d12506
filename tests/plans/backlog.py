"""Much work in a database: a long line, many runs of other workers, delays, unread wake-ups and history."""

from __future__ import annotations

# Of each kind many times what a statement may read (test_plans.py), and no more: rows that nobody reads prove nothing,
# and the fewer there are, the sooner a planner that is let would walk over all of them.
ENDED, LEASED, DELAYED, READY, TOLD = 20_000, 20_000, 20_000, 60_000, 20_000
HELD, FIGURES, EVENTS, OPERATIONS = 40_000, 45_000, 60_000, 10_000
OTHER_WORKERS = 100

_TASKS = f"""
INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs, status, attempt, run_epoch, worker_id, finished_at)
SELECT i, 'default', 'shop.mail.send', '{{"n": 1}}', CASE WHEN i <= {ENDED} THEN 'COMPLETED' END, 1, 1, 1, now()
FROM generate_series(1, {ENDED + LEASED + DELAYED + READY}) AS i
"""
_WORKERS = f"""
INSERT INTO aaiclick_queue.workers (id, lease_expires_at, pid, slots, hostname, version, status, queues)
SELECT i, now() + interval '1 day', i, 100, 'other', '1', 'ACTIVE', '{{default}}'
FROM generate_series(1, {OTHER_WORKERS}) AS i
"""
_LEASES = f"""
INSERT INTO aaiclick_queue.leases (task_id, worker_id, order_key, ready_at, deadline_at, rank, run_epoch, attempt,
                                   lost_count, snoozes, flags, queue)
SELECT i, 1 + i % {OTHER_WORKERS}, i, now(), now() + interval '1 day', 0, 1, 1, 0, 0, 0, 'default'
FROM generate_series({ENDED} + 1, {ENDED + LEASED}) AS i
"""
_DELAYED = f"""
INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, queue, reason)
SELECT i, now() + make_interval(hours => 1, secs => i), i, 0, 'default', 'eta'
FROM generate_series({ENDED + LEASED} + 1, {ENDED + LEASED + DELAYED}) AS i
"""
_READY = f"""
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
SELECT 'default', 0, i, i FROM generate_series({ENDED + LEASED + DELAYED} + 1, {ENDED + LEASED + DELAYED + READY}) AS i
"""
_OUTBOX = f"""
INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids, created_at)
SELECT 'default', 0, i, 1, ARRAY[i], now() - interval '1 hour' FROM generate_series(1, {TOLD}) AS i
"""
_HISTORY = f"""
INSERT INTO aaiclick_queue.attempts (task_id, worker_id, started_at, run_epoch, attempt, outcome)
SELECT i, 1, now(), 1, 1, 'RETRYING' FROM generate_series(1, {ENDED}) AS i
"""
_HELD = f"""
INSERT INTO aaiclick_queue.held (task_id, order_key, rank, queue, key)
SELECT -i, -i, 0, CASE WHEN i % 2 = 0 THEN 'limited' ELSE 'full' END, format('tenant %s', i % 100)
FROM generate_series(1, {HELD}) AS i
"""
_SLOTS = """
INSERT INTO aaiclick_queue.slots (task_id, limit_id, key, seconds, ends_at)
SELECT -i, -1, format('tenant %s', i % 100), 3600, now() + interval '1 hour' FROM generate_series(1, 5000) AS i
"""
# Jobs of others, open and ended, each with a group of some tasks that wait for a gate, and a gate behind the group.
JOBS, WIDTH, FIRST_JOB = 5_000, 10, 10_000_000
LAST_JOB = FIRST_JOB + 100 * JOBS
_JOBS = f"""
INSERT INTO aaiclick_queue.jobs (id, name, status, finished_at, deadline_at, registered_job_id,
                                 retention_seconds)
SELECT {FIRST_JOB} + 100 * j, 'a job', CASE WHEN j % 2 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END,
       CASE WHEN j % 2 = 1 THEN now() END, now() + interval '1 day',
       CASE WHEN j % 2 = 0 THEN -j ELSE -2 END, 86400 * (1 + j % 5)
FROM generate_series(1, {JOBS}) AS j
"""
_GROUPS = f"""
INSERT INTO aaiclick_queue.groups (id, job_id, name) SELECT id + 1, id, 'a group' FROM aaiclick_queue.jobs
WHERE id <= {LAST_JOB}
"""
_JOB_TASKS = f"""
INSERT INTO aaiclick_queue.tasks (id, job_id, group_id, member_gate, wait_gate, queue, entrypoint, kwargs, status)
SELECT j.id + 10 + n, j.id, j.id + 1, j.id + 1, j.id + 2, 'default', 'shop.mail.send', '{{}}',
       CASE j.status WHEN 'COMPLETED' THEN 'COMPLETED' END
FROM aaiclick_queue.jobs j, generate_series(1, {WIDTH}) AS n WHERE j.id <= {LAST_JOB}
"""
_GATES = f"""
INSERT INTO aaiclick_queue.gates (id, job_id, parent_id, total, remaining, kind, rule, state)
SELECT j.id + g.n, j.id, CASE g.n WHEN 1 THEN j.id END, {WIDTH}, CASE j.status WHEN 'RUNNING' THEN {WIDTH} ELSE 0 END,
       g.kind, 'whole', CASE j.status WHEN 'RUNNING' THEN 'WAITING' ELSE 'OPEN' END
FROM aaiclick_queue.jobs j, (VALUES (0, 'JOB'), (1, 'GROUP'), (2, 'WAIT'), (3, 'WAIT')) AS g(n, kind)
WHERE j.id <= {LAST_JOB}
"""
_EDGES = f"""
INSERT INTO aaiclick_queue.gate_edges (gate_id, next_gate_id) SELECT id + 1, id + 3 FROM aaiclick_queue.jobs
WHERE id <= {LAST_JOB}
"""
_DEPENDENCIES = f"""
INSERT INTO aaiclick_queue.dependencies (job_id, previous_id, previous_type, next_id, next_type)
SELECT t.job_id, t.job_id + 1, 'group', t.id, 'task' FROM aaiclick_queue.tasks t WHERE t.job_id <= {LAST_JOB}
"""
_WAITING = f"""
INSERT INTO aaiclick_queue.waiting (gate_id, task_id)
SELECT t.wait_gate, t.id FROM aaiclick_queue.tasks t WHERE t.job_id <= {LAST_JOB} AND t.status IS NULL
"""
# Schedules of others: none is due, a few wait for the end of a run; and what has become of their ticks.
REGISTERED, TICKS, LEFT = 20_000, 100_000, 50
_REGISTERED = f"""
INSERT INTO aaiclick_queue.registered_jobs (id, name, entrypoint, schedule, anchor_at, fire_at, next_run_at, overlap,
                                            queued_fire_at)
OVERRIDING SYSTEM VALUE
SELECT -i, format('schedule %s', i), 'shop.mail.send', '{{0 8 * * *}}', now(), now() + interval '1 day',
       now() + interval '1 day', CASE WHEN i % 2 = 0 THEN 'queue' ELSE 'allow' END,
       CASE WHEN i % 2 = 0 AND i <= {2 * LEFT} THEN now() END
FROM generate_series(1, {REGISTERED}) AS i
"""
_TICKS = f"""
INSERT INTO aaiclick_queue.ticks (registered_job_id, fire_at, due_at, job_id, outcome)
SELECT -1 - i % {REGISTERED}, now() - make_interval(days => i / {REGISTERED}), now(), -i, 'FIRED'
FROM generate_series(1, {TICKS}) AS i
"""
# Two days of figures and samples, and events of the system, the oldest of them to be forgotten.
_FIGURES = f"""
INSERT INTO aaiclick_queue.figures (minute, queue, entrypoint, completed, waits, runs)
SELECT date_trunc('minute', now()) - make_interval(mins => i / 15), 'others', format('task %s', i % 15), 1,
       array_fill(1, ARRAY[16]), array_fill(1, ARRAY[17]) FROM generate_series(15, {FIGURES}) AS i
"""
_SAMPLES = f"""
INSERT INTO aaiclick_queue.samples (minute, queue, ready, running, delayed, held)
SELECT date_trunc('minute', now()) - make_interval(mins => i / 15), format('line %s', i % 15), 1, 1, 1, 1
FROM generate_series(15, {FIGURES}) AS i
"""
_SYSTEM_EVENTS = f"""
INSERT INTO aaiclick_queue.system_events (type, created_at)
SELECT 'TOKEN_USED', now() - make_interval(days => CASE WHEN i <= 1000 THEN 100 ELSE 1 END)
FROM generate_series(1, {EVENTS}) AS i
"""
_OLD_OPERATIONS = f"""
INSERT INTO aaiclick_queue.operations (kind, status, up_to, finished_at)
SELECT 'cancel', 'DONE', 0, now() - interval '40 days' FROM generate_series(1, {OPERATIONS}) AS i
"""
OF_OPERATORS = (_FIGURES, _SAMPLES, _SYSTEM_EVENTS, _OLD_OPERATIONS)
OF_SCHEDULES = (_REGISTERED, _TICKS)
OF_JOBS = (_JOBS, _GROUPS, _JOB_TASKS, _GATES, _EDGES, _DEPENDENCIES, _WAITING)
OF_TASKS = (_TASKS, _WORKERS, _LEASES, _DELAYED, _READY, _OUTBOX, _HISTORY, _HELD, _SLOTS)
FILL = (*OF_TASKS, *OF_JOBS, *OF_SCHEDULES, *OF_OPERATORS)
JOB_TABLES = ("jobs", "groups", "dependencies", "gates", "gate_edges", "waiting", "arrivals")
SCHEDULE_TABLES = ("registered_jobs", "ticks")
OPERATE_TABLES = ("figures", "samples", "system_events", "operations")
HOT_TABLES = (
    "tasks",
    "ready",
    "delayed",
    "leases",
    "outbox",
    "workers",
    "held",
    "slots",
    *JOB_TABLES,
    *SCHEDULE_TABLES,
    *OPERATE_TABLES,
)
# So that nobody refreshes the statistics behind the test's back.
NO_AUTOVACUUM = tuple(f"ALTER TABLE aaiclick_queue.{table} SET (autovacuum_enabled = off)" for table in HOT_TABLES)
