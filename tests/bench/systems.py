"""What is measured: this product in its two modes, the bare loop, and (in `peers`) the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psycopg
import redis

APPS = "tests.bench.apps"
CORES = os.cpu_count() or 2
IO_SLOTS = 500  # tasks that wait at once
Shape = Literal["noop", "io", "cpu", "jobs", "plain"]
Commands = list[list[str]]


class System(NamedTuple):
    """One row of the table."""

    name: str
    app: str  # module under apps/
    worker: Callable[[Path, int, Shape], Commands]  # for so many processes, given the venv's bin folder
    tuned: str
    page: str  # of its documentation that `tuned` follows
    left: str | Callable[[redis.Redis], Any]  # what is not finished: SQL, with {count} for all, or a look at Redis
    wheels: tuple[str, ...] = ()  # none: runs in our own venv
    redis: bool = True
    postgres: bool = False
    drain: int = 20_000  # tasks: 1 to 3 s of them
    rows: int = 1_000  # of one bulk call
    asynchronous: bool = True  # whether its client has coroutines; else threads enqueue at once
    skips: frozenset[str] = frozenset()  # kinds of figures that say nothing of it
    isolation: str = "none: a worker process a core"
    io: str = f"{IO_SLOTS} coroutines in one process"
    jobs: str = ""  # what of it is a graph; empty: it has none

    @property
    def is_peer(self) -> bool:
        """Whether it is somebody else's."""
        return bool(self.wheels)


def ours() -> list[System]:
    """This product with Redis, with Postgres alone, and the limit of its statements."""
    command = [str(Path(sys.executable).with_name("aaiclick-queue")), "worker", "-A"]

    def worker(_: Path, processes: int, shape: Shape) -> Commands:
        if shape in {"cpu", "plain"}:
            return [[*command, f"{APPS}.ours_{shape}"]]
        slots = ["-c", str(IO_SLOTS)] if shape == "io" else []
        return [[*command, f"{APPS}.ours", *slots]] * processes

    left = "SELECT EXISTS (SELECT FROM aaiclick_queue.ready) OR EXISTS (SELECT FROM aaiclick_queue.leases)"
    with_redis = System(
        "aaiclick-queue, Redis",
        "ours",
        worker,
        "aaiclick-queue worker with its defaults: 100 slots, background loops on, log level WARNING; enqueue_many; "
        "enqueues and completions wait for the disk; claims and deletes of outbox rows do not (synchronous_commit=off "
        "in their own statements): what a crash forgets of them is given out or told of again",
        "docs/fleet.md",
        left,
        postgres=True,
        drain=40_000,
        rows=5_000,
        isolation="isolation='process': a warm child a core",
        jobs="@job",
    )
    alone = with_redis._replace(name="aaiclick-queue, Postgres alone", redis=False, skips=frozenset({"def", "result"}))
    return [with_redis, alone, _bare(left)]


def _bare(left: str) -> System:
    def worker(_: Path, processes: int, shape: Shape) -> Commands:
        # Whoever computes takes few at a time, or one process has all of it.
        return with_environ(scripts("bare", processes), BENCH_BATCH=4 if shape == "cpu" else 500)

    return System(
        "bare loop",
        "bare",
        worker,
        "the product's statements and Redis commands in an asyncpg loop on uvloop: batches of 500, 2 connections; no "
        "single enqueues, as to gather those of many callers is a product's work",
        "tests/bench/apps/bare.py",
        left,
        postgres=True,
        drain=40_000,
        rows=5_000,
        io=f"{IO_SLOTS} coroutines, a batch, in one process",
        skips=frozenset({"concurrent", "single", "quiet", "idle", "def", "result"}),
    )


def scripts(app: str, processes: int, python: Path = Path(sys.executable)) -> Commands:
    """So many of the app's own worker."""
    return [[str(python), "-m", f"{APPS}.{app}", "work"]] * processes


def with_environ(commands: Commands, **environ: object) -> Commands:
    """The same commands with more in their environment."""
    return [["env", *(f"{name}={value}" for name, value in environ.items()), *command] for command in commands]


def finished(connection: psycopg.Connection[Any] | None, server: redis.Redis, system: System, count: int) -> bool:
    """Whether the system has written down that all of `count` tasks have ended."""
    if not isinstance(system.left, str):
        return not system.left(server)
    assert connection is not None
    row = connection.execute(system.left.format(count=count)).fetchone()
    return not (row and row[0])
