"""The tables, for Alembic and for reads by SQLAlchemy. The migrations make them; a test compares both."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from .operate_tables import add_operate
from .schedule_tables import add_schedules
from .schema import DEFAULT_SCHEMA

_NOW = sa.text("now()")
_C = "C"


def _moment(name: str, *, required: bool = False, now: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not required, server_default=_NOW if now else None)


def _small(name: str, default: int | None = None) -> sa.Column[Any]:
    return sa.Column(
        name, sa.SmallInteger, nullable=False, server_default=None if default is None else sa.text(str(default))
    )


def _place_columns(*, waiting: bool) -> list[sa.Column[Any]]:
    zero = 0 if waiting else None
    epoch = sa.Column("run_epoch", sa.Integer, nullable=False, server_default=sa.text("0") if waiting else None)
    return [epoch, *(_small(name, zero) for name in ("attempt", "lost_count", "snoozes", "flags"))]


def _queue(**more: object) -> sa.Column[Any]:
    return sa.Column("queue", sa.Text(collation=_C), nullable=False, **more)  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def metadata_for(schema: str = DEFAULT_SCHEMA) -> sa.MetaData:
    """The tables in the schema given."""
    metadata = sa.MetaData(schema=schema)
    _tasks(metadata)
    _jobs(metadata)
    _gates(metadata)
    add_schedules(metadata)
    add_operate(metadata)
    _places(metadata)
    _limits(metadata)
    _operations(metadata)
    _side_tables(metadata)
    _history(metadata)
    return metadata


def _tasks(metadata: sa.MetaData) -> None:
    sa.Table(
        "tasks",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        _moment("created_at", required=True, now=True),
        _moment("eta"),
        _moment("expires_at"),
        sa.Column("parent_id", sa.BigInteger),
        _moment("started_at"),
        _moment("finished_at"),
        sa.Column("worker_id", sa.BigInteger),
        sa.Column("run_epoch", sa.Integer),
        sa.Column("timeout_seconds", sa.REAL),
        _small("priority", 0),
        sa.Column("max_attempts", sa.SmallInteger),
        sa.Column("attempt", sa.SmallInteger),
        _queue(),
        sa.Column("entrypoint", sa.Text, nullable=False),
        sa.Column("kwargs", JSONB, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("retry", JSONB),
        sa.Column("correlation_id", sa.Text),
        sa.Column("metadata", JSONB),
        sa.Column("spawn_key", sa.Text),
        sa.Column("status", sa.Text),
        sa.Column("result", JSONB),
        sa.Column("error", JSONB),
        sa.Column("concurrency_key", sa.Text(collation=_C)),
        sa.Column("order_by", sa.Text(collation=_C)),
        sa.Column("order_stops", sa.Boolean),
        sa.Column("keep", sa.Text),
        sa.Column("hooks", JSONB),
        *(
            sa.Column(name, sa.BigInteger)
            for name in ("job_id", "group_id", "wait_gate", "member_gate", "exit_gate", "after_gate")
        ),
        sa.Column("countdown", sa.REAL),
        sa.Column("map_index", sa.Integer),
        sa.Column("rule", sa.Text),
        sa.Column("critical", sa.Boolean),
        sa.Column("crowd", sa.Text(collation=_C)),
        _moment("ready_at"),
        sa.CheckConstraint(
            "status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'UPSTREAM_FAILED', 'SKIPPED')", name="tasks_status_is_final"
        ),
        sa.Index("tasks_of_job", "job_id", "id", postgresql_where=sa.text("job_id IS NOT NULL")),
        sa.Index("tasks_of_group", "group_id", "map_index", "id", postgresql_where=sa.text("group_id IS NOT NULL")),
        sa.Index(
            "tasks_spawned_once",
            "parent_id",
            "spawn_key",
            unique=True,
            postgresql_where=sa.text("parent_id IS NOT NULL"),
        ),
    )


def _jobs(metadata: sa.MetaData) -> None:
    sa.Table(
        "jobs",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        _moment("created_at", required=True, now=True),
        *(
            _moment(name)
            for name in ("started_at", "finished_at", "deadline_at", "pruned_at", "paused_at", "failing_at")
        ),
        _small("priority", 0),
        sa.Column("max_parallel", sa.Integer),
        sa.Column("fail_fast", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("name", sa.Text(collation=_C), nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'PENDING'::text")),
        sa.Column("run_type", sa.Text, nullable=False, server_default=sa.text("'MANUAL'::text")),
        sa.Column("entrypoint", sa.Text),
        sa.Column("kwargs", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
        *(sa.Column(name, JSONB) for name in ("returns", "error", "hooks", "metadata")),
        *(sa.Column(name, sa.Text) for name in ("correlation_id", "submitted_by", "paused_by", "reason")),
        sa.Column("registered_job_id", sa.BigInteger),
        sa.Column("retention_seconds", sa.Double),
        sa.CheckConstraint(
            "status IN ('PENDING', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED')", name="jobs_status_is_known"
        ),
        sa.Index("jobs_named", "name", "id"),
        sa.Index("jobs_open", "id", postgresql_where=sa.text("status IN ('PENDING', 'RUNNING')")),
        sa.Index("jobs_marked", "id", postgresql_where=sa.text("pruned_at IS NOT NULL")),
        sa.Index("jobs_overdue", "deadline_at", postgresql_where=sa.text("status IN ('PENDING', 'RUNNING')")),
        sa.Index(
            "jobs_registered",
            "registered_job_id",
            "id",
            postgresql_where=sa.text("registered_job_id IS NOT NULL"),
        ),
        sa.Index(
            "jobs_kept_apart",
            "retention_seconds",
            "finished_at",
            postgresql_where=sa.text("retention_seconds IS NOT NULL AND pruned_at IS NULL"),
        ),
        sa.Index(
            "jobs_registered_open",
            "registered_job_id",
            postgresql_where=sa.text("registered_job_id IS NOT NULL AND status IN ('PENDING', 'RUNNING')"),
        ),
    )
    sa.Table(
        "groups",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in ("parent_group_id", "spawned_by", "entry_gate")),
        _moment("created_at", required=True, now=True),
        sa.Column("max_parallel", sa.Integer),
        sa.Column("mapped", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("rule", sa.Text),
        sa.Column("crowd", sa.Text(collation=_C)),
        sa.Index("groups_of_job", "job_id", "id"),
        sa.Index("groups_in_group", "parent_group_id", postgresql_where=sa.text("parent_group_id IS NOT NULL")),
    )
    sa.Table(
        "dependencies",
        metadata,
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("job_id", "previous_id", "next_id")),
        *(sa.Column(name, sa.Text(collation=_C), nullable=False) for name in ("previous_type", "next_type")),
        sa.Column("any_of", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("choices", ARRAY(sa.Text)),
        sa.Column("known", ARRAY(sa.Text)),
        sa.PrimaryKeyConstraint("job_id", "previous_id", "previous_type", "next_id", "next_type"),
        sa.CheckConstraint("previous_type IN ('task', 'group')", name="dependencies_previous_is_known"),
        sa.CheckConstraint("next_type IN ('task', 'group')", name="dependencies_next_is_known"),
    )


def _gates(metadata: sa.MetaData) -> None:
    sa.Table(
        "gates",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("parent_id", sa.BigInteger),
        sa.Column("edge_cursor", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        _moment("decided_at"),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("total", "remaining")),
        *(_counter(name) for name in ("failed", "skipped", "vetoed")),
        *(sa.Column(name, sa.Text(collation=_C), nullable=False) for name in ("kind", "rule")),
        sa.Column("state", sa.Text(collation=_C), nullable=False, server_default=sa.text("'WAITING'::text")),
        sa.CheckConstraint("kind IN ('JOB', 'GROUP', 'TASK', 'WAIT', 'AFTER')", name="gates_kind_is_known"),
        sa.CheckConstraint(
            "rule IN ('all_success', 'one_success', 'all_done', 'none_failed', 'whole')", name="gates_rule_is_known"
        ),
        sa.CheckConstraint("state IN ('WAITING', 'OPEN', 'FAIL', 'SKIP')", name="gates_state_is_known"),
        sa.Index("gates_of_job", "job_id", "id"),
    )
    sa.Table(
        "gate_edges",
        metadata,
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("gate_id", "next_gate_id")),
        sa.Column("choices", ARRAY(sa.Text)),
        sa.Column("known", ARRAY(sa.Text)),
        sa.PrimaryKeyConstraint("gate_id", "next_gate_id"),
    )
    sa.Table(
        "arrivals",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("gate_id", sa.BigInteger, nullable=False),
        sa.Column("n", sa.Integer, nullable=False),
        *(_counter(name) for name in ("failed", "skipped", "vetoed")),
    )
    sa.Table(
        "waiting",
        metadata,
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("gate_id", "task_id")),
        _counter("run_epoch"),
        _small("flags", 0),
        sa.PrimaryKeyConstraint("gate_id", "task_id"),
    )


def _counter(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0"))


def _places(metadata: sa.MetaData) -> None:
    sa.Table(
        "ready",
        metadata,
        sa.Column("order_key", sa.BigInteger, nullable=False),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        _moment("ready_at", required=True, now=True),
        sa.Column("rank", sa.Integer, nullable=False),
        *_place_columns(waiting=True),
        _queue(),
        sa.PrimaryKeyConstraint("queue", "rank", "order_key", "task_id"),
    )
    sa.Table(
        "delayed",
        metadata,
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        _moment("not_before", required=True),
        sa.Column("order_key", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        *_place_columns(waiting=True),
        _queue(),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Index("delayed_due", "not_before", "task_id"),
    )
    sa.Table(
        "leases",
        metadata,
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("worker_id", sa.BigInteger, nullable=False),
        sa.Column("order_key", sa.BigInteger, nullable=False),
        _moment("ready_at", required=True),
        _moment("claimed_at", required=True, now=True),
        _moment("deadline_at", required=True),
        sa.Column("rank", sa.Integer, nullable=False),
        *_place_columns(waiting=False),
        _queue(),
        sa.Index("leases_of_worker", "worker_id"),
    )


def _limits(metadata: sa.MetaData) -> None:
    sa.Table(
        "held",
        metadata,
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("order_key", sa.BigInteger, nullable=False),
        _moment("held_at", required=True, now=True),
        sa.Column("rank", sa.Integer, nullable=False),
        *_place_columns(waiting=True),
        _queue(),
        *(
            sa.Column(name, sa.Text(collation=_C), nullable=False, server_default=sa.text("''::text"))
            for name in ("entrypoint", "key", "chain", "crowd")
        ),
        sa.Index("held_lanes", "queue", "entrypoint", "key", "chain", "crowd", "rank", "order_key", "task_id"),
        sa.Index("held_orders", "chain", "order_key", "task_id", postgresql_where=sa.text("chain <> ''::text")),
    )
    sa.Table(
        "limits",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        *(sa.Column(name, sa.Text(collation=_C), nullable=False) for name in ("scope", "name", "kind")),
        sa.Column("per_key", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("n", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Double),
        sa.Column("turn", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        _moment("until"),
        sa.Column("made_by", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column(
            "made_xid",
            sa.BigInteger,
            nullable=False,
            server_default=sa.text("((pg_current_xact_id())::text)::bigint"),
        ),
        _moment("created_at", required=True, now=True),
        sa.UniqueConstraint("scope", "name", "kind", "per_key", name="limits_of_one_kind"),
        sa.CheckConstraint("scope IN ('queue', 'task', 'key', 'job')", name="limits_scope_is_known"),
        sa.CheckConstraint("kind IN ('running', 'rate', 'fair', 'pause')", name="limits_kind_is_known"),
    )
    sa.Table(
        "slots",
        metadata,
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("limit_id", sa.BigInteger, nullable=False),
        sa.Column("stopping", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("order_key", sa.BigInteger),
        sa.Column("seconds", sa.Double),
        _moment("ends_at"),
        sa.Column("worker_id", sa.BigInteger),
        sa.Column("adopted", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("key", sa.Text(collation=_C), nullable=False, server_default=sa.text("''::text")),
        sa.PrimaryKeyConstraint("task_id", "limit_id", "stopping"),
        sa.Index("slots_of_limit", "limit_id", "key"),
        sa.Index("slots_unclaimed", "task_id", postgresql_where=sa.text("seconds IS NOT NULL AND ends_at IS NULL")),
        sa.Index("slots_ending", "ends_at", postgresql_where=sa.text("ends_at IS NOT NULL")),
        sa.Index("slots_stopping", "worker_id", postgresql_where=sa.text("stopping <> 0")),
        sa.Index("slots_adopted", "task_id", postgresql_where=sa.text("adopted")),
    )


def _operations(metadata: sa.MetaData) -> None:
    sa.Table(
        "operations",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        *(
            sa.Column(name, JSONB, nullable=False, server_default=sa.text("'{}'::jsonb"))
            for name in ("filter", "arguments")
        ),
        sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'OPEN'::text")),
        sa.Column("up_to", sa.BigInteger, nullable=False),
        sa.Column("place", sa.Text, nullable=False, server_default=sa.text("''::text")),
        sa.Column("after", JSONB),
        sa.Column("found", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("done", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("total", sa.BigInteger),
        sa.Column("made_by", sa.Text),
        sa.Column("error", sa.Text),
        _moment("created_at", required=True, now=True),
        _moment("updated_at", required=True, now=True),
        _moment("finished_at"),
        sa.Index("operations_open", "id", postgresql_where=sa.text("status = 'OPEN'")),
        sa.CheckConstraint("status IN ('OPEN', 'DONE', 'FAILED', 'CANCELLED')", name="operations_status_is_known"),
    )


def _side_tables(metadata: sa.MetaData) -> None:
    sa.Sequence("node_ids", metadata=metadata)
    sa.Sequence("id_sequence", metadata=metadata)
    sa.Table(
        "outbox",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("clock_timestamp()")
        ),
        sa.Column("order_key", sa.BigInteger, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("n", sa.Integer, nullable=False),
        _queue(),
        sa.Column("task_ids", ARRAY(sa.BigInteger), nullable=False),
    )
    sa.Table(
        "workers",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        _moment("started_at", required=True, now=True),
        _moment("last_heartbeat", required=True, now=True),
        _moment("lease_expires_at", required=True),
        _moment("stopped_at"),
        *(
            sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))
            for name in ("tasks_completed", "tasks_failed", "tasks_lost")
        ),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("running", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("hostname", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("queues", ARRAY(sa.Text), nullable=False),
        sa.Column("threads", sa.Integer),
        sa.Column("children", sa.Integer),
        sa.Column("fleet", sa.Text),
        sa.Column("asked", sa.Text),
        sa.Column("stacks", sa.Text),
        _moment("stacks_at"),
        *(sa.Column(name, ARRAY(sa.Text)) for name in ("entrypoints", "secrets")),
        sa.Column("rss_bytes", sa.BigInteger),
        *(sa.Column(name, sa.REAL) for name in ("lag_seconds", "skew_seconds")),
        sa.CheckConstraint("status IN ('ACTIVE', 'STOPPING', 'STOPPED', 'LOST')", name="workers_status_is_known"),
    )
    sa.Table(
        "queues",
        metadata,
        sa.Column("name", sa.Text(collation=_C), primary_key=True),
        _moment("paused_at"),
        sa.Column("paused_by", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("max_depth", sa.Integer),
        sa.Column("depth", sa.BigInteger),
        _moment("depth_at"),
        _moment("full_at"),
        sa.Column("objective_seconds", sa.Double),
        sa.Column("ready_count", sa.BigInteger),
        _moment("ready_counted_at"),
    )
    sa.Table(
        "dedupe",
        metadata,
        sa.Column("scope", sa.Text(collation=_C), nullable=False),
        sa.Column("key", sa.Text(collation=_C), nullable=False),
        sa.Column("task_id", sa.BigInteger, nullable=False),
        _moment("until"),
        _moment("first_at", required=True, now=True),
        sa.PrimaryKeyConstraint("scope", "key"),
        sa.Index("dedupe_of_task", "task_id"),
    )
    sa.Table(
        "timers",
        metadata,
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        _moment("due_at", required=True),
        sa.Index("timers_due", "due_at", "task_id"),
    )
    for name in ("progress", "checkpoints"):
        sa.Table(
            name,
            metadata,
            sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("run_epoch", sa.Integer, nullable=False),
            sa.Column("data", JSONB, nullable=False),
            _moment("updated_at", required=True, now=True),
        )
    sa.Table(
        "loops",
        metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.BigInteger, nullable=False),
        _moment("expires_at", required=True),
    )


def _history(metadata: sa.MetaData) -> None:
    sa.Table(
        "attempts",
        metadata,
        sa.Column("task_id", sa.BigInteger, nullable=False),
        sa.Column("worker_id", sa.BigInteger),
        _moment("started_at"),
        _moment("finished_at", required=True, now=True),
        sa.Column("run_epoch", sa.Integer, nullable=False),
        _small("attempt"),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("error", JSONB),
        _moment("ready_at"),
        sa.Index("attempts_of_task", "task_id", "run_epoch"),
        postgresql_partition_by="RANGE (finished_at)",
    )
    sa.Table(
        "events",
        metadata,
        _moment("created_at", required=True, now=True),
        sa.Column("task_id", sa.BigInteger),
        sa.Column("run_epoch", sa.Integer),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("data", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
        sa.Column("job_id", sa.BigInteger),
        sa.Index("events_of_task", "task_id", "created_at"),
        sa.Index("events_of_job", "job_id", "created_at", postgresql_where=sa.text("job_id IS NOT NULL")),
        postgresql_partition_by="RANGE (created_at)",
    )
