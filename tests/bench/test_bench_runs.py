"""The benchmark itself works: every measurement of ours is taken, small. No figure is judged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from aaiclick_queue.settings import PREFIX
from tests.bench.apps import tally
from tests.bench.charts import bars, lines
from tests.bench.measures import CUTS
from tests.bench.peers import peers
from tests.bench.scale_places import delaying_proxy
from tests.bench.venvs import lock_of
from tests.bench.verdict import ALONE, BARE, REDIS, verdict
from tests.servers import Databases

PROJECT = Path(__file__).parents[2]
LATENCIES = {f"latency {cut}" for cut in CUTS}
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
    assert result["trouble"] == []
    assert set(result["figures"][REDIS]) == DRAIN | jobs | sustained | others | LATENCIES
    zero = {"idle cpu"}  # too short to see any
    figures = [(name, value) for row in result["figures"].values() for name, [value] in row.items()]
    assert [name for name, value in figures if value <= 0 and name not in zero] == []
    assert f"| {REDIS} | " in said
    assert "| bulk enqueue | " in (folder / "table.md").read_text()
    assert f"| {REDIS} | " in (folder / "readme.md").read_text()
    assert (folder / "drain.svg").exists()


@slow
def test_a_tiny_run_measures_postgres_alone_and_the_bare_loop(databases: Databases, tmp_path: Path) -> None:
    flags = ["--peers", "none", "--ours", "postgres alone,bare loop", "--only", "drain,latency"]
    run("tests.bench", *flags, out=tmp_path, databases=databases)
    [folder] = tmp_path.iterdir()
    result = json.loads((folder / "results.json").read_text())
    assert result["trouble"] == []
    assert set(result["figures"][ALONE]) == DRAIN | LATENCIES | {"drain 1 by the database's times"}
    assert set(result["figures"][BARE]) == DRAIN | LATENCIES


@slow
def test_a_tiny_run_of_scale_gives_curves_and_marks(databases: Databases, tmp_path: Path) -> None:
    run("tests.bench.scale", "--parts", "backlog,soak", out=tmp_path, databases=databases)
    [folder] = tmp_path.iterdir()
    result = json.loads((folder / "scale.json").read_text())
    assert result["trouble"] == {}
    assert [x for x, _ in result["parts"]["backlog"]["curves"]["µs"]] == [200, 400]
    assert len(result["parts"]["soak"]["marks"]) == 7
    assert {path.name for path in folder.iterdir()} == {"scale.json", "scale.md", "backlog.svg", "soak.svg"}


def test_runs_are_counted_over_processes_that_fork(tmp_path: Path) -> None:
    tally.prepare(tmp_path)
    count = (
        "from tests.bench.apps import tally; import os; tally.ran(); pid = os.fork(); tally.ran(2); pid and os.wait()"
    )
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", count], cwd=PROJECT, env=os.environ | {tally.FOLDER: str(tmp_path)}, check=True
        )
    assert tally.seen(tmp_path) == tally.Seen(runs=10, processes=4)


def test_every_peer_is_pinned_has_a_page_and_is_told_of() -> None:
    systems = peers()
    assert len(systems) == 10
    told = (PROJECT / "docs" / "benchmark.md").read_text()
    for system in systems:
        name, _, version = system.wheels[0].partition("==")
        assert f"{name.partition('[')[0]}=={version}\n" in lock_of(system).read_text()
        assert system.page.startswith("https://")
        assert f"| {system.name} | " in told


def test_marks_are_ratios_of_one_run_against_the_fastest_peer() -> None:
    rows = {
        REDIS: {"drain": 20_000.0, "wal": 800.0, "bulk": 60_000.0, "latency p50": 4.0},
        ALONE: {"drain": 12_000.0},
        BARE: {"drain": 50_000.0, "bulk": 99_000.0},
        "pgqueuer": {"drain": 9_000.0, "bulk": 30_000.0},
        "Celery": {"drain": 500.0, "latency p50": 3.5},
    }
    found = {mark.name: (mark.measured, mark.met) for mark in verdict(rows)}
    assert found == {
        "drain against the fastest peer": ("2.22 × (pgqueuer)", True),
        "the same, Postgres alone": ("1.33 × (pgqueuer)", False),
        "drain against the bare loop": ("0.40 ×", False),
        "drain against Celery": ("40.00 ×", True),
        "WAL a task, claim and complete": ("800 B", True),
        "bulk enqueue": ("60,000 /s", True),
        "bulk enqueue against the fastest peer": ("2.00 × (pgqueuer)", True),
        "latency p50, idle, against Celery's": ("4.00 ms", False),
    }


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
