"""Schedules: registered jobs, what runs by the clock or by its name; their ticks; backfill."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Path, Query, Request
from pydantic import Field

from ... import registered
from ...backfilling import missing_ticks, plan_backfill
from ...errors import BadSchedule
from ...registered import RegisteredJob, TickView, read_registered_job, read_registered_jobs, read_ticks
from ...starting import run_job as start
from ..answers import Answer, Api, Asked, Done, Kwargs, Limit, Name, Page, Text, audits_itself
from ..auditing import audit
from ..desk import AtDesk
from ..idempotency import IdempotencyKey, Once
from ..problems import Problem
from ..roles import Writer
from .job_acts import Made, encoded_body, made

api = Api("schedules")
Schedule = Annotated[Name, Path(description="Its name.", examples=["nightly"])]
FIRES = 3
CLOCK = ("schedule", "interval", "timezone", "starts_at", "ends_at")
MOST_COUNTED = 1000


class ScheduleView(RegisteredJob, frozen=True, kw_only=True):
    """One registered job, with when it fires next."""

    id: str  # type: ignore[assignment]
    next_runs: list[datetime]  # type: ignore[assignment]


class BackfillPlan(msgspec.Struct, frozen=True):
    """The first thousand ticks that have no run; and the operation that makes them, unless it was only asked about."""

    ticks: list[datetime]
    is_more: bool
    operation_id: str | None = None


class ScheduleOptions(Asked):
    """A registered job: what runs, by which clock, with what."""

    entrypoint: Name = Field(examples=["shop.jobs.nightly"])
    schedule: Text | list[Text] | None = Field(None, description="Cron, or several.", examples=["0 8 * * *"])
    interval: float | Text | None = Field(None, description="Instead of cron: seconds, or as 15m.")
    timezone: Name | None = None
    default_kwargs: Kwargs | None = None
    enabled: bool | None = None
    queue: Name | None = None
    priority: Annotated[int, Field(ge=-32768, le=32767)] | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_parallel: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    retention: Annotated[float, Field(gt=0)] | None = Field(None, description="Days.")
    misfire: Literal["skip", "coalesce", "catch_up"] | None = None
    misfire_limit: int | None = None
    overlap: Literal["allow", "skip", "queue", "replace"] | None = None
    jitter: Annotated[float, Field(ge=0)] | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    description: Annotated[Text, Field(max_length=2000)] | None = None

    def options(self) -> dict[str, Any]:
        """What is given besides name and entrypoint."""
        return {name: value for name, value in self.given().items() if name not in ("name", "entrypoint")}


class NewSchedule(ScheduleOptions):
    """A registered job under a new name."""

    name: Name


class SchedulePlan(msgspec.Struct, frozen=True):
    """When what was asked about would fire, if it were registered."""

    name: str
    entrypoint: str
    next_runs: list[datetime]


class RunSchedule(Asked):
    """Arguments that are merged over the registered ones."""

    kwargs: Kwargs = Field(default_factory=dict)


class Backfill(Asked):
    """Which past ticks are to be run."""

    start: datetime = Field(alias="from")
    end: datetime = Field(alias="to", description="Not at it or later.")
    max_running: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    dry_run: bool = False


@api.get("/schedules", operation_id="list_registered_jobs")
async def list_schedules(
    desk: AtDesk, enabled_only: bool = False, limit: Limit = 100, after: Name | None = None
) -> Page[ScheduleView]:
    """Registered jobs by name, with their schedules and when they run next."""
    found = await read_registered_jobs(desk.db, enabled_only=enabled_only, after=after, limit=limit)
    return Page([viewed(one) for one in found], after=found[-1].name if len(found) >= limit else None)


@api.post("/schedules", status_code=201)
async def register_job(body: NewSchedule, desk: AtDesk, who: Writer) -> ScheduleView:
    """Register a job; one of that name is refused with 409."""
    return viewed(
        await registered.register_job(body.name, body.entrypoint, client=desk.client, by=who.name, **body.options())
    )


@api.post("/schedules/check")
@audits_itself
async def check_schedule(body: NewSchedule, desk: AtDesk, who: Writer) -> SchedulePlan:  # noqa: ARG001 - its role
    """Only check what would be registered, and say when it would fire; nothing is written."""
    given = body.options()
    registered.registration(body.name, body.entrypoint, given)
    parts = {part: given[part] for part in CLOCK if part in given}
    fires = registered.next_runs(**parts, count=FIRES) if "schedule" in parts or "interval" in parts else []
    return SchedulePlan(body.name, body.entrypoint, fires)


@api.get("/schedules/{name}", operation_id="get_registered_job")
async def get_schedule(name: Schedule, desk: AtDesk) -> ScheduleView:
    """One registered job."""
    return viewed(await read_registered_job(desk.db, name))


@api.put("/schedules/{name}", operation_id="replace_registered_job")
async def put_schedule(name: Schedule, body: ScheduleOptions, desk: AtDesk, who: Writer) -> ScheduleView:
    """Register a job, or overwrite all of the one with that name."""
    found = await registered.upsert_registered_job(
        name, body.entrypoint, client=desk.client, by=who.name, **body.options()
    )
    return viewed(found)


@api.delete("/schedules/{name}", operation_id="delete_registered_job")
async def delete_schedule(name: Schedule, desk: AtDesk, who: Writer) -> Done:
    """Forget a registered job and its history; jobs that it has started stay."""
    if not await registered.delete_registered_job(name, client=desk.client, by=who.name):
        raise Problem(404, f"no job is registered as {name!r}: GET /api/v1/schedules shows those there are")
    return Done(True, f"{name} is forgotten")


@api.post("/schedules/{name}/enable")
async def enable_job(name: Schedule, desk: AtDesk, who: Writer) -> ScheduleView:
    """Let it run by its schedule again, from now on."""
    return viewed(await registered.enable_job(name, client=desk.client, by=who.name))


@api.post("/schedules/{name}/disable")
async def disable_job(name: Schedule, desk: AtDesk, who: Writer) -> ScheduleView:
    """Let it not run by its schedule; what runs goes on, and it can be run by its name."""
    return viewed(await registered.disable_job(name, client=desk.client, by=who.name))


@api.post("/schedules/{name}/reset")
async def reset_registered_job(name: Schedule, desk: AtDesk, who: Writer) -> ScheduleView:
    """Give a schedule that was edited back to the code that declared it."""
    return viewed(await registered.reset_registered_job(name, client=desk.client, by=who.name))


@api.post("/schedules/{name}/run", status_code=201)
async def run_registered_job(
    name: Schedule,
    request: Request,
    desk: AtDesk,
    who: Writer,
    body: RunSchedule | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Answer[Made]:
    """Run it now, whether it is enabled or not."""
    await read_registered_job(desk.db, name)
    body = body or RunSchedule()

    async def make(connection: Any = None) -> int:
        options = {"client": desk.client, "connection": connection, "run_type": "API"}
        return (await start(name, None, body.kwargs, **options)).id

    once = Once(desk, who, idempotency_key, f"run {name}", encoded_body(body)) if idempotency_key else None
    return await made(request, once, make)


@api.post("/schedules/{name}/backfill", status_code=202)
@audits_itself
async def backfill_job(name: Schedule, body: Backfill, desk: AtDesk, who: Writer) -> Answer[BackfillPlan]:
    """A run for each tick of a range that has none."""
    ticks = await missing_ticks(name, body.start, body.end, limit=MOST_COUNTED + 1, client=desk.client)
    shown, is_more = ticks[:MOST_COUNTED], len(ticks) > MOST_COUNTED
    if body.dry_run or not ticks:
        return Answer(BackfillPlan(shown, is_more), 200)
    await audit(desk, who, "backfill_job", target={"name": name}, given=body.audited(), count=len(shown))
    planned = await plan_backfill(desk.db, name, body.start, body.end, max_running=body.max_running, by=who.name)
    return Answer(BackfillPlan(shown, is_more, desk.carry_on(planned)[0]), 202)


@api.get("/schedules/{name}/ticks")
async def schedule_ticks(
    name: Schedule,
    desk: AtDesk,
    limit: Limit = 100,
    before: Annotated[datetime | None, Query(description="Only ticks before this moment.")] = None,
) -> Page[TickView]:
    """Its ticks, newest first: what became of each, its job and how that ended."""
    if before is not None and before.tzinfo is None:
        raise BadSchedule(f"before={before}: give it with its zone, as 2027-03-28T08:00:00Z")
    found = await read_registered_job(desk.db, name)
    ticks = await read_ticks(desk.db, found.id, limit=limit, before=before)
    return Page(ticks, ticks[-1].fire_at.isoformat() if len(ticks) >= limit else None)


@api.get("/schedules/{name}/next")
async def schedule_next(
    name: Schedule, desk: AtDesk, count: Annotated[int, Query(ge=1, le=1000)] = 5
) -> list[datetime]:
    """When it fires next, in UTC; as if it were enabled."""
    return (await read_registered_job(desk.db, name)).next_runs(count)


def viewed(one: RegisteredJob) -> ScheduleView:
    """The registered job with its id as text, and its next fires."""
    try:
        fires = one.next_runs(FIRES)
    except BadSchedule:  # one that an older version took
        fires = []
    return ScheduleView(**msgspec.structs.asdict(one) | {"id": str(one.id), "next_runs": fires})
