"""Many jobs at once, by filter or by id: a preview that counts, or an operation that goes on by itself."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from ...job_views import JobFilter
from ...operations import Change, begin, changing_jobs
from ...status import JobStatus
from ..answers import Answer, Api, Asked, Id, Name, audits_itself
from ..auditing import audit
from ..desk import AtDesk, Desk
from ..problems import Problem
from ..roles import Who, Writer

api = Api("bulk")
MOST_IDS = 1_000


class JobsOutlook(msgspec.Struct, frozen=True):
    """With `dry_run`: how many jobs would take the act, exact to 10,000; else the operation that was begun.

    Where `looked_at` is given, so many of the newest jobs were looked at and there are others: more may be meant.
    """

    matching: int
    is_more: bool
    operation_id: str | None = None
    looked_at: int | None = None


class WhichJobs(Asked):
    """Which jobs are meant; what is left out may be anything."""

    status: JobStatus | None = None
    name: Name | None = None
    like: Name | None = Field(None, description="A part of the name; with * the whole of it.")
    run_type: Name | None = Field(None, description="MANUAL, API, SCHEDULED, BACKFILL …")


class BulkJobs(Asked):
    """Which jobs are meant, by a filter or by their ids, and whether they are only counted."""

    where: WhichJobs | None = None
    ids: Annotated[list[Id], Field(min_length=1, max_length=MOST_IDS)] | None = None
    dry_run: bool = False

    def change(self, act: str) -> Change:
        """What is to be done to which jobs; refused where it would mean every job there is."""
        where: dict[str, Any] = self.where.given() if self.where else {}
        if bool(where) == (self.ids is not None):
            said = "both where and ids are given" if where else "neither where nor ids is given"
            raise Problem(422, f"{said}: give one of them", kind="bad-request")
        if "name" in where and "like" in where:
            raise Problem(422, "of name and like more than one is given: give one of them", kind="bad-request")
        if self.ids is not None:
            return changing_jobs(act, {"ids": [str(one) for one in self.ids]})
        return changing_jobs(act, where, pattern=JobFilter(like=where.get("like")).pattern)


@api.post("/bulk/jobs/cancel", status_code=202)
@audits_itself
async def bulk_cancel_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> Answer[JobsOutlook]:
    """End open jobs as CANCELLED."""
    return await carry_out(desk, who, "cancel", body)


@api.post("/bulk/jobs/retry", status_code=202)
@audits_itself
async def bulk_retry_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> Answer[JobsOutlook]:
    """Run jobs that FAILED or were CANCELLED again from where they did."""
    return await carry_out(desk, who, "retry", body)


@api.post("/bulk/jobs/pause", status_code=202)
@audits_itself
async def bulk_pause_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> Answer[JobsOutlook]:
    """Let no task of open jobs start."""
    return await carry_out(desk, who, "pause", body)


@api.post("/bulk/jobs/resume", status_code=202)
@audits_itself
async def bulk_resume_jobs(body: BulkJobs, desk: AtDesk, who: Writer) -> Answer[JobsOutlook]:
    """Let the tasks of paused jobs start again."""
    return await carry_out(desk, who, "resume", body)


async def carry_out(desk: Desk, who: Who, act: str, body: BulkJobs) -> Answer[JobsOutlook]:
    """Count what is meant; begin it unless it was only asked about."""
    change = body.change(act)
    count = await change.count(desk.db)
    if body.dry_run:
        return Answer(JobsOutlook(count.n, count.more, looked_at=count.looked_at), 200)
    await audit(desk, who, f"bulk_{act}_jobs", filter=change.where, count=count.n, is_more=count.more)
    begun = desk.carry_on(await begin(desk.db, change, count, by=who.name))[0]
    return Answer(JobsOutlook(count.n, count.more, begun, count.looked_at), 202)
