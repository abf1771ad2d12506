"""Migrations: brings the schema to this version, safely from several processes at once.

Alembic runs inside the queue's own schema, its version table with it; an application's Alembic sees neither.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import PostgresUnavailable, QueueError, SchemaMismatch
from .postgres import UNAVAILABLE, Database, plain_dsn
from .settings import Settings, masked

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

HEAD = "0004"
LOCK_TRIES = 60
LOCK_NOT_AVAILABLE = "55P03"
LOCK_KEY = 0x61616951  # "aaiQ"
REVISION = "SELECT version_num FROM aaiclick_queue.alembic_version"
HAS_SCHEMA = "SELECT to_regclass($1::text) IS NOT NULL"


def scripts() -> Path:
    """The folder of migrations: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent
    return next(p for p in (package / "migrations", package.parent / "migrations") if (p / "env.py").exists())


async def upgrade(settings: Settings, revision: str = "head", *, dsn: str | None = None) -> None:
    """Bring the schema up to the revision; does nothing when it is there already."""
    await asyncio.to_thread(_run, settings, dsn, "upgrade", revision)


async def downgrade(settings: Settings, revision: str, *, dsn: str | None = None) -> None:
    """Bring the schema down to the revision, `base` for nothing at all."""
    await asyncio.to_thread(_run, settings, dsn, "downgrade", revision)


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
        raise SchemaMismatch(
            f"the database is at revision {revision}, this version of aaiclick-queue knows {HEAD}: "
            "upgrade the package (pip install -U aaiclick-queue)"
        )
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


def _run(settings: Settings, dsn: str | None, direction: str, revision: str) -> None:
    asyncio.run(_with_connection(settings, dsn or settings.postgres_url, direction, revision))


async def _with_connection(settings: Settings, dsn: str | None, direction: str, revision: str) -> None:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.ext.asyncio import create_async_engine

    if dsn is None:
        raise PostgresUnavailable("no Postgres URL: set AAICLICK_QUEUE_POSTGRES_URL")
    arguments: dict[str, Any] = {"timeout": 10}
    if settings.postgres_pooler == "transaction":
        arguments |= {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
    url = plain_dsn(dsn).replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url, connect_args=arguments)
    try:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                async with engine.connect() as connection:
                    await connection.run_sync(_migrate, settings.postgres_schema, direction, revision)
            except DBAPIError as error:
                if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE or not tries_left:
                    raise
                await asyncio.sleep(random.uniform(0.5, 1.5))
            else:
                return
    except UNAVAILABLE as error:
        raise PostgresUnavailable(f"cannot reach Postgres at {masked(dsn)} ({error})") from error
    finally:
        await engine.dispose()


def _migrate(connection: Connection, schema: str, direction: str, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError

    # One transaction with the lock, so that it works through pgbouncer and a crash leaves nothing half-made.
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK_KEY}, hashtext('{schema}'))")
    # A change of a hot table waits behind the oldest transaction, and everybody else behind it: not for long.
    connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
    connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    config = _config(schema, connection)
    try:
        (command.upgrade if direction == "upgrade" else command.downgrade)(config, revision)
    except CommandError as error:
        raise QueueError(f"migrate {direction} {revision}: {error}") from error
    connection.commit()
