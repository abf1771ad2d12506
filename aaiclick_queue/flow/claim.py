"""Claim: takes the next tasks in line and leases them to this worker. Before: a wake-up. After: execute.

Ownership is the lease row made here; `run_epoch` grows by one and fences every later write of the run.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any, Literal

import msgspec

from ..schema import Transaction
from .at_ease import at_ease_unless
from .mark import HeadScans

Key = tuple[int, int, int]  # rank, order_key, task_id
Scan = Literal["head", "mark", "lowest"]
Record = Any

# ctid = ANY(ARRAY(…)): the rows are chosen once, before the delete, whatever the statistics say; joined the obvious
# way a generic plan took 352 ms at a million rows. SKIP LOCKED: a second worker walks on. status || '': else the index
# of open jobs may be read from its beginning, in the place of the primary key. At ease: a claim that a crash forgets is
# given out again, under the same epoch and another worker, which the fence tells apart (slots.py, where it is the same
# worker). Not under limits or a strict order: there two runs at once are two too many.
CLAIM_NEXT_IN_LINE = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.ready WHERE ctid = ANY(ARRAY(
        SELECT line.ctid
        FROM unnest($1::text[], $2::int[], $3::bigint[], $4::bigint[]) AS mark(queue, rank, order_key, task_id)
        CROSS JOIN LATERAL (
            SELECT r.ctid FROM aaiclick_queue.ready r
            WHERE r.queue = mark.queue AND (r.rank, r.order_key, r.task_id) >= (mark.rank, mark.order_key, mark.task_id)
              AND NOT EXISTS (SELECT FROM aaiclick_queue.queues q WHERE q.name = mark.queue AND q.paused_at IS NOT NULL)
            ORDER BY r.queue, r.rank, r.order_key, r.task_id LIMIT $5 FOR UPDATE SKIP LOCKED
        ) AS line
        WHERE EXISTS (SELECT FROM aaiclick_queue.workers w WHERE w.id = $6 AND w.status = 'ACTIVE')
        LIMIT $5))
    RETURNING queue, rank, order_key, task_id, run_epoch, attempt, lost_count, snoozes, flags, ready_at
), leased AS (
    INSERT INTO aaiclick_queue.leases (task_id, worker_id, order_key, ready_at, deadline_at, rank, run_epoch,
                                       attempt, lost_count, snoozes, flags, queue)
    SELECT taken.task_id, $6, taken.order_key, taken.ready_at,
           now() + make_interval(secs => coalesce(t.timeout_seconds, $7::float8) + $8::float8), taken.rank,
           taken.run_epoch + 1, taken.attempt + 1, taken.lost_count, taken.snoozes, taken.flags, taken.queue
    FROM taken JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
    ON CONFLICT DO NOTHING
    RETURNING task_id, run_epoch, attempt, lost_count, snoozes, flags, queue, rank, order_key, ready_at
), begun AS (
    UPDATE aaiclick_queue.jobs SET status = 'RUNNING', started_at = now() WHERE ctid = ANY(ARRAY(
        SELECT first.ctid
        FROM (SELECT DISTINCT t.job_id FROM taken JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
              WHERE taken.flags & 128 = 128) AS its
        CROSS JOIN LATERAL (SELECT j.ctid FROM aaiclick_queue.jobs j WHERE j.id = its.job_id
                            AND j.status || '' = 'PENDING' FOR UPDATE SKIP LOCKED) AS first))
    RETURNING id
), noted AS (
    INSERT INTO aaiclick_queue.events (job_id, type) SELECT id, 'JOB_STARTED' FROM begun
)
SELECT leased.task_id, leased.run_epoch, leased.attempt, leased.lost_count, leased.snoozes, leased.queue,
       t.entrypoint, t.kwargs, t.name, t.timeout_seconds, t.max_attempts, t.correlation_id, t.priority,
       extract(epoch FROM now() - leased.ready_at)::float8 AS waited, coalesce(t.expires_at < now(), false) AS expired,
       leased.flags, t.concurrency_key, t.order_by, t.metadata, t.job_id, t.group_id, t.crowd, leased.rank,
       leased.order_key
FROM leased JOIN aaiclick_queue.tasks t ON t.id = leased.task_id
WHERE {at_ease_unless("taken.flags & 6 <> 0", source="taken")}
"""
LOWEST_RANKS = """
SELECT mark.queue, (SELECT max(r.rank) FROM aaiclick_queue.ready r WHERE r.queue = mark.queue) AS rank
FROM unnest($1::text[]) AS mark(queue)
"""
# A loose index scan: one step a queue, however long the lines are.
QUEUES_IN_LINE = """
WITH RECURSIVE line AS (
    (SELECT queue FROM aaiclick_queue.ready ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM aaiclick_queue.ready r WHERE r.queue > line.queue ORDER BY r.queue LIMIT 1)
    FROM line WHERE line.queue IS NOT NULL)
SELECT queue FROM line WHERE queue IS NOT NULL
"""
HEAD: Key = (-(2**31), -(2**63), -(2**63))
LOWEST_EVERY = 16
UNSTARTED_SECONDS = 5.0  # what the reaper's net leaves for the time between claim and start


