"""Many jobs at once, by filter or by id: a preview that counts, or the act on each of them, a thousand a call."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from pydantic import Field

from ...errors import PostgresUnavailable, QueueError
from ...flow.job_control import cancel_job
from ...flow.kick import tell_ended
from ...flow.reaper import ensure_partitions
from ...job_views import JobFilter
from ...recovery import pause_job, resume_job, retry_failed_tasks
from ...status import JobStatus
from ..answers import Api, Asked, Id, Name, audits_itself
from ..auditing import audit
from ..desk import AtDesk, Desk
from ..job_sets import COUNT_LIMIT, MOST_JOBS, JobAct, JobSet, read_job_set
from ..problems import Problem
from ..roles import Who, Writer

api = Api("bulk")
LONGEST_SECONDS = 20.0  # then the rest is left for the next call


class JobsOutlook(msgspec.Struct, frozen=True, omit_defaults=True):
    """With `dry_run`: how many jobs would take the act, exact to 10,000. Else: how many did, and how many cannot."""

    matching: int | None = None
    is_more: bool | None = None
    done: int | None = None
    skipped: int | None = None
    left: bool | None = None


class WhichJobs(Asked):
    """Which jobs are meant; what is left out may be anything."""

    status: JobStatus | None = None
    name: Name | None = None
    like: Name | None = Field(None, description="A part of the name; with * the whole of it.")
    run_type: Name | None = Field(None, description="MANUAL, API, SCHEDULED, BACKFILL …")


class BulkJobs(Asked):
    """Which jobs are meant, by a filter or by their ids, and whether they are only counted."""

    where: WhichJobs | None = None
    ids: Annotated[list[Id], Field(min_length=1, max_length=MOST_JOBS)] | None = None
    dry_run: bool = False

    def wanted(self) -> JobFilter:
        """The filter; refused where it would mean every job there is."""
        where = self.where.given() if self.where else {}
        if bool(where) == (self.ids is not None):
            said = "both where and ids are given" if where else "neither where nor ids is given"
            raise Problem(422, f"{said}: give one of them", kind="bad-request")
        if "name" in where and "like" in where:
            raise Problem(422, "of name and like more than one is given: give one of them", kind="bad-request")
        return JobFilter(**where)


@api.post("/bulk/jobs/cancel")
@audits_itself
async def bulk_cancel_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> JobsOutlook:
    """End open jobs as CANCELLED, a thousand a call."""
    return await carry_out(desk, who, "cancel", body)


@api.post("/bulk/jobs/retry")
@audits_itself
async def bulk_retry_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> JobsOutlook:
    """Run jobs that FAILED or were CANCELLED again from where they did, a thousand a call."""
    return await carry_out(desk, who, "retry", body)


@api.post("/bulk/jobs/pause")
@audits_itself
async def bulk_pause_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> JobsOutlook:
    """Let no task of open jobs start, a thousand jobs a call."""
    return await carry_out(desk, who, "pause", body)


@api.post("/bulk/jobs/resume")
@audits_itself
async def bulk_resume_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> JobsOutlook:
    """Let the tasks of paused jobs start again, a thousand jobs a call."""
    return await carry_out(desk, who, "resume", body)


async def carry_out(desk: Desk, who: Who, act: JobAct, body: BulkJobs) -> JobsOutlook:
    """Count what is meant, or do it to each; what ends meanwhile is skipped, as what could not take it before."""
    wanted = body.wanted()
    found = await read_job_set(desk.db, act, wanted, body.ids)
    if body.dry_run:
        return JobsOutlook(min(found.able, COUNT_LIMIT), found.able > COUNT_LIMIT)
    where = body.where.audited() if body.where else {}
    ids = [str(one) for one in body.ids or ()]
    await audit(desk, who, f"bulk_{act}_jobs", filter=where, given={"ids": ids} if ids else {}, count=len(found.ids))
    await ensure_partitions(desk.db)
    return await do_each(desk, who, act, found)


async def do_each(desk: Desk, who: Who, act: JobAct, found: JobSet) -> JobsOutlook:
    """One after another, in transactions of their own, for as long as a request may take."""
    done, refused, began = 0, 0, time.monotonic()
    for number in found.ids:
        if time.monotonic() - began > LONGEST_SECONDS:
            break
        try:
            changed = await do_one(desk, who, act, number)
        except PostgresUnavailable:
            raise
        except QueueError:
            changed = False
        done, refused = (done + 1, refused) if changed else (done, refused + 1)
    left = found.is_left or done + refused < len(found.ids)
    return JobsOutlook(done=done, skipped=min(found.unable + refused, COUNT_LIMIT), left=left)


async def do_one(desk: Desk, who: Who, act: JobAct, number: int) -> bool:
    """The act on one job; whether it changed anything."""
    if act == "cancel":
        desk.carry_on(await cancel_job(desk.db, number, by=who.name))
        tell_ended([number])
        return True
    if act == "retry":
        return bool(await retry_failed_tasks(number, client=desk.client, by=who.name))
    if act == "pause":
        return await pause_job(number, client=desk.client, by=who.name)
    return await resume_job(number, client=desk.client, by=who.name)
