"""`make bench-pages`: what every page and the dearest routes take by the clock with millions of tasks, and a scrape."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg

from aaiclick_queue import Settings, migrate
from aaiclick_queue.settings import PREFIX

from .crowded import Crowd, crowd
from .places import PROJECT, Servers, end

LIMIT_MS = 150.0
SCRAPE_MS = 20.0
TIMES, SCRAPES, READERS = 5, 4, 8
STATE_SECONDS = 5.5  # the state that a scrape shows is read anew after five
RANGES = (1, 6, 24, 168)


def pages(ids: Crowd) -> Iterator[str]:
    """Every page, with the filters that cost most."""
    for hours in RANGES:
        yield f"/?hours={hours}"
        yield f"/queues/queue-1?hours={hours}"
    plain = (
        "queues jobs jobs?status=FAILED jobs?name=nightly-3 tasks tasks?status=FAILED tasks?status=QUEUED&queue=queue-7"
    )
    plain += (
        " tasks?entrypoint=shop.tasks.work_3 tasks?search=n=17 failures failures?hours=168 schedules workers limits"
    )
    plain += " operations outbox audit"
    yield from (f"/{path}" for path in plain.split())
    yield from (f"/jobs/{one}" for one in (ids.small_job, ids.job, ids.large_job))
    yield from (f"/tasks/{one}" for one in (ids.failed_task, ids.waiting_task))


def routes(ids: Crowd) -> Iterator[str]:
    """Routes that read much."""
    one = f"/api/v1/jobs/{ids.large_job}"
    yield from (f"{one}{rest}" for rest in ("", "/progress", "/timeline", "/graph", "/stats"))
    figures = "throughput?hours=168 queues?minutes=1440 entrypoints?hours=168 workflows?days=7 failures?days=7"
    yield from (f"/api/v1/metrics/{path}" for path in figures.split())
    plain = "tasks jobs queues workers schedules failures orchestrator/memory outbox"
    yield from (f"/api/v1/{path}" for path in plain.split())
    yield f"/api/v1/tasks/{ids.waiting_task}/explain"


def main() -> None:
    """Fill, serve, ask, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pages", description=__doc__)
    parser.add_argument("--tasks", type=int, default=5_000_000, help="how many, 5,000,000 unless told")
    parser.add_argument("--times", type=int, default=TIMES, help="requests of each address, after one")
    given = parser.parse_args()
    with Servers() as servers, servers.database() as url, tempfile.TemporaryDirectory(prefix="aaiq-bench-") as home:
        _say(f"filling a database with {given.tasks:,} tasks")
        settings = Settings.load({}, postgres_url=url, home=Path(home))
        began = time.perf_counter()
        ids = asyncio.run(_filled(settings, given.tasks))
        _say(f"{ids.tasks:,} tasks are there after {time.perf_counter() - began:.0f} s; first request, then the median")
        with _served(url, home) as base, httpx.Client(base_url=base, timeout=60) as client:
            slow = [one for group in (pages, routes) for one in _timed(client, list(group(ids)), given.times)]
            _scraped(client, url)
    _say(f"above {LIMIT_MS:.0f} ms: {', '.join(slow) or 'none'}")


async def _filled(settings: Settings, count: int) -> Crowd:
    await migrate.upgrade(settings)
    return await crowd(settings, count)


def _timed(client: httpx.Client, paths: list[str], times: int) -> Iterator[str]:
    """Tell the first request of each, for which figures are read, and the median of others; gives what is slow."""
    for _ in range(3 * READERS):  # every connection has its plans
        client.get("/queues")
    for path in paths:
        first, *taken = (_milliseconds(client, path) for _ in range(1 + times))
        middle = statistics.median(taken)
        _say(f"{first:7.0f} {middle:7.0f} ms  {path}")
        if max(first, middle) > LIMIT_MS:
            yield f"{path} {first:.0f}, then {middle:.0f}"


def _milliseconds(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    answer = client.get(path)
    assert answer.status_code < 400, f"{path}: {answer.status_code}"
    return 1000 * (time.perf_counter() - began)


def _scraped(client: httpx.Client, url: str) -> None:
    """The CPU of Postgres that one scrape takes, when all that it shows is read anew."""
    client.get("/metrics")
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        backends = [psutil.Process(row[0]) for row in found]
    used = []
    for _ in range(SCRAPES):
        time.sleep(STATE_SECONDS)
        before = _cpu_ms(backends)
        client.get("/metrics").raise_for_status()
        used.append(_cpu_ms(backends) - before)
    _say(f"a scrape takes {statistics.mean(used):.0f} ms of Postgres, at most {SCRAPE_MS:.0f} is wanted")


def _cpu_ms(processes: list[psutil.Process]) -> float:
    total = 0.0
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += 1000 * (times.user + times.system)
    return total


@contextmanager
def _served(url: str, home: str) -> Iterator[str]:
    command = [str(Path(sys.executable).parent / "aaiclick-queue"), "server", "--port", "0"]
    given = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environ = given | {PREFIX + "POSTGRES_URL": url, PREFIX + "HOME": home}
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=PROJECT, env=environ, start_new_session=True, **piped)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://[\d.]+:\d+", line):
                yield found[0]
                return
        raise SystemExit("the server did not start")
    finally:
        end(process)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - for a person at a terminal


if __name__ == "__main__":
    main()
