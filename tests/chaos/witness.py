"""The witness: triggers in the database that write down each lease, each end and each write that lacks its lease.

It knows nothing of how the product fences its writes. `xid` says which rows came in one commit.
"""

from __future__ import annotations

WITNESS = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.leases (at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL,
    task_id bigint NOT NULL, run_epoch int NOT NULL, worker_id bigint NOT NULL, queue text NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE TABLE chaos.ends (at timestamptz NOT NULL DEFAULT clock_timestamp(), task_id bigint NOT NULL, run_epoch int,
    worker_id bigint, status text NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE TABLE chaos.lines (task_id bigint NOT NULL, run_epoch int NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id());
CREATE TABLE chaos.stale (at timestamptz NOT NULL DEFAULT clock_timestamp(), what text NOT NULL,
    task_id bigint NOT NULL, run_epoch int NOT NULL);
CREATE TABLE chaos.effects (at timestamptz NOT NULL DEFAULT clock_timestamp(), task_id bigint NOT NULL,
    run_epoch int NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id());

CREATE FUNCTION chaos.lease_taken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO chaos.leases (what, task_id, run_epoch, worker_id, queue)
    SELECT 'taken', task_id, run_epoch, worker_id, queue FROM fresh;
    RETURN NULL; END $$;
CREATE FUNCTION chaos.lease_gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO chaos.leases (what, task_id, run_epoch, worker_id, queue)
    SELECT 'gone', task_id, run_epoch, worker_id, queue FROM old_rows;
    RETURN NULL; END $$;
CREATE FUNCTION chaos.task_ended() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO chaos.ends (task_id, run_epoch, worker_id, status)
    SELECT f.id, f.run_epoch, f.worker_id, f.status FROM fresh f JOIN old_rows o ON o.id = f.id
    WHERE f.status IS NOT NULL
      AND (o.status IS NULL OR (o.status, o.run_epoch) IS DISTINCT FROM (f.status, f.run_epoch));
    RETURN NULL; END $$;
CREATE FUNCTION chaos.task_born_ended() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO chaos.ends (task_id, run_epoch, worker_id, status)
    SELECT id, run_epoch, worker_id, status FROM fresh WHERE status IS NOT NULL;
    RETURN NULL; END $$;
CREATE FUNCTION chaos.in_line_again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO chaos.lines (task_id, run_epoch) SELECT task_id, run_epoch FROM fresh WHERE run_epoch > 0;
    RETURN NULL; END $$;
CREATE FUNCTION chaos.has_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NOT EXISTS (SELECT FROM aaiclick_queue.leases WHERE task_id = NEW.task_id AND run_epoch = NEW.run_epoch) THEN
        INSERT INTO chaos.stale (what, task_id, run_epoch) VALUES (TG_TABLE_NAME, NEW.task_id, NEW.run_epoch);
    END IF;
    RETURN NEW; END $$;

CREATE TRIGGER chaos_taken AFTER INSERT ON aaiclick_queue.leases REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION chaos.lease_taken();
CREATE TRIGGER chaos_gone AFTER DELETE ON aaiclick_queue.leases REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION chaos.lease_gone();
CREATE TRIGGER chaos_ended AFTER UPDATE ON aaiclick_queue.tasks REFERENCING OLD TABLE AS old_rows NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION chaos.task_ended();
CREATE TRIGGER chaos_born AFTER INSERT ON aaiclick_queue.tasks REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION chaos.task_born_ended();
CREATE TRIGGER chaos_line AFTER INSERT ON aaiclick_queue.ready REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION chaos.in_line_again();
CREATE TRIGGER chaos_held AFTER INSERT ON aaiclick_queue.held REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION chaos.in_line_again();
CREATE TRIGGER chaos_progress BEFORE INSERT OR UPDATE ON aaiclick_queue.progress
    FOR EACH ROW EXECUTE FUNCTION chaos.has_lease();
CREATE TRIGGER chaos_checkpoint BEFORE INSERT OR UPDATE ON aaiclick_queue.checkpoints
    FOR EACH ROW EXECUTE FUNCTION chaos.has_lease();
CREATE TRIGGER chaos_effect BEFORE INSERT ON chaos.effects FOR EACH ROW EXECUTE FUNCTION chaos.has_lease();
"""
