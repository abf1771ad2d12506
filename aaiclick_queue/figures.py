"""Reads for people: what was done, minute by minute, from counts that workers add up with their heartbeats.

Every read is bounded by time and by rows, whatever ran. A minute is complete some ten seconds after its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from .buckets import RUN_BUCKETS, WAIT_BUCKETS, added, percentile
from .postgres import Database

HOURS_LIMIT = 168
FINE_HOURS = 6  # up to here a point a minute, beyond a point an hour: older minutes are folded (flow/prune_operate.py)
ROWS_LIMIT = 300_000  # newest rows that one read goes through
QUEUES_LIMIT = 1000
ENTRYPOINTS_LIMIT = 500
RATE_MINUTES = 5  # that the speed of now is taken from
_COUNTS = "completed, failed, retried, lost, cancelled, snoozed"
_SUMS = ", ".join(f"sum({name})::bigint AS {name}" for name in _COUNTS.split(", "))
_SPREADS = f"{added('waits', WAIT_BUCKETS)}, {added('runs', RUN_BUCKETS)}"
# By the primary key from the newest back, so that the limit leaves the oldest out.
_NEWEST = f"""
    SELECT minute, queue, entrypoint, {_COUNTS}, wait_seconds, run_seconds, waits, runs FROM aaiclick_queue.figures
    WHERE minute > now() - make_interval(secs => $1::float8) ORDER BY minute DESC LIMIT {ROWS_LIMIT}"""
# With nothing appended an array is unpacked once, and not for each of the 33 sums that take one of its places: a
# quarter of the time. OFFSET 0 keeps it so.
_UNPACKED = f"""
    SELECT queue, entrypoint, {_COUNTS}, run_seconds,
           waits || '{{{{}}}}'::int[] AS waits, runs || '{{{{}}}}'::int[] AS runs
    FROM ({_NEWEST}) AS n WHERE {{which}} OFFSET 0"""
# Added up by minute at first, as they are read: to which hour a minute belongs is asked once for all of its rows.
# Of waits and runs the seconds alone: their 33 buckets, for percentiles, would be most of what this takes.
_SECONDS = "sum(wait_seconds)::float8 AS wait_seconds, sum(run_seconds)::float8 AS run_seconds"
THROUGHPUT = f"""
SELECT to_timestamp(floor(date_part('epoch', m.minute) / $2::float8) * $2::float8) AS start, {_SUMS}, {_SECONDS}
FROM (SELECT f.minute, {_SUMS}, {_SECONDS} FROM ({_NEWEST}) AS f GROUP BY f.minute) AS m GROUP BY 1 ORDER BY 1
"""
QUEUE_FIGURES = f"""
SELECT f.queue, {_SPREADS} FROM ({_UNPACKED.format(which="true")}) AS f
GROUP BY f.queue ORDER BY f.queue LIMIT {QUEUES_LIMIT}
"""
QUEUE_MINUTES = f"""
SELECT f.queue, date_trunc('minute', now()) AS last, f.minute,
       sum(f.completed + f.failed + f.cancelled)::bigint AS done
