"""The tables at the end: faults and how long their recovery took, tasks and how they ended, what was wrong."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.chaos.faults import FAULTS
from tests.chaos.rounds import TOGETHER, Played

HEAD = ("fault", "times", "measured", "median s", "longest s", "bound s", "beyond")


def replay(played: Played, faults: str = "") -> str:
    """The command that plays this round again."""
    chosen = f" CHAOS_FAULTS='{faults}'" if faults else ""
    often = f" CHAOS_TOGETHER={played.together:g}" if played.together != TOGETHER else ""
    often += f" CHAOS_LOAD={played.load}" if played.load != 1 else ""
    return f"make chaos CHAOS_SEED={played.seed} CHAOS_SECONDS={played.wanted_seconds:g}{often}{chosen}"


def one_line(played: Played) -> str:
    """A round in a line."""
    right = "WRONG" if played.wrong else "right"
    return f"seed {played.seed}: {len(played.hurts)} faults, {played.tasks:,} tasks, {played.seconds:.0f} s, {right}"


def table_of_faults(rounds: Sequence[Played]) -> str:
    """Each kind of fault: how often, and how recovery went. Only those that struck alone are held against a bound."""
    times = Counter(hurt.name for played in rounds for hurt in played.hurts)
    alone: dict[str, list[float]] = defaultdict(list)
    for played in rounds:
        for hurt in played.hurts:
            if hurt.alone and hurt.recovery is not None:
                alone[hurt.name].append(hurt.recovery)
    rows = []
    for name in sorted(times):
        bound, took = FAULTS[name].bound, alone[name]
        beyond = sum(seconds > bound for seconds in took) if bound else 0
        rows.append((
            name, str(times[name]), str(len(took)),
            f"{statistics.median(took):.2f}" if took else "-", f"{max(took):.2f}" if took else "-",
            f"{bound:g}" if bound else "-", str(beyond) if took and bound else "-",
        ))  # fmt: skip
    return _aligned([HEAD, *rows])


def slow_kinds(rounds: Sequence[Played]) -> list[str]:
    """Kinds of faults whose usual recovery is beyond the bound; single slow ones are the machine's."""
    found = []
    for name, fault in FAULTS.items():
        took = [h.recovery for p in rounds for h in p.hurts if h.name == name and h.alone and h.recovery is not None]
        if fault.bound and len(took) >= 3 and statistics.median(took) > fault.bound:
            found.append(f"{name}: usually {statistics.median(took):.1f} s, bound {fault.bound:g} s")
    return found


def summary(rounds: Sequence[Played]) -> str:
    """Tasks and runs of all rounds."""
    tasks, statuses, outcomes, errors = sum(one.tasks for one in rounds), Counter[str](), Counter[str](), Counter[str]()
    for one in rounds:
        statuses.update(one.statuses)
        outcomes.update(one.outcomes)
        errors.update(one.errors)
    hurts = sum(len(one.hurts) for one in rounds)
    return "\n".join([
        f"{len(rounds)} rounds, {hurts} faults, {tasks:,} tasks",
        f"ended: {_counted(statuses)}",
        f"runs that did not end their task: {_counted(outcomes)}",
        f"calls of producers that got an error: {_counted(errors)}",
    ])  # fmt: skip


def story(played: Played) -> str:
    """What struck when."""
    zero = min((hurt.began for hurt in played.hurts), default=0.0)
    return "\n".join(
        f"  {hurt.began - zero:6.1f} s for {hurt.ended - hurt.began:4.1f} s  {hurt.name}{'' if hurt.alone else ' +'}"
        f"  {'' if hurt.recovery is None else f'{hurt.recovery:.2f} s'}  {hurt.note}"
        for hurt in played.hurts
    )


def wrongs(played: Played) -> str:
    """What the checker found in a round."""
    return "\n".join(f"WRONG {wrong.what} ({wrong.count}): {wrong.examples}" for wrong in played.wrong)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counter.most_common()) or "none"


def _aligned(rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
