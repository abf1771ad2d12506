"""The benchmark itself works: every measurement of ours is taken, small. No figure is judged."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from aaiclick_queue.settings import PREFIX
from tests.bench.__main__ import turned
from tests.bench.apps import driver, tally
from tests.bench.charts import bars, lines
from tests.bench.measures import CUTS
from tests.bench.peers import peers
from tests.bench.scale_places import delaying_proxy, round_trip_ms
from tests.bench.scale_sizes import FULL, QUICK
from tests.bench.soak import Sample, _flat
from tests.bench.systems import ours
from tests.bench.venvs import lock_of
from tests.bench.verdict import ALONE, BARE, REDIS, Asked, verdict
from tests.servers import Databases

PROJECT = Path(__file__).parents[2]
LATENCIES = {f"latency {cut}" for cut in CUTS}
QUIET = {f"quiet latency {cut}" for cut in CUTS}
DRAIN = {"drain 1", "wal 1"}
slow = pytest.mark.timeout(500)  # twenty processes start, of a second of CPU each


def run(module: str, *flags: str, out: Path, databases: Databases) -> str:
    """Run the benchmark to its end; gives what it said."""
    command = [sys.executable, "-m", module, "--tiny", *flags, "--out", str(out)]
    environ = os.environ | {PREFIX + "POSTGRES_URL": databases.url("postgres")}
    quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=PROJECT, env=environ, **quiet) as process:
        try:
            said, _ = process.communicate()
        finally:
            process.terminate()  # not killed: it ends the servers and workers that it has started
    text: str = said.decode()
    assert process.returncode == 0, text
    return text


@slow
def test_a_tiny_run_takes_every_figure_of_ours(databases: Databases, tmp_path: Path) -> None:
    said = run("tests.bench", "--peers", "none", "--ours", "redis", out=tmp_path, databases=databases)
    [folder] = tmp_path.iterdir()
    result = json.loads((folder / "results.json").read_text())
    jobs = {"job 20", "job 40", "chain hop ms", "hop p50", "hop p99"}
    sustained = {"sustained wanted", "sustained"} | {f"sustained {cut}" for cut in CUTS}
    others = {"bulk", "concurrent", "single", "cpu", "io", "idle cpu", "rss", "drain 1 by the database's times"}
    own = {"def tasks", "result p50"}
    assert result["trouble"] == []
    assert set(result["figures"][REDIS]) == DRAIN | jobs | sustained | others | own | LATENCIES | QUIET
    assert {mark["word"] for mark in result["verdict"]} == {""}  # of what was asked for, all is measured
    zero = {"idle cpu"}  # too short to see any
    figures = [(name, value) for row in result["figures"].values() for name, [value] in row.items()]
    assert [name for name, value in figures if value <= 0 and name not in zero] == []
    assert f"| {REDIS} | " in said
    assert "| bulk enqueue | " in (folder / "table.md").read_text()
    assert f"| {REDIS} | " in (folder / "readme.md").read_text()
    assert (folder / "drain.svg").exists()


@slow
def test_a_tiny_run_measures_postgres_alone_and_the_bare_loop(databases: Databases, tmp_path: Path) -> None:
    flags = ["--peers", "none", "--ours", "postgres alone,bare loop", "--only", "drain,latency,quiet"]
    run("tests.bench", *flags, out=tmp_path, databases=databases)
    [folder] = tmp_path.iterdir()
    result = json.loads((folder / "results.json").read_text())
    assert result["trouble"] == []
    assert set(result["figures"][ALONE]) == DRAIN | LATENCIES | QUIET | {"drain 1 by the database's times"}
    assert set(result["figures"][BARE]) == DRAIN | LATENCIES


@slow
def test_a_tiny_run_of_scale_gives_curves_and_marks(databases: Databases, tmp_path: Path) -> None:
    said = run("tests.bench.scale", "--parts", "backlog,snapshot,soak", out=tmp_path, databases=databases)
    [folder] = tmp_path.iterdir()
    result = json.loads((folder / "scale.json").read_text())
    assert result["trouble"] == {}
    assert [x for x, _ in result["parts"]["backlog"]["curves"]["µs"]] == [200, 400]
    assert {name: len(lots) for name, lots in result["parts"]["snapshot"]["curves"].items()} == {
        "held": 3,
        "without": 3,
    }
    marks = result["parts"]["soak"]["marks"]
    assert [mark["word"] for mark in marks] == ["too short to judge"] * 4 + ["", "told", "", "told"]
    assert {"runs", "wal", "stream", "rows"} < set(result["parts"]["soak"]["samples"][0])
    assert said.startswith("sizes: not the full ones: a backlog of 400 of 10,000,000, ")
    assert {path.name for path in folder.iterdir()} == {
        "scale.json",
        "scale.md",
        "backlog.svg",
        "snapshot.svg",
        "soak.svg",
    }


def test_runs_are_counted_over_processes_that_fork(tmp_path: Path) -> None:
    tally.prepare(tmp_path)
    count = (
        "from tests.bench.apps import tally; import os; tally.ran(); pid = os.fork(); tally.ran(2); pid and os.wait()"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", count], cwd=PROJECT, env=os.environ | {tally.FOLDER: str(tmp_path)}, check=True
        )
    seen = tally.seen(tmp_path)
    assert (seen.runs, seen.processes, sorted(seen.by_process.values())) == (10, 4, [2, 2, 3, 3])
    one = max(seen.by_process)
    before = tally.Seen(seen.by_process | {one: seen.by_process[one] - 1})
    assert seen.since(before) == tally.Seen({one: 1})


class Slow:
    """A system whose tasks begin 20 ms after their enqueue, and that tells what it was given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.values: list[int] = []
        self.waiting: list[int] = []  # at each call

    async def one(self, name: str, value: int) -> None:
        self.waiting.append(len(self.values) - tally.late_count(self._folder))
        await self.many(name, [value])

    async def many(self, name: str, values: Sequence[int]) -> None:
        del name
        self.values += values
        asyncio.get_running_loop().call_later(0.02, self._begin, values)

    def _begin(self, values: Sequence[int]) -> None:
        with (self._folder / "late").open("ab") as file:
            file.write(b"".join(struct.pack("=q", time.time_ns() - value) for value in values))


