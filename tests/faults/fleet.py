"""Real worker processes, ways to hurt them, and a look at what they did."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
import psycopg
from psycopg.rows import dict_row

from aaiclick_queue.settings import PREFIX, Settings
from tests.faults.tasks import RUNS_FILE, tick
from tests.wires.redis_server import OwnRedis

PROJECT = Path(__file__).parents[2]
MODULE = "tests.faults.tasks"
LONGEST = 30.0
OURS = "aaiclick_queue."


class RunLine(msgspec.Struct, frozen=True):
    """One start of one run, as the run itself wrote it down."""

    what: str
    task_id: int
    run_epoch: int
    pid: int


class Fleet:
    """The workers of one test; whatever still runs at its end is ended."""

    def __init__(self, settings: Settings, **environment: object) -> None:
        self.settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="faults-")
        self._runs = Path(self._folder.name) / "runs"
        self._runs.touch()
        given = settings.model_dump(mode="json", exclude_unset=True) | environment
        ours = {PREFIX + name.upper(): str(value) for name, value in given.items() if value is not None}
        self._environment = {**os.environ, **ours, "PYTHONPATH": str(PROJECT), RUNS_FILE: str(self._runs)}
        self.workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        self._folder.cleanup()

    def start(self, *arguments: str) -> WorkerProcess:
        """A worker process that takes tasks."""
        return self.start_all(1, *arguments)[0]

    def start_all(self, count: int, *arguments: str) -> list[WorkerProcess]:
        """So many, that start side by side."""
        started = [self._spawn(*arguments) for _ in range(count)]
        for worker in started:
            wait_for(partial(worker.said, "worker started"), worker.output)
        return started

    def _spawn(self, *arguments: str) -> WorkerProcess:
        output = Path(self._folder.name) / f"worker-{len(self.workers)}"
        command = [sys.executable, "-m", "aaiclick_queue", "worker", "-A", MODULE, "--log-format", "json", *arguments]
        with output.open("wb") as file:
            process = subprocess.Popen(command, env=self._environment, cwd=PROJECT, stdout=file, stderr=file)
        worker = WorkerProcess(process, output)
        self.workers.append(worker)
        return worker

    def enough(self) -> None:
        """Let a blocked loop go on."""
        self._runs.with_name("enough").touch()

    def runs(self) -> list[RunLine]:
        """Every run that has started, in order."""
        lines = (line.split() for line in self._runs.read_text().splitlines())
        return [RunLine(what, int(task_id), int(epoch), int(pid)) for what, task_id, epoch, pid in lines]

    def runs_started(self) -> int:
        return len(self.runs())


class WorkerProcess:
    """One worker process from outside."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output
        self.pid = process.pid

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def said(self, words: str) -> int:
        """How many of its log lines have these words."""
        return sum(words in line for line in self.output().splitlines())

    def lines(self) -> list[dict[str, Any]]:
        """Its log lines."""
        return [json.loads(line) for line in self.output().splitlines() if line.startswith("{")]

    def errors(self) -> list[dict[str, Any]]:
        """Log lines that tell of something that nobody expected: those with a traceback."""
        return [line for line in self.lines() if "Traceback" in json.dumps(line) and line["event"] != "task failed"]

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait(LONGEST)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Tell it to stop by SIGTERM; its exit code."""
        self._process.terminate()
        return self._process.wait(LONGEST)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.is_alive:
            self.thaw()
            self._process.kill()
            self._process.wait()


class Console:
    """Somebody who looks at the database while things go wrong; connects anew after every restart of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def rows(self, sql: str, *args: object) -> list[dict[str, Any]]:
        """Rows of a statement, once the database answers."""
        until = time.monotonic() + LONGEST
        while True:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(self._url, autocommit=True, row_factory=dict_row)
                cursor = self._connection.execute(sql, args)
                return cursor.fetchall() if cursor.description else []
            except psycopg.OperationalError:
                self._connection = None
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def value(self, sql: str, *args: object) -> Any:
        [row] = self.rows(sql, *args)
        return next(iter(row.values()))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def open_tasks(self) -> int:
        return int(self.value("SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL"))

    def statuses(self) -> dict[str | None, int]:
        """How many tasks ended how."""
        rows = self.rows("SELECT status, count(*) AS n FROM aaiclick_queue.tasks GROUP BY status")
        return {row["status"]: row["n"] for row in rows}

    def history(self) -> Counter[str]:
        """How many runs ended otherwise than by the end of their task."""
        rows = self.rows("SELECT outcome, count(*) AS n FROM aaiclick_queue.attempts GROUP BY outcome")
        return Counter({row["outcome"]: row["n"] for row in rows})

    def worker_of(self, pid: int, status: str = "ACTIVE") -> list[int]:
        """Ids of the worker incarnations of a process."""
        rows = self.rows("SELECT id FROM aaiclick_queue.workers WHERE pid = %s AND status = %s", pid, status)
        return [row["id"] for row in rows]

    def wait_for_all(self, fleet: Fleet) -> None:
        """Until every task has ended."""
        wait_for(lambda: not self.open_tasks(), lambda: "\n".join(worker.output()[-3000:] for worker in fleet.workers))


@contextmanager
def console(url: str) -> Iterator[Console]:
    opened = Console(url)
    try:
        yield opened
    finally:
        opened.close()


def check_fence(fleet: Fleet, console: Console) -> None:
    """No fence ran twice, what is recorded is what the recorded epoch returned, and that epoch is the last one.

    One epoch may run in two workers: a claim that a crash of Postgres forgot is given out again.
    """
    runs = Counter((run.task_id, run.run_epoch, run.pid) for run in fleet.runs())
    doubled = [run for run, times in runs.items() if times > 1]
    assert not doubled, f"runs of one fence more than once: {doubled}"
    last: dict[int, int] = {}
    for task_id, epoch, _ in runs:
        last[task_id] = max(epoch, last.get(task_id, 0))
    ended = "SELECT id, entrypoint, run_epoch, result FROM aaiclick_queue.tasks WHERE status = 'COMPLETED'"
    for row in console.rows(ended):
        if row["entrypoint"].startswith(OURS):
            continue  # they leave no line
        assert row["run_epoch"] == last[row["id"]]
        assert row["entrypoint"] != tick.entrypoint or row["result"] == row["run_epoch"]


def ask(server: OwnRedis, *words: str) -> bytes:
    """One command by hand."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
        connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        return connection.recv(65536)


def wait_for(condition: Callable[[], object], tell: Callable[[], str] = str, seconds: float = LONGEST) -> None:
    """Until the condition holds; what `tell` gives explains a failure."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain: {tell()}"
        time.sleep(0.02)
