"""Schedules: registered jobs and their ticks."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _execute(*UP.split(";\n"))


def downgrade() -> None:
    _execute(*DOWN.split(";\n"))


def _execute(*statements: str) -> None:
    for statement in statements:
        if statement.strip():
            op.execute(schema_sql(statement, context.config.attributes["schema"]))


# `fire_at` is the name of a tick, in UTC and without a zone: what the schedule says. `next_run_at` is the moment at
# which that tick is due; the two are one, except where a test lets time pass.
UP = """
CREATE TABLE aaiclick_queue.registered_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    next_run_at timestamptz,
    fire_at timestamp,
    anchor_at timestamp NOT NULL,
    queued_fire_at timestamp,
    starts_at timestamp,
    ends_at timestamp,
    interval_seconds double precision,
    jitter_seconds double precision NOT NULL DEFAULT 0,
    timeout_seconds double precision,
    retention_seconds double precision,
    priority smallint,
    max_attempts integer,
    max_parallel integer,
    misfire_limit integer NOT NULL DEFAULT 100,
    enabled boolean NOT NULL DEFAULT true,
    is_gone boolean NOT NULL DEFAULT false,
    name text COLLATE "C" NOT NULL CONSTRAINT registered_jobs_name_is_one UNIQUE,
    entrypoint text NOT NULL,
    queue text COLLATE "C",
    timezone text NOT NULL DEFAULT 'UTC',
    misfire text NOT NULL DEFAULT 'coalesce'
        CONSTRAINT registered_jobs_misfire_is_known CHECK (misfire IN ('skip', 'coalesce', 'catch_up')),
    overlap text NOT NULL DEFAULT 'allow'
        CONSTRAINT registered_jobs_overlap_is_known CHECK (overlap IN ('allow', 'skip', 'queue', 'replace')),
    source text NOT NULL DEFAULT 'api'
        CONSTRAINT registered_jobs_source_is_known CHECK (source IN ('api', 'code', 'edited')),
    declared_in text,
    description text,
    schedule text[] NOT NULL DEFAULT '{}',
    default_kwargs jsonb NOT NULL DEFAULT '{}',
    options jsonb,
    declared jsonb,
    replacing bigint[]
) WITH (fillfactor = 70);
CREATE INDEX registered_jobs_due ON aaiclick_queue.registered_jobs (next_run_at, id) WHERE next_run_at IS NOT NULL;
CREATE INDEX registered_jobs_left ON aaiclick_queue.registered_jobs (id)
    WHERE queued_fire_at IS NOT NULL OR replacing IS NOT NULL;
CREATE TABLE aaiclick_queue.ticks (
    registered_job_id bigint NOT NULL,
    fire_at timestamp NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    due_at timestamptz,
    job_id bigint,
    missed integer NOT NULL DEFAULT 0,
    outcome text NOT NULL
        CONSTRAINT ticks_outcome_is_known CHECK (outcome IN ('FIRED', 'QUEUED', 'SKIPPED', 'MISSED')),
    run_type text NOT NULL DEFAULT 'SCHEDULED',
    reason text,
    PRIMARY KEY (registered_job_id, fire_at)
);
CREATE INDEX ticks_made ON aaiclick_queue.ticks (created_at);
CREATE INDEX ticks_of_jobs ON aaiclick_queue.ticks (job_id) WHERE job_id IS NOT NULL;
ALTER TABLE aaiclick_queue.jobs ADD COLUMN registered_job_id bigint, ADD COLUMN retention_seconds double precision;
CREATE INDEX jobs_registered ON aaiclick_queue.jobs (registered_job_id, id) WHERE registered_job_id IS NOT NULL;
CREATE INDEX jobs_kept_apart ON aaiclick_queue.jobs (retention_seconds, finished_at)
    WHERE retention_seconds IS NOT NULL AND pruned_at IS NULL;
CREATE INDEX jobs_registered_open ON aaiclick_queue.jobs (registered_job_id)
    WHERE registered_job_id IS NOT NULL AND status IN ('PENDING', 'RUNNING');
"""
DOWN = """
DROP INDEX aaiclick_queue.jobs_registered_open;
DROP INDEX aaiclick_queue.jobs_kept_apart;
DROP INDEX aaiclick_queue.jobs_registered;
ALTER TABLE aaiclick_queue.jobs DROP COLUMN registered_job_id, DROP COLUMN retention_seconds;
DROP TABLE aaiclick_queue.ticks;
DROP TABLE aaiclick_queue.registered_jobs;
DELETE FROM aaiclick_queue.operations WHERE kind = 'backfill'
"""
