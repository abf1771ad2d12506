"""Failures in groups, why a task does not run, and what its runs said."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import Field

from ... import explaining, failing
from ...errors import UnknownTask
from ...explaining import Explanation
from ...operations import cancelling, retrying
from ...task_logs import LogPage, read_last_logs, read_logs
from ..answers import Answer, Api, Asked, Done, Limit, Reasoned, Text, audits_itself
from ..desk import AtDesk, Desk
from ..problems import Problem
from ..roles import Writer
from .bulk import Outlook, carry_out
from .tasks import Task, found_task

api = Api("failures")
Fingerprint = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]
Hours = Annotated[float, Query(ge=0.01, le=24 * 366)]
Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class Mute(Asked):
    """For how long, and why."""

    seconds: Annotated[float, Field(ge=1, le=366 * 86400)] = 86400
    reason: Annotated[Text, Field(max_length=500)] | None = None


class DryRun(Asked):
    """Whether they are only counted."""

    dry_run: bool = False


@api.get("/failures")
async def list_failures(
    desk: AtDesk, hours: Hours = 24, limit: Limit = 50, acknowledged: bool = False
) -> failing.FailurePage:
    """What failed, in groups of what failed alike, the largest first."""
    return await failing.list_failures(desk.db, hours=hours, limit=limit, acknowledged=acknowledged)


@api.get("/failures/{fingerprint}")
async def get_failure(fingerprint: Fingerprint, desk: AtDesk, hours: Hours = 24) -> failing.Failure:
    """One group with its newest tasks."""
    found = await failing.get_failure(desk.db, fingerprint, hours=hours)
    if found is None:
        raise _unknown(fingerprint)
    return found


@api.post("/failures/{fingerprint}/acknowledge")
async def acknowledge_failure(
    fingerprint: Fingerprint, desk: AtDesk, who: Writer, body: Reasoned | None = None
) -> Done:
    """Have the group not shown until something fails alike again."""
    reason = body.reason if body else None
    if not await failing.acknowledge_failure(desk.db, fingerprint, by=who.name, reason=reason):
        raise _unknown(fingerprint)
    return Done(True, "it is not shown until something fails alike again")


@api.post("/failures/{fingerprint}/mute")
async def mute_failure(fingerprint: Fingerprint, desk: AtDesk, who: Writer, body: Mute | None = None) -> Done:
    """Have the group not shown for so long, whatever fails."""
    body = body or Mute()
    until = datetime.now(UTC) + timedelta(seconds=body.seconds)
    if not await failing.mute_failure(desk.db, fingerprint, until, by=who.name, reason=body.reason):
        raise _unknown(fingerprint)
    return Done(True, f"it is not shown for {body.seconds:g} s")


@api.post("/failures/{fingerprint}/retry", status_code=202)
@audits_itself
async def retry_failure(
    fingerprint: Fingerprint, desk: AtDesk, who: Writer, body: DryRun | None = None
) -> Answer[Outlook]:
    """Run all tasks of the group again."""
    change = retrying({"fingerprint": fingerprint})
    return await carry_out(desk, who, "retry_failure", change, dry_run=bool(body and body.dry_run))


@api.post("/failures/{fingerprint}/cancel", status_code=202)
@audits_itself
async def cancel_failure(
    fingerprint: Fingerprint, desk: AtDesk, who: Writer, body: DryRun | None = None
) -> Answer[Outlook]:
    """End those as CANCELLED that failed so and wait for their next attempt."""
    change = cancelling({"fingerprint": fingerprint})
    return await carry_out(desk, who, "cancel_failure", change, dry_run=bool(body and body.dry_run))


@api.get("/tasks/{task_id}/explain")
async def explain_task(task_id: Task, desk: AtDesk) -> Explanation:
    """Why a task does not run, what it does, or how it ended; and the command that mends it."""
    found = await explaining.explain_task(desk.db, task_id)
    if found is None:
        raise UnknownTask(f"no task {task_id}: it was pruned, or its transaction is not committed")
    return found


@api.get("/tasks/{task_id}/logs")
async def task_logs(
    task_id: Task,
    desk: AtDesk,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The last one unless given.")] = None,
    after: Annotated[
        int, Query(ge=0, le=2**62, description="`after` of the page before, given with its `attempt`.")
    ] = 0,
    limit: Limit = 1000,
    level: Annotated[Level | None, Query(description="Only lines of this level or a graver one.")] = None,
    newest: Annotated[bool, Query(description="The last lines instead of the first.")] = False,
) -> LogPage:
    """What a run of a task printed and logged."""
    await found_task(desk, task_id)
    return await _read(desk, task_id, attempt, after, limit, level, newest)


async def _read(
    desk: Desk, task_id: int, attempt: int | None, after: int, limit: int, level: str | None, newest: bool
) -> LogPage:
    def read() -> LogPage:
        if newest:
            return read_last_logs(desk.settings, task_id, attempt=attempt, limit=limit, least=level)
        return read_logs(desk.settings, task_id, attempt=attempt, after=after, limit=limit, least=level)

    return await asyncio.to_thread(read)


def _unknown(fingerprint: str) -> Problem:
    return Problem(404, f"nothing that failed as {fingerprint!r} is left: GET /api/v1/failures shows the groups")
