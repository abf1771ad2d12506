"""The others, pinned, each tuned for throughput as its own documentation says, with the page that says so.

What is not tuned is durability: whoever acknowledges after the run by default does so here.
"""

from __future__ import annotations

from pathlib import Path

from .systems import APPS, CORES, IO_SLOTS, Commands, Shape, System, scripts, with_environ

ONE_AT_A_TIME = 16  # processes for tasks that wait, of a system that runs one task a process
PER_PROCESS = "none: a worker process a core"


def peers() -> list[System]:
    """Ten of them."""
    return [
        _celery(),
        _dramatiq(),
        _taskiq(),
        _arq(),
        _rq(),
        _huey(),
        _procrastinate(),
        _pgqueuer(),
        _awa(),
        _streaq(),
    ]


def _celery() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        pool = ["-P", "gevent", "-c", str(IO_SLOTS)] if shape == "io" else ["-P", "prefork", "-c", str(processes)]
        flags = ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        command = [[str(bin_ / "celery"), "-A", f"{APPS}.celery_app", "worker", *pool, *flags]]
        return with_environ(command, BENCH_JOBS=1) if shape == "jobs" else command

    return System(
        "Celery",
        "celery_app",
        worker,
        "Redis broker, prefork, worker_prefetch_multiplier=128, results ignored, no gossip, mingle, heartbeat; "
        "hiredis; apply_async in a loop through one producer a thread, as it has no bulk call",
        "https://docs.celeryq.dev/en/stable/userguide/optimizing.html",
        lambda server: server.llen("celery") or server.hlen("unacked"),
        wheels=("celery[redis]==5.7.0", "gevent", "hiredis"),
        drain=2_000,
        rows=200,
        asynchronous=False,
        isolation="prefork",
        io=f"gevent pool of {IO_SLOTS}",
        jobs="chain and chord, results in Redis",
    )


def _dramatiq() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        threads = {"io": IO_SLOTS, "cpu": 1}.get(shape, 8)
        name = "dramatiq-gevent" if shape == "io" else "dramatiq"
        flags = ["-p", str(processes), "-t", str(threads)]
        command = with_environ([[str(bin_ / name), f"{APPS}.dramatiq_app", *flags]], dramatiq_queue_prefetch=200)
        return with_environ(command, BENCH_JOBS=1) if shape == "jobs" else command

    return System(
        "Dramatiq",
        "dramatiq_app",
        worker,
        "Redis broker, -t 8, dramatiq_queue_prefetch=200, no results, hiredis; send in a loop, as its groups do",
        "https://dramatiq.io/reference.html",
        lambda server: server.hlen("dramatiq:default.msgs"),
        wheels=("dramatiq[redis]==2.2.1", "gevent", "hiredis"),
        drain=5_000,
        rows=500,
        asynchronous=False,
        isolation="a process a core, one thread each",
        io=f"dramatiq-gevent, {IO_SLOTS} greenlets",
        jobs="group with a completion callback, pipeline",
    )


def _taskiq() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        workers = ["-w", str(1 if shape == "cpu" else processes)]
        slots = ["--max-async-tasks", str(IO_SLOTS if shape == "io" else 100), "--max-prefetch", "100"]
        pool = ["--use-process-pool", "--max-process-pool-processes", str(CORES)] if shape == "cpu" else []
        flags = ["--no-parse", "--log-level", "WARNING"]
        return [[str(bin_ / "taskiq"), "worker", f"{APPS}.taskiq_app:broker", *workers, *slots, *pool, *flags]]

    def left(server: object) -> bool:
        [group] = server.xinfo_groups("taskiq")  # type: ignore[attr-defined]
        return bool(group["pending"] or group["lag"])

    return System(
        "taskiq",
        "taskiq_app",
        worker,
        "RedisStreamBroker, --max-async-tasks 100, --max-prefetch 100, --no-parse, no results, acknowledged when "
        "saved, uvloop, hiredis; 100 kiq at once, as it has no bulk call",
        "https://taskiq-python.github.io/guide/cli.html",
        left,
        wheels=("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis", "uvloop"),
        drain=6_000,
        isolation="--use-process-pool, a process a core",
    )


def _arq() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        commands = [[str(bin_ / "arq"), f"{APPS}.arq_app.WorkerSettings"]] * processes
        return with_environ(commands, BENCH_SLOTS=IO_SLOTS) if shape == "io" else commands

    return System(
        "arq",
        "arq_app",
        worker,
        "max_jobs 100, queue_read_limit 1,000, poll_delay 10 ms, results not kept, uvloop, hiredis; 100 enqueue_job "
        "at once, as it has no bulk call",
        "https://arq-docs.helpmanual.io/#arq.worker.Worker",
        lambda server: server.zcard("arq:queue"),
        wheels=("arq==0.28.0", "hiredis", "uvloop"),
        drain=1_500,
        rows=500,
    )


