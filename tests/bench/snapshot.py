"""A snapshot that is held open for long: what a drain comes to under it, against one beside it that nobody disturbs."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg

from aaiclick_queue.settings import PREFIX

from .apps import tally
from .measures import relatives, workers
from .places import Place
from .scale_places import stretch, tell, write
from .scale_sizes import Found, Places, Point, ScaleSizes
from .verdict import at_least, told

HOLD = ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM aaiclick_queue.ready")


class Side(NamedTuple):
    """A database with workers of its own. Both are of one server: a snapshot keeps the dead rows of its own alone."""

    place: Place
    running: list[subprocess.Popen[bytes]]
    rates: list[Point]

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Its workers stopped, so that the other one has the machine for itself."""
        family = relatives(self.running)
        for process in family:
            process.suspend()
        try:
            yield
        finally:
            for process in family:
                process.resume()

    def drain(self, count: int, processes: int, began: float) -> None:
        """Write a lot for workers that had nothing to do, and time it."""
        before = tally.seen(self.place.folder)
        write(self.place, count, first=before.runs)
        tell(self.place, count, first=before.runs)
        rate = stretch(self.place, self.running, count, processes, before)
        self.rates.append((time.perf_counter() - began, rate))


def snapshot(places: Places, sizes: ScaleSizes) -> Found:
    """Tasks a second in lots, with and without a snapshot in turn, spread over the time that it is held."""
    pairs = sizes.snapshot_tasks // sizes.snapshot_lot
    with places() as with_, places() as without:
        apart = without._replace(environ=without.environ | {PREFIX + "REDIS_PREFIX": "beside"})
        with workers(with_, sizes.processes) as some, workers(apart, sizes.processes) as others:
            held, free = Side(with_, some, []), Side(apart, others, [])
            _pair(held, free, sizes, time.perf_counter())  # to warm up
            held.rates.clear()
            free.rates.clear()
            with psycopg.connect(with_.environ["BENCH_POSTGRES_URL"]) as holder:
                for statement in HOLD:
                    holder.execute(statement)
                began = time.perf_counter()
                for number in range(1, pairs + 1):
                    due = began + number * sizes.snapshot_seconds / pairs
                    time.sleep(max(0.0, due - time.perf_counter()))
                    first, second = (held, free) if number % 2 else (free, held)
                    _pair(first, second, sizes, began)
    ratios = [mine / other for (_, mine), (_, other) in zip(held.rates, free.rates, strict=True)]
    late = statistics.median(ratios[len(ratios) // 2 :])
    count = pairs * sizes.snapshot_lot
    name = f"drain with a snapshot held for {sizes.snapshot_seconds:.0f} s, {count:,} tasks, its second half"
    marks = [
        at_least(name, late, 0.9, against=" of one beside it without"),
        told("over all of that time, median of pairs", f"{statistics.median(ratios):.2f} ×"),
    ]
    title = "Drain in lots with a snapshot held and, beside it, without, tasks/s"
    return Found(title, "seconds since the snapshot", {"held": held.rates, "without": free.rates}, marks)


def _pair(first: Side, second: Side, sizes: ScaleSizes, began: float) -> None:
    for side, other in ((first, second), (second, first)):
        with other.standing_still():
            side.drain(sizes.snapshot_lot, sizes.processes, began)
