"""The benchmark itself works: every measurement of ours is taken, small. No figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from aaiclick_queue.settings import PREFIX
from tests.bench.apps import tally
from tests.servers import Databases

PROJECT = Path(__file__).parents[2]
ENQUEUES = {"bulk", "concurrent", "single"}
LATENCIES = {f"latency {cut}" for cut in ("p50", "p90", "p99", "max")}


def test_a_tiny_run_takes_every_figure_of_ours(databases: Databases, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "--tiny", "--peers", "none", "--out", str(tmp_path)]
    environ = os.environ | {PREFIX + "POSTGRES_URL": databases.url("postgres")}
    process = subprocess.Popen(command, cwd=PROJECT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = process.communicate(timeout=90)
    finally:
        process.terminate()  # not killed: it ends the servers and workers that it has started
        process.wait()
    assert process.returncode == 0, said.decode()
    [file] = tmp_path.iterdir()
    result = json.loads(file.read_text())
    drain = {"drain 1", "wal 1"}
    jobs = {"job", "job seconds with enqueue"} | {f"hop {cut}" for cut in ("p50", "p90", "p99", "max")}
    whole = drain | jobs | {"drain 1 by the database's times", "idle cpu", "rss"} | ENQUEUES | LATENCIES
    assert result["trouble"] == []
    assert {name: set(figures) for name, figures in result["figures"].items()} == {
        "aaiclick-queue, Redis": whole,
        "aaiclick-queue, Postgres alone": whole,
        "bare statements": drain,
    }
    zero = {"idle cpu"}  # too short to see any
    figures = [(name, value) for row in result["figures"].values() for name, [value] in row.items()]
    assert [name for name, value in figures if value <= 0 and name not in zero] == []
    assert "| aaiclick-queue, Redis | " in said.decode()


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
