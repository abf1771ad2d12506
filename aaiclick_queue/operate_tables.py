"""The tables that operators look at; part of tables.py."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

_NOW = sa.text("now()")
_ZONED = sa.DateTime(timezone=True)
_C = "C"


def _name(name: str, *, key: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(collation=_C), primary_key=key, nullable=False)


def _now(name: str) -> sa.Column[Any]:
    return sa.Column(name, _ZONED, nullable=False, server_default=_NOW)


def _data(name: str = "data") -> sa.Column[Any]:
    return sa.Column(name, JSONB, nullable=False, server_default=sa.text("'{}'::jsonb"))


def add_operate(metadata: sa.MetaData) -> None:
    """Figures, samples, failures, alarms, events of the system, loops, tokens."""
    _figures(metadata)
    _failures(metadata)
    sa.Table(
        "alarms",
        metadata,
        _name("kind", key=True),
        _name("what", key=True),
        _now("since"),
        _now("seen_at"),
        _data(),
    )
    sa.Table(
        "system_events",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        _now("created_at"),
        _name("type"),
        sa.Column("made_by", sa.Text),
        _data(),
        sa.Index("system_events_of_type", "type", "id"),
    )
    sa.Table(
        "orchestrators",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        _now("started_at"),
        _now("seen_at"),
        sa.Column("pid", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("hostname", "version")),
        _data("loops"),
    )
    sa.Table(
        "tokens",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        _now("created_at"),
        *(sa.Column(name, _ZONED) for name in ("expires_at", "revoked_at", "used_at")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("name", "role")),
        sa.Column("made_by", sa.Text),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("digest", name="tokens_digest_is_one"),
        sa.CheckConstraint("role IN ('reader', 'writer', 'admin')", name="tokens_role_is_known"),
    )


def _figures(metadata: sa.MetaData) -> None:
    sa.Table(
        "figures",
        metadata,
        sa.Column("minute", _ZONED, primary_key=True),
        _name("queue", key=True),
        _name("entrypoint", key=True),
        *(
            sa.Column(name, sa.Integer, nullable=False, server_default=sa.text("0"))
            for name in ("completed", "failed", "retried", "lost", "cancelled", "snoozed")
        ),
        *(
            sa.Column(name, sa.Double, nullable=False, server_default=sa.text("0"))
            for name in ("wait_seconds", "run_seconds")
        ),
        *(sa.Column(name, ARRAY(sa.Integer), nullable=False) for name in ("waits", "runs")),
    )
    sa.Table(
        "samples",
        metadata,
        sa.Column("minute", _ZONED, primary_key=True),
        _name("queue", key=True),
        sa.Column("ready", sa.BigInteger, nullable=False),
        sa.Column("running", sa.Integer, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("delayed", "held")),
        sa.Column("created", sa.Integer),
        sa.Column("oldest_seconds", sa.Double),
    )


def _failures(metadata: sa.MetaData) -> None:
    sa.Table(
        "failures",
        metadata,
        sa.Column("task_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("failed_at", _ZONED, nullable=False),
        _name("fingerprint"),
        _name("queue"),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("entrypoint", "error_type")),
        sa.Column("place", sa.Text),
        sa.Index("failures_of_group", "fingerprint", "task_id"),
        sa.Index("failures_by_age", "failed_at"),
    )
    sa.Table(
        "failure_groups",
        metadata,
        _name("fingerprint", key=True),
        _now("acknowledged_at"),
        sa.Column("acknowledged_by", sa.Text),
        sa.Column("muted_until", _ZONED),
        sa.Column("reason", sa.Text),
    )
