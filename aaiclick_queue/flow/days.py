"""Days: drops the day partitions of `attempts` and `events` that are older than any task that is kept.

Detached first and without locking writers out, then dropped; whatever is in use waits for the next pass. Days ahead
are made by the reaper's sweep.
"""

from __future__ import annotations

import logging

import msgspec

from ..errors import PostgresUnavailable
from ..postgres import Connection, Database
from .dedupe import sqlstate

log = logging.getLogger(__name__)

# Also those that a pass before has detached and could not drop.
OLD_DAYS = """
SELECT c.relname::text AS name, p.relname::text AS parent, coalesce(i.inhdetachpending, false) AS is_pending,
       pg_has_role(c.relowner, 'USAGE') AS is_ours
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('aaiclick_queue.attempts'))
  AND c.relkind = 'r' AND c.relname ~ '^(attempts|events)_[0-9]{8}$'
  AND right(c.relname, 8) < to_char((now() - make_interval(secs => $1::float8)) AT TIME ZONE 'UTC', 'YYYYMMDD')
ORDER BY right(c.relname, 8), c.relname
"""
# For a role that owns no table.
DROP_DAY = "SELECT aaiclick_queue.drop_day($1::text)"
LOCK_TIMEOUT = "lock_timeout = '200ms'"
# Undone or done by somebody else at this moment, or in use: whichever it is, the next pass sees it as it is then.
LATER = ("55P03", "42P01", "55000", "42809")


class Dropped(msgspec.Struct):
    """Which days are gone, and which could not go now."""

    names: list[str] = []
    left: list[str] = []


async def drop_old_days(db: Database, keep_seconds: float | None, *, dry_run: bool = False) -> Dropped:
    """Drop every day of history that is over and older; what somebody reads is left for the next time."""
    dropped = Dropped()
    if keep_seconds is None:
        return dropped
    for day in await db.fetch(OLD_DAYS, keep_seconds):
        try:
            if not dry_run and not day["is_ours"]:
                await db.fetch(DROP_DAY, day["name"])
            elif not dry_run:
                await _drop(db, day["name"], parent=day["parent"], is_pending=day["is_pending"])
            dropped.names.append(day["name"])
        except Exception as error:
            if not isinstance(error, PostgresUnavailable) and sqlstate(error) not in LATER:
                raise
            log.debug("%s stays for now: %s", day["name"], error)
            dropped.left.append(day["name"])
    return dropped


async def _drop(db: Database, name: str, *, parent: str | None, is_pending: bool) -> None:
    async with db.connection() as connection:
        if parent is not None:
            detach = f"ALTER TABLE aaiclick_queue.{parent} DETACH PARTITION aaiclick_queue.{name}"
            if is_pending:  # a pass before was interrupted between its two halves
                await _patiently(connection, f"{detach} FINALIZE")
            elif connection.is_pooled:
                # CONCURRENTLY must stand outside of a transaction, where a shared session cannot be told how long to
                # wait. This one locks writers out: for the 200 ms at most, once a day.
                await _patiently(connection, detach)
            else:
                await _concurrently(connection, f"{detach} CONCURRENTLY")
        await _patiently(connection, f"DROP TABLE aaiclick_queue.{name}")


async def _patiently(connection: Connection, sql: str) -> None:
    async with connection.transaction():
        for statement in (f"SET LOCAL {LOCK_TIMEOUT}", sql):
            await connection.alone(statement)


async def _concurrently(connection: Connection, sql: str) -> None:
    await connection.alone(f"SET {LOCK_TIMEOUT}")
    try:
        await connection.alone(sql)
    finally:
        if not connection.raw.is_closed():
            await connection.alone("RESET lock_timeout")
