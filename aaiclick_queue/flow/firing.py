"""Firing: the ticks of registered jobs, and a job for each that fires, in one statement. Part of the scheduler.

A tick is unique by its name, (registered job, fire_at): who meets one that is there makes no second run of it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..errors import BadSchedule
from ..meters import METERS
from ..schema import Transaction
from ..ticking import Decision, Due, Tick, decide
from .enqueue import TakeIds
from .outbox import append_from
from .place import enter_line
from .schedule_rows import aware, naive, schedule_of

log = logging.getLogger(__name__)

# Read when the row is locked, by a statement of its own: the snapshot of the one that locks does not know the run that
# another scheduler made of the tick before, nor what the time is after a wait. Open runs only where they matter.
DUE_COLUMNS = """r.id, r.name, r.fire_at, r.next_run_at, r.anchor_at, r.starts_at, r.ends_at, r.interval_seconds,
       r.schedule, r.timezone, r.misfire, r.misfire_limit, r.overlap, r.queued_fire_at, r.replacing, r.jitter_seconds,
       clock_timestamp() AS now, CASE WHEN r.overlap <> 'allow' THEN array(
           SELECT j.id FROM aaiclick_queue.jobs j
           WHERE j.registered_job_id = r.id AND j.status IN ('PENDING', 'RUNNING') LIMIT 1000)
       END AS open_runs"""
# A job of one task for each tick that is new, has waited until now, or is filled in later.
FIRE = f"""
WITH given AS MATERIALIZED (
    SELECT registered_job_id, fire_at, due_at, job_id, task_id, outcome, missed, reason, delay
    FROM unnest($1::bigint[], $2::timestamp[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::text[],
                $7::int[], $8::text[], $9::float8[])
         AS given(registered_job_id, fire_at, due_at, job_id, task_id, outcome, missed, reason, delay)
), tick AS (
    INSERT INTO aaiclick_queue.ticks AS t (registered_job_id, fire_at, due_at, job_id, missed, outcome, run_type,
                                           reason, created_at)
    SELECT registered_job_id, fire_at, due_at, job_id, missed, outcome, $10::text, reason, clock_timestamp() FROM given
    ON CONFLICT (registered_job_id, fire_at) DO UPDATE
    SET job_id = excluded.job_id, outcome = excluded.outcome, reason = excluded.reason,
        created_at = excluded.created_at, run_type = excluded.run_type
    WHERE excluded.outcome = 'FIRED' AND t.job_id IS NULL
      AND (t.outcome = 'QUEUED') = (excluded.run_type <> 'BACKFILL')
    RETURNING registered_job_id, fire_at, job_id
), fired AS MATERIALIZED (
    SELECT given.job_id, given.task_id, given.fire_at, given.delay, r.id AS registered_job_id, r.name, r.entrypoint,
           r.default_kwargs, coalesce(r.priority, 0) AS priority, coalesce(r.queue, 'default') AS queue, r.max_attempts,
           r.max_parallel, r.retention_seconds, coalesce(r.timeout_seconds, $11::float8) AS timeout, r.options,
           given.job_id || '=' || r.max_parallel AS crowd,
           jsonb_build_object('fire_at', to_char(given.fire_at, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) AS tick_of
    FROM tick JOIN given ON given.job_id = tick.job_id
    JOIN aaiclick_queue.registered_jobs r ON r.id = tick.registered_job_id
), job AS (
    INSERT INTO aaiclick_queue.jobs (id, name, run_type, registered_job_id, entrypoint, kwargs, returns, priority,
                                     max_parallel, fail_fast, hooks, metadata, submitted_by, deadline_at,
                                     retention_seconds)
    SELECT job_id, name, $10::text, registered_job_id, entrypoint, default_kwargs,
           jsonb_build_object('$node', task_id), priority, max_parallel,
           coalesce((options->>'fail_fast')::boolean, false), options->'hooks',
           coalesce(options->'metadata', '{{}}') || tick_of,
           'scheduler', now() + make_interval(secs => timeout), retention_seconds
    FROM fired
), gate AS (
    INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule)
    SELECT job_id, job_id, 1, 1, 'JOB', 'whole' FROM fired
), new AS (
    INSERT INTO aaiclick_queue.tasks (id, job_id, kwargs, metadata, eta, entrypoint, name, queue, priority,
                                      max_attempts, member_gate, crowd)
    SELECT task_id, job_id, default_kwargs, tick_of, CASE WHEN delay > 0 THEN now() + make_interval(secs => delay) END,
           entrypoint, regexp_replace(entrypoint, '^.*\\.', ''), queue, priority, max_attempts, job_id, crowd
    FROM fired
), later AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, flags, queue, reason)
    SELECT task_id, now() + make_interval(secs => delay), job_id, -priority, 128, queue, 'eta'
    FROM fired WHERE delay > 0
), at_once AS (
    SELECT task_id, job_id AS order_key, 0 AS run_epoch, 0 AS attempt, 0 AS lost_count, 0 AS snoozes, 128 AS flags,
           queue, -priority AS rank, entrypoint, NULL::text AS concurrency_key, NULL::text AS order_by, job_id, crowd
    FROM fired WHERE NOT delay > 0
), {enter_line("at_once")}, told AS (
    {append_from("entered")}
), noted AS (
    INSERT INTO aaiclick_queue.events (job_id, type, data)
    SELECT job_id, 'JOB_CREATED', jsonb_build_object('name', name, 'kwargs', default_kwargs) FROM fired
)
SELECT count(*) AS fired FROM fired
"""
ADVANCE = """
UPDATE aaiclick_queue.registered_jobs r
SET fire_at = given.fire_at, next_run_at = given.next_run_at, queued_fire_at = given.queued_fire_at,
    replacing = CASE WHEN given.replaced = '' THEN r.replacing
                     ELSE coalesce(r.replacing, '{}') || string_to_array(given.replaced, ',')::bigint[] END