@pytest.fixture
def slow_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    tally.prepare(tmp_path)
    monkeypatch.setenv(tally.FOLDER, str(tmp_path))
    return Slow(tmp_path)


def test_a_latency_waits_until_the_task_before_has_arrived(slow_system: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "latency", "5", "1", "2"])
    driver.main(driver.opened(slow_system))
    assert slow_system.waiting[driver.WARM_LATENCIES :] == [0] * 5


def test_a_task_of_the_half_load_counts_from_when_it_was_due(
    slow_system: Slow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["driver", "sustained", "1000", "0.2"])
    driver.main(driver.opened(slow_system))
    due = slow_system.values[1:]
    assert {round((after - before) / 1e6) for before, after in itertools.pairwise(due)} == {1}
    told = json.loads(capsys.readouterr().out)
    assert told["sent"] == len(due)
    assert told["rate"] < 1000 * 0.95  # those that were on their way at the end had not arrived


def test_every_round_begins_with_another_system() -> None:
    systems = [(system, Path()) for system in [*ours(), *peers()]]
    rounds = [turned(systems, number, 3) for number in range(3)]
    assert len({order[0][0].name for order in rounds}) == 3
    assert [{system.name for system, _ in order} for order in rounds] == [{system.name for system, _ in systems}] * 3


def test_every_peer_is_pinned_has_a_page_and_is_told_of() -> None:
    systems = peers()
    assert len(systems) == 10
    told = (PROJECT / "docs" / "benchmark.md").read_text()
    for system in systems:
        name, _, version = system.wheels[0].partition("==")
        assert f"{name.partition('[')[0]}=={version}\n" in lock_of(system).read_text()
        assert system.page.startswith("https://")
        assert f"| {system.name} | " in told


ROWS = {
    REDIS: {"drain": 20_000.0, "wal": 800.0, "bulk": 60_000.0, "latency p50": 4.0},
    ALONE: {"drain": 12_000.0, "quiet latency p50": 90.0},
    BARE: {"drain": 50_000.0, "bulk": 99_000.0},
    "pgqueuer": {"drain": 9_000.0, "bulk": 30_000.0},
    "Celery": {"drain": 500.0, "latency p50": 3.5},
}


def test_marks_are_ratios_of_one_run_against_the_fastest_peer() -> None:
    found = {mark.name: (mark.measured, mark.met) for mark in verdict(ROWS, Asked(["drain", "bulk"], list(ROWS)))}
    assert found == {
        "drain against the fastest peer": ("2.22 × (pgqueuer)", True),
        "the same, Postgres alone": ("1.33 × (pgqueuer)", False),
        "drain against the bare loop": ("0.40 ×", False),
        "drain against Celery": ("40.00 ×", True),
        "WAL a task, claim and complete": ("800 B", True),
        "bulk enqueue": ("60,000 /s", True),
        "bulk enqueue against the fastest peer": ("2.00 × (pgqueuer; without Celery)", True),
    }


