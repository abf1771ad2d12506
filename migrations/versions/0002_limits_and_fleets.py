"""Limits, bulk operations, and what fleets tell of themselves."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _execute(*COLUMNS.split(";\n"), *TABLES.split(";\n"), VIEW, DROP_ENQUEUE, ENQUEUE)


def downgrade() -> None:
    _execute(*DOWN.split(";\n"), VIEW_BEFORE, ENQUEUE_BEFORE)


def _execute(*statements: str) -> None:
    for statement in statements:
        if statement.strip():
            op.execute(schema_sql(statement, context.config.attributes["schema"]))


COLUMNS = """
ALTER TABLE aaiclick_queue.tasks ADD COLUMN concurrency_key text COLLATE "C", ADD COLUMN order_by text COLLATE "C",
    ADD COLUMN order_stops boolean, ADD COLUMN keep text, ADD COLUMN hooks jsonb;
ALTER TABLE aaiclick_queue.queues ADD COLUMN max_depth integer, ADD COLUMN depth bigint,
    ADD COLUMN depth_at timestamptz, ADD COLUMN full_at timestamptz;
ALTER TABLE aaiclick_queue.workers ADD COLUMN threads integer, ADD COLUMN children integer, ADD COLUMN fleet text,
    ADD COLUMN asked text, ADD COLUMN stacks text, ADD COLUMN stacks_at timestamptz;
"""

# held: a place like the others; in line by its lane (queue, entrypoint where that has limits, key, order). slots are
# rows and no counters: a counter leaks with every move that forgets it. One that is `stopping` belongs to a run whose
# lease is gone and whose code may still run.
TABLES = """
CREATE TABLE aaiclick_queue.held (
    task_id bigint PRIMARY KEY,
    order_key bigint NOT NULL,
    held_at timestamptz NOT NULL DEFAULT now(),
    rank integer NOT NULL,
    run_epoch integer NOT NULL DEFAULT 0,
    attempt smallint NOT NULL DEFAULT 0,
    lost_count smallint NOT NULL DEFAULT 0,
    snoozes smallint NOT NULL DEFAULT 0,
    flags smallint NOT NULL DEFAULT 0,
    queue text COLLATE "C" NOT NULL,
    entrypoint text COLLATE "C" NOT NULL DEFAULT '',
    key text COLLATE "C" NOT NULL DEFAULT '',
    chain text COLLATE "C" NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX held_lanes ON aaiclick_queue.held (queue, entrypoint, key, chain, rank, order_key, task_id);
CREATE INDEX held_orders ON aaiclick_queue.held (chain, order_key, task_id) WHERE chain <> '';
CREATE TABLE aaiclick_queue.limits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text COLLATE "C" NOT NULL CONSTRAINT limits_scope_is_known CHECK (scope IN ('queue', 'task', 'key')),
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL
        CONSTRAINT limits_kind_is_known CHECK (kind IN ('running', 'rate', 'fair', 'pause')),
    per_key boolean NOT NULL DEFAULT false,
    n integer NOT NULL,
    seconds double precision,
    turn bigint NOT NULL DEFAULT 0,
    until timestamptz,
    made_by text,
    reason text,
    made_xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text)::bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT limits_of_one_kind UNIQUE (scope, name, kind, per_key)
) WITH (fillfactor = 50);
CREATE TABLE aaiclick_queue.slots (
    task_id bigint NOT NULL,
    limit_id bigint NOT NULL,
    stopping integer NOT NULL DEFAULT 0,
    order_key bigint,
    seconds double precision,
    ends_at timestamptz,
    worker_id bigint,
    adopted boolean NOT NULL DEFAULT false,
    key text COLLATE "C" NOT NULL DEFAULT '',
    PRIMARY KEY (task_id, limit_id, stopping)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX slots_of_limit ON aaiclick_queue.slots (limit_id, key);
CREATE INDEX slots_unclaimed ON aaiclick_queue.slots (task_id) WHERE seconds IS NOT NULL AND ends_at IS NULL;
CREATE INDEX slots_ending ON aaiclick_queue.slots (ends_at) WHERE ends_at IS NOT NULL;
CREATE INDEX slots_stopping ON aaiclick_queue.slots (worker_id) WHERE stopping <> 0;
CREATE INDEX slots_adopted ON aaiclick_queue.slots (task_id) WHERE adopted;
CREATE TABLE aaiclick_queue.operations (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    filter jsonb NOT NULL DEFAULT '{}',
    arguments jsonb NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'OPEN'
        CONSTRAINT operations_status_is_known CHECK (status IN ('OPEN', 'DONE', 'FAILED', 'CANCELLED')),
    up_to bigint NOT NULL,
    place text NOT NULL DEFAULT '',
    after jsonb,
    found boolean NOT NULL DEFAULT false,
    done bigint NOT NULL DEFAULT 0,
    total bigint,
    made_by text,
    error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
) WITH (fillfactor = 50);
CREATE INDEX operations_open ON aaiclick_queue.operations (id) WHERE status = 'OPEN';
"""

VIEW = """
CREATE OR REPLACE VIEW aaiclick_queue.task_status AS
SELECT t.id, CASE
        WHEN t.status IS NOT NULL THEN t.status
        WHEN EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = t.id) THEN 'RUNNING'
        WHEN EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.task_id = t.id) THEN 'SCHEDULED'
        WHEN EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.task_id = t.id) THEN 'PENDING'
        WHEN EXISTS (SELECT FROM aaiclick_queue.ready r WHERE r.queue = t.queue AND r.rank = -t.priority
                     AND r.order_key = coalesce((SELECT s.order_key FROM aaiclick_queue.slots s WHERE s.task_id = t.id
                                                 AND s.order_key IS NOT NULL LIMIT 1), t.id)
                     AND r.task_id = t.id) THEN 'QUEUED'
    END AS status