class Claimed(msgspec.Struct, frozen=True):
    """One leased task, as much of it as running needs."""

    task_id: int
    run_epoch: int
    attempt: int
    lost_count: int
    snoozes: int
    queue: str
    entrypoint: str
    kwargs: str
    name: str | None
    timeout_seconds: float | None
    max_attempts: int | None
    correlation_id: str | None
    priority: int
    waited: float
    expired: bool
    flags: int = 0
    concurrency_key: str | None = None
    order_by: str | None = None
    metadata: str | None = None
    job_id: int | None = None
    group_id: int | None = None
    crowd: str | None = None


FIELDS = len(Claimed.__struct_fields__)
_PLACE = itemgetter("rank", "order_key", "task_id")


class Wanted(msgspec.Struct, frozen=True):
    """What a worker asks of the line."""

    limit: int
    worker_id: int
    timeout_seconds: float
    grace_seconds: float
    resting: AbstractSet[str] = frozenset()


class Line:
    """The queues of one worker: whose turn it is, and where each line was left."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        """`queues` are names and weights: one of weight 3 is first in three turns of four beside one of weight 1."""
        self._marks: dict[str, Key] = dict.fromkeys(queues, HEAD)
        self._lowest: dict[str, Key] = {}
        self._turns = itertools.cycle([name for name, weight in queues.items() for _ in range(weight)] or [""])
        self._claims = 0
        self._full = False
        self._last = ""
        self.head = HeadScans()

    @property
    def queues(self) -> list[str]:
        """Names of the queues that are served."""
        return list(self._marks)

    def serve(self, queues: Sequence[str]) -> None:
        """Serve these queues from now on, in equal turns; what is known of the others is forgotten."""
        if set(queues) != set(self._marks):
            self._marks = {name: self._marks.get(name, HEAD) for name in queues}
            # The turn goes on behind the last one: queues that come and go must not keep the first one first.
            names = sorted(queues)
            at = bisect_right(names, self._last)
            self._turns = itertools.cycle([*names[at:], *names[:at]] or [""])

    def passed(self, queue: str, rank: int, order_key: int) -> bool:
        """Whether work at this place of the line lies behind the mark, so that only a scan from the head finds it."""
        return (rank, order_key) < self._marks.get(queue, HEAD)[:2]

    async def claim(self, tx: Transaction, want: Wanted) -> list[Claimed]:
        """Lease at most `want.limit` tasks to the worker, in line order."""
        scan, marks = await self._start(tx, want.resting)
        rows = await self._scan(tx, scan, marks, want)
        if scan == "mark" and not self._full and self.head.due():
            rest = msgspec.structs.replace(want, limit=want.limit - len(rows))
            try:
                rows = [*rows, *await self._scan(tx, "head", [(queue, HEAD) for queue, _ in marks], rest)]
            except Exception:
                if not rows:
                    raise  # else the next claim meets the same error, and these can start meanwhile
        # RETURNING gives heap order.
        return [Claimed(*row[:FIELDS]) for row in sorted(rows, key=_PLACE)]

    async def _scan(
        self, tx: Transaction, scan: Scan, marks: Sequence[tuple[str, Key]], want: Wanted
    ) -> Sequence[Record]:
        began = time.monotonic()
        rows = await tx.fetch(
            CLAIM_NEXT_IN_LINE,
            [queue for queue, _ in marks],
            *([mark[i] for _, mark in marks] for i in range(3)),
            want.limit,
            want.worker_id,
            want.timeout_seconds,
            want.grace_seconds + UNSTARTED_SECONDS,
        )
        self._claims += 1
        self._full = len(rows) >= want.limit
        if scan == "head":
            self.head.done(time.monotonic() - began, rows=len(rows), short=not self._full)
        elif not self._full:
            self.head.want()
        _advance(self._lowest if scan == "lowest" else self._marks, rows)
        return rows

    async def _start(self, tx: Transaction, resting: AbstractSet[str]) -> tuple[Scan, list[tuple[str, Key]]]:
        first = self._last = next(self._turns)
        served = sorted((q for q in self._marks if q not in resting), key=lambda queue: queue != first)
        if self._full and self._claims % LOWEST_EVERY == LOWEST_EVERY - 1:
            # Strict order would let priority 0 wait for ever while priority 9 keeps coming.
            ranks = {row["queue"]: row["rank"] for row in await tx.fetch(LOWEST_RANKS, served)}
            if any(rank is not None and rank > self._marks[queue][0] for queue, rank in ranks.items()):
                return "lowest", [(queue, self._lowest_mark(queue, ranks[queue])) for queue in served]
        if self.head.due():
            return "head", [(queue, HEAD) for queue in served]
        return "mark", [(queue, self._marks[queue]) for queue in served]

    def _lowest_mark(self, queue: str, rank: int | None) -> Key:
        """Where the lowest rank was left: the head of a rank is as full of dead rows as the head of the line."""
        if rank is None or rank <= self._marks[queue][0]:
            return self._marks[queue]
        mark = self._lowest.get(queue, HEAD)
        return mark if mark[0] == rank else (rank, *HEAD[1:])


def _advance(marks: dict[str, Key], rows: Sequence[Record]) -> None:
    # To the last one: what lies before it is dead or somebody else's. From the first, each claim walked once more over
    # those of the one before, which stay in the index while a snapshot is held: half of what that cost.
    keys: dict[str, list[Key]] = {}
    for row in rows:
        keys.setdefault(row["queue"], []).append(_PLACE(row))
    marks.update({queue: max(places) for queue, places in keys.items()})


async def queues_in_line(tx: Transaction) -> list[str]:
    """Names of all queues that have work in line."""
    return [row["queue"] for row in await tx.fetch(QUEUES_IN_LINE)]
