"""Where it is measured: throw-away servers, a fresh database and an empty Redis for each figure, and the machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
import psycopg
import redis

import aaiclick_queue
from aaiclick_queue import embedded
from aaiclick_queue.settings import PREFIX
from tests.servers import Databases
from tests.wires.redis_server import OwnRedis

from .apps import tally
from .systems import APPS, System, finished

PROJECT = Path(__file__).parents[2]
POSTGRES_FACTS = ("server_version", "fsync", "synchronous_commit", "wal_sync_method", "shared_buffers", "max_wal_size")


class Broken(Exception):
    """A step of a measurement did not work; the others go on."""


class Place(NamedTuple):
    """A fresh database and an empty Redis for one figure of one system."""

    system: System
    bin: Path
    folder: Path
    environ: dict[str, str]
    database: psycopg.Connection[Any] | None
    redis: redis.Redis

    def ask(self, *arguments: object, **environ: str) -> dict[str, float]:
        """Run a command of the system's driver to its end, and give what it answers."""
        words = " ".join(map(str, arguments))
        command = [str(self.bin / "python"), "-m", f"{APPS}.{self.system.app}", *words.split()]
        quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(
            command, cwd=PROJECT, env=self.environ | environ, start_new_session=True, **quiet
        ) as process:
            try:
                said, complaint = process.communicate(timeout=tally.step_seconds())
            except subprocess.TimeoutExpired as error:
                raise Broken(f"{words} took more than {tally.step_seconds():.0f} s") from error
            finally:
                end(process)
        if process.returncode != 0:
            raise Broken(f"{words}: {last_line(complaint)}")
        answer: dict[str, float] = json.loads(said) if said else {}
        return answer

    def finished(self, count: int) -> bool:
        """Whether all of so many tasks are recorded as ended."""
        return finished(self.database, self.redis, self.system, count)

    def wal_bytes(self) -> int:
        """Bytes of WAL that the server has written so far."""
        return int(self.value("SELECT pg_current_wal_lsn() - '0/0'"))

    def value(self, sql: str) -> Any:
        """First column of the first row."""
        assert self.database is not None
        row = self.database.execute(sql).fetchone()
        return row[0] if row else None


class Servers:
    """Postgres and Redis for the time of a run: the given ones, else ones of its own with their default settings."""

    def __init__(self) -> None:
        self._exit = ExitStack()
        self._templates: dict[str, str] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            given = os.environ.get(PREFIX + "POSTGRES_URL")
            self.postgres_given = bool(given)
            self._databases = Databases(given or self._own_postgres(stack))
            self.redis_url = os.environ.get(PREFIX + "REDIS_URL") or stack.enter_context(OwnRedis()).url
            self.redis = redis.Redis.from_url(self.redis_url)
            stack.callback(self.redis.close)
            if self.redis.dbsize():
                raise SystemExit(
                    f"{PREFIX}REDIS_URL names a database that is not empty, and the benchmark empties it: name "
                    "another one, such as redis://…/15, or unset it for a throw-away server"
                )
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @contextmanager
    def place(self, system: System, bin_: Path) -> Iterator[Place]:
        """A place of the figure's own; gone afterwards."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aaiq-bench-")))
            tally.prepare(folder)
            self.redis.flushdb()
            connection, url = None, ""
            if system.postgres:
                url = self._databases.url(stack.enter_context(self._databases.new(self._template(system, bin_))))
                connection = stack.enter_context(psycopg.connect(url, autocommit=True))
                with suppress(psycopg.errors.InsufficientPrivilege):
                    connection.execute("CHECKPOINT")  # what was dirty is of others
            yield Place(system, bin_, folder, self._environ(system, folder, url), connection, self.redis)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database; gone afterwards."""
        with self._databases.new() as name:
            yield self._databases.url(name)

    def _template(self, system: System, bin_: Path) -> str:
        key = system.app if system.is_peer else "ours"
        if key not in self._templates:
            name = self._exit.enter_context(self._databases.new())
            environ = self._environ(system, Path(), self._databases.url(name))
            Place(system, bin_, Path(), environ, None, self.redis).ask("setup")
            self._templates[key] = name
        return self._templates[key]

    def _environ(self, system: System, folder: Path, url: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        given = {tally.FOLDER: str(folder), "BENCH_POSTGRES_URL": url, "BENCH_REDIS_URL": self.redis_url}
        given["RQ_REDIS_URL"] = self.redis_url
        if not system.is_peer:
            given |= {PREFIX + "POSTGRES_URL": url, PREFIX + "LOG_LEVEL": "WARNING"}
            given |= {PREFIX + "REDIS_URL": self.redis_url} if system.redis else {}
        return kept | given | {"PYTHONPATH": str(PROJECT)}

    def _own_postgres(self, stack: ExitStack) -> str:
        # On a disk, unlike the tests' servers: in memory an fsync would cost nothing.
        folder = Path(tempfile.mkdtemp(prefix="aaiq-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        self._folder = folder
        server = embedded.start(folder / "home")
        stack.callback(server.stop)
        return server.dsn

    def facts(self) -> dict[str, str]:
        """The machine and the servers, as far as figures depend on them."""
        with self._databases.new() as name, psycopg.connect(self._databases.url(name)) as connection:
            shown = {fact: connection.execute(f"SHOW {fact}").fetchone() for fact in POSTGRES_FACTS}
        about: dict[str, Any] = self.redis.info()
        server = "Valkey " + about["valkey_version"] if "valkey_version" in about else "Redis " + about["redis_version"]
        saves = "on" if about.get("aof_enabled") else "off"
        return {
            "machine": f"{_processor()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, "
            f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
            "aaiclick-queue": _own_version(),
            "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
            "Postgres": ", ".join(f"{fact} {row[0]}" for fact, row in shown.items() if row)
            + (
                ", the given one" if self.postgres_given else f", embedded, {_fsync_microseconds():.0f} µs an fdatasync"
            ),
            "Redis": f"{server}, append-only file {saves}",
        }


def end(process: subprocess.Popen[Any]) -> None:
    """Kill it with all its children, which are of its own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(text: str) -> str:
    """What a program that failed said at the end."""
    return text.strip().rpartition("\n")[2] or "it said nothing"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _own_version() -> str:
    """The version, and the commit where git knows it."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(asked, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
        return f"{aaiclick_queue.__version__}, commit {said.strip()}"
    return aaiclick_queue.__version__


def _fsync_microseconds(rounds: int = 50) -> float:
    with tempfile.TemporaryFile(prefix="aaiq-bench-") as file:
        began = time.perf_counter()
        for _ in range(rounds):
            os.pwrite(file.fileno(), b"x" * 8192, 0)
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
        return (time.perf_counter() - began) / rounds * 1e6
