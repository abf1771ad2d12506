"""The flow of one task."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    for tables in (TASKS, PLACES, SIDE_TABLES, HISTORY):
        _execute(*tables.split(";\n"))
    _execute(VIEW, BACKOFF, NEW_ID, ENQUEUE, PARTITIONS, "SELECT aaiclick_queue.ensure_partitions(14)")


def downgrade() -> None:
    _execute(*DOWN.split(";\n"))


def _execute(*statements: str) -> None:
    for statement in statements:
        if statement.strip():
            op.execute(schema_sql(statement, context.config.attributes["schema"]))


# Written at enqueue and once more at the end. fillfactor 45 keeps that second write on its page (HOT), and no index
# names a column that the end writes: with either one wrong a completion costs 719 B of WAL instead of 452 B.
TASKS = """
CREATE TABLE aaiclick_queue.tasks (
    id bigint PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    eta timestamptz,
    expires_at timestamptz,
    parent_id bigint,
    started_at timestamptz,
    finished_at timestamptz,
    worker_id bigint,
    run_epoch integer,
    timeout_seconds real,
    priority smallint NOT NULL DEFAULT 0,
    max_attempts smallint,
    attempt smallint,
    queue text COLLATE "C" NOT NULL,
    entrypoint text NOT NULL,
    kwargs jsonb NOT NULL,
    name text,
    retry jsonb,
    correlation_id text,
    metadata jsonb,
    spawn_key text,
    status text CONSTRAINT tasks_status_is_final CHECK (status IN ('COMPLETED', 'FAILED', 'CANCELLED')),
    result jsonb,
    error jsonb
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
        autovacuum_vacuum_insert_scale_factor = 0.1);
