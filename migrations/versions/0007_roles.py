"""Roles: days of history are made and dropped on behalf of workers that own no table."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _execute(PARTITIONS, DROP_DAY, *CLOSED.split(";\n"))


def downgrade() -> None:
    _execute(*DOWN.split(";\n"), PARTITIONS_BEFORE, OPEN_AGAIN)


def _execute(*statements: str) -> None:
    for statement in statements:
        if statement.strip():
            op.execute(schema_sql(statement, context.config.attributes["schema"]))


# With the rights of the tables' owner, so that a worker needs none to change tables. The search path is fixed and every
# name says its schema: no object of a caller's is ever taken for one of ours. At most 400 days: who may call it must
# not be able to make a million tables.
PARTITIONS = """
CREATE OR REPLACE FUNCTION aaiclick_queue.ensure_partitions(days integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parent text;
    first_day date;
    child text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('aaiclick_queue.partitions'));
    FOREACH parent IN ARRAY ARRAY['attempts', 'events'] LOOP
        FOR first_day IN
            SELECT (now() AT TIME ZONE 'UTC')::date + d FROM generate_series(-1, least(days, 400)) AS d LOOP
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
# Only a day of history, and only one that is over. CONCURRENTLY cannot stand in a function: this one locks writers out,
# for the 200 ms at most, once a day.
DROP_DAY = """
CREATE FUNCTION aaiclick_queue.drop_day(day text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms'
AS $function$
DECLARE
    its_table oid := to_regclass('aaiclick_queue.' || quote_ident(drop_day.day));
    pending boolean;
BEGIN
    IF drop_day.day !~ '^(attempts|events)_[0-9]{8}$'
       OR right(drop_day.day, 8) >= to_char((now() AT TIME ZONE 'UTC')::date, 'YYYYMMDD') THEN
        RAISE EXCEPTION '% is no day of history that is over', drop_day.day USING ERRCODE = '22023';
    END IF;
    IF its_table IS NULL THEN
        RETURN false;
    END IF;
    SELECT i.inhdetachpending INTO pending FROM pg_inherits i WHERE i.inhrelid = its_table;
    IF pending IS NOT NULL THEN
        EXECUTE format('ALTER TABLE aaiclick_queue.%I DETACH PARTITION aaiclick_queue.%I%s',
                       split_part(drop_day.day, '_', 1), drop_day.day, CASE WHEN pending THEN ' FINALIZE' ELSE '' END);
    END IF;
    EXECUTE format('DROP TABLE aaiclick_queue.%I', drop_day.day);
    RETURN true;
END
$function$;
"""
CLOSED = """
REVOKE ALL ON FUNCTION aaiclick_queue.ensure_partitions(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION aaiclick_queue.drop_day(text) FROM PUBLIC
"""
DOWN = """
DROP FUNCTION aaiclick_queue.drop_day(text);
DROP FUNCTION aaiclick_queue.ensure_partitions(integer)
"""
PARTITIONS_BEFORE = (
    PARTITIONS.replace("OR REPLACE ", "")
    .replace(" SECURITY DEFINER SET search_path = pg_catalog, pg_temp", "")
    .replace("least(days, 400)", "days")
)
OPEN_AGAIN = "GRANT EXECUTE ON FUNCTION aaiclick_queue.ensure_partitions(integer) TO PUBLIC"
