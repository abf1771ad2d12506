"""Upstream: which task is to blame that another one will not run, found by walking up a job's dependencies."""

from __future__ import annotations

from typing import Any

import msgspec

from .explain_rows import ERROR_OF, FAILED_MEMBER
from .explain_words import error_of
from .job_nodes import NODE, PREVIOUS, SHOWN
from .postgres import Database

STEPS_LIMIT = 20
WORST_FIRST = ("FAILED", "CANCELLED", "UPSTREAM_FAILED")


class Cause(msgspec.Struct, frozen=True):
    """The first task that went wrong, so many steps before the one that was asked about."""

    id: str
    name: str
    status: str
    error: str | None
    steps: int


async def find_cause(db: Database, job_id: int | None, task_id: int) -> Cause | None:
    """The task that failed or was cancelled; the last one that was reached after twenty steps."""
    at: int | None = task_id
    reached: int | None = None
    steps = 0
    while job_id is not None and at is not None and steps < STEPS_LIMIT:
        found, status = await _worst_before(db, job_id, at)
        if found is None:
            break
        reached, steps = found, steps + 1
        at = found if status == "UPSTREAM_FAILED" else None
    if reached is None:
        return None
    [row] = await db.fetch(ERROR_OF, reached)
    return Cause(row["id"], row["name"] or row["entrypoint"], row["status"] or "open", error_of(row), steps)


async def _worst_before(db: Database, job_id: int, task_id: int) -> tuple[int | None, str]:
    """Of what the task waited for, that which is to blame most."""
    nodes = await db.fetch(NODE, task_id)
    groups: list[Any] = nodes[0]["group_ids"] if nodes else []
    rows = [dict(row) for row in await db.fetch(PREVIOUS, job_id, task_id, groups, True, SHOWN)]
    for row in sorted(rows, key=lambda row: WORST_FIRST.index(row["status"])):
        if row["kind"] == "task":
            return int(row["id"]), row["status"]
        for member in await db.fetch(FAILED_MEMBER, int(row["id"])):
            return member["id"], member["status"]
    return None, ""