CREATE UNIQUE INDEX tasks_spawned_once ON aaiclick_queue.tasks (parent_id, spawn_key) WHERE parent_id IS NOT NULL;
"""

# A task that has not ended is a row in exactly one of these. They are narrow, have one index (leases a second one for
# reaper and heartbeat), no foreign keys, and are inserted into and deleted from only.
PLACES = """
CREATE TABLE aaiclick_queue.ready (
    order_key bigint NOT NULL,
    task_id bigint NOT NULL,
    ready_at timestamptz NOT NULL DEFAULT now(),
    rank integer NOT NULL,
    run_epoch integer NOT NULL DEFAULT 0,
    attempt smallint NOT NULL DEFAULT 0,
    lost_count smallint NOT NULL DEFAULT 0,
    snoozes smallint NOT NULL DEFAULT 0,
    flags smallint NOT NULL DEFAULT 0,
    queue text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, rank, order_key, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE TABLE aaiclick_queue.delayed (
    task_id bigint PRIMARY KEY,
    not_before timestamptz NOT NULL,
    order_key bigint NOT NULL,
    rank integer NOT NULL,
    run_epoch integer NOT NULL DEFAULT 0,
    attempt smallint NOT NULL DEFAULT 0,
    lost_count smallint NOT NULL DEFAULT 0,
    snoozes smallint NOT NULL DEFAULT 0,
    flags smallint NOT NULL DEFAULT 0,
    queue text COLLATE "C" NOT NULL,
    reason text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX delayed_due ON aaiclick_queue.delayed (not_before, task_id);
CREATE TABLE aaiclick_queue.leases (
    task_id bigint PRIMARY KEY,
    worker_id bigint NOT NULL,
    order_key bigint NOT NULL,
    ready_at timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    deadline_at timestamptz NOT NULL,
    rank integer NOT NULL,
    run_epoch integer NOT NULL,
    attempt smallint NOT NULL,
    lost_count smallint NOT NULL,
    snoozes smallint NOT NULL,
    flags smallint NOT NULL,
    queue text COLLATE "C" NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX leases_of_worker ON aaiclick_queue.leases (worker_id);
"""

SIDE_TABLES = """
CREATE SEQUENCE aaiclick_queue.node_ids AS integer MINVALUE 1 MAXVALUE 1023 CYCLE;
CREATE SEQUENCE aaiclick_queue.id_sequence AS integer MINVALUE 0 MAXVALUE 4095 CYCLE CACHE 1;
CREATE TABLE aaiclick_queue.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    order_key bigint NOT NULL,
    rank integer NOT NULL,
    n integer NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task_ids bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE TABLE aaiclick_queue.workers (
    id bigint PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    last_heartbeat timestamptz NOT NULL DEFAULT now(),
    lease_expires_at timestamptz NOT NULL,
    stopped_at timestamptz,
    tasks_completed bigint NOT NULL DEFAULT 0,
    tasks_failed bigint NOT NULL DEFAULT 0,
    tasks_lost bigint NOT NULL DEFAULT 0,
    pid integer NOT NULL,
    slots integer NOT NULL,
    running integer NOT NULL DEFAULT 0,
    hostname text NOT NULL,
    version text NOT NULL,
    status text NOT NULL CONSTRAINT workers_status_is_known CHECK (status IN ('ACTIVE', 'STOPPING', 'STOPPED', 'LOST')),
    queues text[] NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 50);
CREATE TABLE aaiclick_queue.queues (
    name text COLLATE "C" PRIMARY KEY,
    paused_at timestamptz,
    paused_by text,
    reason text
);
CREATE TABLE aaiclick_queue.dedupe (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    task_id bigint NOT NULL,
    until timestamptz,
    first_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);
CREATE INDEX dedupe_of_task ON aaiclick_queue.dedupe (task_id);
CREATE TABLE aaiclick_queue.timers (
    task_id bigint PRIMARY KEY,
    due_at timestamptz NOT NULL
) WITH (vacuum_truncate = off);
CREATE INDEX timers_due ON aaiclick_queue.timers (due_at, task_id);
CREATE TABLE aaiclick_queue.progress (
    task_id bigint PRIMARY KEY,
    run_epoch integer NOT NULL,
    data jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE TABLE aaiclick_queue.checkpoints (
    task_id bigint PRIMARY KEY,
    run_epoch integer NOT NULL,
    data jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
CREATE TABLE aaiclick_queue.loops (
    name text PRIMARY KEY,
    holder bigint NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);
"""

# By day, so that forgetting is a drop. No default partition: it would forbid DETACH … CONCURRENTLY.
HISTORY = """
CREATE TABLE aaiclick_queue.attempts (
    task_id bigint NOT NULL,
    worker_id bigint,
    started_at timestamptz,
    finished_at timestamptz NOT NULL DEFAULT now(),
    run_epoch integer NOT NULL,
    attempt smallint NOT NULL,
    outcome text NOT NULL,
    error jsonb
) PARTITION BY RANGE (finished_at);
CREATE INDEX attempts_of_task ON aaiclick_queue.attempts (task_id, run_epoch);
CREATE TABLE aaiclick_queue.events (
    created_at timestamptz NOT NULL DEFAULT now(),
    task_id bigint,
    run_epoch integer,
    type text NOT NULL,
    data jsonb NOT NULL DEFAULT '{}'
) PARTITION BY RANGE (created_at);
CREATE INDEX events_of_task ON aaiclick_queue.events (task_id, created_at);
"""

VIEW = """
CREATE VIEW aaiclick_queue.task_status AS
SELECT t.id, CASE
        WHEN t.status IS NOT NULL THEN t.status
        WHEN EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = t.id) THEN 'RUNNING'
        WHEN EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.task_id = t.id) THEN 'SCHEDULED'
        WHEN EXISTS (SELECT FROM aaiclick_queue.ready r WHERE r.queue = t.queue AND r.rank = -t.priority
                     AND r.order_key = t.id AND r.task_id = t.id) THEN 'QUEUED'
    END AS status
FROM aaiclick_queue.tasks t;
"""

BACKOFF = """
CREATE FUNCTION aaiclick_queue.backoff(retry jsonb, attempt integer) RETURNS interval
LANGUAGE sql VOLATILE AS $function$
    SELECT make_interval(secs => least(
               coalesce((retry->>'delay')::float8, 1)
                   * power(coalesce((retry->>'factor')::float8, 2), least(greatest(attempt, 1) - 1, 60)),
               coalesce((retry->>'max_delay')::float8, 600))
           * CASE WHEN coalesce((retry->>'jitter')::boolean, true) THEN 0.5 + random() ELSE 1 END)
$function$;
"""

NEW_ID = """
CREATE FUNCTION aaiclick_queue.new_id() RETURNS bigint
LANGUAGE sql VOLATILE AS $function$
    SELECT ((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 22)
           | nextval('aaiclick_queue.id_sequence')
$function$;
"""

# The door for triggers, psql and other languages. Arguments are checked by the worker that runs the task.
ENQUEUE = """
CREATE FUNCTION aaiclick_queue.enqueue(
    entrypoint text, kwargs jsonb DEFAULT '{}', queue text DEFAULT 'default', priority integer DEFAULT 0,
    countdown interval DEFAULT NULL, max_attempts integer DEFAULT NULL, correlation_id text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    new_task bigint;
BEGIN
    IF coalesce(enqueue.entrypoint, '') = '' THEN
        RAISE EXCEPTION 'entrypoint is empty: name the task as module.function' USING ERRCODE = '22023';
    END IF;
    IF jsonb_typeof(coalesce(enqueue.kwargs, 'null')) <> 'object' THEN
        RAISE EXCEPTION 'kwargs must be a JSON object such as {"to": "ada@example.com"}' USING ERRCODE = '22023';
    END IF;
    IF coalesce(enqueue.queue, '') = '' OR length(enqueue.queue) > 200 THEN
        RAISE EXCEPTION 'queue must be a name of 1 to 200 characters' USING ERRCODE = '22023';
    END IF;
    IF enqueue.priority IS NULL OR enqueue.priority NOT BETWEEN -32768 AND 32767 THEN
        RAISE EXCEPTION 'priority must be from -32768 to 32767' USING ERRCODE = '22023';
    END IF;
    IF enqueue.max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'max_attempts must be from 1 to 1000' USING ERRCODE = '22023';
    END IF;
    LOOP
        INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs, priority, max_attempts, correlation_id, eta)
        VALUES (aaiclick_queue.new_id(), enqueue.queue, enqueue.entrypoint, enqueue.kwargs, enqueue.priority,
                enqueue.max_attempts, enqueue.correlation_id, now() + enqueue.countdown)
        ON CONFLICT (id) DO NOTHING RETURNING id INTO new_task;
        EXIT WHEN new_task IS NOT NULL;
    END LOOP;
    IF enqueue.countdown > interval '0' THEN
        INSERT INTO aaiclick_queue.delayed (task_id, not_before, queue, rank, order_key, reason)
        VALUES (new_task, now() + enqueue.countdown, enqueue.queue, -enqueue.priority, new_task, 'eta');
    ELSE
        INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
        VALUES (enqueue.queue, -enqueue.priority, new_task, new_task);
        INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids)
        VALUES (enqueue.queue, -enqueue.priority, new_task, 1, ARRAY[new_task]);
    END IF;
    RETURN new_task;
END
$function$;
"""

# Made by LIKE and ATTACH, days ahead: CREATE … PARTITION OF would lock out every writer, and a missing one would stop
# the fleet at midnight.
PARTITIONS = """
CREATE FUNCTION aaiclick_queue.ensure_partitions(days integer) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    parent text;
    first_day date;
    child text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('aaiclick_queue.partitions'));
    FOREACH parent IN ARRAY ARRAY['attempts', 'events'] LOOP
        FOR first_day IN SELECT (now() AT TIME ZONE 'UTC')::date + d FROM generate_series(-1, days) AS d LOOP
            child := parent || to_char(first_day, '_YYYYMMDD');
            CONTINUE WHEN to_regclass('aaiclick_queue.' || child) IS NOT NULL;
            EXECUTE format('CREATE TABLE aaiclick_queue.%I (LIKE aaiclick_queue.%I INCLUDING ALL)', child, parent);
            EXECUTE format('ALTER TABLE aaiclick_queue.%I ATTACH PARTITION aaiclick_queue.%I'
                           ' FOR VALUES FROM (%L) TO (%L)', parent, child, first_day::timestamp AT TIME ZONE 'UTC',
                           (first_day + 1)::timestamp AT TIME ZONE 'UTC');
            made := made + 1;
        END LOOP;
    END LOOP;
    RETURN made;
END
$function$;
"""

DOWN = """
DROP FUNCTION aaiclick_queue.ensure_partitions(integer);
DROP FUNCTION aaiclick_queue.enqueue(text, jsonb, text, integer, interval, integer, text);
DROP FUNCTION aaiclick_queue.new_id();
DROP FUNCTION aaiclick_queue.backoff(jsonb, integer);
DROP VIEW aaiclick_queue.task_status;
DROP TABLE aaiclick_queue.events, aaiclick_queue.attempts, aaiclick_queue.loops, aaiclick_queue.checkpoints,
    aaiclick_queue.progress, aaiclick_queue.timers, aaiclick_queue.dedupe, aaiclick_queue.queues,
    aaiclick_queue.workers, aaiclick_queue.outbox, aaiclick_queue.leases, aaiclick_queue.delayed,
    aaiclick_queue.ready, aaiclick_queue.tasks;
DROP SEQUENCE aaiclick_queue.id_sequence, aaiclick_queue.node_ids;
"""
