"""From figures to a table: medians, their spread where there were several rounds, and ratios."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from .measures import Figures, Sizes
from .systems import System

LATENCIES = ("p50", "p90", "p99", "max")


class Report:
    """All figures of one run."""

    def __init__(self, sizes: Sizes, facts: Mapping[str, str]) -> None:
        self._sizes = sizes
        self._facts = dict(facts)
        self._figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._tuned: dict[str, str] = {}
        self._trouble: list[str] = []

    def add_system(self, system: System, version: str) -> None:
        """This one is measured."""
        self._tuned[system.name] = f"{version + ', ' if version else ''}{system.tuned}"

    def add(self, system: System, figures: Figures) -> None:
        """What one measurement gave."""
        for name, value in figures.items():
            self._figures[system.name][name].append(value)
            if name == "runs too many":
                self.add_trouble(f"{system.name}: {value:,.0f} tasks of a drain ran more than once")

    def add_trouble(self, sentence: str) -> None:
        """Something that could not be measured, or should not have been seen."""
        self._trouble.append(sentence)

    def write(self, folder: Path) -> Path:
        """Everything as JSON; gives the file's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
        content = {
            "facts": self._facts,
            "sizes": self._sizes._asdict(),
            "systems": self._tuned,
            "figures": self._figures,
            "trouble": self._trouble,
        }
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return path

    def markdown(self) -> str:
        """The table, how each system was run, and what became of the others."""
        processes = self._sizes.processes
        heads = ["", *(f"drain, {n} proc /s" for n in processes), "bulk enqueue /s", "50 at once /s", "one by one /s"]
        heads += ["latency p50 / p90 / p99 / max ms", "after 0.5 s of quiet ms", "1 → n → 1 job /s"]
        heads += ["hop in a chain ms", "WAL B/task", "idle CPU %", "RSS MB"]
        rows = [self._row(name, processes) for name in self._tuned]
        used = [i for i in range(len(heads)) if i == 0 or any(row[i] != "–" for row in rows)]
        lines = [
            [heads[i] for i in used],
            ["---", *["---:"] * (len(used) - 1)],
            *([row[i] for i in used] for row in rows),
        ]
        parts = ["\n".join(f"| {' | '.join(line)} |" for line in lines)]
        parts.append("\n".join(f"- {name}: {fact}" for name, fact in (self._facts | self._tuned).items()))
        if ratios := self._ratios():
            parts.append("\n".join(f"- {line}" for line in ratios))
        if self._trouble:
            parts.append("Trouble:\n" + "\n".join(f"- {sentence}" for sentence in self._trouble))
        return "\n\n".join(parts)

    def _row(self, name: str, processes: Sequence[int]) -> list[str]:
        drains = [self._cell(name, f"drain {n}") for n in processes]
        wal = self._cell(name, f"wal {processes[0]}")
        enqueues = [self._cell(name, way) for way in ("bulk", "concurrent", "single")]
        latencies = [self._latencies(name, way) for way in ("latency", "quiet latency")]
        jobs = [self._cell(name, "job"), self._latencies(name, "hop")]
        idle = [self._cell(name, "idle cpu", 2), self._cell(name, "rss")]
        return [name, *drains, *enqueues, *latencies, *jobs, wal, *idle]

    def _cell(self, name: str, figure: str, digits: int = 0) -> str:
        values = self._figures[name].get(figure)
        if not values:
            return "–"
        spread = f" ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if len(values) > 1 else ""
        return f"{statistics.median(values):,.{digits}f}{spread}"

    def _latencies(self, name: str, way: str) -> str:
        found = [self._figures[name].get(f"{way} {cut}", []) for cut in LATENCIES]
        return " / ".join(f"{statistics.median(values):.1f}" for values in found) if all(found) else "–"

    def _best_drain(self, name: str) -> float:
        rates = [self._figures[name].get(f"drain {n}") for n in self._sizes.processes]
        return max((statistics.median(values) for values in rates if values), default=0.0)

    def _ratios(self) -> list[str]:
        """Our drain against each other's, everybody at the best number of processes."""
        best = {name: rate for name in self._tuned if (rate := self._best_drain(name))}
        own = [name for name in best if name.startswith("aaiclick-queue")]
        others = [name for name in best if name not in own]
        return [
            f"drain of {name}: " + ", ".join(f"{_times(best[name] / best[other])} {other}" for other in others)
            for name in own
            if others
        ]


def _times(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 10 else 0}f} ×"