FROM unnest($1::bigint[], $2::timestamp[], $3::timestamptz[], $4::timestamp[], $5::text[])
     AS given(id, fire_at, next_run_at, queued_fire_at, replaced)
WHERE r.id = given.id
"""
# What the columns of a schedule come to where a hostile or a newer client wrote them.
UNREADABLE = (BadSchedule, ArithmeticError, LookupError, TypeError, ValueError)
TICKS_AT_A_TIME = 2000  # after a long time away: a statement of hundreds of thousands would outlast its patience
# Registered job, fire_at, due_at, outcome, missed, reason, delay of its run.
TickRow = tuple[int, datetime, datetime | None, str, int, str | None, float]


class Written(msgspec.Struct, frozen=True):
    """What a decision over a registered job's row writes."""

    name: str
    ticks: Sequence[TickRow]
    advanced: tuple[Any, ...]
    cancels: Sequence[int]  # runs whose place a new one takes


def written(row: Any, decision: Decision) -> Written:
    """The rows of its ticks, and its own as it is next."""
    next_run_at = row["next_run_at"]
    if decision.next_fire_at is None:
        next_run_at = None
    elif row["fire_at"] is not None:
        next_run_at += decision.next_fire_at - aware(row["fire_at"])
    replaced = ",".join(map(str, decision.replaced))
    advanced = (row["id"], naive(decision.next_fire_at), next_run_at, naive(decision.queued), replaced)
    ticks = [tick_row(row, tick) for tick in decision.ticks]
    return Written(row["name"], ticks, advanced, [*(row["replacing"] or ()), *decision.replaced])


