"""What is measured: this product in its two modes, the bare loop, and the peers, each as its documentation says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

APPS = "tests.bench.apps"


class System(NamedTuple):
    """One row of the table."""

    name: str
    app: str  # module under apps/
    worker: Callable[[Path, int], list[list[str]]]  # commands for so many processes, given the venv's bin folder
    tuned: str
    left: str | dict[str, str]  # what is not finished: SQL that gives a boolean, or Redis keys and how to count
    wheels: tuple[str, ...] = ()  # none: runs in our own venv
    redis: bool = True
    postgres: bool = False
    drain: int = 30_000
    bulk: int = 50_000
    single: int = 1_000
    asynchronous: bool = True  # whether one process can have several enqueues under way

    @property
    def is_peer(self) -> bool:
        """Whether it is somebody else's."""
        return bool(self.wheels)


def ours() -> list[System]:
    """This product with Redis, with Postgres alone, and the limit of its statements."""
    command = Path(sys.executable).with_name("aaiclick-queue")
    by_command = command.exists() and importlib.util.find_spec("aaiclick_queue.cli") is not None

    def worker(_: Path, processes: int) -> list[list[str]]:
        if by_command:
            return [[str(command), "worker", "-A", f"{APPS}.ours"]] * processes
        return _scripts("ours", processes)

    left = "SELECT EXISTS (SELECT FROM aaiclick_queue.ready) OR EXISTS (SELECT FROM aaiclick_queue.leases)"
    run = "aaiclick-queue worker" if by_command else "Worker(Plan()) on uvloop"
    tuned = f"{run}, defaults: 100 slots, background loops on; log level WARNING"
    with_redis = System("aaiclick-queue, Redis", "ours", worker, tuned, left, postgres=True)
    return [
        with_redis,
        with_redis._replace(name="aaiclick-queue, Postgres alone", redis=False),
        System(
            "bare statements",
            "bare",
            lambda _, processes: _scripts("bare", processes),
            "claim and complete in an asyncpg loop on uvloop: batches of 500, 2 connections a process",
            left,
            redis=False,
            postgres=True,
        ),
    ]


def peers() -> list[System]:
    """The others, pinned."""
    return [_pgqueuer(), _dramatiq(), _celery(), _arq(), _procrastinate()]


def _pgqueuer() -> System:
    return System(
        "pgqueuer",
        "pgqueuer_app",
        lambda bin_, processes: _scripts("pgqueuer_app", processes, bin_ / "python"),
        "run(batch_size=100), asyncpg, uvloop, durable, its autovacuum settings; producer on a pool, 1,000 rows a call "
        "(docs: guides/performance-tuning, guides/programmatic-run)",
        "SELECT EXISTS (SELECT FROM pgqueuer)",
        wheels=("pgqueuer==1.6.0", "asyncpg", "uvloop"),
        redis=False,
        postgres=True,
    )


def _dramatiq() -> System:
    def worker(bin_: Path, processes: int) -> list[list[str]]:
        flags = ["-p", str(processes), "-t", "8"]
        return [["env", "dramatiq_queue_prefetch=200", str(bin_ / "dramatiq"), f"{APPS}.dramatiq_app", *flags]]

    return System(
        "Dramatiq",
        "dramatiq_app",
        worker,
        "Redis broker, -t 8, prefetch 200, no results, hiredis; group().run() (docs: reference, environment variables)",
        {"dramatiq:default.msgs": "hlen"},
        wheels=("dramatiq[redis]==2.2.1", "hiredis"),
        drain=6_000,
        bulk=5_000,
        asynchronous=False,
    )


def _celery() -> System:
    flags = ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    return System(
        "Celery",
        "celery_app",
        lambda bin_, processes: [
            [str(bin_ / "celery"), "-A", f"{APPS}.celery_app", "worker", "-P", "prefork", "-c", str(processes), *flags]
        ],
        "Redis broker, prefork, prefetch multiplier 128, results ignored, no gossip, mingle, heartbeat; one producer "
        "(docs: userguide/optimizing)",
        {"celery": "llen", "unacked": "hlen"},
        wheels=("celery[redis]==5.7.0", "hiredis"),
        drain=2_500,
        bulk=2_500,
        asynchronous=False,
    )


def _arq() -> System:
    return System(
        "arq",
        "arq_app",
        lambda bin_, processes: [[str(bin_ / "arq"), f"{APPS}.arq_app.WorkerSettings"]] * processes,
        "max_jobs 100, queue_read_limit 1,000, poll_delay 10 ms, results not kept, uvloop; 100 enqueue_job at once "
        "(docs: arq.worker.Worker)",
        {"arq:queue": "zcard"},
        wheels=("arq==0.28.0", "hiredis", "uvloop"),
        drain=1_500,
        bulk=5_000,
    )


def _procrastinate() -> System:
    app = ["--app", f"{APPS}.procrastinate_app.app", "worker"]
    return System(
        "Procrastinate",
        "procrastinate_app",
        lambda bin_, processes: [[str(bin_ / "procrastinate"), *app, "-c", "30"]] * processes,
        "worker -c 30, pool of 30, psycopg binary; batch_defer, 1,000 rows a call (docs: howto/basics/worker, "
        "howto/basics/batch_defer)",
        "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        wheels=("procrastinate==3.10.0", "psycopg[binary,pool]"),
        redis=False,
        postgres=True,
        drain=1_000,
        bulk=20_000,
    )


def _scripts(app: str, processes: int, python: Path = Path(sys.executable)) -> list[list[str]]:
    return [[str(python), "-m", f"{APPS}.{app}", "work"]] * processes
