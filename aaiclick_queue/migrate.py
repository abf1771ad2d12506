"""Migrations: brings the schema to this version, safely from several processes at once.

Alembic runs inside the queue's own schema, its version table with it; an application's Alembic sees neither.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import roles
from .errors import PostgresUnavailable, QueueError, SchemaMismatch
from .postgres import UNAVAILABLE, Database, dial
from .schema import quoted, schema_sql
from .settings import Settings, masked

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

T = TypeVar("T")
Work = Callable[["Connection", str, float], T]

HEAD = "0008"
LOCK_TRIES = 100
# Claims queue up behind a change that waits: first for less than anybody notices, later for longer than Postgres needs
# to send an autovacuum away (1 s).
FIRST_LOCK_SECONDS, LONGEST_LOCK_SECONDS = 0.1, 2.0
IN_THE_WAY = ("55P03", "40P01")  # a lock that was not got in time; a deadlock with a statement of the fleet
INSUFFICIENT_PRIVILEGE = "42501"
LOCK_KEY = 0x61616951  # "aaiQ"
REVISION = "SELECT version_num FROM aaiclick_queue.alembic_version"
HAS_SCHEMA = "SELECT to_regclass($1::text) IS NOT NULL"


def scripts() -> Path:
    """The folder of migrations: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent
    return next(p for p in (package / "migrations", package.parent / "migrations") if (p / "env.py").exists())


async def upgrade(settings: Settings, revision: str = "head", *, dsn: str | None = None) -> None:
    """Bring the schema up to the revision; does nothing when it is there already."""
    await _step_by_step(settings, dsn, "upgrade", revision)


async def downgrade(settings: Settings, revision: str, *, dsn: str | None = None) -> None:
    """Bring the schema down to the revision, `base` for nothing at all."""
    await _step_by_step(settings, dsn, "downgrade", revision)


async def make_roles(settings: Settings, *, dsn: str | None = None, dry_run: bool = False) -> list[str]:
    """Make the roles of the schema and state their rights, at once for what is there and with each migration to come.

    Gives the statements; with `dry_run` those that would be run.
    """
    return await asyncio.to_thread(_run, settings, dsn, partial(_make_roles, dry_run=dry_run))


async def _step_by_step(settings: Settings, dsn: str | None, direction: str, revision: str) -> None:
    # A transaction each: no table stays locked for what other revisions have to do.
    step = partial(_migrate, direction=direction, revision=revision)
    while not await asyncio.to_thread(_run, settings, dsn, step):
        pass


async def current(db: Database) -> str | None:
    """The revision that the database is at, or None before the first migration."""
    if not await db.fetchval(HAS_SCHEMA, f'"{db.schema}".alembic_version'):
        return None
    revision: str | None = await db.fetchval(REVISION)
    return revision


def history(settings: Settings) -> list[tuple[str, str]]:
    """Every revision and what it brings, oldest first."""
    from alembic.script import ScriptDirectory

    revisions = ScriptDirectory.from_config(_config(settings.postgres_schema)).walk_revisions()
    return [(script.revision, script.doc) for script in reversed(list(revisions))]


async def require_head(db: Database) -> None:
    """Refuse to work on a schema of another version."""
    revision = await current(db)
    if revision == HEAD:
        return
    if revision is None:
        raise SchemaMismatch(
            f"the schema {db.schema!r} has no tables of aaiclick-queue yet: run `aaiclick-queue migrate`"
        )
    if revision > HEAD:
        raise SchemaMismatch(_newer(revision))
    raise SchemaMismatch(
        f"the database is at revision {revision}, this version needs {HEAD}: run `aaiclick-queue migrate`"
    )


