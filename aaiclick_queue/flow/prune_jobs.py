"""Prune of jobs: a finished job goes whole, when it is older than the policy keeps it. Part of prune.

Its row is marked first, `pruned_at`, and from then on the job is gone for everybody: no clear opens it again. Then its
rows go, a bounded page a statement, and its own row last: whoever comes after a crash goes on.
"""

from __future__ import annotations

from typing import Any

from ..schema import Transaction
from .archive import Keeper

# Jobs by id, which grows with the time of creation, as prune walks tasks: the same parameters, the same answer.
# A job of which something is open stays: one that was cancelled ends its tasks in pages. So does one whose failed task
# stops a strict order.
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT id, created_at < now() - make_interval(secs => $4::float8) AS of_age FROM aaiclick_queue.jobs
    WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3
), edge AS MATERIALIZED (
    SELECT max(id) FILTER (WHERE of_age) AS last,
           count(*) >= $3 AND max(id) = max(id) FILTER (WHERE of_age) AS is_more FROM page
), stopping AS MATERIALIZED (
    SELECT DISTINCT t.job_id FROM aaiclick_queue.slots s JOIN aaiclick_queue.tasks t ON t.id = s.task_id
    WHERE s.limit_id = 0 AND s.stopping = 0 AND t.order_stops AND t.job_id IS NOT NULL
), overdue AS MATERIALIZED (
    SELECT j.ctid, j.id, j.status, g.total
    FROM aaiclick_queue.jobs j JOIN aaiclick_queue.gates g ON g.id = j.id
    WHERE j.id > $1 AND j.id <= (SELECT last FROM edge) AND j.pruned_at IS NULL AND g.remaining = 0 AND (
              j.retention_seconds IS NULL AND (
                  j.status = 'COMPLETED' AND j.finished_at < now() - make_interval(secs => $5::float8)
                  OR j.status IN ('FAILED', 'CANCELLED') AND j.finished_at < now() - make_interval(secs => $6::float8))
              OR j.status IN ('COMPLETED', 'FAILED', 'CANCELLED') AND $7::bigint >= coalesce((
                  SELECT t.id FROM aaiclick_queue.tasks t WHERE t.job_id = j.id ORDER BY t.job_id DESC, t.id DESC
                  LIMIT 1), j.id))
      AND j.id NOT IN (SELECT job_id FROM stopping)
    ORDER BY j.id {lock}
)"""
_COUNTS = """
SELECT edge.last, coalesce(edge.is_more, false) AS is_more, (SELECT count(*) FROM overdue) AS jobs,
       (SELECT coalesce(sum(total), 0) FROM overdue) AS tasks_of_jobs
FROM edge
"""
# SKIP LOCKED, and what is locked is looked at again: a job that somebody clears at this moment stays.
MARK_JOBS = f"""{_PAGE.format(lock="FOR UPDATE OF j SKIP LOCKED")}, marked AS (
    UPDATE aaiclick_queue.jobs SET pruned_at = now() WHERE ctid = ANY(ARRAY(SELECT ctid FROM overdue))
)
{_COUNTS}"""
COUNT_JOBS = _PAGE.format(lock="") + _COUNTS
NEXT_MARKED = "SELECT id FROM aaiclick_queue.jobs WHERE pruned_at IS NOT NULL ORDER BY id LIMIT 1"
# One pruner a job. `after` is the key of the last row of the page, from which the next page goes on: at the beginning
# there are only dead rows by then.
_ROWS = """
WITH job AS MATERIALIZED (
    SELECT id FROM aaiclick_queue.jobs WHERE id = $1 AND pruned_at IS NOT NULL FOR UPDATE SKIP LOCKED
), page AS MATERIALIZED (
    SELECT p.ctid AS at, {columns} FROM {source}
    WHERE {of_job}.job_id = $1 AND ({columns}) > ({after}) AND EXISTS (SELECT FROM job)
    ORDER BY {of_job}.job_id, {order} LIMIT $2
), gone AS (
    DELETE FROM aaiclick_queue.{table} WHERE ctid = ANY(ARRAY(SELECT at FROM page))
{more})
SELECT EXISTS (SELECT FROM job) AS is_mine, (SELECT count(*) FROM page) AS n,
       (SELECT jsonb_build_array({key}) FROM page ORDER BY {last} LIMIT 1) AS after
"""


def _rows(table: str, key: tuple[str, ...] = ("id",), *, source: str = "", order: str = "", more: str = "") -> str:
    """A statement that takes a page of a table's rows away, those of one job, in the order of their key."""
    columns = ", ".join(f"p.{name}" for name in key)
    numbers = (f"coalesce(($3::text::jsonb->>{n})::bigint, 0)" for n in range(len(key)))
    texts = (f"coalesce($3::text::jsonb->>{n}, '')" for n in range(len(key)))
    after = (text if name.endswith("type") else number for name, number, text in zip(key, numbers, texts, strict=True))
    return _ROWS.format(
        table=table,
        columns=columns,
        source=source or f"aaiclick_queue.{table} p",
        of_job="g" if source else "p",
        after=", ".join(after),
        order=order or columns,
        key=", ".join(key),
        last=", ".join(f"{name} DESC" for name in key),
        more=more,
    )


