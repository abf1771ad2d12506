"""Trends: figures over time as the pages draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from ...buckets import RUN_BUCKETS, WAIT_BUCKETS
from ...figures import FINE_HOURS, RATE_MINUTES, QueueSample, QueueTrend, Throughput, read_queue_trend, read_throughput
from ...orchestrator import LoopView, Orchestrator, read_orchestrator
from ...postgres import Database
from ..drawing.charts import NARROW, WIDE, Column, Mark, columns, histogram, line_chart, lines
from ..drawing.graphs import brief
from ..drawing.twins import MOMENT, twin

ENDS = ("completed", "failed", "retried", "lost", "cancelled")
HALF, SLIM = 520.0, 300.0
Draw = Callable[..., Markup]
Drawn = tuple[Markup, Markup, Markup]  # for a wide screen, for a narrow one, and as a table
COMPONENTS = {"relay": "Relay", "scheduler": "Scheduler", "reaper": "Rescue"}
STALE_SECONDS = MINUTE = 60.0
# When each version was first seen, of the workers that are still known.
DEPLOYS = """
SELECT version, min(started_at) AS at FROM (SELECT version, started_at FROM aaiclick_queue.workers LIMIT 10000) AS w
GROUP BY version HAVING min(started_at) > now() - make_interval(hours => $1::int) ORDER BY at DESC LIMIT 10
"""


async def throughput(db: Database, hours: int) -> dict[str, Any]:
    """The chart of what ended, with the rate and the failures that the first page tells."""
    found = await read_throughput(db, hours=hours)
    bars = [Column(one.start, {kind: getattr(one, kind) for kind in ENDS}) for one in found]
    total = {kind: sum(getattr(one, kind) for one in found) for kind in ENDS}
    told = ", ".join(f"{count:,} {kind}" for kind, count in total.items() if count)
    by_minute = found if hours <= FINE_HOURS else await read_throughput(db, hours=1)
    recent = by_minute[-RATE_MINUTES - 1 : -1]  # full ones
    return {
        "charts": _charts(bars, f"Tasks that ended: {told}", await deploys(db, hours)) if any(total.values()) else None,
        "done_per_minute": sum(one.completed for one in recent) / RATE_MINUTES,
        "failed_sum": total["failed"],
        "latency": _latency(found),
    }


def _latency(found: Sequence[Throughput]) -> Drawn | None:
    """How long what ended had waited and run on average; None where nothing ended."""
    waits, runs = [one.average_wait_seconds for one in found], [one.average_run_seconds for one in found]
    longest = max((value for value in (*waits, *runs) if value is not None), default=None)
    if longest is None:
        return None
    unit, scale = ("s", 1.0) if longest >= 1 else ("ms", 1000.0)
    starts, label = [one.start for one in found], f"Average wait and run of tasks that ended, at most {brief(longest)}"
    kinds = {"waited": _scaled(waits, scale), "ran": _scaled(runs, scale)}
    wide, narrow = (lines(starts, kinds, label=label, unit=unit, width=width) for width in (WIDE, NARROW))
    heads = (MOMENT, "waited, seconds", "ran, seconds")
    return wide, narrow, twin(heads, zip(starts, waits, runs, strict=True), label=label)


def _scaled(values: Sequence[float | None], scale: float) -> list[float | None]:
    return [None if value is None else value * scale for value in values]


def _charts(bars: list[Column], label: str, marks: Sequence[Mark]) -> Drawn:
    """For a wide screen and for a narrow one, for drawings shrink with their words; and as a table."""
    wide = columns(bars, ENDS, label=label, marks=marks)
    return wide, columns(bars, ENDS, label=label, marks=marks, width=NARROW), _as_table(bars, ENDS, label)


def _as_table(bars: Sequence[Column], kinds: Sequence[str], label: str) -> Markup:
    return twin((MOMENT, *kinds), ((one.start, *map(one.counts.get, kinds)) for one in bars), label=label)


async def deploys(db: Database, hours: int) -> list[Mark]:
    """The first start of each version of workers, within the range of a chart."""
    return [Mark(row["at"], f"version {row['version']}") for row in await db.fetch(DEPLOYS, hours)]


def bins_of(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Counts with the words of their bounds, without the empty ones at either end."""
    words = [f"≤{_bound(bound)}" for bound in bounds] + [f">{_bound(bounds[-1])}"]
    there = [place for place, count in enumerate(counts) if count]
    some = slice(there[0], there[-1] + 1) if there else slice(0)
    return list(zip(words, map(float, counts), strict=True))[some]


