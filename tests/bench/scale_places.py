"""What the figures of scale stand on: backlogs and histories written by SQL, proxies, a pooler, and timed stretches."""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg

from aaiclick_queue.settings import PREFIX
from tests.wires.pgbouncer import PgBouncer

from .apps import tally
from .measures import complain_of_the_dead, workers
from .places import PROJECT, Broken, Place, end

# Ids as the product draws them grow with time: a backlog is older than what comes after it, so it lies in front.
FILL_READY = """
WITH new AS (
    INSERT INTO aaiclick_queue.tasks (id, kwargs, entrypoint, queue)
    SELECT %(start)s + n, '{{"value": 1}}', 'bench.noop',
           CASE WHEN %(queues)s = 1 THEN 'default' ELSE 'q' || n %% %(queues)s END
    FROM generate_series(1, %(count)s) AS n RETURNING id, queue)
INSERT INTO aaiclick_queue.ready (queue, rank, order_key, task_id) SELECT queue, 0, id, id FROM new
""".replace("{{", "{").replace("}}", "}")
FILL_HISTORY = """
INSERT INTO aaiclick_queue.tasks (id, kwargs, entrypoint, queue, status, started_at, finished_at, worker_id, run_epoch,
                                  attempt)
SELECT %(start)s + n, '{"value": 1}', 'bench.noop', 'default', 'COMPLETED', now(), now(), 1, 1, 1
FROM generate_series(1, %(count)s) AS n
"""
# As the enqueue of many leaves one: relays wake as many workers as so many tasks deserve.
TELL = """
INSERT INTO aaiclick_queue.outbox (queue, rank, order_key, n, task_ids) VALUES ('default', 0, %s, %s, ARRAY[%s])
"""
SLICE = 500_000  # rows of one statement
NOTHING = tally.Seen()
READY_WAIT_SECONDS = 0.02
ECHOES = 200


def fill(place: Place, count: int, *, queues: int = 1, statement: str = FILL_READY, first: int = 0) -> None:
    """Write that many tasks, and let the planner know."""
    write(place, count, queues=queues, statement=statement, first=first)
    assert place.database is not None
    place.database.execute("VACUUM (ANALYZE) aaiclick_queue.tasks")
    place.database.execute("VACUUM (ANALYZE) aaiclick_queue.ready")


def write(place: Place, count: int, *, queues: int = 1, statement: str = FILL_READY, first: int = 0) -> None:
    """Write that many tasks, and leave the rest to autovacuum."""
    assert place.database is not None
    for start in range(0, count, SLICE):
        size = min(SLICE, count - start)
        values = {"start": first + start, "count": size, "queues": queues}
        place.database.execute(
            statement, values if "queues" in statement else {"start": values["start"], "count": size}
        )


def tell(place: Place, count: int, *, first: int) -> None:
    """Have workers woken for tasks that were written."""
    assert place.database is not None
    place.database.execute(TELL, (first + 1, count, first + 1))


def rate_of(place: Place, count: int, processes: int, *, flags: tuple[str, ...] = ()) -> float:
    """Tasks a second over `count` runs of what waits, after a warm-up of a twentieth."""
    system = place.system
    given = system._replace(worker=lambda *all_: [[*command, *flags] for command in system.worker(*all_)])
    with workers(place._replace(system=given), processes) as running:
        return stretch(place, running, count, processes)


def stretch(
    place: Place, running: list[subprocess.Popen[bytes]], count: int, processes: int = 1, before: tally.Seen = NOTHING
) -> float:
    """Tasks a second of the `count` runs since `before`, once every process works: after a twentieth at the least."""
    began, warm, give_up = time.perf_counter(), 0, time.perf_counter() + tally.step_seconds()
    while True:
        seen = tally.seen(place.folder).since(before)
        runs, at = seen.runs, time.perf_counter()
        if runs >= count:
            return (runs - warm) / (at - began)
        if not warm and runs >= count / 20 and (seen.processes >= processes or runs >= count / 3):
            began, warm = at, runs
        complain_of_the_dead(place, running)
        if at > give_up:
            raise Broken(f"{runs:,} of {count:,} tasks after {tally.step_seconds():.0f} s")
        time.sleep(READY_WAIT_SECONDS)


