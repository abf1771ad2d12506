"""Medians: what a job of a name takes as a rule, to hold one run against."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from ...postgres import Database

# The newest hundred of each name are looked at, for up to twenty that completed.
MEDIANS = """
SELECT n.name, count(*)::int AS runs,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM r.finished_at - r.started_at)::float8) AS seconds
FROM unnest($1::text[]) AS n(name)
CROSS JOIN LATERAL (
    SELECT started_at, finished_at
    FROM (SELECT id, status, started_at, finished_at FROM aaiclick_queue.jobs
          WHERE name = n.name AND pruned_at IS NULL ORDER BY id DESC LIMIT 100) AS newest
    WHERE status = 'COMPLETED' AND started_at IS NOT NULL AND finished_at IS NOT NULL LIMIT 20
) AS r
GROUP BY n.name
"""
SLOW = 2.0  # times the median
LEAST_SECONDS, LEAST_RUNS = 1.0, 3


class Median(msgspec.Struct, frozen=True):
    """The median of the last runs that completed, at most twenty."""

    runs: int
    seconds: float

    def is_slow(self, took: timedelta | None) -> bool:
        """Whether a run took twice as long as several did, and a time that somebody would notice."""
        return (
            self.runs >= LEAST_RUNS
            and took is not None
            and took.total_seconds() > max(LEAST_SECONDS, SLOW * self.seconds)
        )


async def read_medians(db: Database, names: Iterable[str]) -> dict[str, Median]:
    """By name; a name of which nothing has completed is left out."""
    found = await db.fetch(MEDIANS, sorted(names))
    return {row["name"]: Median(row["runs"], row["seconds"]) for row in found}
