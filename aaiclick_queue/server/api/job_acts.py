"""Jobs: start one, cancel, pause, run parts of it again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from fastapi import Request
from pydantic import Field

from ...flow.clear import would_clear
from ...flow.closure import Closure
from ...flow.job_control import cancel_job as cancel
from ...flow.job_retry import would_retry
from ...flow.kick import tell_ended
from ...flow.reaper import ensure_partitions
from ...job_views import find_job
from ...recovery import pause_job as pause
from ...recovery import rerun, task_of_job
from ...recovery import resume_job as resume
from ...recovery import retry_failed_tasks as retry
from ...starting import run_job as start
from ...tracing import in_trace_of
from ..answers import Answer, Api, Asked, Done, Kwargs, Name, Reasoned, audits_itself
from ..auditing import audit
from ..desk import AtDesk
from ..idempotency import IdempotencyKey, Once
from ..problems import Problem
from ..roles import Writer
from .jobs import Job

api = Api("jobs")
IDS_SHOWN = 1000
COUNT_LIMIT = 10_000


class Made(msgspec.Struct, frozen=True):
    """What was made, or was there already under the same key."""

    id: str


class Begun(msgspec.Struct, frozen=True):
    """An operation that goes on: GET /api/v1/operations/{id} says how far it is."""

    operation_id: str


class Again(msgspec.Struct, frozen=True):
    """How many tasks run again, or would with `dry_run`, and the first thousand of them.

    A dry run counts failures of a job exactly to 10,000; `leaving` are tasks that these had added, which leave the job.
    """

    count: int
    task_ids: list[str]
    is_more: bool = False
    leaving: int = 0


class Perhaps(Asked):
    """Whether it is only told what would be done."""

    dry_run: bool = False


class RunJob(Asked):
    """A job to be run: registered under a name, known by its entrypoint, or both to run one under a name."""

    name: Name | None = None
    entrypoint: Name | None = None
    kwargs: Kwargs = Field(default_factory=dict, examples=[{"day": "2027-03-28"}])
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


class Rerun(Perhaps):
    """Where a job begins again."""

    from_: Name = Field(alias="from", description="Name of a task of the job, or its id.")


@api.post("/jobs", status_code=201)
async def run_job(
    body: RunJob, request: Request, desk: AtDesk, who: Writer, idempotency_key: IdempotencyKey = None
) -> Answer[Made]:
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

    once = Once(desk, who, idempotency_key, "job", encoded_body(body)) if idempotency_key else None
    return await made(request, once, make)


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
@audits_itself
async def retry_job(job: Job, desk: AtDesk, who: Writer, body: Perhaps | None = None) -> Again:
    """Run the tasks of a job that FAILED or were CANCELLED again, and what they had kept from starting."""
    number = await find_job(desk.db, job)
    if body and body.dry_run:
        bad = await would_retry(desk.db, number, limit=COUNT_LIMIT + 1)
        return again(bad[:COUNT_LIMIT], is_more=len(bad) > COUNT_LIMIT)
    await audit(desk, who, "retry_job", target={"job": str(number)})
    return again(await retry(number, client=desk.client, by=who.name))


@api.post("/jobs/{job}/rerun")
@audits_itself
async def rerun_job(job: Job, body: Rerun, desk: AtDesk, who: Writer) -> Again:
    """Run a task of a job again, whatever became of it, and everything behind it."""
    number = await find_job(desk.db, job)
    start_at: int | str = int(body.from_) if body.from_.isascii() and body.from_.isdigit() else body.from_
    if isinstance(start_at, int) and not 0 < start_at < 2**63:
        raise Problem(404, f"no task {start_at}: give the name of a task of the job, or its id")
    if body.dry_run:
        return would_run_again(await would_clear(desk.db, await task_of_job(desk.db, number, start_at)))
    await audit(desk, who, "rerun_job", target={"job": str(number)}, given=body.audited())
    return again(await rerun(number, from_=start_at, client=desk.client, by=who.name))


def again(ids: Collection[int], *, is_more: bool = False, leaving: int = 0) -> Again:
    """Tasks that run again."""
    return Again(len(ids), [str(one) for one in sorted(ids)[:IDS_SHOWN]], is_more, leaving)


def would_run_again(closure: Closure) -> Again:
    """What a clear would take with it."""
    return again(closure.again, leaving=len(closure.gone))


def encoded_body(body: Asked) -> bytes:
    """A body in one form, however it was spelled."""
    return msgspec.json.encode(body.model_dump(mode="json", exclude_unset=True), order="sorted")


async def made(request: Request, once: Once | None, make: Any) -> Answer[Made]:
    """What a POST made in the trace of its caller, or had made when it was sent before."""
    with in_trace_of(request.headers):
        number, is_new = await once.make(make) if once else (await make(), True)
    return Answer(Made(str(number)), 201 if is_new else 200)
