"""A constant load for long: dead rows, sizes, WAL a task, the memory of Redis and of the worker."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any, NamedTuple

from aaiclick_queue.settings import PREFIX

from .apps import tally
from .measures import complain_of_the_dead, relatives, workers
from .places import PROJECT, Broken, Place, end
from .scale_sizes import Found, Places, ScaleSizes
from .systems import APPS
from .verdict import Mark, at_most, told

SAMPLES = 60
KEPT_SECONDS = 60  # of load: as many finished tasks are kept, so that pruning is part of it
HOURLY_PERCENT = 1.0
JUDGED_SECONDS = 1200  # what is shorter has not reached its plateau, and an hour of its slope is a guess
DEAD_ALLOWED, DEAD_A_LIVE = 10_000, 5
TABLES = """
SELECT relname, n_dead_tup, n_live_tup, pg_table_size(relid)::float8 / 2^20, pg_indexes_size(relid)::float8 / 2^20
FROM pg_stat_user_tables WHERE schemaname = 'aaiclick_queue' ORDER BY relname
"""


class Sample(NamedTuple):
    """All of it at one moment; sizes in MiB."""

    at: float
    runs: int
    wal: int
    tables: float
    indexes: float
    redis: float
    stream: int
    rss: float
    rows: dict[str, tuple[int, int]]  # dead and alive, by table

    @property
    def dead(self) -> int:
        """Dead rows of all tables."""
        return sum(dead for dead, _ in self.rows.values())

    @property
    def dead_above(self) -> int:
        """How many there are above five for each row that is alive."""
        return self.dead - DEAD_A_LIVE * sum(live for _, live in self.rows.values())

    def worst(self) -> tuple[int, str]:
        """The table with the most dead rows."""
        return max((dead, table) for table, (dead, _) in self.rows.items())


def soak(places: Places, sizes: ScaleSizes) -> Found:
    """Load at a constant rate, sampled; nothing may grow beyond a plateau in its second half."""
    kept = {
        PREFIX + "RETENTION_MAX_TASKS": str(max(1, int(sizes.soak_rate * min(KEPT_SECONDS, sizes.soak_seconds / 4))))
    }
    with places() as fresh:
        place = fresh._replace(environ=fresh.environ | kept)
        samples: list[Sample] = []
        with workers(place, 1) as running:
            load = _load(place, sizes)
            try:
                _wait_for_the_first(place, load)
                began = time.perf_counter()
                while load.poll() is None and time.perf_counter() - began < sizes.soak_seconds + 60:
                    time.sleep(sizes.soak_seconds / SAMPLES)
                    complain_of_the_dead(place, running)
                    samples.append(_sample(place, running, time.perf_counter() - began))
            finally:
                end(load)
    if load.returncode or len(samples) < 4:
        raise Broken(f"the load of the soak ended with {load.returncode}")
    return _found(samples[: SAMPLES + 1], sizes)


def _wait_for_the_first(place: Place, load: subprocess.Popen[bytes]) -> None:
    give_up = time.perf_counter() + tally.step_seconds()
    while not tally.late_count(place.folder):
        if load.poll() is not None or time.perf_counter() > give_up:
            raise Broken("the load of the soak did not begin")
        time.sleep(0.05)


def _load(place: Place, sizes: ScaleSizes) -> subprocess.Popen[bytes]:
    app = [sys.executable, "-m", f"{APPS}.{place.system.app}", "sustained"]
    command = [*app, str(sizes.soak_rate), str(sizes.soak_seconds)]
    return subprocess.Popen(command, cwd=PROJECT, env=place.environ, start_new_session=True, stdout=subprocess.DEVNULL)


def _sample(place: Place, running: list[subprocess.Popen[bytes]], at: float) -> Sample:
    assert place.database is not None
    tables = place.database.execute(TABLES).fetchall()
    about: Any = place.redis.info("memory")
    return Sample(
        at=at,
        runs=tally.late_count(place.folder),
        wal=place.wal_bytes(),
        tables=sum(size for *_, size, _ in tables),
        indexes=sum(size for *_, size in tables),
        redis=about["used_memory"] / 2**20,
        stream=int(place.redis.xlen("{aaiq}:wake:default")),
        rss=sum(process.memory_info().rss for process in relatives(running)) / 2**20,
        rows={name: (dead, live) for name, dead, live, _, _ in tables},
    )


def _found(samples: list[Sample], sizes: ScaleSizes) -> Found:
    half = samples[len(samples) // 2 :]
    first, last = half[0], half[-1]
    wal = (last.wal - first.wal) / max(1, last.runs - first.runs)
    judged = sizes.soak_seconds >= JUDGED_SECONDS
    marks = [_flat(samples, figure, judged=judged) for figure in ("tables", "indexes", "redis", "rss")]
    above = max(0, *(sample.dead_above for sample in half))
    marks.append(at_most(f"soak: dead rows above {DEAD_A_LIVE} × those alive", above, DEAD_ALLOWED, "rows"))
    worst, table = max(sample.worst() for sample in half)
    marks.append(told("soak: most dead rows of one table, between two looks of autovacuum", f"{worst:,} ({table})"))
    marks.append(at_most("soak: entries of the stream", max(sample.stream for sample in half), 11_000, "entries"))
    rate = (last.runs - first.runs) / (last.at - first.at)
    marks.append(told("soak: WAL a task, enqueue to end, and load", f"{wal:,.0f} B at {rate:,.0f}/s"))
    names = ("dead", "tables", "indexes", "redis", "rss")
    curves = {name: [(sample.at, float(getattr(sample, name))) for sample in samples] for name in names}
    curves["dead"] = [(at, dead / 1000) for at, dead in curves["dead"]]
    shown = {{"dead": "dead rows, 1000s"}.get(name, f"{name} MiB"): curve for name, curve in curves.items()}
    title = f"Soak at {sizes.soak_rate:,.0f} tasks/s"
    return Found(title, "seconds", shown, marks, [sample._asdict() for sample in samples])


def _flat(samples: list[Sample], figure: str, *, judged: bool) -> Mark:
    """How fast it grows over the second half, in percent of its middle an hour.

    What goes up and down by more than that, and never above where it was in the first half, does not grow.
    """
    values = [float(getattr(sample, figure)) for sample in samples]
    half = len(samples) // 2
    slope = statistics.linear_regression([sample.at for sample in samples[half:]], values[half:]).slope
    growth = 100 * slope * 3600 / (statistics.median(values[half:]) or 1.0)
    mark = at_most(f"soak: growth of {figure} in the second half", growth, HOURLY_PERCENT, "% an hour")
    if max(values[half:]) <= max(values[:half]):
        measured = f"{mark.measured}, at most {max(values[half:]):.2f} of {max(values[:half]):.2f} MiB before"
        mark = mark._replace(measured=measured, met=True)
    return mark if judged else mark._replace(met=None, word="too short to judge")
