"""Time that passes on command: every time column of the test's database moves into the past."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

import asyncpg

from ..errors import PostgresUnavailable
from ..postgres import Connection, Database, Record
from ..settings import Settings

# Partitions move with their parent. Found in the catalog, so that a new column cannot be forgotten.
TIME_COLUMNS = """
SELECT c.relname::text AS "table", array_agg(quote_ident(a.attname) ORDER BY a.attnum) AS columns,
       (SELECT quote_ident(k.attname) FROM pg_partitioned_table p
        JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = p.partattrs[0] WHERE p.partrelid = c.oid) AS by_day
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND a.atttypid = 'timestamptz'::regtype
GROUP BY c.oid ORDER BY c.relname
"""


TRIES = 5


class Clock:
    """The time of one test's database."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def advance(self, by: timedelta | None = None, **units: float) -> None:
        """Let time pass, `advance(minutes=5)` or a timedelta: all of the queue's times are that much longer ago.

        Delays become due, leases and keys end, retention passes. Advance while no task runs: a run that is under way
        is taken for one whose worker has been silent for so long.
        """
        passed = by if by is not None else timedelta(**units)
        if passed <= timedelta(0):
            raise ValueError(f"advance({by or units!r}): time only goes on, give a timedelta or minutes=5")
        async with Database(self._settings, size=1) as db:
            rows = await db.fetch(TIME_COLUMNS, f'"{db.schema}"')
            for row in rows:
                if row["by_day"] is not None:
                    await _make_days(db, row, passed)
            for again in reversed(range(TRIES)):
                try:
                    async with db.transaction() as tx:
                        for row in rows:
                            await _age(tx, row, passed, schema=db.schema)
                except PostgresUnavailable as error:
                    # All rows of all tables, in no order of anybody's: whoever works beside it may meet it crosswise.
                    if not again or not isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                        raise
                else:
                    break


async def _age(tx: Connection, row: Record, passed: timedelta, *, schema: str) -> None:
    moves = ", ".join(f"{column} = {column} - $1::interval" for column in row["columns"])
    await tx.fetch(f'UPDATE "{schema}"."{row["table"]}" SET {moves}', passed)


async def _make_days(db: Database, row: Record, passed: timedelta) -> None:
    """Have a partition for each day that rows come to, those of this moment included; each in a commit of its own."""
    table = f'"{db.schema}"."{row["table"]}"'
    days = await db.fetch(
        f"SELECT ((at - $1::interval) AT TIME ZONE 'UTC')::date AS day "
        f"FROM (SELECT {row['by_day']} FROM {table} UNION ALL SELECT now()) AS moments(at) GROUP BY 1",
        passed,
    )
    for day in days:
        await _make_day(db, f'"{db.schema}"."{row["table"]}{day["day"]:_%Y%m%d}"', table, day["day"])


async def _make_day(db: Database, child: str, parent: str, day: Any) -> None:
    begin = datetime.combine(day, time(), tzinfo=UTC)
    await db.fetch(
        f"CREATE TABLE IF NOT EXISTS {child} PARTITION OF {parent} "
        f"FOR VALUES FROM ('{begin.isoformat()}') TO ('{(begin + timedelta(days=1)).isoformat()}')"
    )
