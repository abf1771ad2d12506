"""`make bench`: the figures of this machine, for this product and its peers, in one run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import psycopg
import redis

from . import measures
from .measures import FULL, QUICK, TINY, Figures, Sizes
from .places import Broken, Place, Servers
from .report import Report
from .systems import System, ours, peers
from .venvs import CannotInstall, bin_folder, cache_folder, version_of

KINDS = ("drain", "bulk", "concurrent", "single", "latency", "jobs", "idle")
KINDS_OF_PEERS = ("drain", "bulk", "latency")  # unless --only or --full ask for more: it would take too long
BUSY = 0.3  # load a core


def main() -> None:
    """Measure, print, write."""
    given = _arguments()
    sizes = FULL if given.full else TINY if given.tiny else QUICK
    sizes = sizes._replace(rounds=given.rounds or sizes.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that servers and workers end with us
    wanted = [*ours(), *_chosen_peers(given.peers)]
    began = time.monotonic()
    with Servers() as servers:
        facts = servers.facts()
        if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
            facts["warning"] = "this machine was busy when it began: the figures are not for publication"
        for name, fact in facts.items():
            say(f"{name}: {fact}")
        report = Report(sizes, facts)
        systems = _installed(wanted, report)
        for _ in range(sizes.rounds):
            # Everybody once in every round: what disturbs the machine for a minute disturbs all alike.
            for system, bin_ in systems:
                kinds = given.only or (KINDS_OF_PEERS if system.is_peer and not given.full else KINDS)
                for name, step in _steps(system, sizes, kinds):
                    _measure(servers.place(system, bin_), partial(step, sizes=sizes), f"{system.name}, {name}", report)
    say(f"\n{report.markdown()}\n")
    say(f"{time.monotonic() - began:.0f} s; all figures are in {report.write(given.out)}")


def say(line: str) -> None:
    """Progress, at once."""
    print(line, flush=True)  # noqa: T201 - for a person at a terminal


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--full",
        action="store_true",
        help="five times the tasks, three rounds, every figure of the peers (over an hour)",
    )
    size.add_argument("--tiny", action="store_true", help="only to see that it works")
    parser.add_argument("--peers", default="all", help="all, none, or names with commas")
    parser.add_argument("--only", type=_kinds, help=f"some of {','.join(KINDS)}")
    parser.add_argument("--rounds", type=int, help="instead of 1, or 3 with --full")
    parser.add_argument("--out", type=Path, default=cache_folder() / "results", help="folder for the JSON file")
    return parser.parse_args()


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(KINDS)}")
    return kinds


def _chosen_peers(text: str) -> list[System]:
    known = {system.name.lower(): system for system in peers()}
    names = {"all": list(known), "none": []}.get(text, text.lower().split(","))
    if unknown := set(names) - set(known):
        sys.exit(f"--peers {', '.join(unknown)}: choose from {', '.join(known)}")
    return [known[name] for name in names]


def _installed(systems: list[System], report: Report) -> list[tuple[System, Path]]:
    found = []
    for system in systems:
        try:
            found.append((system, bin_folder(system)))
        except CannotInstall as error:
            report.add_trouble(f"{system.name}: cannot be installed here ({error})")
            say(f"{system.name}: skipped, cannot be installed here ({error})")
            continue
        report.add_system(system, version_of(system) if system.is_peer else "")
    return found


def _steps(system: System, sizes: Sizes, kinds: Sequence[str]) -> Iterator[tuple[str, Callable[..., Figures]]]:
    if "drain" in kinds:
        for processes in sizes.processes:
            yield f"drain by {processes}", partial(measures.drain, processes=processes)
    if system.app == "bare":
        return
    steps = {"bulk": measures.bulk, "concurrent": measures.concurrent, "single": measures.single}
    steps |= {"latency": measures.latency, "jobs": measures.jobs, "idle": measures.idle}
    if not system.asynchronous:
        del steps["concurrent"]
    if system.app != "ours":
        del steps["jobs"]
    for name, step in steps.items():
        if name in kinds:
            yield name, step
    if "latency" in kinds and sizes.quiet_latencies:
        yield "latency after quiet", measures.quiet_latency


def _measure(fresh: AbstractContextManager[Place], step: Callable[[Place], Figures], name: str, report: Report) -> None:
    began = time.monotonic()
    try:
        with fresh as place:
            figures = step(place)
    except (Broken, psycopg.Error, redis.RedisError) as error:
        report.add_trouble(f"{name}: {error}")
        say(f"{name}: broke: {error}")
        return
    report.add(place.system, figures)
    shown = ", ".join(f"{figure} {value:,.{0 if value > 100 else 2}f}" for figure, value in figures.items())
    say(f"{place.system.name}: {shown} [{time.monotonic() - began:.1f} s]")


if __name__ == "__main__":
    main()