FROM ({_NEWEST}) AS f GROUP BY f.queue, f.minute
"""
# The last samples of each queue: their lines, and what came in.
QUEUE_SAMPLES = f"""
SELECT queue, avg(created)::float8 AS created, (array_agg(ready ORDER BY minute DESC))[1] AS ready
FROM aaiclick_queue.samples WHERE minute >= date_trunc('minute', now()) - make_interval(mins => $1::int)
GROUP BY queue ORDER BY queue LIMIT {QUEUES_LIMIT}
"""
ENTRYPOINT_FIGURES = f"""
SELECT f.queue, f.entrypoint, {_SUMS}, sum(f.run_seconds)::float8 AS run_seconds, {_SPREADS}
FROM ({_UNPACKED.format(which="$2::text IS NULL OR n.queue = $2")}) AS f
GROUP BY f.queue, f.entrypoint ORDER BY sum(f.completed + f.failed + f.retried) DESC, f.queue, f.entrypoint
LIMIT {ENTRYPOINTS_LIMIT}
"""
# One look by key a minute: read in order, the week of one queue would be that of all queues. One scan makes them all;
# joined minute by minute, with 33 sums over minutes that have no figures too, it took twice as long. Of figures only
# the minutes that there are, found step by step: of a week most are folded, and 10,080 looks at nothing took 30 ms.
_START = "to_timestamp(floor(date_part('epoch', {minute}) / $3::float8) * $3::float8)"
_FIRST = "date_trunc('minute', now()) - make_interval(hours => $2::int)"
QUEUE_HISTORY = f"""
WITH RECURSIVE figured AS (
    (SELECT minute FROM aaiclick_queue.figures WHERE minute >= {_FIRST} ORDER BY minute LIMIT 1)
    UNION ALL
    SELECT (SELECT f.minute FROM aaiclick_queue.figures f WHERE f.minute > figured.minute ORDER BY f.minute LIMIT 1)
    FROM figured WHERE figured.minute IS NOT NULL
), sampled AS MATERIALIZED (
    SELECT {_START.format(minute="minute")} AS start, max(ready) AS ready, round(avg(running))::int AS running,
           max(delayed) AS delayed, max(held) AS held, sum(created)::bigint AS created,
           max(oldest_seconds) AS oldest_seconds
    FROM aaiclick_queue.samples WHERE queue = $1::text
      AND minute = ANY(ARRAY(SELECT generate_series({_FIRST}, now(), '1 min'))) GROUP BY 1
), ended AS MATERIALIZED (
    SELECT {_START.format(minute="minute")} AS start, sum(completed + failed + cancelled)::bigint AS done,
           sum(failed)::bigint AS failed, {_SPREADS}
    FROM aaiclick_queue.figures WHERE queue = $1::text
      AND minute = ANY(ARRAY(SELECT minute FROM figured WHERE minute IS NOT NULL)) GROUP BY 1
)
SELECT b.start, s.ready, s.running, s.delayed, s.held, s.created, s.oldest_seconds, coalesce(e.done, 0) AS done,
       coalesce(e.failed, 0) AS failed, coalesce(e.waits, '{{}}') AS waits, coalesce(e.runs, '{{}}') AS runs
