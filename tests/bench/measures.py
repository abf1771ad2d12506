"""How each figure is taken, the same for every system: drain, enqueue, latency, and what an idle worker costs.

Nothing here judges a figure. `works` has the figures of other kinds of tasks.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .apps import tally
from .places import PROJECT, Broken, Place, end, last_line
from .systems import Shape

Figures = dict[str, float]
DATABASE_RATE = """
SELECT (count(*) / extract(epoch FROM max(finished_at) - min(started_at)))::float8
FROM aaiclick_queue.tasks WHERE status = 'COMPLETED'
"""
CUTS = ("p50", "p90", "p99", "max")


class Sizes(NamedTuple):
    """How much of everything: `share` scales the tasks that a system's own row names."""

    share: float = 1.0
    processes: tuple[int, ...] = (1, 2)
    enqueue_seconds: float = 1.0
    latencies: int = 120
    gaps_ms: tuple[int, int] = (5, 15)
    quiet_latencies: int = 25
    quiet_gaps_ms: tuple[int, int] = (1000, 2000)
    results: int = 100
    sustained_seconds: float = 3.0
    idle_seconds: float = 8.0
    jobs: tuple[int, ...] = (1_000, 20_000)  # tasks of ours; a peer has the first
    chain: int = 200
    rounds: int = 2


QUICK = Sizes()
FULL = Sizes(
    share=5,
    processes=(1, 2, 4),
    enqueue_seconds=4,
    latencies=1000,
    quiet_latencies=60,
    results=500,
    sustained_seconds=15,
    idle_seconds=30,
    jobs=(1_000, 10_000, 100_000),
    chain=500,
    rounds=3,
)
TINY = Sizes(0.005, (1,), 0.05, 5, (1, 2), 3, (10, 20), 5, 0.3, 0.2, (20, 40), 10, 1)


def drain(place: Place, sizes: Sizes, processes: int) -> Figures:
    """Run tasks that wait: from when every process works until the last one is recorded as finished."""
    count = max(100, int(place.system.drain * sizes.share))
    place.ask("fill", count)
    wal = place.wal_bytes() if place.system.postgres else 0
    with workers(place, processes) as running:
        began = emptied(place, running, count, processes=processes)
    figures = {f"drain {processes}": began.rate}
    if place.system.postgres:
        figures[f"wal {processes}"] = (place.wal_bytes() - wal) / count
    if place.system.app == "ours":
        figures[f"drain {processes} by the database's times"] = place.value(DATABASE_RATE)
    if again := tally.seen(place.folder).runs - count:
        figures["runs too many"] = again
    return figures


class Emptied(NamedTuple):
    """How a backlog went."""

    rate: float
    seconds: float


def emptied(place: Place, running: list[subprocess.Popen[bytes]], count: int, *, processes: int) -> Emptied:
    """Wait until so many have run and are recorded as finished; the rate is without the warm-up."""
    began = at = time.perf_counter()
    warm = runs = 0
    give_up = began + tally.step_seconds()
    while runs < count:
        # The first twentieth is for warming up; a process that gets nothing is not waited for.
        seen = tally.seen(place.folder)
        at, runs = time.perf_counter(), seen.runs
        if not warm and count / 20 <= runs < count and (seen.processes >= processes or runs >= count / 3):
            began, warm = at, runs
        complain_of_the_dead(place, running)
        if at > give_up:
            raise Broken(f"{runs:,} of {count:,} tasks after {tally.step_seconds():.0f} s")
        time.sleep(0.01)
    while not place.finished(count):
        if time.perf_counter() > give_up:
            raise Broken(f"not all are recorded as finished after {tally.step_seconds():.0f} s")
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    return Emptied((count - warm) / seconds, seconds)


def bulk(place: Place, sizes: Sizes) -> Figures:
    """Enqueue many, in the system's quickest way, calls of its own size."""
    rows = max(10, int(place.system.rows * min(sizes.share, 1)))
    return {"bulk": place.ask("bulk", sizes.enqueue_seconds, rows)["rate"]}


def single(place: Place, sizes: Sizes) -> Figures:
    """Enqueue one after another, each waited for."""
    return {"single": place.ask("single", sizes.enqueue_seconds)["rate"]}


def concurrent(place: Place, sizes: Sizes) -> Figures:
    """Enqueue one by one from fifty coroutines of one process, or fifty threads where the client blocks."""
    way = "concurrent" if place.system.asynchronous else "threads"
    return {"concurrent": place.ask(way, sizes.enqueue_seconds)["rate"]}


def latency(place: Place, sizes: Sizes) -> Figures:
    """From the enqueue call to the first line of the task, on one worker with nothing else to do."""
    return _latency(place, "latency", sizes.latencies, sizes.gaps_ms)


def quiet_latency(place: Place, sizes: Sizes) -> Figures:
    """The same after a second or two in which nothing came: who backs off shows it here."""
    return _latency(place, "quiet latency", sizes.quiet_latencies, sizes.quiet_gaps_ms)


def _latency(place: Place, name: str, count: int, gaps_ms: tuple[int, int]) -> Figures:
    with workers(place, 1):
        warm = int(place.ask("latency", count, *gaps_ms)["warm"])
    return cuts(name, tally.lates(place.folder)[warm:])


def cuts(name: str, lates: list[int]) -> Figures:
    """The percentiles of nanoseconds, in milliseconds."""
    ms = sorted(late / 1e6 for late in lates)
    at = statistics.quantiles(ms, n=100, method="inclusive")
    return {f"{name} p50": at[49], f"{name} p90": at[89], f"{name} p99": at[98], f"{name} max": ms[-1]}


def idle(place: Place, sizes: Sizes) -> Figures:
    """What one worker costs that has drained a tenth of a drain's tasks and has had nothing to do for a while."""
    count = max(100, int(place.system.drain * min(sizes.share, 1) / 10))
    place.ask("fill", count)
    with workers(place, 1) as running:
        emptied(place, running, count, processes=1)
        time.sleep(min(12.0, 2 * sizes.idle_seconds))  # who looks more often after work does so no more
        family = relatives(running)
        before, began = sum(_cpu_seconds(process) for process in family), time.perf_counter()
        time.sleep(sizes.idle_seconds)
        used = sum(_cpu_seconds(process) for process in family) - before
        figures = {"idle cpu": 100 * used / (time.perf_counter() - began)}
        return figures | {"rss": sum(process.memory_info().rss for process in family) / 2**20}


@contextmanager
def workers(place: Place, processes: int, shape: Shape = "noop") -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers until the block ends."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        with _log(place).open("wb") as file:
            for command in place.system.worker(place.bin, processes, shape):
                # A session of its own, so that it ends with all its children.
                quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
                running += [subprocess.Popen(command, cwd=PROJECT, env=place.environ, start_new_session=True, **quiet)]
        yield running
    finally:
        # Their database is thrown away too: a graceful end would only take time.
        for process in running:
            end(process)


def relatives(running: list[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """The workers and all their children."""
    roots = [psutil.Process(process.pid) for process in running]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def complain_of_the_dead(place: Place, running: list[subprocess.Popen[bytes]]) -> None:
    """Raise if a worker has ended."""
    for process in running:
        if process.poll() is not None:
            raise Broken(f"a worker ended with {process.returncode}: {last_line(_log(place).read_text())}")


def _log(place: Place) -> Path:
    return place.folder / "workers.log"


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
