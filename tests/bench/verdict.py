"""The marks of this product, held against the figures of one run. They are told, never asserted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

Rows = Mapping[str, Mapping[str, float]]
REDIS, ALONE, BARE = "aaiclick-queue, Redis", "aaiclick-queue, Postgres alone", "bare loop"
FASTEST = "the fastest peer"
TOLD = "told"


class Mark(NamedTuple):
    """One sentence of what is wanted, and what was found."""

    name: str
    measured: str
    wanted: str
    met: bool | None  # None: nothing to judge by
    word: str = ""  # instead of met or missed

    def row(self) -> list[str]:
        """For a table."""
        return [self.name, self.measured, self.wanted, self.word or ("met" if self.met else "**missed**")]


def at_least(name: str, value: float, wanted: float, unit: str = "×", against: str = "") -> Mark:
    """More is better."""
    return Mark(name, f"{_shown(value)} {unit}{against}", f"≥ {wanted:,g} {unit}", value >= wanted)


def at_most(name: str, value: float, wanted: float, unit: str, against: str = "") -> Mark:
    """Less is better."""
    return Mark(name, f"{_shown(value)} {unit}{against}", f"≤ {_shown(wanted)} {unit}", value <= wanted)


def told(name: str, measured: str) -> Mark:
    """A figure that is wanted beside the others, and not judged."""
    return Mark(name, measured, "–", None, TOLD)


class Asked(NamedTuple):
    """What the run was to measure, and why some of it is missing."""

    kinds: Collection[str]
    systems: Sequence[str]
    reasons: Mapping[tuple[str, str], str] = {}  # by system and kind; kind "": all of the system
    jobs: tuple[int, ...] = ()

    def peers(self) -> list[str]:
        """Those of others."""
        return [name for name in self.systems if name not in {REDIS, ALONE, BARE}]

    def why(self, system: str, kind: str) -> str:
        """The reason that a figure is missing, where there is one."""
        reason = self.reasons.get((system, "")) or self.reasons.get((system, kind))
        return f"{system}: {reason}" if reason else system


class Wanted(NamedTuple):
    """A mark to be: of one figure of ours, of its ratio to another's, or with another's as the bound."""

    name: str
    kind: str  # of the figures it needs
    figure: str
    bound: float = 0.0  # of the ratio, where `against` is given
    unit: str = "×"
    ours: str = REDIS
    against: str = ""  # whose same figure it is divided by
    under: str = ""  # whose same figure is the most it may be

    def held(self, rows: Rows, asked: Asked) -> list[Mark]:
        """The mark, with its figures or the reason why there are none; nothing where they were not asked for."""
        other = self.against or self.under
        present = other in asked.systems or (other == FASTEST and bool(asked.peers()))
        if self.kind not in asked.kinds or self.ours not in asked.systems or (other and not present):
            return []
        mine = rows.get(self.ours, {}).get(self.figure)
        name, theirs = self._other(rows, asked) if other else ("", None)
        if mine is None or (other and not theirs):
            lacking = [self.ours] * (mine is None) + (self._absent(rows, asked) if other and not theirs else [])
            reasons = "; ".join(asked.why(system, self.kind) for system in lacking)
            return [Mark(self.name, f"no figure of {reasons}", self._bound_shown(), None, "not measured")]
        return [self._judged(mine, theirs or 0.0, name)]

    def _judged(self, mine: float, theirs: float, against: str) -> Mark:
        if self.under:
            return at_most(self.name, mine, theirs, self.unit)
        value = mine / theirs if self.against else mine
        judge = at_most if self.unit in LESS else at_least
        return judge(self.name, value, self.bound, self.unit, against)

    def _other(self, rows: Rows, asked: Asked) -> tuple[str, float | None]:
        if self.against != FASTEST:
            return "", rows.get(self.against or self.under, {}).get(self.figure)
        found = {name: rows[name][self.figure] for name in asked.peers() if self.figure in rows.get(name, {})}
        if not found:
            return "", None
        best = max(found, key=lambda name: found[name])
        absent = self._absent(rows, asked)
        return f" ({best}{'; without ' + ', '.join(absent) if absent else ''})", found[best]

    def _absent(self, rows: Rows, asked: Asked) -> list[str]:
        others = asked.peers() if self.against == FASTEST else [self.against or self.under]
        return [name for name in others if self.figure not in rows.get(name, {})]

    def _bound_shown(self) -> str:
        if self.under:
            return f"≤ {self.under}'s"
        return f"{'≤' if self.unit in LESS else '≥'} {self.bound:,g} {self.unit}"


LESS = {"B", "ms", "MB", "% of a core"}  # units of which less is better
MARKS = (
    Wanted("drain against the fastest peer", "drain", "drain", 2, against=FASTEST),
    Wanted("the same, Postgres alone", "drain", "drain", 1.5, ours=ALONE, against=FASTEST),
    Wanted("drain against the bare loop", "drain", "drain", 0.5, against=BARE),
    Wanted("drain against Celery", "drain", "drain", 15, against="Celery"),
    Wanted("drain against Procrastinate", "drain", "drain", 60, against="Procrastinate"),
    Wanted("WAL a task, claim and complete", "drain", "wal", 1200, "B"),
    Wanted("bulk enqueue", "bulk", "bulk", 50_000, "/s"),
    Wanted("bulk enqueue against the fastest peer", "bulk", "bulk", 1, against=FASTEST),
    Wanted("enqueue from 50 coroutines", "concurrent", "concurrent", 10_000, "/s"),
    Wanted("latency p50, idle, against Celery's", "latency", "latency p50", unit="ms", under="Celery"),
    Wanted("latency p99, idle, against pgqueuer's", "latency", "latency p99", unit="ms", under="pgqueuer"),
    Wanted("latency p50 without Redis, after 1–2 s of quiet", "quiet", "quiet latency p50", 150, "ms", ALONE),
    Wanted("latency p99 without Redis, after 1–2 s of quiet", "quiet", "quiet latency p99", 300, "ms", ALONE),
    Wanted("memory of a worker", "idle", "rss", 90, "MB"),
    Wanted("memory of a worker, Postgres alone", "idle", "rss", 90, "MB", ALONE),
    Wanted("idle worker", "idle", "idle cpu", 1, "% of a core"),
    Wanted("idle worker, Postgres alone", "idle", "idle cpu", 1, "% of a core", ALONE),
)


def verdict(rows: Rows, asked: Asked) -> list[Mark]:
    """Every mark of what was asked for; one whose figures are missing says so."""
    return [mark for wanted in MARKS for mark in wanted.held(rows, asked)] + _jobs(rows, asked)


def _jobs(rows: Rows, asked: Asked) -> list[Mark]:
    if "jobs" not in asked.kinds or REDIS not in asked.systems or len(asked.jobs) < 2:
        return []
    small, large = min(asked.jobs), max(asked.jobs)
    wide, flat = f"1 → {large:,} → 1", f"cost a task at {large:,} against {small:,} tasks"
    row = rows.get(REDIS, {})
    if f"job {large}" not in row or f"job {small}" not in row:
        lacking = f"no figure of {asked.why(REDIS, 'jobs')}"
        return [Mark(wide, lacking, "≥ 5,000 tasks/s", None, "not measured"),
                Mark(flat, lacking, "≤ 1.20 ×", None, "not measured")]  # fmt: skip
    cost = row[f"job {small}"] / row[f"job {large}"]
    return [at_least(wide, row[f"job {large}"], 5_000, "tasks/s"), at_most(flat, cost, 1.2, "×")]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