def held_rate(place: Place, count: int, processes: int, *, backlog: int, lot: int) -> float:
    """Tasks a second over `count` runs while `backlog` to `backlog` + `lot` wait, by processes that all work.

    What has run is written anew in lots, and the clock stands meanwhile: at every backlog as many tasks are timed, and
    the writing is in none of the figures.
    """
    fill(place, backlog + lot)
    written, timed, seconds, give_up = backlog + lot, 0, 0.0, time.perf_counter() + tally.step_seconds()
    with workers(place, processes) as running:
        while timed < count:
            if time.perf_counter() > give_up:
                raise Broken(f"{timed:,} of {count:,} tasks after {tally.step_seconds():.0f} s")
            is_warm = tally.seen(place.folder).processes >= processes
            runs, took = _run_until(place, running, written - backlog, give_up)
            if is_warm:
                timed, seconds = timed + runs, seconds + took
            write(place, lot, first=written)
            written += lot
    return timed / seconds


def _run_until(place: Place, running: list[subprocess.Popen[bytes]], goal: int, give_up: float) -> tuple[int, float]:
    """How many runs there were until there had been `goal` in all, and how long they took."""
    began, before = time.perf_counter(), tally.seen(place.folder).runs
    at, runs = began, before
    while runs < goal and at < give_up:
        time.sleep(READY_WAIT_SECONDS)
        at, runs = time.perf_counter(), tally.seen(place.folder).runs
        complain_of_the_dead(place, running)
    return runs - before, at - began


@contextmanager
def behind_proxies(place: Place, delay_ms: float) -> Iterator[Place]:
    """The same place, Postgres and Redis each behind a proxy that delays every byte so long, each way."""
    redis_port = urlsplit(place.environ["BENCH_REDIS_URL"])
    with (
        delaying_proxy(delay_ms, _postgres_address(place)) as postgres,
        delaying_proxy(delay_ms, f"{redis_port.hostname}:{redis_port.port}") as redis,
    ):
        info = _info(place)
        url = f"postgresql://{info.get('user', 'postgres')}@127.0.0.1:{postgres}/{info['dbname']}"
        given = {PREFIX + "POSTGRES_URL": url, PREFIX + "REDIS_URL": f"redis://127.0.0.1:{redis}{redis_port.path}"}
        yield place._replace(environ=place.environ | given)


@contextmanager
def behind_pgbouncer(place: Place) -> Iterator[Place]:
    """The same place through a pooler in transaction mode."""
    # Behind a proxy: pgbouncer runs as nobody, who may not enter the folder of an embedded Postgres' socket.
    info = _info(place)
    with (
        delaying_proxy(0, _postgres_address(place)) as port,
        PgBouncer(
            f"postgresql://{info.get('user', 'postgres')}@127.0.0.1:{port}/{info['dbname']}", pool_size=20
        ) as pooler,
    ):
        given = {PREFIX + "POSTGRES_URL": pooler.url, PREFIX + "POSTGRES_POOLER": "transaction"}
        yield place._replace(environ=place.environ | given)


def _info(place: Place) -> dict[str, Any]:
    return psycopg.conninfo.conninfo_to_dict(place.environ[PREFIX + "POSTGRES_URL"])


def _postgres_address(place: Place) -> str:
    info = _info(place)
    host, port = str(info.get("host", "127.0.0.1")), info.get("port", "5432")
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"


def round_trip_ms(delay_ms: float) -> float:
    """The median round trip of one byte through the proxy to somebody who only echoes."""
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        echo = threading.Thread(target=_echo, args=(upstream,), daemon=True)
        echo.start()
        with (
            delaying_proxy(delay_ms, f"127.0.0.1:{upstream.getsockname()[1]}") as port,
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            took = [_one_echo(client) for _ in range(ECHOES)]
        echo.join()
    return 1000 * statistics.median(took)


def _echo(upstream: socket.socket) -> None:
    client, _ = upstream.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with client:
        while said := client.recv(4096):
            client.sendall(said)


def _one_echo(client: socket.socket) -> float:
    began = time.perf_counter()
    client.sendall(b"x")
    client.recv(1)
    return time.perf_counter() - began


@contextmanager
def delaying_proxy(delay_ms: float, upstream: str) -> Iterator[int]:
    """A port that leads there, every byte so late."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.bench.proxy", str(delay_ms), str(port), upstream]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise Broken("the delaying proxy did not start")
            yield port
        finally:
            end(process)
