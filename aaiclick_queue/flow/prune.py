"""Prune: forgets finished tasks and jobs by policy, a page a statement. Before: whatever made a task or job final.

No index may name a column that the end of a task writes, so pages are walked by id, which grows with the time of
creation: a front that reads each row once when it comes of age, and a slow sweep for those that ended late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..postgres import Database
from ..schema import Transaction
from ..settings import FOREVER, Settings
from .archive import Archive, Keeper
from .days import drop_old_days
from .prune_jobs import COUNT_JOBS, MARK_JOBS, Remover
from .prune_operate import prune_operate
from .prune_schedules import mark_overdue, prune_ticks

# Tasks of jobs go with their jobs.
# The children of a task that may still run again are its memory of what it has enqueued: they stay as long as it.
# A failure that stops a strict order stays until somebody retries or unblocks it: gone, it would stop nothing any more.
# Both asked by value: as NOT EXISTS they were hashed, which reads all of `tasks` a page.
# $1, $2 ids after and up to · $3 rows to read · $4 age in seconds at which the walk ends · $5 age of COMPLETED and
# CANCELLED, $6 of FAILED, NULL for ever · $7 newest id that is one too many, or NULL
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT id, created_at < now() - make_interval(secs => $4::float8) AS of_age FROM aaiclick_queue.tasks
    WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3
), edge AS MATERIALIZED (
    SELECT max(id) FILTER (WHERE of_age) AS last,
           count(*) >= $3 AND max(id) = max(id) FILTER (WHERE of_age) AS is_more FROM page
), overdue AS MATERIALIZED (
    SELECT t.ctid, t.id, t.status FROM aaiclick_queue.tasks t
    WHERE t.id > $1 AND t.id <= (SELECT last FROM edge) AND t.status IS NOT NULL AND t.job_id IS NULL {only}AND (
              t.status <> 'FAILED' AND t.finished_at < now() - make_interval(secs => $5::float8)
              OR t.status = 'FAILED' AND t.finished_at < now() - make_interval(secs => $6::float8)
              OR t.id <= $7::bigint)
      AND (t.parent_id IS NULL OR coalesce((
              SELECT coalesce(p.status, 'OPEN') FROM aaiclick_queue.tasks p WHERE p.id = t.parent_id),
              'COMPLETED') = 'COMPLETED')
      AND (t.order_stops IS NOT TRUE OR (
              SELECT true FROM aaiclick_queue.slots s
              WHERE s.task_id = t.id AND s.limit_id = 0 AND s.stopping = 0) IS NULL)
    ORDER BY t.id {lock}
)"""
_COUNTS = """
SELECT edge.last, coalesce(edge.is_more, false) AS is_more,
       (SELECT count(*) FROM overdue WHERE status = 'COMPLETED') AS completed,
       (SELECT count(*) FROM overdue WHERE status = 'FAILED') AS failed,
       (SELECT count(*) FROM overdue WHERE status = 'CANCELLED') AS cancelled
FROM edge
"""
# SKIP LOCKED, and what is locked is looked at again: a task that somebody retries at this moment stays.
_PRUNE_PAGE = f"""{_PAGE.replace("{lock}", "FOR UPDATE OF t SKIP LOCKED")}, pruned AS (
    DELETE FROM aaiclick_queue.tasks WHERE ctid = ANY(ARRAY(SELECT ctid FROM overdue)) RETURNING id
), progress AS (
    DELETE FROM aaiclick_queue.progress WHERE task_id = ANY(ARRAY(SELECT id FROM pruned))
), checkpoints AS (
    DELETE FROM aaiclick_queue.checkpoints WHERE task_id = ANY(ARRAY(SELECT id FROM pruned))
), timers AS (
    DELETE FROM aaiclick_queue.timers WHERE task_id = ANY(ARRAY(SELECT id FROM pruned))
), keys AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d WHERE d.task_id = ANY(ARRAY(SELECT id FROM pruned))
           AND (d.until IS NULL OR d.until < now())
        FOR UPDATE SKIP LOCKED))
)
{_COUNTS}"""
PRUNE_PAGE = _PRUNE_PAGE.replace("{only}", "")
COUNT_PAGE = _PAGE.format(lock="", only="") + _COUNTS
# Where there is a history: what would go, and then of it what the history has taken, $8.
OVERDUE_PAGE = f"""{_PAGE.format(lock="", only="")}
SELECT edge.last, ARRAY(SELECT id FROM overdue) AS ids FROM edge"""
PRUNE_KEPT_PAGE = _PRUNE_PAGE.replace("{only}", "AND t.id = ANY($8::bigint[]) ")
# From the newest down: how many of a page have ended, and the first one beyond the $2 that may be kept.
KEPT_PAGE = """
WITH page AS MATERIALIZED (
    SELECT id, status IS NOT NULL AS is_final FROM aaiclick_queue.tasks WHERE id < $1 ORDER BY id DESC LIMIT $3
)
SELECT (SELECT min(id) FROM page) AS last, (SELECT count(*) FROM page WHERE is_final) AS n,
       (SELECT id FROM page WHERE is_final ORDER BY id DESC OFFSET $2 LIMIT 1) AS beyond
"""
ROWS = 1000
KEPT_ROWS = 10_000
LAST_ID = 2**63 - 1
LAG_SECONDS = 600.0  # the front comes by this long after a task's age, so that those that ran for minutes go with it
SWEEP_SECONDS = (600.0, 6 * 3600.0)
COUNT_SECONDS, COUNT_SHARE = 60.0, 1 / 60  # every minute, or as often as that takes a sixtieth of the time
DAYS_SECONDS = 600.0
IDLE_SECONDS = 60.0
DAY = 86400.0


