"""Jobs: start one, cancel, pause, run parts of it again."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from ...flow.job_control import cancel_job as cancel
from ...flow.kick import tell_ended
from ...flow.reaper import ensure_partitions
from ...job_views import find_job
from ...recovery import pause_job as pause
from ...recovery import rerun
from ...recovery import resume_job as resume
from ...recovery import retry_failed_tasks as retry
from ...starting import run_job as start
from ..answers import Answer, Api, Asked, Done, Name, Reasoned
from ..desk import AtDesk
from ..idempotency import IdempotencyKey, Once
from ..problems import Problem
from ..roles import Writer
from .jobs import Job

api = Api("jobs")
IDS_SHOWN = 1000


class Made(msgspec.Struct, frozen=True):
    """What was made, or was there already under the same key."""

    id: str


class Begun(msgspec.Struct, frozen=True):
    """An operation that goes on: GET /api/v1/operations/{id} says how far it is."""

    operation_id: str


class Again(msgspec.Struct, frozen=True):
    """How many tasks run again, and the first thousand of them."""

    count: int
    task_ids: list[str]


class RunJob(Asked):
    """A job to be run: registered under a name, known by its entrypoint, or both to run one under a name."""

    name: Name | None = None
    entrypoint: Name | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict, examples=[{"day": "2027-03-28"}])
    queue: Name | None = None
    priority: Annotated[int, Field(ge=-32768, le=32767)] | None = None
    timeout: Annotated[float, Field(gt=0)] | None = Field(None, description="Seconds, of the whole job.")
    max_attempts: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_parallel: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    retention: Annotated[float, Field(gt=0)] | None = Field(None, description="Days that its ended run is kept.")
    correlation_id: Name | None = None
    dedupe_key: Name | None = None
    dedupe: Annotated[str, Field(pattern="^(raise|skip)$")] | None = None

    def options(self) -> dict[str, Any]:
        """What is given to it besides its name and arguments."""
        return {name: value for name, value in self.given().items() if name not in ("name", "entrypoint", "kwargs")}


class Rerun(Asked):
    """Where a job begins again."""

    from_: Name = Field(alias="from", description="Name of a task of the job, or its id.")


@api.post("/jobs", status_code=201)
async def run_job(body: RunJob, desk: AtDesk, who: Writer, idempotency_key: IdempotencyKey = None) -> Answer[Made]:
    """Start a job by its registered name or its entrypoint; 200 with the first one for a key that was sent before."""
    name = body.name or body.entrypoint
    if name is None:
        raise Problem(422, "neither name nor entrypoint is given: give one of them", kind="bad-request")

    async def make(connection: Any = None) -> int:
        entrypoint = body.entrypoint if body.name else None
        handle = await start(
            name, entrypoint, body.kwargs, client=desk.client, connection=connection, run_type="API", **body.options()
        )
        return handle.id

    return await made(Once(desk, who, idempotency_key, "job", encoded_body(body)) if idempotency_key else None, make)


@api.post("/jobs/{job}/cancel", status_code=202)
async def cancel_job(job: Job, desk: AtDesk, who: Writer) -> Begun:
    """End an open job as CANCELLED: what runs is stopped, what waits never starts."""
    number = await find_job(desk.db, job)
    await ensure_partitions(desk.db)
    operation = await cancel(desk.db, number, by=who.name)
    tell_ended([number])
    return Begun(desk.carry_on(operation)[0])


@api.post("/jobs/{job}/pause")
async def pause_job(job: Job, desk: AtDesk, who: Writer, body: Reasoned | None = None) -> Done:
    """Let no task of a job start; those that run go on."""
    number = await find_job(desk.db, job)
    done = await pause(number, reason=body.reason if body else None, client=desk.client, by=who.name)
    return Done(done, f"job {number} is paused" if done else f"job {number} was paused already")


@api.post("/jobs/{job}/resume")
async def resume_job(job: Job, desk: AtDesk, who: Writer) -> Done:
    """Let the tasks of a paused job start again."""
    number = await find_job(desk.db, job)
    done = await resume(number, client=desk.client, by=who.name)
    return Done(done, f"job {number} goes on" if done else f"job {number} was not paused")


@api.post("/jobs/{job}/retry")
async def retry_job(job: Job, desk: AtDesk, who: Writer) -> Again:
    """Run the tasks of a job that FAILED or were CANCELLED again, and what they had kept from starting."""
    return again(await retry(await find_job(desk.db, job), client=desk.client, by=who.name))


@api.post("/jobs/{job}/rerun")
async def rerun_job(job: Job, body: Rerun, desk: AtDesk, who: Writer) -> Again:
    """Run a task of a job again, whatever became of it, and everything behind it."""
    number = await find_job(desk.db, job)
    start_at: int | str = int(body.from_) if body.from_.isascii() and body.from_.isdigit() else body.from_
    if isinstance(start_at, int) and not 0 < start_at < 2**63:
        raise Problem(404, f"no task {start_at}: give the name of a task of the job, or its id")
    return again(await rerun(number, from_=start_at, client=desk.client, by=who.name))


def again(ids: set[int]) -> Again:
    """Tasks that run again."""
    return Again(len(ids), [str(one) for one in sorted(ids)[:IDS_SHOWN]])


def encoded_body(body: Asked) -> bytes:
    """A body in one form, however it was spelled."""
    return msgspec.json.encode(body.model_dump(mode="json", exclude_unset=True), order="sorted")


async def made(once: Once | None, make: Any) -> Answer[Made]:
    """What a POST made, or had made when it was sent before."""
    number, is_new = await once.make(make) if once else (await make(), True)
    return Answer(Made(str(number)), 201 if is_new else 200)
