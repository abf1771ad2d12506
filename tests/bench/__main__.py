"""`make bench`: the figures of this machine, for this product and its peers, in one run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psycopg
import redis

from . import measures, works
from .apps import tally
from .measures import FULL, QUICK, TINY, Figures, Sizes
from .peers import peers
from .places import Broken, Servers
from .report import Report
from .systems import System, ours
from .venvs import CannotInstall, bin_folder, version_of

Step = Callable[..., Figures]
PLAIN: dict[str, Step] = {
    "bulk": measures.bulk,
    "concurrent": measures.concurrent,
    "single": measures.single,
    "latency": measures.latency,
    "quiet": measures.quiet_latency,
    "cpu": works.cpu,
    "io": works.io,
    "idle": measures.idle,
    "def": works.plain,
    "result": works.result,
}
KINDS = ("drain", *PLAIN, "sustained", "jobs")
EVERY_ROUND = {"drain", "bulk", "latency"}  # the others once, unless --full
EVERY_ROUND_OF_OURS = EVERY_ROUND | {"concurrent"}  # a mark, and no comparison
ONCE = {"quiet"}  # also then: a minute and a half a system
NOT_OF_PEERS = {"def", "result"}
FULL_OF_PEERS = {"quiet", "idle"}  # in the full form, or by --only
BUSY = 0.3  # load a core
RESULTS = Path(__file__).with_name("results")


def main() -> None:
    """Measure, print, write."""
    given = _arguments()
    sizes = FULL if given.full else TINY if given.tiny else QUICK
    sizes = sizes._replace(rounds=given.rounds or sizes.rounds)
    if given.full:
        os.environ.setdefault(tally.STEP_SECONDS, "300")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that servers and workers end with us
    wanted = [*_chosen(ours(), given.ours), *_chosen(peers(), given.peers)]
    began = time.monotonic()
    with Servers() as servers:
        report = Report(sizes, _facts(servers), given.only or KINDS, [system.name for system in wanted])
        run = Run(servers, sizes, report, given)
        systems = _installed(wanted, report)
        for number in range(sizes.rounds):
            say(f"round {number + 1} of {sizes.rounds}, {time.monotonic() - began:.0f} s so far")
            # Everybody once in every round: what disturbs the machine for a minute disturbs all alike.
            for system, bin_ in turned(systems, number, sizes.rounds):
                run.measure_all(system, bin_, number)
    report.add_fact("took", f"{time.monotonic() - began:.0f} s")
    say(f"\n{report.markdown()}\n\nFor a README:\n\n{report.short()}\n")
    say(f"{time.monotonic() - began:.0f} s; table, JSON and charts are in {report.write(given.out)}")


def say(line: str) -> None:
    """Progress, at once."""
    print(line, flush=True)  # noqa: T201 - for a person at a terminal


class Run:
    """One run over all systems; a step that broke once is not tried again."""

    def __init__(self, servers: Servers, sizes: Sizes, report: Report, given: argparse.Namespace) -> None:
        self._servers = servers
        self._sizes = sizes
        self._report = report
        self._given = given
        self._broken: set[tuple[str, str]] = set()

    def measure_all(self, system: System, bin_: Path, number: int) -> None:
        """Every figure of one system that this round is to have."""
        for name, step in self._steps(system, self._kinds(system, number)):
            if (system.name, name) not in self._broken:
                self._measure(system, bin_, name, step)

    def _kinds(self, system: System, number: int) -> Sequence[str]:
        left_out = set(system.skips | NOT_OF_PEERS if system.is_peer else system.skips)
        if not self._given.only:
            left_out |= self._not_now(system, number)
        return [kind for kind in self._given.only or KINDS if kind not in left_out]

    def _not_now(self, system: System, number: int) -> set[str]:
        left_out = set(ONCE) if number else set()
        if system.is_peer and not self._given.full:
            left_out |= FULL_OF_PEERS
        if number and not self._given.full:
            left_out |= set(KINDS) - (EVERY_ROUND if system.is_peer else EVERY_ROUND_OF_OURS)
        return left_out

    def _steps(self, system: System, kinds: Sequence[str]) -> Iterator[tuple[str, Step]]:
        if "drain" in kinds:
            for processes in self._sizes.processes:
                yield f"drain by {processes}", partial(measures.drain, processes=processes)
        yield from ((name, step) for name, step in PLAIN.items() if name in kinds)
        rate, best = self._report.best_drain(system.name)
        if "sustained" in kinds and rate:
            yield "sustained", partial(works.sustained, drain_rate=rate, processes=best)
        if "jobs" in kinds and system.jobs:
            yield "jobs", partial(works.jobs, processes=best or 1)

    def _measure(self, system: System, bin_: Path, name: str, step: Step) -> None:
        began = time.monotonic()
        try:
            with self._servers.place(system, bin_) as place:
                figures = step(place, self._sizes)
        except (Broken, psycopg.Error, redis.RedisError, OSError) as error:
            self._broken.add((system.name, name))
            self._report.add_missing(system, name, str(error))
            say(f"{system.name}, {name}: broke: {error}")
            return
        self._report.add(system, figures)
        shown = ", ".join(f"{figure} {value:,.{0 if value > 100 else 2}f}" for figure, value in figures.items())
        say(f"{system.name}: {shown} [{time.monotonic() - began:.1f} s]")


def turned(systems: list[tuple[System, Path]], number: int, rounds: int) -> list[tuple[System, Path]]:
    """The same, beginning with another one in every round, so that nobody is always first."""
    first = number * len(systems) // rounds
    return systems[first:] + systems[:first]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--full",
        action="store_true",
        help="five times the tasks, three rounds and three numbers of processes, every figure of the peers",
    )
    size.add_argument("--tiny", action="store_true", help="only to see that it works")
    parser.add_argument("--ours", default="all", help="all, or some of redis,postgres alone,bare loop")
    parser.add_argument("--peers", default="all", help="all, none, or names with commas")
    parser.add_argument("--only", type=_kinds, help=f"some of {','.join(KINDS)}")
    parser.add_argument("--rounds", type=int, help="instead of 2, or 3 with --full")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for table, JSON and charts")
    return parser.parse_args()


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(KINDS)}")
    return kinds


def _chosen(systems: list[System], text: str) -> list[System]:
    known = {system.name.lower().removeprefix("aaiclick-queue, "): system for system in systems}
    names = {"all": list(known), "none": []}.get(text, text.lower().split(","))
    if unknown := set(names) - set(known):
        sys.exit(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    return [known[name] for name in names]


def _facts(servers: Servers) -> dict[str, str]:
    facts = servers.facts()
    if os.getloadavg()[0] > BUSY * (os.cpu_count() or 1):
        facts["warning"] = "this machine was busy when it began: the figures are not for publication"
    for name, fact in facts.items():
        say(f"{name}: {fact}")
    return facts


def _installed(systems: list[System], report: Report) -> list[tuple[System, Path]]:
    found = []
    for system in systems:
        try:
            found.append((system, bin_folder(system)))
        except CannotInstall as error:
            report.add_missing(system, "", f"cannot be installed here ({error})")
            say(f"{system.name}: skipped, cannot be installed here ({error})")
            continue
        report.add_system(system, version_of(system) if system.is_peer else "")
    return found


if __name__ == "__main__":
    main()