class Policy(msgspec.Struct, frozen=True):
    """What is kept: seconds by status, None for ever, and how many."""

    completed_seconds: float | None = None
    failed_seconds: float | None = None
    max_tasks: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """The policy of the settings."""
        completed, failed = seconds_of(settings.retention_completed_days), seconds_of(settings.retention_failed_days)
        return cls(completed, failed, settings.retention_max_tasks)

    @property
    def ages(self) -> list[float]:
        """Every age at which something is pruned, the shortest first."""
        return sorted({age for age in (self.completed_seconds, self.failed_seconds) if age is not None})

    def later(self, seconds: float) -> Policy:
        """The same with everything kept so much longer, however much there is."""
        completed, failed = (
            None if age is None else age + seconds for age in (self.completed_seconds, self.failed_seconds)
        )
        return Policy(completed, failed)

    @property
    def history_seconds(self) -> float | None:
        """How long attempts and events are kept: as long as any task they may belong to."""
        if self.completed_seconds is None or self.failed_seconds is None:
            return None
        return max(self.completed_seconds, self.failed_seconds, 2 * DAY)


def seconds_of(days: float | str) -> float | None:
    """Days of a setting in seconds; None for `forever`."""
    return None if days == FOREVER else float(days) * DAY


class Pruned(msgspec.Struct):
    """How many tasks were pruned, by what they were, and how many jobs with all of theirs."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    jobs: int = 0
    tasks_of_jobs: int = 0

    @property
    def tasks(self) -> int:
        """All those that were of no job."""
        return self.completed + self.failed + self.cancelled

    def add(self, row: Any) -> None:
        """Count a page of tasks, or of jobs."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + row.get(name, 0))


class Walk:
    """Goes over tasks or jobs by id, a page a step, up to an age or an id; it goes on later from where it stopped."""

    def __init__(self, age: float, *, of_jobs: bool = False) -> None:
        self.age = age
        self._prune, self._count = (MARK_JOBS, COUNT_JOBS) if of_jobs else (PRUNE_PAGE, COUNT_PAGE)
        self._of_jobs = of_jobs  # which are kept when their rows go
        self.after = 0
        self.over_at: float | None = None

    async def step(
        self,
        tx: Transaction,
        policy: Policy,
        *,
        beyond: int | None = None,
        upto: int = LAST_ID,
        keeper: Keeper | None = None,
    ) -> Any:
        """Prune one page, of which `keeper` has taken all."""
        if keeper is None or self._of_jobs:
            return await self._step(tx, self._prune, policy, beyond=beyond, upto=upto)
        [page] = await tx.fetch(OVERDUE_PAGE, *self._given(policy, beyond, upto))
        if await keeper.keep_tasks(tx, page["ids"]):
            upto = upto if page["last"] is None else page["last"]
            return await self._step(tx, PRUNE_KEPT_PAGE, policy, beyond=beyond, upto=upto, more=(page["ids"],))
        return await self._step(tx, self._prune, policy.later(keeper.patience_seconds), beyond=None, upto=upto)

    async def count(self, tx: Transaction, policy: Policy, *, beyond: int | None = None, upto: int = LAST_ID) -> Any:
        """Only count what a step would prune."""
        return await self._step(tx, self._count, policy, beyond=beyond, upto=upto)

    def _given(self, policy: Policy, beyond: int | None, upto: int) -> tuple[Any, ...]:
        return self.after, upto, ROWS, self.age, policy.completed_seconds, policy.failed_seconds, beyond

    async def _step(  # noqa: PLR0913 - one parameter a fact
        self,
        tx: Transaction,
        sql: str,
        policy: Policy,
        *,
        beyond: int | None,
        upto: int,
        more: tuple[Any, ...] = (),
    ) -> Any:
        [row] = await tx.fetch(sql, *self._given(policy, beyond, upto), *more)
        if row["last"] is not None:
            self.after = row["last"]
        self.over_at = None if row["is_more"] else time.monotonic()
        return row