def _config(schema: str, connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["schema"] = schema
    config.attributes["connection"] = connection
    return config


def _run(settings: Settings, dsn: str | None, work: Work[T]) -> T:
    return asyncio.run(_with_connection(settings, dsn or settings.postgres_url, work))


async def _with_connection(settings: Settings, dsn: str | None, work: Work[T]) -> T:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import create_async_engine

    if dsn is None:
        raise PostgresUnavailable("no Postgres URL: set AAICLICK_QUEUE_POSTGRES_URL")
    # Not by a URL of SQLAlchemy's, which knows no sslmode, no list of hosts and no password file.
    arguments: dict[str, Any] = {"async_creator_fn": lambda *_, **given: dial(dsn, seconds=10, **given)}
    if settings.postgres_pooler == "transaction":
        arguments |= {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
    engine = create_async_engine("postgresql+asyncpg://", connect_args=arguments)
    try:
        for tries in range(LOCK_TRIES):
            patience = min(LONGEST_LOCK_SECONDS, FIRST_LOCK_SECONDS * 1.1**tries)
            try:
                async with engine.connect() as connection:
                    return await connection.run_sync(work, settings.postgres_schema, patience)
            except DBAPIError as error:
                state = getattr(error.orig, "sqlstate", None)
                if state == INSUFFICIENT_PRIVILEGE:
                    raise _not_the_owner(error, dsn, settings.postgres_schema) from error
                if state not in IN_THE_WAY or tries + 1 == LOCK_TRIES:
                    raise
                await asyncio.sleep(random.uniform(0.1, 0.6))
        raise AssertionError("the last try has raised")
    except UNAVAILABLE as error:
        raise PostgresUnavailable(f"cannot reach Postgres at {masked(dsn)} ({error})") from error
    finally:
        await engine.dispose()


def _not_the_owner(error: Exception, dsn: str, schema: str) -> QueueError:
    refusal = str(getattr(error, "orig", error)).splitlines()[0].rpartition(">: ")[2]
    return QueueError(
        f"{masked(dsn)} logs in with a role that may not change the schema {schema!r} ({refusal}): migrate with the "
        "role that owns its tables, and make roles with one that has CREATEROLE, or hand over what --dry-run prints"
    )


def _migrate(connection: Connection, schema: str, patience: float, *, direction: str, revision: str) -> bool:
    """One revision up or down, in a transaction of its own; whether that was the last one."""
    from alembic import command
    from alembic.util import CommandError

    _alone(connection, schema)
    # A change of a hot table waits behind the oldest transaction, and everybody else behind it: not for long.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{patience * 1000:.0f}ms'")
    connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
    config = _config(schema, connection)
    try:
        left = _left(config, connection, direction, revision)
        if left:
            (command.upgrade if direction == "upgrade" else command.downgrade)(config, left[0])
    except CommandError as error:
        raise QueueError(f"migrate {direction} {revision}: {error}") from error
    if _is_at_head(connection, schema):
        roles.keep_up(connection, schema)
    connection.commit()
    return len(left) <= 1


def _make_roles(connection: Connection, schema: str, _: float, *, dry_run: bool) -> list[str]:
    _alone(connection, schema)
    statements = list(roles.create_statements(schema))
    if _is_at_head(connection, schema):
        statements += roles.grant_statements(schema, list(roles.KINDS), roles.relations(connection, schema))
    if not dry_run:
        for statement in statements:
            connection.exec_driver_sql(statement)
        connection.commit()
    return statements


def _alone(connection: Connection, schema: str) -> None:
    # One transaction with the lock, so that it works through pgbouncer and a crash leaves nothing half-made.
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock($1::int, hashtext($2::text))", (LOCK_KEY, schema))


def _is_at_head(connection: Connection, schema: str) -> bool:
    if not connection.exec_driver_sql(HAS_SCHEMA, (f"{quoted(schema)}.alembic_version",)).scalar():
        return False
    return connection.exec_driver_sql(schema_sql(REVISION, schema)).scalar() == HEAD


def _left(config: Config, connection: Connection, direction: str, revision: str) -> list[str]:
    """The revisions that are still to be gone to, the next one first."""
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(config)
    known = [one.revision for one in reversed(list(script.walk_revisions()))]
    at = MigrationContext.configure(
        connection, opts={"version_table_schema": config.attributes["schema"]}
    ).get_current_revision()
    if at is not None and at not in known:
        raise SchemaMismatch(_newer(at))
    steps = ["base", *known]
    here = steps.index(at or "base")
    target = {"head": known[-1]}.get(revision, revision)
    if target not in steps:
        return [revision]  # by another of Alembic's words for it
    there = steps.index(target)
    return steps[here + 1 : there + 1] if direction == "upgrade" else steps[there:here][::-1]


def _newer(revision: str) -> str:
    return (
        f"the database is at revision {revision}, this version of aaiclick-queue knows {HEAD}: "
        "upgrade the package (pip install -U aaiclick-queue)"
    )
