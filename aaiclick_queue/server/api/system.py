"""The system as a whole: overview, outbox, the doctor, settings, pruning."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from ... import doctor as invariants
from ...flow.days import Dropped, drop_old_days
from ...flow.lines import COUNTED
from ...flow.prune import Policy, seconds_of
from ...flow.prune_by_hand import AFTER, prune_for
from ...history import history_of
from ...queue_views import QueueView, WorkerTotals, WorkerView, list_queues, list_workers, read_worker_totals
from ...settings import PREFIX, Settings
from ..answers import Answer, Api, Asked, Id, Limit, audits_itself
from ..auditing import audit
from ..desk import AtDesk
from ..roles import Admin

api = Api("system")
Days = Annotated[float, Field(ge=0, le=36600)] | Literal["forever"]
PRUNE_SECONDS = 10.0  # of one request: proxies wait for a minute, some for half of one
LISTED = 100  # queues and workers of an overview

OUTBOX = """
SELECT o.id::text AS id, o.created_at, o.queue, o.n, extract(epoch FROM now() - o.created_at)::float8 AS age_seconds
FROM aaiclick_queue.outbox o WHERE o.id > $1::bigint ORDER BY o.id LIMIT $2
"""
OPEN_JOBS = """
SELECT count(*) AS n FROM (SELECT FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') LIMIT 10001) AS j
"""


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
    """What waits and what works, at one look; `open_jobs` is exact to 10,000.

    Of more than 100 queues or workers the first are listed, and the routes of each lead on; totals are of all workers.
    """

    queues: list[QueueView]
    workers: list[WorkerView]
    open_jobs: int
    worker_totals: WorkerTotals
    queues_are_more: bool
    workers_are_more: bool


class SettingView(msgspec.Struct, frozen=True):
    """One setting; passwords are masked."""

    name: str
    value: Any
    source: str
    description: str


class Pruned(msgspec.Struct, frozen=True):
    """What this request forgot, or would; while `done` is false, the same again with its `after` goes on from there."""

    dry_run: bool
    done: bool
    after: str | None
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

    completed_days: Days | None = None
    failed_days: Days | None = None
    max_tasks: Annotated[int, Field(ge=1, le=10**12)] | None = None
    dry_run: bool = False
    after: Annotated[str, Field(pattern=AFTER)] | None = Field(None, description="`after` of the answer before.")

    def policy(self, settings: Settings) -> Policy:
        """What is kept: what is given, and the rest as in the settings."""
        completed = settings.retention_completed_days if self.completed_days is None else self.completed_days
        failed = settings.retention_failed_days if self.failed_days is None else self.failed_days
        return Policy(seconds_of(completed), seconds_of(failed), self.max_tasks or settings.retention_max_tasks)


@api.get("/overview")
async def overview(desk: AtDesk) -> Overview:
    """Queues, workers and open jobs; the first 100 of each, and what all workers have together."""
    queues = await list_queues(desk.db, limit=LISTED + 1, counted=COUNTED)
    workers = await list_workers(desk.db, limit=LISTED + 1)
    return Overview(
        queues[:LISTED],
        workers[:LISTED],
        min(10_000, await desk.db.fetchval(OPEN_JOBS)),
        await read_worker_totals(desk.db),
        queues_are_more=len(queues) > LISTED,
        workers_are_more=len(workers) > LISTED,
    )


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
    """Forget finished tasks and jobs that are older than the policy keeps them, and their history.

    For ten seconds a request: while `done` is false, send the same again with `after` of the answer.
    """
    policy = body.policy(desk.settings)
    if not body.dry_run:
        await audit(desk, who, "prune", given=body.audited())
    stretch = await prune_for(
        desk.db,
        policy,
        seconds=PRUNE_SECONDS,
        after=body.after,
        dry_run=body.dry_run,
        archive=history_of(desk.settings),
    )
    days = Dropped()
    if stretch.after is None and not stretch.is_away:  # attempts go into the history with their tasks
        days = await drop_old_days(desk.db, policy.history_seconds, dry_run=body.dry_run)
    counts = {name: getattr(stretch.pruned, name) for name in (*stretch.pruned.__struct_fields__, "tasks")}
    done = stretch.after is None
    return Answer(Pruned(body.dry_run, done, stretch.after, **counts, days=days.names, days_left=days.left), 200)


def _setting(settings: Settings, name: str) -> SettingView:
    value = settings.shown(name)
    source = "environment" if name in settings.model_fields_set else "default"
    plain = value if isinstance(value, bool | int | float | str | None) else str(value)
    return SettingView(PREFIX + name.upper(), plain, source, Settings.model_fields[name].description or "")