class Pruner:
    """The pruning of one process, in small steps."""

    def __init__(self, db: Database, policy: Policy | None = None, *, archive: Archive | None = None) -> None:
        """What is pruned goes into the archive first."""
        self._db = db
        self._keeper = None if archive is None else Keeper(archive)
        self._policy = policy or Policy.of(db.settings)
        youngest = min(self._policy.ages, default=0.0)
        kinds = (False, True)
        self._fronts = [Walk(age + LAG_SECONDS, of_jobs=kind) for age in self._policy.ages for kind in kinds]
        self._sweeps = [Walk(youngest, of_jobs=kind) for kind in kinds]
        self._surplus = [Walk(0.0, of_jobs=kind) for kind in kinds]
        self._remover = Remover(self._keeper)
        self._beyond: int | None = None
        self._count_at = 0.0
        self._days_at: float | None = None
        self.pruned = Pruned()

    async def prune_once(self) -> float:
        """One page of each walk that has something to do; returns the seconds from its begin to the next one's."""
        begun, is_more = time.monotonic(), False
        for walk in self._fronts:
            is_more |= await self._step(walk)
        if self._policy.max_tasks is not None:
            is_more |= await self._prune_surplus(self._policy.max_tasks)
        if self._policy.ages or self._beyond is not None:
            for walk in self._sweeps:
                is_more |= await self._sweep_on(walk)
        self.pruned.jobs += await mark_overdue(self._db)
        is_more |= await self._remover.step(self._db)
        is_more |= await prune_ticks(self._db, self._policy.history_seconds)
        is_more |= await prune_operate(self._db)
        if self._days_at is None or time.monotonic() - self._days_at > DAYS_SECONDS:
            self._days_at = time.monotonic()
            keeper, policy = self._keeper, self._policy
            if keeper is not None and keeper.is_away:
                policy = policy.later(keeper.patience_seconds)  # attempts go into the history with their tasks
            await drop_old_days(self._db, policy.history_seconds)
        # Half of the time at most: a backlog of millions must not be what the database does.
        return 2 * (time.monotonic() - begun) if is_more else IDLE_SECONDS

    async def _step(self, walk: Walk, upto: int = LAST_ID) -> bool:
        page = await walk.step(self._db, self._policy, beyond=self._beyond, upto=upto, keeper=self._keeper)
        self.pruned.add(page)
        return walk.over_at is None

    async def _prune_surplus(self, most: int) -> bool:
        began = time.monotonic()
        if began >= self._count_at:
            self._beyond = await first_beyond(self._db, most)
            now = time.monotonic()
            self._count_at = now + max(COUNT_SECONDS, (now - began) / COUNT_SHARE)
        if self._beyond is None:
            return False
        return any([await self._step(walk, self._beyond) for walk in self._surplus])

    async def _sweep_on(self, walk: Walk) -> bool:
        shortest, longest = SWEEP_SECONDS
        every = min(longest, max(shortest, min(self._policy.ages, default=longest) / 4))
        if walk.over_at is not None:
            if time.monotonic() - walk.over_at < every:
                return False
            walk.after = 0
        return await self._step(walk)


async def first_beyond(tx: Transaction, most: int) -> int | None:
    """The newest finished task that is one too many, found from the newest down; None where there are fewer."""
    after, left = LAST_ID, most
    while True:
        rows: Sequence[Any] = await tx.fetch(KEPT_PAGE, after, left, KEPT_ROWS)
        [page] = rows
        if page["beyond"] is not None or page["last"] is None:
            beyond: int | None = page["beyond"]
            return beyond
        after, left = page["last"], left - page["n"]