async def queue_trends(db: Database, name: str, hours: int) -> list[tuple[str, Markup, Markup, Markup]]:
    """All charts of a queue, each with its word, for a wide and a narrow screen, as a table; none without figures."""
    trend = await read_queue_trend(db, name, hours=hours)
    found = [*_over_time(name, list(trend.samples)), *_spreads(name, trend)]
    return [(word, draw(width=HALF), draw(width=SLIM), table) for word, draw, table in found]


def _spreads(name: str, trend: QueueTrend) -> Iterator[tuple[str, Draw, Markup]]:
    """How long tasks of a queue waited and ran, as many by how long."""
    for word, counts, bounds in (("Waits", trend.waits, WAIT_BUCKETS), ("Runs", trend.runs, RUN_BUCKETS)):
        if any(counts):
            label = f"{word} of {name}: {sum(counts):,} by how long they took"
            bins = bins_of(bounds, counts)
            yield word, partial(histogram, bins, label=label, height=120), twin(("Took", "Tasks"), bins, label=label)


def _over_time(name: str, found: list[QueueSample]) -> Iterator[tuple[str, Draw, Markup]]:
    while found and found[-1].ready is None and not found[-1].done:  # the minute that goes on
        found.pop()
    if not found:
        return
    for word, label, kind, unit, field in (
        ("In line", f"Tasks in line in {name}", "queued", "", "ready"),
        ("Age of the oldest", f"Age of the oldest task in {name}", "failed", "s", "oldest_seconds"),
        ("Running", f"Tasks of {name} that run", "running", "", "running"),
    ):
        points = [(one.start, float(getattr(one, field) or 0)) for one in found]
        table = twin((MOMENT, word), points, label=label)
        yield word, partial(line_chart, points, label=label, kind=kind, unit=unit), table
    ended = [Column(one.start, {"completed": one.done, "failed": one.failed}) for one in found]
    kinds, label = ("completed", "failed"), f"Tasks of {name} that ended"
    yield "Ended", partial(columns, ended, kinds, label=label), _as_table(ended, kinds, label)


def _bound(seconds: float) -> str:
    if seconds >= MINUTE:
        return brief(seconds)
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


async def components(db: Database) -> list[dict[str, Any]]:
    """Those that wake, fire and take back, each with when it last went round; then all background loops in a word."""
    found = await read_orchestrator(db)
    if found is None:
        return [{"name": "Loops", "is_well": False, "word": "no process runs them: start a worker"}]
    loops = {one.name: one for one in found.loops}
    own = [
        {"name": word, "is_well": not _is_failing(one), "word": one.last_error if _is_failing(one) else "", "at": at}
        for name, word in COMPONENTS.items()
        if (one := loops.get(name)) is not None and (at := one.last_cycle_at) is not None
    ]
    return [*own, {"name": "Loops", "is_well": not _is_failing(found), "word": _word(found)}]


def _is_failing(found: Orchestrator | LoopView) -> bool:
    last = found.last_error_at
    return (
        last is not None
        and found.last_cycle_at is not None
        and (found.last_cycle_at - last).total_seconds() < STALE_SECONDS
    )


def _word(found: Orchestrator) -> str:
    held = next((one.hostname for one in found.processes if one.is_holder), None)
    count = len(found.loops)
    where = f"led by {held}" if held else f"in {len(found.processes)} processes"
    return f"{count} run, {where}" if not _is_failing(found) else f"failing: {found.last_error}"