def _rq() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        kind = "rq.worker.Worker" if shape == "cpu" else "rq.worker.SimpleWorker"
        # Not worker-pool: it gives every worker a scheduler, one process more each.
        return [[str(bin_ / "rq"), "worker", "-q", "-w", kind]] * (ONE_AT_A_TIME if shape == "io" else processes)

    return System(
        "RQ",
        "rq_app",
        worker,
        "rq worker -w rq.worker.SimpleWorker, which does not fork for each job, a command a process, results not kept, "
        "hiredis; enqueue_many of 1,000 in a pipeline",
        "https://github.com/rq/rq/blob/master/docs/benchmark.md",
        lambda server: server.llen("rq:queue:default") or server.zcard("rq:wip:default"),
        wheels=("rq==2.12.0", "hiredis"),
        drain=1_500,
        asynchronous=False,
        isolation="its default Worker: a fork a job, a worker a core",
        io=f"{ONE_AT_A_TIME} workers: each runs one job at a time",
        jobs="depends_on",
    )


def _huey() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        consumer = [str(bin_ / "huey_consumer"), f"{APPS}.huey_app.huey", "-q", "-n"]
        if shape == "io":  # its guide: greenlets want gevent's patches before all else
            return [[str(bin_ / "python"), "-m", "gevent.monkey", *consumer, "-k", "greenlet", "-w", str(IO_SLOTS)]]
        command = [[*consumer, "-k", "process", "-w", str(processes)]]
        return with_environ(command, BENCH_JOBS=1) if shape == "jobs" else command

    return System(
        "Huey",
        "huey_app",
        worker,
        "RedisHuey with blocking pop, results off, -k process, -n, quiet, hiredis; tasks called in a loop, as it has "
        "no bulk call; at most once: a task in a worker that dies is gone",
        "https://huey.readthedocs.io/en/latest/consumer.html",
        lambda server: server.llen("huey.redis.bench"),
        wheels=("huey==3.5.4", "gevent", "hiredis", "redis"),
        drain=8_000,
        asynchronous=False,
        isolation="-k process, a process a core",
        io=f"-k greenlet -w {IO_SLOTS}",
        jobs="chord, pipeline with then()",
    )


def _procrastinate() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        slots = ["-c", str(IO_SLOTS if shape == "io" else 30)]
        return [[str(bin_ / "procrastinate"), "--app", f"{APPS}.procrastinate_app.app", "worker", *slots]] * processes

    return System(
        "Procrastinate",
        "procrastinate_app",
        worker,
        "worker -c 30, pool of 30, psycopg binary; batch_defer, 1,000 rows a call",
        "https://procrastinate.readthedocs.io/en/stable/howto/basics/worker.html",
        "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
        wheels=("procrastinate==3.10.0", "psycopg[binary,pool]"),
        redis=False,
        postgres=True,
        drain=800,
    )


def _pgqueuer() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        commands = scripts("pgqueuer_app", processes, bin_ / "python")
        return with_environ(commands, BENCH_SLOTS=IO_SLOTS) if shape == "io" else commands

    return System(
        "pgqueuer",
        "pgqueuer_app",
        worker,
        "run(batch_size=100), asyncpg, uvloop, durable, its autovacuum settings; producer on a pool, 1,000 rows a call",
        "https://pgqueuer.readthedocs.io/en/latest/guides/performance-tuning/",
        "SELECT EXISTS (SELECT FROM pgqueuer)",
        wheels=("pgqueuer==1.6.0", "asyncpg", "uvloop"),
        redis=False,
        postgres=True,
    )


def _awa() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        commands = scripts("awa_app", processes, bin_ / "python")
        return with_environ(commands, BENCH_SLOTS=IO_SLOTS) if shape == "io" else commands

    return System(
        "awa-pg",
        "awa_app",
        worker,
        "queue storage, one queue of 256 workers a process, pool of 24, uvloop; enqueue_many_copy of 5,000",
        "https://github.com/hardbyte/awa/blob/main/docs/benchmarking.md",
        "SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)"
        " + (SELECT count(*) FROM awa.done_entries) < {count}",
        wheels=("awa-pg==0.6.9", "uvloop"),
        redis=False,
        postgres=True,
        drain=8_000,
        rows=5_000,
    )


def _streaq() -> System:
    def worker(bin_: Path, processes: int, shape: Shape) -> Commands:
        commands = [[str(bin_ / "streaq"), "run", f"{APPS}.streaq_app:worker", "-w", str(processes)]]
        if shape == "jobs":
            return with_environ(commands, BENCH_JOBS=1)
        return with_environ(commands, BENCH_SLOTS=IO_SLOTS) if shape == "io" else commands

    return System(
        "streaQ",
        "streaq_app",
        worker,
        "concurrency 32, prefetch as much, silent, results not kept, uvloop; enqueue_many of 1,000 in a pipeline",
        "https://github.com/tastyware/streaq/blob/master/benchmarks/README.md",
        lambda server: server.xlen("streaq:default:queues:normal"),
        wheels=("streaq==7.2.0", "hiredis", "uvloop"),
        drain=4_000,
        jobs="after=, then()",
    )