class Firing:
    """The ticks of some registered jobs, whose rows are locked."""

    def __init__(self, tx: Transaction, take: TakeIds, *, timeout: float) -> None:
        self._tx = tx
        self._take = take
        self._timeout = timeout
        self._ticks: list[TickRow] = []
        self._advanced: list[tuple[Any, ...]] = []
        self.replaced: dict[int, Sequence[int]] = {}
        self.unreadable: dict[int, str] = {}  # ids and names
        self.due = 0  # of the rows
        self.is_cut = False  # there were too many ticks for one step: some rows are left as they were

    async def fire(self, rows: Sequence[Any], known: Sequence[Written] = ()) -> tuple[int, int]:
        """Decide, unless that is known, write, and set the next moment of each; how many runs and ticks that made."""
        for one in known:
            self._add(one)
        for row in rows:
            if len(self._ticks) >= TICKS_AT_A_TIME:
                self.is_cut = True
                break
            try:
                self._add(written(row, decide(due_of(row))))
            except UNREADABLE as error:  # one that this version does not read; another one may
                log.error("schedule %s cannot be read: %s", row["name"], error)
                self.unreadable[row["id"]] = row["name"]
        runs = await fire_ticks(self._tx, self._ticks, self._take, seconds=self._timeout) if self._ticks else 0
        if self._advanced:
            await self._tx.fetch(ADVANCE, *map(list, zip(*self._advanced, strict=True)))
        return runs, len(self._ticks)

    def _add(self, one: Written) -> None:
        self.due += bool(one.ticks)
        self._ticks += one.ticks
        self._advanced.append(one.advanced)
        if METERS.on:
            _count(one)
        if one.cancels:
            self.replaced[one.advanced[0]] = one.cancels


async def fire_ticks(
    tx: Transaction, ticks: Sequence[TickRow], take: TakeIds, *, seconds: float, run_type: str = "SCHEDULED"
) -> int:
    """Write ticks of registered jobs, and a job for each that fires and has not before; how many jobs that made.

    `seconds` is the time of a job that names none.
    """
    fires = [tick[3] == "FIRED" for tick in ticks]
    ids = iter(take(2 * sum(fires)))
    both = [(next(ids), next(ids)) if fire else (None, None) for fire in fires]
    registered, fire_at, due_at, outcome, missed, reason, delay = map(list, zip(*ticks, strict=True))
    jobs, tasks = map(list, zip(*both, strict=True))
    rows = await tx.fetch(
        FIRE, registered, fire_at, due_at, jobs, tasks, outcome, missed, reason, delay, run_type, seconds
    )
    fired: int = rows[0]["fired"]
    return fired


def tick_row(row: Any, tick: Tick) -> TickRow:
    """A tick of a registered job's row as it is written."""
    delay = random.uniform(0, row["jitter_seconds"])
    fire_at = naive(tick.fire_at)
    return row["id"], fire_at, _due_at(row, tick), tick.outcome, tick.missed, tick.reason, delay


def due_of(row: Any, *, now: datetime | None = None) -> Due:
    """What is to be decided of a row that was read; `now`: as if it were that moment."""
    fire_at = None if row["next_run_at"] is None else aware(row["fire_at"])
    now = now or row["now"]
    return Due(
        schedule=None if fire_at is None else schedule_of(row),
        fire_at=fire_at,
        now=now if fire_at is None else fire_at + (now - row["next_run_at"]),
        misfire=row["misfire"],
        misfire_limit=row["misfire_limit"],
        overlap=row["overlap"],
        open_runs=row["open_runs"] or (),
        queued=aware(row["queued_fire_at"]),
    )


def _due_at(row: Any, tick: Tick) -> datetime | None:
    """The moment at which a tick was due, by the clock of the database."""
    if row["next_run_at"] is None:
        return None
    due_at: datetime = row["next_run_at"] + (tick.fire_at - aware(row["fire_at"]))
    return due_at


def _count(one: Written) -> None:
    for _, _, _, outcome, missed, _, _ in one.ticks:
        METERS.ticked(one.name, outcome.lower())
        if missed:
            METERS.ticked(one.name, "missed", missed)
        if outcome == "FIRED":
            METERS.job_created(one.name)
