"""Figures of other work than no-ops: a load that lasts, tasks that compute, tasks that wait, graphs and chains."""

from __future__ import annotations

from .apps import tally
from .measures import Figures, Sizes, cuts, emptied, workers
from .places import Broken, Place
from .systems import CORES, System

LOAD = 0.5  # of the drain rate
PLAIN_TASKS = 10_000
CPU_TASKS = 600
IO_TASKS = {True: 20_000, False: 4_000}  # by whether its drain is quick
IO_SLOW = 400
HOPS = """
SELECT percentile_cont({cut}) WITHIN GROUP (ORDER BY 1000 * extract(epoch FROM hop.took))::float8 FROM (
    SELECT t.started_at - lag(t.finished_at) OVER (ORDER BY t.started_at) AS took
    FROM aaiclick_queue.tasks t WHERE t.job_id = (SELECT max(id) FROM aaiclick_queue.jobs)) AS hop
"""


def sustained(place: Place, sizes: Sizes, drain_rate: float, processes: int) -> Figures:
    """Half of what it drains, for a while: how many a second came through in time, and how late after they were due."""
    wanted = drain_rate * LOAD
    with workers(place, processes):
        got = place.ask("sustained", wanted, sizes.sustained_seconds)
    lates = tally.lates(place.folder)[1:]
    if len(lates) < 10:
        raise Broken(f"only {len(lates)} tasks in {sizes.sustained_seconds} s at {wanted:,.0f}/s")
    settled = lates[len(lates) // 4 :]  # the first quarter is for warming up
    return {"sustained wanted": wanted, "sustained": got["rate"]} | cuts("sustained", settled)


def plain(place: Place, sizes: Sizes) -> Figures:
    """A drain by one process of no-op tasks that are plain functions."""
    count = max(100, int(PLAIN_TASKS * sizes.share))
    place.ask("plain", count)
    with workers(place, 1, "plain") as running:
        return {"def tasks": emptied(place, running, count, processes=1).rate}


def result(place: Place, sizes: Sizes) -> Figures:
    """Enqueue a task and wait for its result, one after another, on one worker with nothing else to do."""
    with workers(place, 1):
        return {"result p50": place.ask("results", sizes.results)["p50"]}


def cpu(place: Place, sizes: Sizes) -> Figures:
    """Tasks of about 3 ms of Python, each system's own way to use all cores."""
    count = max(20, int(CPU_TASKS * min(sizes.share, 2)))
    place.ask("burners", count)
    with workers(place, CORES, "cpu") as running:
        return {"cpu": emptied(place, running, count, processes=1).rate}


def io(place: Place, sizes: Sizes) -> Figures:
    """Tasks that sleep 10 ms, five hundred at once where the system can."""
    count = max(20, int(_sleepers(place.system) * min(sizes.share, 2)))
    place.ask("sleepers", count)
    with workers(place, 1, "io") as running:
        return {"io": emptied(place, running, count, processes=1).rate}


def _sleepers(system: System) -> int:
    return IO_SLOW if system.drain < 1_000 else IO_TASKS[system.drain >= 20_000]


def jobs(place: Place, sizes: Sizes, processes: int) -> Figures:
    """One task, then many, then one: tasks a second from the call that enqueues; and the time of a link of a chain."""
    figures: Figures = {}
    with workers(place, processes, "jobs"):
        for count in sizes.jobs if not place.system.is_peer else sizes.jobs[:1]:
            seconds = place.ask("wide", count, BENCH_JOBS="1")["seconds"]
            figures[f"job {count}"] = (count + 2) / seconds
        length = sizes.chain
        figures["chain hop ms"] = 1000 * place.ask("deep", length, BENCH_JOBS="1")["seconds"] / length
        if place.system.app == "ours":
            figures["hop p50"] = place.value(HOPS.format(cut=0.5))
            figures["hop p99"] = place.value(HOPS.format(cut=0.99))
    return figures
