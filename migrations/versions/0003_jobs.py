"""Jobs are DAGs: jobs, groups, dependencies, gates and what waits at them."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _execute(*COLUMNS.split(";\n"), *TABLES.split(";\n"), VIEW, CHOSEN, ARRIVES_AS)


def downgrade() -> None:
    _execute(*DOWN.split(";\n"), VIEW_BEFORE)


def _execute(*statements: str) -> None:
    for statement in statements:
        if statement.strip():
            op.execute(schema_sql(statement, context.config.attributes["schema"]))


# Tasks without a job leave all of these NULL: they cost such a row nothing, and the index has no entry for it.
COLUMNS = """
ALTER TABLE aaiclick_queue.tasks ADD COLUMN job_id bigint, ADD COLUMN group_id bigint, ADD COLUMN wait_gate bigint,
    ADD COLUMN member_gate bigint, ADD COLUMN exit_gate bigint, ADD COLUMN after_gate bigint,
    ADD COLUMN countdown real, ADD COLUMN map_index integer, ADD COLUMN rule text, ADD COLUMN critical boolean,
    ADD COLUMN crowd text COLLATE "C", ADD COLUMN ready_at timestamptz;
ALTER TABLE aaiclick_queue.attempts ADD COLUMN ready_at timestamptz;
CREATE INDEX tasks_of_job ON aaiclick_queue.tasks (job_id, id) WHERE job_id IS NOT NULL;
CREATE INDEX tasks_of_group ON aaiclick_queue.tasks (group_id, map_index, id) WHERE group_id IS NOT NULL;
ALTER TABLE aaiclick_queue.tasks DROP CONSTRAINT tasks_status_is_final;
ALTER TABLE aaiclick_queue.tasks ADD CONSTRAINT tasks_status_is_final
    CHECK (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'UPSTREAM_FAILED', 'SKIPPED')) NOT VALID;
ALTER TABLE aaiclick_queue.tasks VALIDATE CONSTRAINT tasks_status_is_final;
ALTER TABLE aaiclick_queue.held ADD COLUMN crowd text COLLATE "C" NOT NULL DEFAULT '';
DROP INDEX aaiclick_queue.held_lanes;
CREATE INDEX held_lanes ON aaiclick_queue.held (queue, entrypoint, key, chain, crowd, rank, order_key, task_id);
ALTER TABLE aaiclick_queue.limits DROP CONSTRAINT limits_scope_is_known;
ALTER TABLE aaiclick_queue.limits ADD CONSTRAINT limits_scope_is_known
    CHECK (scope IN ('queue', 'task', 'key', 'job'));
