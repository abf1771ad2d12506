"""`demo` keeps what it promises, and cleans up after itself."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.cli.running import Program, environment, program

FOLDERS = [Path("/dev/shm"), Path(tempfile.gettempdir())]


def left_by(demo: Program) -> list[Path]:
    return [path for folder in FOLDERS for path in folder.glob(f"aaiq-demo-{demo.process.pid}-*")]


def processes_of(demo: Program) -> list[psutil.Process]:
    mark = f"aaiq-demo-{demo.process.pid}-"
    return [one for one in psutil.process_iter(["cmdline"]) if mark in " ".join(one.info["cmdline"] or [])]


@pytest.mark.timeout(120)
def test_the_demo_shows_retries_a_failure_and_a_recovery_and_leaves_nothing_behind() -> None:
    # With a database that is not there: the demo has its own, whatever is set.
    with program("demo", env=environment(POSTGRES_URL="postgresql://127.0.0.1:1/nosuch")) as demo:
        assert demo.ends() == 0, demo.stdout + demo.stderr
        for part in (
            "retried in attempt 1  ConnectionError",
            "failed in attempt 2  ZeroDivisionError",
            "kill -9",
            "its lease ran out",
            "2,074 tasks: 2,073 completed, 1 failed on purpose",
            "quick tasks a second",
            "aaiclick-queue worker -A tasks",
        ):
            assert part in demo.stdout
        assert re.search(r" [1-9]\d* runs recovered from the killed worker", demo.stdout)
        assert "\x1b" not in demo.stdout
        assert demo.stderr == ""
        assert left_by(demo) == []
        assert processes_of(demo) == []


@pytest.mark.timeout(120)
def test_the_demo_cleans_up_when_it_is_interrupted() -> None:
    with program("demo", env=environment()) as demo:
        demo.wait_for(lambda: "takes tasks" in demo.stdout)
        workers = demo.children()
        assert left_by(demo) != []
        demo.press_ctrl_c()
        assert demo.ends() == 130
        assert demo.stderr.strip() == "stopped; the throw-away folder is removed"
        assert left_by(demo) == []
        assert processes_of(demo) == []
        assert not any(psutil.pid_exists(pid) for pid in workers)
