"""The tables of schedules; part of tables.py."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

_NOW = sa.text("now()")
_ZONED = sa.DateTime(timezone=True)
_C = "C"


def add_schedules(metadata: sa.MetaData) -> None:
    """Registered jobs and their ticks."""
    sa.Table(
        "registered_jobs",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *(sa.Column(name, _ZONED, nullable=False, server_default=_NOW) for name in ("created_at", "updated_at")),
        sa.Column("next_run_at", _ZONED),
        sa.Column("fire_at", sa.DateTime),
        sa.Column("anchor_at", sa.DateTime, nullable=False),
        *(sa.Column(name, sa.DateTime) for name in ("queued_fire_at", "starts_at", "ends_at")),
        sa.Column("interval_seconds", sa.Double),
        sa.Column("jitter_seconds", sa.Double, nullable=False, server_default=sa.text("0")),
        *(sa.Column(name, sa.Double) for name in ("timeout_seconds", "retention_seconds")),
        sa.Column("priority", sa.SmallInteger),
        *(sa.Column(name, sa.Integer) for name in ("max_attempts", "max_parallel")),
        sa.Column("misfire_limit", sa.Integer, nullable=False, server_default=sa.text("100")),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("is_gone", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("name", sa.Text(collation=_C), nullable=False),
        sa.Column("entrypoint", sa.Text, nullable=False),
        sa.Column("queue", sa.Text(collation=_C)),
        *(
            sa.Column(name, sa.Text, nullable=False, server_default=sa.text(f"'{default}'::text"))
            for name, default in (
                ("timezone", "UTC"),
                ("misfire", "coalesce"),
                ("overlap", "allow"),
                ("source", "api"),
            )
        ),
        *(sa.Column(name, sa.Text) for name in ("declared_in", "description")),
        sa.Column("schedule", ARRAY(sa.Text), nullable=False, server_default=sa.text("'{}'::text[]")),
        sa.Column("default_kwargs", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
        *(sa.Column(name, JSONB) for name in ("options", "declared")),
        sa.Column("replacing", ARRAY(sa.BigInteger)),
        sa.UniqueConstraint("name", name="registered_jobs_name_is_one"),
        sa.CheckConstraint("misfire IN ('skip', 'coalesce', 'catch_up')", name="registered_jobs_misfire_is_known"),
        sa.CheckConstraint("overlap IN ('allow', 'skip', 'queue', 'replace')", name="registered_jobs_overlap_is_known"),
        sa.CheckConstraint("source IN ('api', 'code', 'edited')", name="registered_jobs_source_is_known"),
        sa.Index("registered_jobs_due", "next_run_at", "id", postgresql_where=sa.text("next_run_at IS NOT NULL")),
        sa.Index(
            "registered_jobs_left",
            "id",
            postgresql_where=sa.text("queued_fire_at IS NOT NULL OR replacing IS NOT NULL"),
        ),
    )
    sa.Table(
        "ticks",
        metadata,
        sa.Column("registered_job_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("fire_at", sa.DateTime, primary_key=True),
        sa.Column("created_at", _ZONED, nullable=False, server_default=_NOW),
        sa.Column("due_at", _ZONED),
        sa.Column("job_id", sa.BigInteger),
        sa.Column("missed", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("run_type", sa.Text, nullable=False, server_default=sa.text("'SCHEDULED'::text")),
        sa.Column("reason", sa.Text),
        sa.CheckConstraint("outcome IN ('FIRED', 'QUEUED', 'SKIPPED', 'MISSED')", name="ticks_outcome_is_known"),
        sa.Index("ticks_made", "created_at"),
        sa.Index("ticks_of_jobs", "job_id", postgresql_where=sa.text("job_id IS NOT NULL")),
    )
