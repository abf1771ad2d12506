"""Rows that can be worked on: no moment outside the calendar, no number of seconds that Postgres cannot add to one."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# By table: moments, and seconds that may not be below zero. One `infinity` or NaN in any of them stopped a statement
# that works on many rows: the claims of a queue, the reaper, the doctor. Whoever writes one is told so instead.
COLUMNS = {
    "tasks": ("created_at eta expires_at started_at finished_at ready_at", "timeout_seconds countdown"),
    "jobs": (
        "created_at started_at finished_at deadline_at pruned_at paused_at failing_at",
        "retention_seconds",
    ),
    "groups": ("created_at", ""),
    "gates": ("decided_at", ""),
    "ready": ("ready_at", ""),
    "delayed": ("not_before", ""),
    "held": ("held_at", ""),
    "leases": ("ready_at claimed_at deadline_at", ""),
    "limits": ("until created_at", "seconds"),
    "slots": ("ends_at", "seconds"),
    "operations": ("created_at updated_at finished_at", ""),
    "outbox": ("created_at", ""),
    "workers": ("started_at last_heartbeat lease_expires_at stopped_at stacks_at", ""),
    "queues": ("paused_at depth_at full_at ready_counted_at", "objective_seconds"),
    "dedupe": ("until first_at", ""),
    "timers": ("due_at", ""),
    "progress": ("updated_at", ""),
    "checkpoints": ("updated_at", ""),
    "loops": ("expires_at", ""),
    "attempts": ("started_at finished_at ready_at", ""),
    "events": ("created_at", ""),
    "registered_jobs": (
        "created_at updated_at next_run_at fire_at anchor_at queued_fire_at starts_at ends_at",
        "interval_seconds jitter_seconds timeout_seconds retention_seconds",
    ),
    "ticks": ("fire_at created_at due_at", ""),
    "figures": ("minute", ""),
    "samples": ("minute", ""),
    "failures": ("failed_at", ""),
    "failure_groups": ("acknowledged_at muted_until", ""),
    "alarms": ("since seen_at", ""),
    "system_events": ("created_at", ""),
    "orchestrators": ("started_at seen_at", ""),
    "tokens": ("created_at expires_at revoked_at used_at", ""),
}
# At once, before anything else is done: the fleet locks them in several orders, so that whoever takes one after another
# meets it crosswise. What cannot be had in a moment is tried again.
LOCK = f"LOCK TABLE {', '.join(f'aaiclick_queue.{table}' for table in COLUMNS)} IN ACCESS EXCLUSIVE MODE"
MOMENT = "{0} BETWEEN '0010-01-01 00:00+00' AND '9990-01-01 00:00+00'"
SECONDS = "{0} BETWEEN 0 AND 100000000000"
FINITE = "{0} BETWEEN -100000000000 AND 100000000000"
MEASURED = {
    "workers": ("lag_seconds", "skew_seconds"),
    "figures": ("wait_seconds", "run_seconds"),
    "samples": ("oldest_seconds",),
}


# NOT VALID: what is there is not read, so that each table is locked for a moment; what is written from now on is.
# An empty table, as all of a new schema are, has nothing to be read.
def upgrade() -> None:
    _execute(LOCK)
    for table, (moments, seconds) in COLUMNS.items():
        rules = [MOMENT.format(name) for name in moments.split()] + [SECONDS.format(name) for name in seconds.split()]
        rules += [FINITE.format(name) for name in MEASURED.get(table, ())]
        _execute(
            f"ALTER TABLE aaiclick_queue.{table} ADD CONSTRAINT {table}_can_be_worked_on"
            f" CHECK ({' AND '.join(rules)}){_unread(table)}"
        )


def downgrade() -> None:
    _execute(LOCK)
    for table in COLUMNS:
        _execute(f"ALTER TABLE aaiclick_queue.{table} DROP CONSTRAINT {table}_can_be_worked_on")


def _unread(table: str) -> str:
    sql = schema_sql(f"SELECT EXISTS (SELECT FROM aaiclick_queue.{table})", context.config.attributes["schema"])
    return " NOT VALID" if op.get_bind().exec_driver_sql(sql).scalar() else ""


def _execute(statement: str) -> None:
    op.execute(schema_sql(statement, context.config.attributes["schema"]))