FROM (SELECT generate_series({_START.format(minute=_FIRST)}, now(), make_interval(secs => $3::float8)) AS start) AS b
LEFT JOIN sampled s ON s.start = b.start LEFT JOIN ended e ON e.start = b.start ORDER BY b.start
"""


class Throughput(msgspec.Struct, frozen=True):
    """What runs came to in a minute, or in an hour where more than six hours were asked for."""

    start: datetime
    completed: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    cancelled: int = 0
    snoozed: int = 0
    average_wait_seconds: float | None = None
    average_run_seconds: float | None = None


class QueueFigures(msgspec.Struct, frozen=True):
    """How a queue does. Rates are those of the last five full minutes; None where nothing is known."""

    done_per_minute: float
    created_per_minute: float | None
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    drain_seconds: float | None  # until the line is empty at these rates; None: never, or it is not known
    spark: list[int]  # done, minute by minute, up to the last full one


class EntrypointFigures(msgspec.Struct, frozen=True):
    """What the runs of one entrypoint on one queue came to; `other` stands for those beyond 200 a minute."""

    queue: str
    entrypoint: str
    completed: int
    failed: int
    retried: int
    lost: int
    cancelled: int
    snoozed: int
    average_seconds: float | None
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


class QueueSample(msgspec.Struct, frozen=True):
    """A queue in a minute, or at its deepest in an hour; None: nobody looked then."""

    start: datetime
    ready: int | None
    running: int | None
    delayed: int | None
    held: int | None
    created: int | None
    oldest_seconds: float | None
    done: int
    failed: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None


class QueueTrend(msgspec.Struct, frozen=True):
    """A queue over time; how long its tasks waited and ran in all of it, as counts by the bounds of buckets.py."""

    samples: list[QueueSample]
    waits: list[int]
    runs: list[int]


async def read_throughput(db: Database, *, hours: int) -> list[Throughput]:
    """One entry a minute, or an hour beyond six hours, with those in which nothing ended; oldest first."""
    step = step_of(hours)
    rows = {row["start"]: row for row in await db.fetch(THROUGHPUT, _hours(hours) * 3600.0, step.total_seconds())}
    now: datetime = await db.fetchval("SELECT now()")
    last = datetime.fromtimestamp(now.timestamp() // step.total_seconds() * step.total_seconds(), now.tzinfo)
    starts = [last - step * back for back in reversed(range(int(timedelta(hours=_hours(hours)) / step)))]
    return [Throughput(**_averages(dict(rows[start]))) if start in rows else Throughput(start) for start in starts]


async def read_queue_figures(db: Database, *, minutes: int = 60) -> dict[str, QueueFigures]:
    """Rates, waits and runs of each queue in which something ended, or for which there is a sample."""
    seconds = (max(RATE_MINUTES, min(minutes, 60 * FINE_HOURS)) + 1) * 60.0
    # Side by side: one after the other they are what a page waits for longest.
    spread_rows, sample_rows, minute_rows = await asyncio.gather(
        db.fetch(QUEUE_FIGURES, seconds), db.fetch(QUEUE_SAMPLES, RATE_MINUTES), db.fetch(QUEUE_MINUTES, seconds)
    )
    spreads = {row["queue"]: row for row in spread_rows}
    samples = {row["queue"]: row for row in sample_rows}
    done: dict[str, dict[int, int]] = {}
    for row in minute_rows:
        back = round((row["last"] - row["minute"]).total_seconds() / 60)
        done.setdefault(row["queue"], {})[back] = row["done"]
    return {
        queue: _queue_figures(spreads.get(queue), samples.get(queue), done.get(queue, {}), minutes)
        for queue in sorted({*spreads, *samples})
    }


async def read_entrypoint_figures(db: Database, *, hours: int, queue: str | None = None) -> list[EntrypointFigures]:
    """What ran most comes first; 500 at most."""
    rows = await db.fetch(ENTRYPOINT_FIGURES, _hours(hours) * 3600.0, queue)
    figures = []
    for row in rows:
        values = dict(row)
        runs = sum(values["runs"])
        seconds = values.pop("run_seconds") / runs if runs else None
        figures.append(EntrypointFigures(**_spread(values), average_seconds=seconds))
    return figures


async def read_queue_history(db: Database, queue: str, *, hours: int) -> list[QueueSample]:
    """One entry a minute, or an hour beyond six hours; oldest first."""
    return (await read_queue_trend(db, queue, hours=hours)).samples


async def read_queue_trend(db: Database, queue: str, *, hours: int) -> QueueTrend:
    """The same, with what it comes to over all of them."""
    rows = await db.fetch(QUEUE_HISTORY, queue, _hours(hours), step_of(hours).total_seconds())
    waits, runs = (_added([row[name] for row in rows if row[name]]) for name in ("waits", "runs"))
    return QueueTrend([QueueSample(**_spread(dict(row))) for row in rows], waits, runs)


def _added(counts: Sequence[Sequence[int | None]]) -> list[int]:
    return [sum(one or 0 for one in place) for place in zip(*counts, strict=True)]


def _averages(values: dict[str, Any]) -> dict[str, Any]:
    """The row with averages in place of its sums of seconds."""
    runs = sum(values[name] for name in _COUNTS.split(", "))
    for name in ("wait_seconds", "run_seconds"):
        seconds = values.pop(name)
        values[f"average_{name}"] = seconds / runs if runs else None
    return values


def _hours(hours: int) -> int:
    return max(1, min(hours, HOURS_LIMIT))


def step_of(hours: int) -> timedelta:
    """How long one entry of so many hours is."""
    return timedelta(minutes=1) if hours <= FINE_HOURS else timedelta(hours=1)


def _spread(values: dict[str, Any]) -> dict[str, Any]:
    """The row with percentiles in place of its counts by bucket."""
    for name, bounds in (("waits", WAIT_BUCKETS), ("runs", RUN_BUCKETS)):
        counts = [count or 0 for count in values.pop(name)]
        one = name.removesuffix("s")
        values |= {f"{one}_p50": percentile(bounds, counts, 0.5), f"{one}_p95": percentile(bounds, counts, 0.95)}
    return values


def _queue_figures(spread: Any, sample: Any, done: Mapping[int, int], minutes: int) -> QueueFigures:
    out = sum(done.get(back, 0) for back in range(1, RATE_MINUTES + 1)) / RATE_MINUTES
    made = None if sample is None else sample["created"]
    left = None
    if sample is not None and made is not None and out > made:
        left = 60.0 * sample["ready"] / (out - made)
    empty: dict[str, Any] = {"waits": (), "runs": ()}
    spreads = _spread({name: spread[name] for name in empty} if spread is not None else empty)
    return QueueFigures(
        done_per_minute=out,
        created_per_minute=made,
        drain_seconds=left,
        spark=[done.get(back, 0) for back in range(minutes, 0, -1)],
        **spreads,
    )
