"""The marks of this product, held against the figures of one run. They are told, never asserted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Rows = Mapping[str, Mapping[str, float]]
REDIS, ALONE, BARE = "aaiclick-queue, Redis", "aaiclick-queue, Postgres alone", "bare loop"


class Mark(NamedTuple):
    """One sentence of what is wanted, and what was found."""

    name: str
    measured: str
    wanted: str
    met: bool

    def row(self) -> list[str]:
        """For a table."""
        return [self.name, self.measured, self.wanted, "met" if self.met else "**missed**"]


def verdict(rows: Rows) -> list[Mark]:
    """Every mark whose figures the run has."""
    found = [mark(rows) for mark in MARKS]
    return [mark for marks in found for mark in marks]


def at_least(name: str, value: float, wanted: float, unit: str = "×", against: str = "") -> Mark:
    """More is better."""
    return Mark(name, f"{_shown(value)} {unit}{against}", f"≥ {wanted:,g} {unit}", value >= wanted)


def at_most(name: str, value: float, wanted: float, unit: str, against: str = "") -> Mark:
    """Less is better."""
    return Mark(name, f"{_shown(value)} {unit}{against}", f"≤ {_shown(wanted)} {unit}", value <= wanted)


def _fastest(rows: Rows, figure: str) -> tuple[str, float]:
    others = {name: row[figure] for name, row in rows.items() if name not in {REDIS, ALONE, BARE} and figure in row}
    return max(others.items(), key=lambda pair: pair[1]) if others else ("", 0.0)


def _drains(rows: Rows) -> list[Mark]:
    mine, alone, bare = (rows.get(name, {}).get("drain", 0.0) for name in (REDIS, ALONE, BARE))
    name, best = _fastest(rows, "drain")
    marks = []
    if mine and best:
        marks.append(at_least("drain against the fastest peer", mine / best, 2, against=f" ({name})"))
    if alone and best:
        marks.append(at_least("the same, Postgres alone", alone / best, 1.5, against=f" ({name})"))
    if mine and bare:
        marks.append(at_least("drain against the bare loop", mine / bare, 0.5))
    for other, wanted in (("Celery", 15), ("Procrastinate", 60)):
        if mine and (theirs := rows.get(other, {}).get("drain")):
            marks.append(at_least(f"drain against {other}", mine / theirs, wanted))
    if wal := rows.get(REDIS, {}).get("wal"):
        marks.append(at_most("WAL a task, claim and complete", wal, 1200, "B"))
    return marks


def _enqueues(rows: Rows) -> list[Mark]:
    row = rows.get(REDIS, {})
    marks = []
    if value := row.get("bulk"):
        marks.append(at_least("bulk enqueue", value, 50_000, "/s"))
        name, best = _fastest(rows, "bulk")
        if best:
            marks.append(at_least("bulk enqueue against the fastest peer", value / best, 1, against=f" ({name})"))
    if value := row.get("concurrent"):
        marks.append(at_least("enqueue from 50 coroutines", value, 10_000, "/s"))
    return marks


def _latencies(rows: Rows) -> list[Mark]:
    marks = []
    for cut, other in (("p50", "Celery"), ("p99", "pgqueuer")):
        mine, theirs = (rows.get(name, {}).get(f"latency {cut}") for name in (REDIS, other))
        if mine is not None and theirs is not None:
            marks.append(at_most(f"latency {cut}, idle, against {other}'s", mine, theirs, "ms"))
    for cut, wanted in (("p50", 150), ("p99", 300)):
        if (value := rows.get(ALONE, {}).get(f"latency {cut}")) is not None:
            marks.append(at_most(f"latency {cut} without Redis, idle", value, wanted, "ms"))
    return marks


def _jobs(rows: Rows) -> list[Mark]:
    rates = {int(name[4:]): rate for name, rate in rows.get(REDIS, {}).items() if name.startswith("job ")}
    if len(rates) < 2:
        return []
    small, large = min(rates), max(rates)
    flat = at_most(f"cost a task at {large:,} against {small:,} tasks", rates[small] / rates[large], 1.2, "×")
    return [at_least(f"1 → {large:,} → 1", rates[large], 5_000, "tasks/s"), flat]


def _idle(rows: Rows) -> list[Mark]:
    row = rows.get(REDIS, {})
    if "rss" not in row:
        return []
    return [
        at_most("memory of a worker", row["rss"], 90, "MB"),
        at_most("idle worker", row["idle cpu"], 1, "% of a core"),
    ]


MARKS: tuple[Callable[[Rows], list[Mark]], ...] = (_drains, _enqueues, _latencies, _jobs, _idle)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