PRUNE_TASKS = _rows(
    "tasks",
    more="""), progress AS (
    DELETE FROM aaiclick_queue.progress WHERE task_id = ANY(ARRAY(SELECT id FROM page))
), checkpoints AS (
    DELETE FROM aaiclick_queue.checkpoints WHERE task_id = ANY(ARRAY(SELECT id FROM page))
), timers AS (
    DELETE FROM aaiclick_queue.timers WHERE task_id = ANY(ARRAY(SELECT id FROM page))
), keys AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d WHERE d.task_id = ANY(ARRAY(SELECT id FROM page))
           AND (d.until IS NULL OR d.until < now())
        FOR UPDATE SKIP LOCKED))
""",
)
PRUNE_DEPENDENCIES = _rows("dependencies", ("previous_id", "previous_type", "next_id", "next_type"))
PRUNE_EDGES = _rows(
    "gate_edges",
    ("gate_id", "next_gate_id"),
    source="""aaiclick_queue.gates g CROSS JOIN LATERAL (
        SELECT e.ctid, e.gate_id, e.next_gate_id FROM aaiclick_queue.gate_edges e
        WHERE e.gate_id = g.id AND g.id >= coalesce(($3::text::jsonb->>0)::bigint, 0)
        ORDER BY e.gate_id, e.next_gate_id OFFSET 0) AS p""",
    order="g.id, p.next_gate_id",
)
# Nothing waits or arrives there any more; if it did, nobody could make anything of it.
PRUNE_GATES = _rows(
    "gates",
    more="""), waiting AS (
    DELETE FROM aaiclick_queue.waiting WHERE gate_id = ANY(ARRAY(SELECT id FROM page))
), arrivals AS (
    DELETE FROM aaiclick_queue.arrivals WHERE id = ANY(ARRAY(
        SELECT a.id FROM aaiclick_queue.arrivals a WHERE a.gate_id = ANY(ARRAY(SELECT id FROM page))
        FOR UPDATE SKIP LOCKED))
""",
)
PRUNE_GROUPS = _rows("groups")
PRUNE_JOB = """
WITH gone AS (
    DELETE FROM aaiclick_queue.jobs WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.jobs WHERE id = $1 AND pruned_at IS NOT NULL FOR UPDATE SKIP LOCKED))
    RETURNING id
), keys AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d WHERE d.task_id = ANY(ARRAY(SELECT id FROM gone))
           AND (d.until IS NULL OR d.until < now())
        FOR UPDATE SKIP LOCKED))
), pauses AS (
    DELETE FROM aaiclick_queue.limits WHERE scope = 'job' AND name = ANY(ARRAY(SELECT id::text FROM gone))
)
SELECT id FROM gone
"""
PARTS = (PRUNE_TASKS, PRUNE_DEPENDENCIES, PRUNE_EDGES, PRUNE_GATES, PRUNE_GROUPS)
ROWS = 1000


class Remover:
    """Takes the rows of marked jobs away, a page a step."""

    def __init__(self, keeper: Keeper | None = None) -> None:
        """`keeper` takes its tasks and its row before they go."""
        self._keeper = keeper
        self._job: int | None = None
        self._part = 0
        self._after: str | None = None

    async def step(self, tx: Transaction, *, rows: int = ROWS) -> bool:
        """One page; False when there is no marked job, or somebody else is at it."""
        if self._job is None:
            found = await tx.fetch(NEXT_MARKED)
            if not found:
                return False
            self._begin(found[0]["id"])
        assert self._job is not None
        if not await self._is_kept(tx, self._job, rows):
            self._job = None
            return False
        if self._part == len(PARTS):
            job, self._job = self._job, None
            return bool(await tx.fetch(PRUNE_JOB, job))
        [page] = await tx.fetch(PARTS[self._part], self._job, rows, self._after)
        return self._go_on(page, rows)

    async def _is_kept(self, tx: Transaction, job: int, rows: int) -> bool:
        if self._keeper is None or 0 < self._part < len(PARTS):
            return True
        if self._part == 0:
            return await self._keeper.keep_tasks_of_job(tx, job, rows, self._after)
        return await self._keeper.keep_job(tx, job)

    def _begin(self, job: Any) -> None:
        self._job, self._part, self._after = job, 0, None

    def _go_on(self, page: Any, rows: int) -> bool:
        if not page["is_mine"]:
            self._job = None
            return False
        if page["n"] < rows:
            self._part, self._after = self._part + 1, None
        else:
            self._after = page["after"]
        return True
