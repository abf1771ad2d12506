"""Groups of tasks of a job: how many there are in each, and how far they are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import Path

from ...job_nodes import of_job
from ...job_views import find_job
from ..answers import Api, Id, Limit, Page
from ..desk import AtDesk
from ..problems import Problem
from .jobs import Job

api = Api("jobs")

_GROUP = """
SELECT p.id::text AS id, p.job_id::text AS job_id, p.parent_group_id::text AS parent_group_id, p.name, p.mapped,
       p.max_parallel, p.rule, p.created_at, g.total, g.remaining, g.failed, g.skipped, g.decided_at
"""
GROUP = f"""{_GROUP}
FROM aaiclick_queue.groups p JOIN aaiclick_queue.gates g ON g.id = p.id WHERE p.id = $1::bigint
"""
GROUPS = f"""{_GROUP}
FROM (SELECT id, job_id, parent_group_id, name, mapped, max_parallel, rule, created_at FROM aaiclick_queue.groups
      WHERE {of_job("$1::bigint")} AND id > $2::bigint ORDER BY job_id, id LIMIT $3) AS p
JOIN aaiclick_queue.gates g ON g.id = p.id ORDER BY p.id
"""


class GroupView(msgspec.Struct, frozen=True):
    """A group of tasks of a job: how many there are, and how far they are."""

    id: str
    job_id: str
    parent_group_id: str | None
    name: str
    mapped: bool
    max_parallel: int | None
    rule: str | None
    created_at: datetime
    total: int
    remaining: int
    failed: int
    skipped: int
    decided_at: datetime | None


@api.get("/jobs/{job}/groups")
async def job_groups(job: Job, desk: AtDesk, limit: Limit = 100, after: Id | None = None) -> Page[GroupView]:
    """Groups of a job, the first made first."""
    rows = await desk.db.fetch(GROUPS, await find_job(desk.db, job), after or 0, limit)
    found = [GroupView(**dict(row)) for row in rows]
    return Page(found, after=found[-1].id if len(found) >= limit else None)


@api.get("/groups/{group_id}")
async def get_group(group_id: Annotated[Id, Path()], desk: AtDesk) -> GroupView:
    """One group of a job."""
    rows = await desk.db.fetch(GROUP, group_id)
    if not rows:
        raise Problem(404, f"no group {group_id}: its job was pruned, or its transaction is not committed")
    return GroupView(**dict(rows[0]))
