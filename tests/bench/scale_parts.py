"""What is asked of scale: each part gives curves, and the marks that they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tests.servers import find_tool

from .measures import workers
from .places import Broken, Place
from .scale_places import (
    FILL_HISTORY,
    behind_pgbouncer,
    behind_proxies,
    fill,
    held_rate,
    rate_of,
    round_trip_ms,
)
from .scale_sizes import Found, Places, Point, ScaleSizes
from .verdict import at_least, at_most, told

Way = Callable[[Place], AbstractContextManager[Place]]


def backlog(places: Places, sizes: ScaleSizes) -> Found:
    """Microseconds a task while so many wait; as many are timed at every size, and what has run is written anew."""
    costs: dict[int, list[float]] = {count: [] for count in sizes.backlogs}
    for _ in range(sizes.pairs):
        for count, taken in costs.items():
            with places() as place:
                rate = held_rate(place, sizes.tasks, sizes.processes, backlog=count, lot=sizes.backlogs[0])
                taken.append(1e6 / rate)
    points = [(float(count), statistics.median(taken)) for count, taken in costs.items()]
    ratio = points[-1][1] / points[0][1]
    name = f"cost a task at a backlog of {points[-1][0]:,.0f} against {points[0][0]:,.0f}"
    return Found(
        "Cost of a task against the backlog, µs", "tasks waiting", {"µs": points}, [at_most(name, ratio, 1.2, "×")]
    )


def history(places: Places, sizes: ScaleSizes) -> Found:
    """Microseconds a task with none and with many finished before, in turn."""
    costs: dict[int, list[float]] = {0: [], sizes.history: []}
    for _ in range(sizes.pairs):
        for count, taken in costs.items():
            with places() as place:
                if count:
                    fill(place, count, statement=FILL_HISTORY)
                fill(place, sizes.tasks, first=count + 1)
                taken.append(1e6 / rate_of(place, sizes.tasks, sizes.processes))
    points = [(float(count), statistics.median(all_)) for count, all_ in costs.items()]
    ratio = points[1][1] / points[0][1]
    mark = at_most(f"cost a task with {sizes.history:,} finished ones against none", ratio, 1.2, "×")
    return Found("Cost of a task against finished history, µs", "finished tasks", {"µs": points}, [mark])


def job(places: Places, sizes: ScaleSizes) -> Found:
    """Microseconds a task of a job 1 → n → 1, from the call that enqueues it."""
    points = []
    for count in sizes.jobs:
        with places() as place, workers(place, 1, "jobs"):
            seconds = place.ask("wide", count, BENCH_JOBS="1")["seconds"]
            points.append((float(count), 1e6 * seconds / (count + 2)))
    last = points[-1]
    fast = at_least(f"1 → {last[0]:,.0f} → 1", 1e6 / last[1], 5_000, "tasks/s")
    thousand = [point for point in points if point[0] >= 1_000] or points
    flat = at_most(
        f"cost a task of a job of {last[0]:,.0f} against {thousand[0][0]:,.0f}", last[1] / thousand[0][1], 1.2, "×"
    )
    return Found("Cost of a task against the size of its job, µs", "tasks of the job", {"µs": points}, [fast, flat])


def queues(places: Places, sizes: ScaleSizes) -> Found:
    """Microseconds a task of workers that serve so many queues, all of them with work."""
    points = []
    for count in sizes.queues:
        with places() as place:
            fill(place, max(sizes.tasks, count) * 2, queues=count)
            flags = ("-Q", "*") if count > 1 else ()
            points.append((float(count), 1e6 / rate_of(place, sizes.tasks, sizes.processes, flags=flags)))
    mark = at_most(f"cost a task with {sizes.queues[-1]:,} queues against one", points[-1][1] / points[0][1], 2, "×")
    return Found("Cost of a task against the number of queues, µs", "queues", {"µs": points}, [mark])


def crew(places: Places, sizes: ScaleSizes) -> Found:
    """Tasks a second of so many worker processes."""
    points = []
    for count in sizes.workers:
        with places() as place:
            fill(place, sizes.tasks * 2)
            points.append((float(count), rate_of(place, sizes.tasks, count)))
    best = max(rate for _, rate in points)
    kept = at_least(f"drain by {sizes.workers[-1]} processes against the best number", points[-1][1] / best, 0.5)
    return Found("Drain against the number of worker processes, tasks/s", "processes", {"tasks/s": points}, [kept])


def pgbouncer(places: Places, sizes: ScaleSizes) -> Found:
    """Tasks a second without and through a pooler in transaction mode, in turn; both behind the same proxy."""
    if find_tool("pgbouncer") is None:
        raise Broken("pgbouncer is not installed here (Debian: apt-get install pgbouncer)")
    ways: dict[str, Way] = {"without": lambda place: behind_proxies(place, 0), "pgbouncer": behind_pgbouncer}
    pairs = _in_turn(places, sizes, ways)
    ratio = statistics.median(pairs["pgbouncer"]) / statistics.median(pairs["without"])
    mark = at_least("drain through pgbouncer against without", ratio, 0.5)
    return Found("Drain through pgbouncer, tasks/s", "round", _numbered(pairs), [mark])


def roundtrip(places: Places, sizes: ScaleSizes) -> Found:
    """Tasks a second through a proxy without and with 1 ms each way, in turn, at the best number of processes."""
    ways: dict[str, Way] = {"direct": nullcontext}
    ways |= {"proxy": lambda place: behind_proxies(place, 0), "proxy, 2 ms": lambda place: behind_proxies(place, 1)}
    best: dict[str, list[float]] = {}
    for processes in sorted({sizes.processes, sizes.processes * 2}):
        for name, rates in _in_turn(places, sizes._replace(processes=processes), ways).items():
            best[name] = max(best.get(name, [0.0]), rates, key=statistics.median)
    middle = {name: statistics.median(rates) for name, rates in best.items()}
    mark = at_least("drain with 2 ms of round trip against without", middle["proxy, 2 ms"] / middle["proxy"], 0.7)
    direct = told("without any proxy", f"{middle['direct']:,.0f}/s, {middle['proxy, 2 ms'] / middle['direct']:.2f} ×")
    echo = told("one byte there and back", f"{round_trip_ms(0):.2f} ms without delay, {round_trip_ms(1):.2f} ms with")
    return Found("Drain with 2 ms of round trip, tasks/s", "round", _numbered(best), [mark, direct, echo])


def _in_turn(places: Places, sizes: ScaleSizes, ways: dict[str, Way]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(sizes.pairs):
        for name, way in ways.items():
            with places() as place, way(place) as given:
                fill(place, sizes.tasks * 2)
                rates[name].append(rate_of(given, sizes.tasks, sizes.processes))
    return rates


def _numbered(rates: dict[str, list[float]]) -> dict[str, list[Point]]:
    return {name: [(float(i + 1), rate) for i, rate in enumerate(all_)] for name, all_ in rates.items()}