FROM aaiclick_queue.tasks t;
"""

DROP_ENQUEUE = "DROP FUNCTION aaiclick_queue.enqueue(text, jsonb, text, integer, interval, integer, text)"
# The door for triggers, psql and other languages. Arguments are checked by the worker that runs the task.
ENQUEUE = """
CREATE FUNCTION aaiclick_queue.enqueue(
    entrypoint text, kwargs jsonb DEFAULT '{}', queue text DEFAULT 'default', priority integer DEFAULT 0,
    countdown interval DEFAULT NULL, max_attempts integer DEFAULT NULL, correlation_id text DEFAULT NULL,
    concurrency_key text DEFAULT NULL, order_by text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    new_task bigint;
    most integer;
    by_task boolean;
    limited boolean;
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
    IF length(enqueue.concurrency_key) NOT BETWEEN 1 AND 200 OR length(enqueue.order_by) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'concurrency_key and order_by must be texts of 1 to 200 characters' USING ERRCODE = '22023';
    END IF;
    SELECT q.max_depth INTO most FROM aaiclick_queue.queues q WHERE q.name = enqueue.queue
        AND q.max_depth <= CASE WHEN q.max_depth > 10000 THEN coalesce(q.depth, 0) ELSE
            (SELECT count(*) FROM (SELECT FROM aaiclick_queue.ready r WHERE r.queue = enqueue.queue
                                   LIMIT q.max_depth) AS line)
            + (SELECT count(*) FROM (SELECT FROM aaiclick_queue.held h WHERE h.queue = enqueue.queue
                                     LIMIT q.max_depth) AS line) END;
    IF most IS NOT NULL THEN
        RAISE EXCEPTION 'queue % is full (max_depth %): enqueue later, or raise its limit', enqueue.queue, most
            USING ERRCODE = '53400';
    END IF;
    by_task := EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'task' AND m.name = enqueue.entrypoint);
    limited := by_task OR enqueue.order_by IS NOT NULL
        OR EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'queue' AND m.name = enqueue.queue)
        OR EXISTS (SELECT FROM aaiclick_queue.limits m WHERE m.scope = 'key' AND m.name = enqueue.concurrency_key);
    LOOP
        INSERT INTO aaiclick_queue.tasks (id, queue, entrypoint, kwargs, priority, max_attempts, correlation_id, eta,
                                          concurrency_key, order_by)
        VALUES (aaiclick_queue.new_id(), enqueue.queue, enqueue.entrypoint, enqueue.kwargs, enqueue.priority,
                enqueue.max_attempts, enqueue.correlation_id, now() + enqueue.countdown, enqueue.concurrency_key,
                enqueue.order_by)
        ON CONFLICT (id) DO NOTHING RETURNING id INTO new_task;
        EXIT WHEN new_task IS NOT NULL;
    END LOOP;
    IF enqueue.countdown > interval '0' THEN
        INSERT INTO aaiclick_queue.delayed (task_id, not_before, queue, rank, order_key, flags, reason)
        VALUES (new_task, now() + enqueue.countdown, enqueue.queue, -enqueue.priority, new_task,
                CASE WHEN enqueue.order_by IS NULL THEN 0 ELSE 4 END, 'eta');
        RETURN new_task;
    ELSIF limited THEN
        INSERT INTO aaiclick_queue.held (task_id, queue, rank, order_key, flags, entrypoint, key, chain)
        VALUES (new_task, enqueue.queue, CASE WHEN enqueue.order_by IS NULL THEN -enqueue.priority ELSE 0 END, new_task,
                CASE WHEN enqueue.order_by IS NULL THEN 0 ELSE 4 END,
                CASE WHEN by_task THEN enqueue.entrypoint ELSE '' END, coalesce(enqueue.concurrency_key, ''),
                coalesce(enqueue.order_by, ''));
    ELSE
        INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id)
        VALUES (enqueue.queue, -enqueue.priority, new_task, new_task);
    END IF;
    INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids)
    VALUES (enqueue.queue, -enqueue.priority, new_task, 1, ARRAY[new_task]);
    RETURN new_task;
END
$function$;
"""

DOWN = """
DROP FUNCTION aaiclick_queue.enqueue(text, jsonb, text, integer, interval, integer, text, text, text);
DROP VIEW aaiclick_queue.task_status;
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags)
SELECT h.queue, -t.priority, h.task_id, h.task_id, h.run_epoch, h.attempt, h.lost_count, h.snoozes, h.flags & 1
FROM aaiclick_queue.held h JOIN aaiclick_queue.tasks t ON t.id = h.task_id;
UPDATE aaiclick_queue.queues SET paused_at = NULL, paused_by = NULL, reason = NULL
WHERE paused_by LIKE 'operation %';
DROP TABLE aaiclick_queue.operations, aaiclick_queue.slots, aaiclick_queue.limits, aaiclick_queue.held;
ALTER TABLE aaiclick_queue.workers DROP COLUMN threads, DROP COLUMN children, DROP COLUMN fleet, DROP COLUMN asked,
    DROP COLUMN stacks, DROP COLUMN stacks_at;
ALTER TABLE aaiclick_queue.queues DROP COLUMN max_depth, DROP COLUMN depth, DROP COLUMN depth_at, DROP COLUMN full_at;
ALTER TABLE aaiclick_queue.tasks DROP COLUMN concurrency_key, DROP COLUMN order_by, DROP COLUMN order_stops,
    DROP COLUMN keep, DROP COLUMN hooks;
"""
VIEW_BEFORE = """
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

ENQUEUE_BEFORE = """
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
