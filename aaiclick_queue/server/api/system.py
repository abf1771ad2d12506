"""The system as a whole: overview, outbox, groups, the doctor, settings, pruning."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Path
from pydantic import Field

from ... import doctor as invariants
from ...flow.days import drop_old_days
from ...flow.lines import COUNTED
from ...flow.prune import Policy, prune_all
from ...queue_views import QueueView, WorkerView, list_queues, list_workers
from ...settings import PREFIX, Settings
from ..answers import Answer, Api, Asked, Id, Limit, audits_itself
from ..auditing import audit
from ..desk import AtDesk
from ..problems import Problem
from ..roles import Admin

api = Api("system")
DAY = 86400.0

GROUP = """
SELECT p.id::text AS id, p.job_id::text AS job_id, p.parent_group_id::text AS parent_group_id, p.name, p.mapped,
       p.max_parallel, p.rule, p.created_at, g.total, g.remaining, g.failed, g.skipped, g.decided_at
FROM aaiclick_queue.groups p JOIN aaiclick_queue.gates g ON g.id = p.id WHERE p.id = $1::bigint
"""
OUTBOX = """
SELECT o.id::text AS id, o.created_at, o.queue, o.n, extract(epoch FROM now() - o.created_at)::float8 AS age_seconds
FROM aaiclick_queue.outbox o WHERE o.id > $1::bigint ORDER BY o.id LIMIT $2
"""
OPEN_JOBS = """
SELECT count(*) AS n FROM (SELECT FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') LIMIT 10001) AS j
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


class OutboxEntry(msgspec.Struct, frozen=True):
    """A wake-up that was not relayed yet."""

    id: str
    created_at: datetime
    queue: str
    n: int
    age_seconds: float


class OutboxPage(msgspec.Struct, frozen=True):
    """Wake-ups on their way, oldest first; the next page by `after`, null when there is none."""

    items: list[OutboxEntry]
    after: str | None


class Overview(msgspec.Struct, frozen=True):
    """What waits and what works, at one look; `open_jobs` is exact to 10,000."""

    queues: list[QueueView]
    workers: list[WorkerView]
    open_jobs: int


class SettingView(msgspec.Struct, frozen=True):
    """One setting; passwords are masked."""

    name: str
    value: Any
    source: str
    description: str


class Pruned(msgspec.Struct, frozen=True):
    """What was forgotten, or would be."""

    dry_run: bool
    tasks: int
    completed: int
    failed: int
    cancelled: int
    jobs: int
    tasks_of_jobs: int
    days: list[str]
    days_left: list[str]


class Prune(Asked):
    """What is kept; what is not given is as in the settings."""

    completed_days: Annotated[float, Field(ge=0, le=36600)] | None = None
    failed_days: Annotated[float, Field(ge=0, le=36600)] | None = None
    max_tasks: Annotated[int, Field(ge=1, le=10**12)] | None = None
    dry_run: bool = False


@api.get("/overview")
async def overview(desk: AtDesk) -> Overview:
    """Queues, workers and open jobs."""
    queues, workers = await list_queues(desk.db, counted=COUNTED), await list_workers(desk.db)
    return Overview(queues, workers, min(10_000, await desk.db.fetchval(OPEN_JOBS)))


@api.get("/groups/{group_id}")
async def get_group(group_id: Annotated[Id, Path()], desk: AtDesk) -> GroupView:
    """One group of a job."""
    rows = await desk.db.fetch(GROUP, group_id)
    if not rows:
        raise Problem(404, f"no group {group_id}: its job was pruned, or its transaction is not committed")
    return GroupView(**dict(rows[0]))


@api.get("/outbox")
async def outbox(desk: AtDesk, limit: Limit = 100, after: Id | None = None) -> OutboxPage:
    """Wake-ups that were not relayed yet, oldest first; seconds old ones mean that no relay runs."""
    found = [OutboxEntry(**dict(row)) for row in await desk.db.fetch(OUTBOX, after or 0, limit)]
    return OutboxPage(found, found[-1].id if len(found) >= limit else None)


@api.get("/doctor")
async def doctor(desk: AtDesk) -> list[invariants.Finding]:
    """What must always be true, checked; what is not has `ok` false and says how to mend it.

    It answers within some seconds: a check that takes longer has `ok` null, and is left to the command.
    """
    return await invariants.check_soon(desk.db)


@api.get("/config")
async def config(desk: AtDesk, who: Admin) -> list[SettingView]:  # noqa: ARG001 - needed for its role
    """Every setting of the server, its value and where that came from."""
    return [_setting(desk.settings, name) for name in Settings.model_fields]


@api.post("/prune")
@audits_itself
async def prune(body: Prune, desk: AtDesk, who: Admin) -> Answer[Pruned]:
    """Forget finished tasks and jobs that are older than the policy keeps them, and their history."""
    settled = Policy.of(desk.settings)
    policy = Policy(
        settled.completed_seconds if body.completed_days is None else body.completed_days * DAY,
        settled.failed_seconds if body.failed_days is None else body.failed_days * DAY,
        body.max_tasks or settled.max_tasks,
    )
    if not body.dry_run:
        await audit(desk, who, "prune", given=body.audited())
    done = await prune_all(desk.db, policy, dry_run=body.dry_run, tell=lambda *_: None)
    days = await drop_old_days(desk.db, policy.history_seconds, dry_run=body.dry_run)
    counts = {name: getattr(done, name) for name in ("tasks", "completed", "failed", "cancelled", "jobs")}
    told = Pruned(
        body.dry_run, **counts, tasks_of_jobs=done.tasks_of_jobs, days=list(days.names), days_left=list(days.left)
    )
    return Answer(told, 200)


def _setting(settings: Settings, name: str) -> SettingView:
    value = settings.shown(name)
    source = "environment" if name in settings.model_fields_set else "default"
    plain = value if isinstance(value, bool | int | float | str | None) else str(value)
    return SettingView(PREFIX + name.upper(), plain, source, Settings.model_fields[name].description or "")
