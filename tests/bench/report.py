"""From figures to a table, JSON and charts: medians, and their spread where there were several rounds."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from .charts import bars
from .measures import CUTS, Figures, Sizes
from .systems import System
from .verdict import Asked, Mark, verdict

CHARTS = {
    "drain": "Drain of waiting no-op tasks, tasks a second at the best number of processes",
    "bulk": "Bulk enqueue, tasks a second",
    "concurrent": "Enqueue from 50 coroutines, or threads, of one process, tasks a second",
    "single": "Enqueue one by one, tasks a second",
    "latency p50": "Latency on an idle worker, median, milliseconds (less is better)",
    "latency p99": "Latency on an idle worker, 99th percentile, milliseconds (less is better)",
    "sustained p99": "Latency at half of the own drain rate, 99th percentile, milliseconds (less is better)",
    "cpu": "Tasks of 3 ms of Python on all cores, tasks a second",
    "io": "Tasks that sleep 10 ms, 500 at once where it can, tasks a second",
}


class Report:
    """All figures of one run."""

    def __init__(self, sizes: Sizes, facts: Mapping[str, str], kinds: Sequence[str], systems: Sequence[str]) -> None:
        self._sizes = sizes
        self._facts = dict(facts)
        self._kinds = kinds
        self._asked_for = systems
        self._figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._systems: dict[str, dict[str, str]] = {}
        self._trouble: list[str] = []
        self._reasons: dict[tuple[str, str], str] = {}

    def add_system(self, system: System, version: str) -> None:
        """This one is measured."""
        told = {"version": version, "tuned": system.tuned, "page": system.page}
        ways = {"isolation": system.isolation, "io": system.io, "jobs": system.jobs or "has no graphs of its own"}
        self._systems[system.name] = told | ways

    def add_fact(self, name: str, fact: str) -> None:
        """Something that figures depend on."""
        self._facts[name] = fact

    def add(self, system: System, figures: Figures) -> None:
        """What one measurement gave."""
        for name, value in figures.items():
            self._figures[system.name][name].append(value)
            if name == "runs too many":
                self.add_trouble(f"{system.name}: {value:,.0f} tasks of a drain ran more than once")

    def add_trouble(self, sentence: str) -> None:
        """Something that could not be measured, or should not have been seen."""
        self._trouble.append(sentence)

    def add_missing(self, system: System, kind: str, reason: str) -> None:
        """A figure, or with no kind a whole system, that could not be measured."""
        self._reasons[system.name, kind.partition(" ")[0]] = reason
        self.add_trouble(f"{system.name}{', ' if kind else ''}{kind}: {reason}")

    def verdict(self) -> list[Mark]:
        """The marks of what was asked for."""
        return verdict(self.medians(), Asked(self._kinds, self._asked_for, self._reasons, self._sizes.jobs))

    def best_drain(self, name: str) -> tuple[float, int]:
        """The median drain at the best number of processes, and that number; zeroes where there is none."""
        rates = {n: self._figures[name].get(f"drain {n}") for n in self._sizes.processes}
        found = [(statistics.median(values), n) for n, values in rates.items() if values]
        return max(found, default=(0.0, 0))

    def medians(self) -> dict[str, Figures]:
        """Every system's figures, one number each, with `drain` for the best number of processes."""
        rows = {}
        for name in self._systems:
            rows[name] = {figure: statistics.median(values) for figure, values in self._figures[name].items()}
            rate, best = self.best_drain(name)
            if rate:
                rows[name]["drain"] = rate
            if (wal := rows[name].get(f"wal {best}")) is not None:
                rows[name]["wal"] = wal
        return rows

    def write(self, folder: Path) -> Path:
        """Everything as JSON, the tables as Markdown, the charts as SVG; gives the folder that holds them."""
        made = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}"
        made.mkdir(parents=True, exist_ok=True)
        content = {
            "facts": self._facts,
            "sizes": self._sizes._asdict(),
            "systems": self._systems,
            "figures": self._figures,
            "medians": self.medians(),
            "verdict": [mark._asdict() for mark in self.verdict()],
            "trouble": self._trouble,
        }
        (made / "results.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        (made / "table.md").write_text(self.markdown() + "\n")
        (made / "readme.md").write_text(self.short() + "\n")
        for figure, title in CHARTS.items():
            values = {name: row[figure] for name, row in self.medians().items() if row.get(figure)}
            if values:
                (made / f"{figure.replace(' ', '-')}.svg").write_text(bars(title, values))
        return made

    def markdown(self) -> str:
        """The tables, the verdict, how each system was run, and what became of the others."""
        parts = [self._table(self._main_row, self._main_heads()), self._table(self._work_row, WORK_HEADS)]
        if marks := self.verdict():
            lines = [["mark", "measured", "wanted", "verdict"], ["---"] * 4, *(mark.row() for mark in marks)]
            parts.append(_lines(lines))
        parts.append("\n".join(f"- {name}: {fact}" for name, fact in self._facts.items()))
        parts.append("\n".join(self._told(name) for name in self._systems))
        if self._trouble:
            parts.append("Trouble:\n" + "\n".join(f"- {sentence}" for sentence in self._trouble))
        return "\n\n".join(part for part in parts if part)

    def short(self) -> str:
        """The few figures that a README has room for, rounded to three digits."""
        heads = ["", *(f"drain, {n} process{'es' if n > 1 else ''}" for n in self._sizes.processes)]
        heads += ["bulk enqueue", "latency p50 / p99", "WAL a task"]
        rows = []
        for name, row in self.medians().items():
            rates = [row.get(f"drain {n}") for n in self._sizes.processes] + [row.get("bulk")]
            late = [row.get(f"latency {cut}") for cut in ("p50", "p99")]
            shown = " / ".join(f"{value:.3g}" for value in late if value is not None)
            version = self._systems[name]["version"]
            wal = f"{row['wal']:,.0f} B" if row.get("wal") else "–"
            cells = [f"{_rounded(rate)}/s" if rate else "–" for rate in rates]
            rows.append([f"{name} {version}".strip(), *cells, f"{shown} ms" if shown else "–", wal])
        return _lines([heads, ["---", *["---:"] * (len(heads) - 1)], *rows])

    def _told(self, name: str) -> str:
        told = self._systems[name]
        ways = f"computes: {told['isolation']}; waits: {told['io']}; graphs: {told['jobs']}"
        tried = [str(n) for n in self._sizes.processes if self._figures[name].get(f"drain {n}")]
        counts = f"; drained by {', '.join(tried)} processes, best by {self.best_drain(name)[1]}" if tried else ""
        return f"- {name} {told['version']}: {told['tuned']}; {ways}{counts} ({told['page']})"

    def _table(self, row_of: object, heads: Sequence[str]) -> str:
        rows = [row_of(name) for name in self._systems]  # type: ignore[operator]
        used = [i for i in range(len(heads)) if i == 0 or any(row[i] != "–" for row in rows)]
        if len(used) == 1:
            return ""
        numbers = ["---", *["---:"] * (len(used) - 1)]
        return _lines([[heads[i] for i in used], numbers, *([row[i] for i in used] for row in rows)])

    def _main_heads(self) -> list[str]:
        drains = [f"drain, {n} proc /s" for n in self._sizes.processes]
        enqueues = ["bulk enqueue /s", "50 at once /s", "one by one /s"]
        return ["", *drains, *enqueues, "latency p50 / p90 / p99 / max ms", "after 1–2 s of quiet ms", "WAL B/task"]

    def _main_row(self, name: str) -> list[str]:
        drains = [self._cell(name, f"drain {n}") for n in self._sizes.processes]
        enqueues = [self._cell(name, way) for way in ("bulk", "concurrent", "single")]
        latencies = [self._latencies(name, way) for way in ("latency", "quiet latency")]
        # Of the number of processes that the verdict takes.
        return [name, *drains, *enqueues, *latencies, self._cell(name, f"wal {self.best_drain(name)[1]}")]

    def _work_row(self, name: str) -> list[str]:
        rate = self._cell(name, "sustained"), self._latencies(name, "sustained")
        wide = [self._cell(name, f"job {count}") for count in self._sizes.jobs]
        graphs = [" · ".join(cell for cell in wide if cell != "–") or "–", self._cell(name, "chain hop ms", 1)]
        idle = [self._cell(name, "idle cpu", 2), self._cell(name, "rss")]
        own = [self._cell(name, "def tasks"), self._cell(name, "result p50", 1)]
        return [name, *rate, self._cell(name, "cpu"), self._cell(name, "io"), *graphs, *idle, *own]

    def _cell(self, name: str, figure: str, digits: int = 0) -> str:
        values = self._figures[name].get(figure)
        if not values:
            return "–"
        spread = f" ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if len(values) > 1 else ""
        return f"{statistics.median(values):,.{digits}f}{spread}"

    def _latencies(self, name: str, way: str) -> str:
        cells = [self._cell(name, f"{way} {cut}", 1) for cut in CUTS]
        return " / ".join(cells) if "–" not in cells else "–"


WORK_HEADS = [
    "",
    "half load /s",
    "latency there p50 / p90 / p99 / max ms",
    "3 ms of CPU /s",
    "10 ms of waiting /s",
    "1 → n → 1, tasks /s",
    "link of a chain ms",
    "idle CPU %",
    "RSS MB",
    "def tasks /s",
    "result p50 ms",
]


def _rounded(rate: float) -> str:
    return f"{float(f'{rate:.3g}'):,.0f}"


def _lines(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