def test_a_mark_without_figures_says_that_and_why() -> None:
    asked = Asked(["latency", "quiet"], list(ROWS), {("pgqueuer", "latency"): "it hung", ("Celery", ""): "not here"})
    found = {mark.name: mark.row()[1:] for mark in verdict(ROWS, asked)}
    assert found == {
        "latency p50, idle, against Celery's": ["4.00 ms", "≤ 3.50 ms", "**missed**"],
        "latency p99, idle, against pgqueuer's": [
            f"no figure of {REDIS}; pgqueuer: it hung",
            "≤ pgqueuer's",
            "not measured",
        ],
        "latency p50 without Redis, after 1–2 s of quiet": ["90.00 ms", "≤ 150 ms", "met"],
        "latency p99 without Redis, after 1–2 s of quiet": [f"no figure of {ALONE}", "≤ 300 ms", "not measured"],
    }
    assert verdict(ROWS, Asked(["latency"], [REDIS])) == []


def test_dead_rows_are_held_against_those_alive() -> None:
    rows = {"ready": (12_000, 10), "tasks": (50_000, 60_000)}
    sample = Sample(at=0, runs=0, wal=0, tables=0, indexes=0, redis=0, stream=0, rss=0, rows=rows)
    assert sample.dead_above == 62_000 - 5 * 60_010
    assert sample.worst() == (50_000, "tasks")


@pytest.mark.parametrize(
    ("values", "met"),
    [
        ([10.0, 10.0, 10.0, 10.0], True),
        ([10.0, 10.0, 10.0, 10.1], False),
        ([10.0, 10.2, 10.0, 10.1], True),  # up and down, and never above where it was
    ],
)
def test_what_goes_up_and_down_does_not_grow(values: list[float], met: bool) -> None:
    samples = [
        Sample(at=300.0 * n, runs=0, wal=0, tables=value, indexes=0, redis=0, stream=0, rss=0, rows={})
        for n, value in enumerate(values)
    ]
    assert _flat(samples, "tables", judged=True).met is met


def test_sizes_say_what_they_leave_out_of_the_full_ones() -> None:
    assert FULL.leaves_out() == ""
    assert QUICK.leaves_out().startswith("a backlog of 1,000,000 of 10,000,000, a history of 1,000,000 of 10,000,000, ")


def test_charts_are_well_formed_and_escape_names() -> None:
    drawn = [bars("A & B", {"<x>": 3.0, "y": 0.0}), lines("a < b", "n", {"c & d": [(1, 2.0), (1000, 4.0)]})]
    for text in drawn:
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"


def test_the_proxy_delays_bytes_and_keeps_their_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        port = upstream.getsockname()[1]
        with (
            delaying_proxy(20, f"127.0.0.1:{port}") as front,
            socket.create_connection(("127.0.0.1", front)) as client,
        ):
            server, _ = upstream.accept()
            with server:
                began = time.perf_counter()
                sent = b"".join(b"%06d" % n for n in range(2000))
                for start in range(0, len(sent), 100):
                    client.sendall(sent[start : start + 100])
                got = b""
                while len(got) < len(sent):
                    got += server.recv(65536)
                assert got == sent
                assert time.perf_counter() - began >= 0.019
                client.close()
                assert server.recv(1) == b""


def test_a_round_trip_through_the_proxy_takes_what_was_asked_and_never_less() -> None:
    assert round_trip_ms(0) < round_trip_ms(1)
    assert round_trip_ms(1) >= 2


@slow
def test_pages_and_routes_are_timed_over_tasks_of_every_kind(databases: Databases) -> None:
    command = [sys.executable, "-m", "tests.bench.pages", "--tasks", "2400", "--times", "1"]
    environ = os.environ | {PREFIX + "POSTGRES_URL": databases.url("postgres")}
    done = subprocess.run(command, cwd=PROJECT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    paths = [line.split()[-1] for line in done.stdout.splitlines() if " ms  /" in line]
    assert {"/?hours=168", "/queues/queue-1?hours=1", "/tasks", "/failures", "/outbox"} <= {*paths}
    assert sum(path.startswith("/jobs/") for path in paths) == 3
    assert "a scrape takes" in done.stdout
