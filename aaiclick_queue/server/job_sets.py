"""Sets of jobs that an act is for: counted, and resolved to those that can take it. Bounded, as lists of jobs are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..job_views import SCAN_LIMIT, JobFilter
from ..postgres import Database

JobAct = Literal["cancel", "retry", "pause", "resume"]
MOST_JOBS = 1_000  # that one call acts on
COUNT_LIMIT = 10_000

_MATCHING = """
SELECT count(*) FILTER (WHERE j.can) AS able, count(*) FILTER (WHERE NOT j.can) AS unable,
       (array_agg(j.id ORDER BY j.id DESC) FILTER (WHERE j.can))[1:$7::int] AS ids
FROM (SELECT id, CASE $1::text WHEN 'retry' THEN status IN ('FAILED', 'CANCELLED')
                               WHEN 'pause' THEN status IN ('PENDING', 'RUNNING') AND paused_at IS NULL
                               WHEN 'resume' THEN paused_at IS NOT NULL
                               ELSE status IN ('PENDING', 'RUNNING') END AS can
      FROM (SELECT id, name, status, run_type, paused_at FROM aaiclick_queue.jobs
            WHERE pruned_at IS NULL AND ($5::text IS NULL OR name = $5) {only} ORDER BY id DESC LIMIT $6) AS newest
      WHERE ($2::text IS NULL OR status = $2) AND ($3::text IS NULL OR name LIKE $3)
        AND ($4::text IS NULL OR run_type = $4)) AS j
"""
ALL_MATCHING = _MATCHING.format(only="")
NAMED_MATCHING = _MATCHING.format(only="AND name = $5::text")
OPEN_MATCHING = _MATCHING.format(only="AND status IN ('PENDING', 'RUNNING')")
GIVEN_MATCHING = _MATCHING.format(only="AND id = ANY($8::bigint[])")


class JobSet(msgspec.Struct, frozen=True):
    """Jobs that are meant: the newest that can take the act, how many can, and how many cannot."""

    ids: list[int]
    able: int
    unable: int

    @property
    def is_left(self) -> bool:
        """Whether more can take the act than one call acts on."""
        return self.able > len(self.ids)


async def read_job_set(db: Database, act: JobAct, wanted: JobFilter, ids: Sequence[int] | None = None) -> JobSet:
    """The jobs that match, or those that were given; of the newest 100,000."""
    given = (act, wanted.status, wanted.pattern, wanted.run_type, wanted.name, SCAN_LIMIT, MOST_JOBS)
    if ids is not None:
        [row] = await db.fetch(GIVEN_MATCHING, *given, list(ids))
        missing = len(set(ids)) - row["able"] - row["unable"]
        return JobSet(row["ids"] or [], row["able"], row["unable"] + missing)
    statement = NAMED_MATCHING if wanted.name is not None else OPEN_MATCHING if wanted.is_open else ALL_MATCHING
    [row] = await db.fetch(statement, *given)
    return JobSet(row["ids"] or [], row["able"], row["unable"])