ALTER TABLE aaiclick_queue.events ADD COLUMN job_id bigint;
CREATE INDEX events_of_job ON aaiclick_queue.events (job_id, created_at) WHERE job_id IS NOT NULL;
"""

# A node's gate has the node's id: that of a job and of a group counts the open tasks of its subtree, that of a task
# tells those behind it. gates are updated in place, narrow and HOT; arrivals are only appended and deleted.
TABLES = """
CREATE TABLE aaiclick_queue.jobs (
    id bigint PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    finished_at timestamptz,
    deadline_at timestamptz,
    pruned_at timestamptz,
    paused_at timestamptz,
    failing_at timestamptz,
    priority smallint NOT NULL DEFAULT 0,
    max_parallel integer,
    fail_fast boolean NOT NULL DEFAULT false,
    name text COLLATE "C" NOT NULL,
    status text NOT NULL DEFAULT 'PENDING'
        CONSTRAINT jobs_status_is_known CHECK (status IN ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED')),
    run_type text NOT NULL DEFAULT 'MANUAL',
    entrypoint text,
    kwargs jsonb NOT NULL DEFAULT '{}',
    returns jsonb,
    error jsonb,
    hooks jsonb,
    metadata jsonb,
    correlation_id text,
    submitted_by text,
    paused_by text,
    reason text
) WITH (fillfactor = 60);
CREATE INDEX jobs_named ON aaiclick_queue.jobs (name, id);
CREATE INDEX jobs_open ON aaiclick_queue.jobs (id) WHERE status IN ('PENDING', 'RUNNING');
CREATE INDEX jobs_marked ON aaiclick_queue.jobs (id) WHERE pruned_at IS NOT NULL;
CREATE INDEX jobs_overdue ON aaiclick_queue.jobs (deadline_at) WHERE status IN ('PENDING', 'RUNNING');
CREATE TABLE aaiclick_queue.groups (
    id bigint PRIMARY KEY,
    job_id bigint NOT NULL,
    parent_group_id bigint,
    spawned_by bigint,
    entry_gate bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    max_parallel integer,
    mapped boolean NOT NULL DEFAULT false,
    name text NOT NULL,
    rule text,
    crowd text COLLATE "C"
);
CREATE INDEX groups_of_job ON aaiclick_queue.groups (job_id, id);
CREATE INDEX groups_in_group ON aaiclick_queue.groups (parent_group_id) WHERE parent_group_id IS NOT NULL;
CREATE TABLE aaiclick_queue.dependencies (
    job_id bigint NOT NULL,
    previous_id bigint NOT NULL,
    next_id bigint NOT NULL,
    previous_type text COLLATE "C" NOT NULL
        CONSTRAINT dependencies_previous_is_known CHECK (previous_type IN ('task', 'group')),
    next_type text COLLATE "C" NOT NULL
        CONSTRAINT dependencies_next_is_known CHECK (next_type IN ('task', 'group')),
    any_of boolean NOT NULL DEFAULT false,
    choices text[],
    known text[],
    PRIMARY KEY (job_id, previous_id, previous_type, next_id, next_type)
);
CREATE TABLE aaiclick_queue.gates (
    id bigint PRIMARY KEY,
    job_id bigint NOT NULL,
    parent_id bigint,
    edge_cursor bigint NOT NULL DEFAULT 0,
    decided_at timestamptz,
    total integer NOT NULL,
    remaining integer NOT NULL,
    failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    vetoed integer NOT NULL DEFAULT 0,
    kind text COLLATE "C" NOT NULL
        CONSTRAINT gates_kind_is_known CHECK (kind IN ('JOB', 'GROUP', 'TASK', 'WAIT', 'AFTER')),
    rule text COLLATE "C" NOT NULL
        CONSTRAINT gates_rule_is_known
            CHECK (rule IN ('all_success', 'one_success', 'all_done', 'none_failed', 'whole')),
    state text COLLATE "C" NOT NULL DEFAULT 'WAITING'
        CONSTRAINT gates_state_is_known CHECK (state IN ('WAITING', 'OPEN', 'FAIL', 'SKIP'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX gates_of_job ON aaiclick_queue.gates (job_id, id);
CREATE TABLE aaiclick_queue.gate_edges (
    gate_id bigint NOT NULL,
    next_gate_id bigint NOT NULL,
    choices text[],
    known text[],
    PRIMARY KEY (gate_id, next_gate_id)
);
CREATE TABLE aaiclick_queue.arrivals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gate_id bigint NOT NULL,
    n integer NOT NULL,
    failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    vetoed integer NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE TABLE aaiclick_queue.waiting (
    gate_id bigint NOT NULL,
    task_id bigint NOT NULL,
    run_epoch integer NOT NULL DEFAULT 0,
    flags smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (gate_id, task_id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
"""

VIEW = """
CREATE OR REPLACE VIEW aaiclick_queue.task_status AS
SELECT t.id, CASE
        WHEN t.status IS NOT NULL THEN t.status
        WHEN EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = t.id) THEN 'RUNNING'
        WHEN EXISTS (SELECT FROM aaiclick_queue.delayed d WHERE d.task_id = t.id) THEN 'SCHEDULED'
        WHEN EXISTS (SELECT FROM aaiclick_queue.held h WHERE h.task_id = t.id) THEN 'PENDING'
        WHEN EXISTS (SELECT FROM aaiclick_queue.waiting w WHERE w.gate_id = t.wait_gate AND w.task_id = t.id)
            THEN 'PENDING'
        WHEN EXISTS (SELECT FROM aaiclick_queue.ready r WHERE r.queue = t.queue AND r.rank = -t.priority
                     AND r.order_key = coalesce((SELECT s.order_key FROM aaiclick_queue.slots s WHERE s.task_id = t.id
                                                 AND s.order_key IS NOT NULL LIMIT 1), t.job_id, t.id)
                     AND r.task_id = t.id) THEN 'QUEUED'
    END AS status
FROM aaiclick_queue.tasks t;
"""

# What a result chooses at a branch: the names in it, and whether Python would take it for true. No name of the user's
# is taken for one of these words, or for the default.
CHOSEN = """
CREATE FUNCTION aaiclick_queue.chosen(result jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
SELECT ARRAY(SELECT CASE WHEN name IN ('*', '?true', '?false') THEN chr(1) ELSE '' END || name
          FROM jsonb_array_elements_text(CASE jsonb_typeof(result)
              WHEN 'string' THEN jsonb_build_array(result)
              WHEN 'number' THEN jsonb_build_array(result)
              WHEN 'array' THEN result
              ELSE '[]' END) AS name)
    || CASE WHEN coalesce(result, 'null') IN ('null', 'false', '0', '""', '[]', '{}') THEN '?false' ELSE '?true' END
$function$;
"""

# What one gate's end is for a gate behind it. A choice that was not taken vetoes: what was not chosen is skipped,
# whatever else it waits for. What names no side of the branch fails it, unless that is nothing (None, []) or there is a
# default, "*".
ARRIVES_AS = """
CREATE FUNCTION aaiclick_queue.arrives_as(state text, choices text[], known text[], result jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
SELECT CASE
        WHEN choices IS NULL OR state = 'FAIL' THEN state
        WHEN state = 'SKIP' THEN 'VETO'
        WHEN aaiclick_queue.chosen(result) && choices THEN 'OPEN'
        WHEN '*' = ANY(choices) THEN CASE WHEN aaiclick_queue.chosen(result) && known THEN 'VETO' ELSE 'OPEN' END
        WHEN known IS NULL OR aaiclick_queue.chosen(result) && known
             OR coalesce(result, 'null') IN ('null', '[]') THEN 'VETO'
        ELSE 'FAIL' END
$function$;
"""

DOWN = """
DROP FUNCTION aaiclick_queue.arrives_as(text, text[], text[], jsonb);
DROP FUNCTION aaiclick_queue.chosen(jsonb);
DROP VIEW aaiclick_queue.task_status;
DELETE FROM aaiclick_queue.slots s USING aaiclick_queue.tasks t WHERE t.id = s.task_id AND t.job_id IS NOT NULL;
DELETE FROM aaiclick_queue.ready r USING aaiclick_queue.tasks t WHERE t.id = r.task_id AND t.job_id IS NOT NULL;
DELETE FROM aaiclick_queue.held h USING aaiclick_queue.tasks t WHERE t.id = h.task_id AND t.job_id IS NOT NULL;
DELETE FROM aaiclick_queue.delayed d USING aaiclick_queue.tasks t WHERE t.id = d.task_id AND t.job_id IS NOT NULL;
DELETE FROM aaiclick_queue.leases l USING aaiclick_queue.tasks t WHERE t.id = l.task_id AND t.job_id IS NOT NULL;
DELETE FROM aaiclick_queue.tasks WHERE job_id IS NOT NULL;
DELETE FROM aaiclick_queue.limits WHERE scope = 'job';
DELETE FROM aaiclick_queue.operations WHERE kind LIKE '%job';
DROP TABLE aaiclick_queue.waiting, aaiclick_queue.arrivals, aaiclick_queue.gate_edges, aaiclick_queue.gates,
    aaiclick_queue.dependencies, aaiclick_queue.groups, aaiclick_queue.jobs;
DROP INDEX aaiclick_queue.events_of_job;
ALTER TABLE aaiclick_queue.events DROP COLUMN job_id;
ALTER TABLE aaiclick_queue.limits DROP CONSTRAINT limits_scope_is_known;
ALTER TABLE aaiclick_queue.limits ADD CONSTRAINT limits_scope_is_known CHECK (scope IN ('queue', 'task', 'key'));
DROP INDEX aaiclick_queue.held_lanes;
ALTER TABLE aaiclick_queue.held DROP COLUMN crowd;
CREATE INDEX held_lanes ON aaiclick_queue.held (queue, entrypoint, key, chain, rank, order_key, task_id);
ALTER TABLE aaiclick_queue.tasks DROP CONSTRAINT tasks_status_is_final;
ALTER TABLE aaiclick_queue.tasks ADD CONSTRAINT tasks_status_is_final
    CHECK (status IN ('COMPLETED', 'FAILED', 'CANCELLED'));
DROP INDEX aaiclick_queue.tasks_of_group;
DROP INDEX aaiclick_queue.tasks_of_job;
ALTER TABLE aaiclick_queue.tasks DROP COLUMN job_id, DROP COLUMN group_id, DROP COLUMN wait_gate,
    DROP COLUMN member_gate, DROP COLUMN exit_gate, DROP COLUMN after_gate, DROP COLUMN countdown,
    DROP COLUMN map_index, DROP COLUMN rule, DROP COLUMN critical, DROP COLUMN crowd,
    DROP COLUMN ready_at;
ALTER TABLE aaiclick_queue.attempts DROP COLUMN ready_at;
"""
VIEW_BEFORE = """
CREATE VIEW aaiclick_queue.task_status AS
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
