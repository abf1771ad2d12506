"""Operate: figures by the minute, samples of queues, failures by group, alarms, system events, tokens."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _execute(*UP.split(";\n"))
    _execute(FINGERPRINT, KEEP_FAILURES, *TRIGGERS.split(";\n"))


def downgrade() -> None:
    _execute(*DOWN.split(";\n"))


def _execute(*statements: str) -> None:
    for statement in statements:
        if statement.strip():
            op.execute(schema_sql(statement, context.config.attributes["schema"]))


# `figures`: what ended in a minute, counted by the workers and added up here with their heartbeats, so that a chart of
# a week reads some thousand rows whatever ran. `samples`: the line of each queue, once a minute.
UP = """
CREATE TABLE aaiclick_queue.figures (
    minute timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL,
    entrypoint text COLLATE "C" NOT NULL,
    completed integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    retried integer NOT NULL DEFAULT 0,
    lost integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    snoozed integer NOT NULL DEFAULT 0,
    wait_seconds double precision NOT NULL DEFAULT 0,
    run_seconds double precision NOT NULL DEFAULT 0,
    waits integer[] NOT NULL,
    runs integer[] NOT NULL,
    PRIMARY KEY (minute, queue, entrypoint)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE aaiclick_queue.samples (
    minute timestamptz NOT NULL,
    queue text COLLATE "C" NOT NULL,
    ready bigint NOT NULL,
    running integer NOT NULL,
    delayed bigint NOT NULL,
    held bigint NOT NULL,
    created integer,
    oldest_seconds double precision,
    PRIMARY KEY (minute, queue)
);
CREATE TABLE aaiclick_queue.failures (
    task_id bigint PRIMARY KEY,
    failed_at timestamptz NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    entrypoint text NOT NULL,
    error_type text NOT NULL,
    place text
);
CREATE INDEX failures_of_group ON aaiclick_queue.failures (fingerprint, task_id);
CREATE INDEX failures_by_age ON aaiclick_queue.failures (failed_at);
CREATE TABLE aaiclick_queue.failure_groups (
    fingerprint text COLLATE "C" PRIMARY KEY,
    acknowledged_at timestamptz NOT NULL DEFAULT now(),
    acknowledged_by text,
    muted_until timestamptz,
    reason text
);
CREATE TABLE aaiclick_queue.alarms (
    kind text COLLATE "C" NOT NULL,
    what text COLLATE "C" NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    data jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (kind, what)
);
CREATE TABLE aaiclick_queue.system_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    type text COLLATE "C" NOT NULL,
    made_by text,
    data jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX system_events_of_type ON aaiclick_queue.system_events (type, id);
CREATE TABLE aaiclick_queue.orchestrators (
    id bigint PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    pid integer NOT NULL,
    hostname text NOT NULL,
    version text NOT NULL,
    loops jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
CREATE TABLE aaiclick_queue.tokens (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at timestamptz,
    name text NOT NULL,
    role text NOT NULL CONSTRAINT tokens_role_is_known CHECK (role IN ('reader', 'writer', 'admin')),
    made_by text,
    digest bytea NOT NULL CONSTRAINT tokens_digest_is_one UNIQUE
);
ALTER TABLE aaiclick_queue.workers ADD COLUMN entrypoints text[], ADD COLUMN secrets text[],
    ADD COLUMN rss_bytes bigint, ADD COLUMN lag_seconds real, ADD COLUMN skew_seconds real;
ALTER TABLE aaiclick_queue.queues ADD COLUMN objective_seconds double precision, ADD COLUMN ready_count bigint,
    ADD COLUMN ready_counted_at timestamptz
"""
# A fingerprint is the same for the same trouble: task, kind of error and function, not the line, which moves.
FINGERPRINT = """
CREATE FUNCTION aaiclick_queue.fingerprint(entrypoint text, error jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $function$
SELECT left(md5(entrypoint || '|' || coalesce(error->>'type', '') || '|'
                || regexp_replace(coalesce(error->>'where', ''), ':[0-9]+', '')), 16)
$function$
"""
# One row a task that is FAILED, kept by the one statement that all ways into and out of that status have in common.
KEEP_FAILURES = """
CREATE FUNCTION aaiclick_queue.keep_failures() RETURNS trigger
LANGUAGE plpgsql AS $function$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.status = 'FAILED' THEN
        INSERT INTO aaiclick_queue.failures (task_id, failed_at, fingerprint, queue, entrypoint, error_type, place)
        VALUES (NEW.id, coalesce(NEW.finished_at, now()), aaiclick_queue.fingerprint(NEW.entrypoint, NEW.error),
                NEW.queue, NEW.entrypoint, coalesce(NEW.error->>'type', 'unknown'), NEW.error->>'where')
        ON CONFLICT (task_id) DO UPDATE SET failed_at = excluded.failed_at, fingerprint = excluded.fingerprint,
            queue = excluded.queue, error_type = excluded.error_type, place = excluded.place;
        RETURN NULL;
    END IF;
    DELETE FROM aaiclick_queue.failures WHERE task_id = OLD.id;
    RETURN NULL;
END
$function$
"""
TRIGGERS = """
CREATE TRIGGER keep_failures AFTER UPDATE OF status ON aaiclick_queue.tasks
FOR EACH ROW WHEN (NEW.status = 'FAILED' OR OLD.status = 'FAILED')
EXECUTE FUNCTION aaiclick_queue.keep_failures();
CREATE TRIGGER drop_failures AFTER DELETE ON aaiclick_queue.tasks
FOR EACH ROW WHEN (OLD.status = 'FAILED')
EXECUTE FUNCTION aaiclick_queue.keep_failures()
"""
DOWN = """
DROP TRIGGER drop_failures ON aaiclick_queue.tasks;
DROP TRIGGER keep_failures ON aaiclick_queue.tasks;
DROP FUNCTION aaiclick_queue.keep_failures();
DROP FUNCTION aaiclick_queue.fingerprint(text, jsonb);
ALTER TABLE aaiclick_queue.queues DROP COLUMN objective_seconds, DROP COLUMN ready_count, DROP COLUMN ready_counted_at;
ALTER TABLE aaiclick_queue.workers DROP COLUMN entrypoints, DROP COLUMN secrets, DROP COLUMN rss_bytes,
    DROP COLUMN lag_seconds, DROP COLUMN skew_seconds;
DROP TABLE aaiclick_queue.tokens, aaiclick_queue.orchestrators, aaiclick_queue.system_events, aaiclick_queue.alarms,
    aaiclick_queue.failure_groups, aaiclick_queue.failures, aaiclick_queue.samples, aaiclick_queue.figures
"""
