"""The real program in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from aaiclick_queue.settings import PREFIX, Settings

PROJECT = Path(__file__).parents[2]
MODULE = "tests.cli.cli_tasks"
LONGEST = 60.0


def environment(settings: Settings | None = None, **more: str) -> dict[str, str]:
    """Variables for a process that works on the database of the test."""
    given = dict(more)
    if settings is not None and settings.postgres_url is not None:
        given |= {"POSTGRES_URL": settings.postgres_url, "LEASE_SECONDS": str(settings.lease_seconds)}
        given |= {"LOG_DIR": str(settings.log_folder)} if "LOG_DIR" not in given else {}
        given["GRACE_SECONDS"] = str(2 * LONGEST)  # who waits for it waits in vain
    ours = {PREFIX + name: value for name, value in given.items()}
    return {**os.environ, "PYTHONPATH": str(PROJECT), **ours}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "aaiclick_queue", *arguments]


def run(*arguments: str, env: dict[str, str], cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(command(*arguments), env=env, cwd=cwd, capture_output=True, text=True, timeout=LONGEST)


class Program:
    """A command that goes on, its output in files."""

    def __init__(self, *arguments: str, env: dict[str, str], cwd: Path = PROJECT) -> None:
        self._stdout = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command(*arguments),
            env=env,
            cwd=cwd,
            stdout=self._stdout,
            stderr=self._stderr,
            text=True,
            process_group=0,
        )

    @property
    def stdout(self) -> str:
        return _content(self._stdout)

    @property
    def stderr(self) -> str:
        return _content(self._stderr)

    def lines(self) -> list[dict[str, Any]]:
        """JSON lines that are whole."""
        return [json.loads(line) for line in self.stdout.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_for(condition, lambda: f"{self.process.poll()}\n{self.stdout}\n{self.stderr}")

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def press_ctrl_c(self) -> None:
        """What a terminal does: every process in the foreground gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ends(self) -> int:
        return self.process.wait(LONGEST)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._stdout.close()
        self._stderr.close()


@contextmanager
def program(*arguments: str, env: dict[str, str], cwd: Path = PROJECT) -> Iterator[Program]:
    started = Program(*arguments, env=env, cwd=cwd)
    try:
        yield started
    finally:
        started.close()


@contextmanager
def worker(settings: Settings, *arguments: str) -> Iterator[Program]:
    """A worker that takes tasks; its log lines are JSON unless told otherwise."""
    given = ("worker", "-A", MODULE, "--log-format", "json", *arguments)
    with program(*given, env=environment(settings)) as started:
        started.wait_for(lambda: "worker started" in started.stdout or "takes tasks" in started.stdout)
        yield started


def wait_for(condition: Callable[[], object], tell: Callable[[], str] = lambda: "") -> None:
    until = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < until, f"waited in vain: {tell()}"
        time.sleep(0.02)


def _content(file: Any) -> str:
    # Read by position: the writer shares the file's offset with us.
    return os.pread(file.fileno(), 1 << 24, 0).decode()
