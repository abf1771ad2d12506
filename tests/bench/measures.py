"""How each figure is taken, the same for every system. Nothing here judges a figure."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .apps import tally
from .places import PROJECT, STEP_SECONDS, Broken, Place, last_line

Figures = dict[str, float]
DATABASE_RATE = """
SELECT (count(*) / extract(epoch FROM max(finished_at) - min(started_at)))::float8
FROM aaiclick_queue.tasks WHERE status = 'COMPLETED'
"""
# From the first start to the end, without the enqueue.
JOB_RATE = """
SELECT (g.total / extract(epoch FROM j.finished_at - j.started_at))::float8
FROM aaiclick_queue.jobs j JOIN aaiclick_queue.gates g ON g.id = j.id ORDER BY j.id DESC LIMIT 1
"""
HOPS = """
SELECT percentile_cont({cut}) WITHIN GROUP (ORDER BY 1000 * extract(epoch FROM hop.took))::float8 FROM (
    SELECT t.started_at - lag(t.finished_at) OVER (ORDER BY t.started_at) AS took
    FROM aaiclick_queue.tasks t WHERE t.job_id = (SELECT max(id) FROM aaiclick_queue.jobs)) AS hop
"""


class Sizes(NamedTuple):
    """How much of everything: `share` scales the tasks that a system's own row names."""

    share: float = 1.0
    processes: tuple[int, ...] = (1, 2)
    latencies: int = 300
    gap_ms: int = 20
    quiet_latencies: int = 0
    quiet_gap_ms: int = 500
    idle_seconds: float = 10.0
    rounds: int = 1


QUICK = Sizes()
FULL = Sizes(share=5, processes=(1, 2, 4), latencies=1000, quiet_latencies=60, idle_seconds=30, rounds=3)
TINY = Sizes(share=0.01, processes=(1,), latencies=5, idle_seconds=0.2)
WIDTH = 50
WIDE, DEEP = 20_000, 300
CUTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def drain(place: Place, sizes: Sizes, processes: int) -> Figures:
    """Run tasks that wait: from when every process works until the last one is recorded as finished."""
    count = int(place.system.drain * sizes.share)
    place.ask("bulk", count)
    wal = place.wal_bytes() if place.system.postgres else 0
    with _workers(place, processes) as running:
        began = at = time.perf_counter()
        warm = runs = 0
        give_up = began + STEP_SECONDS
        while runs < count:
            # The first twentieth is for warming up; a process that gets nothing is not waited for.
            seen = tally.seen(place.folder)
            at, runs = time.perf_counter(), seen.runs
            if not warm and count / 20 <= runs < count and (seen.processes >= processes or runs >= count / 3):
                began, warm = at, runs
            _complain_of_the_dead(place, running)
            if at > give_up:
                raise Broken(f"{runs:,} of {count:,} tasks after {STEP_SECONDS} s")
            time.sleep(0.01)
        while place.left():
            if time.perf_counter() > give_up:
                raise Broken(f"not all are recorded as finished after {STEP_SECONDS} s")
            time.sleep(0.002)
        ended = time.perf_counter()
    figures = {f"drain {processes}": (count - warm) / (ended - began)}
    if place.system.postgres:
        figures[f"wal {processes}"] = (place.wal_bytes() - wal) / count
    if place.system.app == "ours":
        figures[f"drain {processes} by the database's times"] = place.value(DATABASE_RATE)
    if again := tally.seen(place.folder).runs - count:
        figures["runs too many"] = again
    return figures


def bulk(place: Place, sizes: Sizes) -> Figures:
    """Enqueue many, in the system's quickest way."""
    count = int(place.system.bulk * sizes.share)
    return {"bulk": count / _seconds(place.ask("bulk", count, count // 50))}


def single(place: Place, sizes: Sizes) -> Figures:
    """Enqueue one after another, each waited for."""
    count = max(10, int(place.system.single * min(sizes.share, 1)))
    return {"single": count / _seconds(place.ask("single", count))}


def concurrent(place: Place, sizes: Sizes) -> Figures:
    """Enqueue one by one from fifty coroutines of one process."""
    count = max(WIDTH * 10, int(place.system.single * 20 * min(sizes.share, 1)))
    return {"concurrent": count / _seconds(place.ask("concurrent", count, WIDTH))}


def latency(place: Place, sizes: Sizes) -> Figures:
    """From the enqueue call to the first line of the task, on one worker with nothing else to do."""
    return _latency(place, "latency", sizes.latencies, sizes.gap_ms)


def quiet_latency(place: Place, sizes: Sizes) -> Figures:
    """The same after half a second in which nothing came: who backs off shows it here."""
    return _latency(place, "quiet latency", sizes.quiet_latencies, sizes.quiet_gap_ms)


def _latency(place: Place, name: str, count: int, gap_ms: int) -> Figures:
    with _workers(place, 1):
        warm = int(json.loads(place.ask("latency", count, gap_ms))["warm"])
    ms = sorted(late / 1e6 for late in tally.lates(place.folder)[warm:])
    cuts = statistics.quantiles(ms, n=100, method="inclusive")
    return {f"{name} p50": cuts[49], f"{name} p90": cuts[89], f"{name} p99": cuts[98], f"{name} max": ms[-1]}


def jobs(place: Place, sizes: Sizes) -> Figures:
    """A job of one task, then many, then one that takes all results; and a chain, from each end to the next start."""
    with _workers(place, 1):
        seconds = _seconds(place.ask("wide", max(100, int(WIDE * min(sizes.share, 5)))))
        figures = {"job seconds with enqueue": seconds, "job": place.value(JOB_RATE)}
        place.ask("deep", max(10, int(DEEP * min(sizes.share, 1))))
        return figures | {f"hop {name}": place.value(HOPS.format(cut=cut)) for name, cut in CUTS.items()}


def idle(place: Place, sizes: Sizes) -> Figures:
    """What one worker costs that has worked and has nothing to do now."""
    with _workers(place, 1) as running:
        place.ask("latency", 1, 1)
        time.sleep(min(2.0, sizes.idle_seconds))
        roots = [psutil.Process(process.pid) for process in running]
        family = [process for root in roots for process in (root, *root.children(recursive=True))]
        before, began = sum(_cpu_seconds(process) for process in family), time.perf_counter()
        time.sleep(sizes.idle_seconds)
        used = sum(_cpu_seconds(process) for process in family) - before
        figures = {"idle cpu": 100 * used / (time.perf_counter() - began)}
        return figures | {"rss": sum(process.memory_info().rss for process in family) / 2**20}


@contextmanager
def _workers(place: Place, processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers until the block ends."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        with _log(place).open("wb") as file:
            for command in place.system.worker(place.bin, processes):
                # A session of its own, so that it ends with all its children.
                quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
                running += [subprocess.Popen(command, cwd=PROJECT, env=place.environ, start_new_session=True, **quiet)]
        yield running
    finally:
        # Their database is thrown away too: a graceful end would only take time.
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _complain_of_the_dead(place: Place, running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is not None:
            raise Broken(f"a worker ended with {process.returncode}: {last_line(_log(place).read_text())}")


def _log(place: Place) -> Path:
    return place.folder / "workers.log"


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _seconds(answer: str) -> float:
    return float(json.loads(answer)["seconds"])
