"""The demo: tasks flow, retry and fail on a throw-away Postgres, and a worker that is killed loses nothing."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from ..client import Client, connect
from ..doctor import check
from ..errors import QueueError
from ..local import database_url
from ..postgres import Database
from ..report import one_line, short, span
from .crew import Crew, crew
from .picture import Lines, Moving, Picture, State
from .tasks import build_report, divide, greet, import_file, send_mail, send_through_bad_line

STATE = """
SELECT (SELECT count(*) FROM aaiclick_queue.ready) AS queued, (SELECT count(*) FROM aaiclick_queue.leases) AS running,
       (SELECT count(*) FROM aaiclick_queue.delayed) AS scheduled,
       count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed
FROM aaiclick_queue.tasks
"""
CREW = """
SELECT w.pid, w.status, (SELECT count(*) FROM aaiclick_queue.leases l WHERE l.worker_id = w.id) AS running,
       (SELECT count(*) FROM aaiclick_queue.tasks t WHERE t.worker_id = w.id AND t.status = 'COMPLETED') AS completed
FROM aaiclick_queue.workers w ORDER BY w.started_at, w.id
"""
IMPORTERS = """
SELECT w.pid, count(*) AS runs FROM aaiclick_queue.leases l JOIN aaiclick_queue.workers w ON w.id = l.worker_id
WHERE l.queue = 'imports' AND w.status = 'ACTIVE' GROUP BY w.pid ORDER BY runs DESC, w.pid LIMIT 1
"""
SUMMARY = """
SELECT count(*) FILTER (WHERE status = 'COMPLETED') AS completed, count(*) FILTER (WHERE status = 'FAILED') AS failed,
       count(*) FILTER (WHERE status IS NULL OR status = 'CANCELLED') AS others,
       (SELECT count(*) FROM aaiclick_queue.attempts WHERE outcome = 'RETRYING') AS retries,
       (SELECT count(DISTINCT task_id) FROM aaiclick_queue.attempts WHERE outcome = 'LOST') AS recovered,
       (SELECT extract(epoch FROM max(finished_at) - min(created_at))::float8 FROM aaiclick_queue.tasks
        WHERE entrypoint LIKE '%.send_mail') AS mail_seconds,
       (SELECT format('%s: %s', error->>'type', error->>'message') FROM aaiclick_queue.tasks WHERE status = 'FAILED'
        LIMIT 1) AS error
FROM aaiclick_queue.tasks
"""
MAILS, BAD_LINES, REPORTS, IMPORTS = 2000, 40, 20, 12
LONGEST_SECONDS = 30.0
NEXT = """
What to try next: save this as tasks.py,

    from aaiclick_queue import task

    @task(max_attempts=5)
    async def hello(name: str) -> str:
        return f"hello {name}"

start a worker in the same folder, and enqueue from another terminal:

    aaiclick-queue worker -A tasks
    aaiclick-queue task enqueue tasks.hello --kwargs '{"name": "Ada"}' --wait
    aaiclick-queue queue list --watch

An embedded Postgres is used until you name your own:

    export AAICLICK_QUEUE_POSTGRES_URL=postgresql://user@host/database
    aaiclick-queue migrate
"""


class Summary(msgspec.Struct, frozen=True):
    """What became of everything."""

    completed: int
    failed: int
    others: int
    retries: int
    recovered: int
    mail_seconds: float
    error: str | None

    def text(self, *, checks: int, seconds: float) -> str:
        """For people."""
        lines = [
            f"{self.completed + self.failed:,} tasks: {self.completed:,} completed, {self.failed} failed on purpose",
            f"    {self.error}",
            f"{self.retries} retries after errors, {self.recovered} runs recovered from the killed worker",
            f"{MAILS / self.mail_seconds:,.0f} quick tasks a second, from the enqueue to the last result",
            f"nothing lost, nothing left behind: {checks} checks of the doctor hold",
            f"{seconds:.1f} s in all",
        ]
        return "\n".join(f"  {line}" for line in lines)


def run_demo(*, live: bool) -> int:
    """Show it; returns the exit code. `live` needs a terminal."""
    began = time.monotonic()
    print("aaiclick-queue demo: everything happens in a throw-away folder, about 10 seconds\n", flush=True)  # noqa: T201
    with Moving() if live else Lines() as picture:
        told = Storyteller(picture)
        try:
            with crew(told.hear) as workers:
                summary, checks = asyncio.run(_story(workers, picture))
        except KeyboardInterrupt:
            print("stopped; the throw-away folder is removed", file=sys.stderr, flush=True)  # noqa: T201
            raise
    print(f"\n{summary.text(checks=checks, seconds=time.monotonic() - began)}\n{_next()}", flush=True)  # noqa: T201
    return 0


def _next() -> str:
    """What to try next; a program that the shell would not find is made findable first."""
    activate = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("aaiclick-queue") or not activate.is_file():
        return NEXT
    shown = activate.relative_to(Path.cwd()) if activate.is_relative_to(Path.cwd()) else activate
    return NEXT.replace("    aaiclick-queue worker", f"    . {shown}\n    aaiclick-queue worker", 1)


async def _story(workers: Crew, picture: Picture) -> tuple[Summary, int]:
    picture.say("starting a Postgres of its own, and making the tables")
    dsn = await database_url(workers.settings)
    picture.say("starting two workers: aaiclick-queue worker -A aaiclick_queue.demo.tasks -Q '*'")
    for _ in range(2):
        workers.start_worker()
    async with Database(workers.settings, size=2, dsn=dsn) as db, connect(settings=workers.settings) as client:
        watching = asyncio.create_task(_watch(db, picture))
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await _wait_for(db, workers, lambda state: len(state.workers) == 2)
                await _enqueue(client, picture)
                await _wait_for(db, workers, lambda state: state.completed >= MAILS)
                await _kill_one(db, client, workers, picture)
                await _wait_for(db, workers, lambda state: state.completed + state.failed == state.total)
        except TimeoutError:
            raise QueueError(f"the demo did not end within {LONGEST_SECONDS:g} s: is this machine very busy?") from None
        finally:
            watching.cancel()
        picture.draw(await _state(db))
        summary = msgspec.convert(dict((await db.fetch(SUMMARY))[0]), Summary)
        findings = await check(db)
    broken = [finding.name for finding in findings if not finding.ok]
    if broken or summary.others or summary.failed != 1:
        raise QueueError(f"the demo did not end as it should: {summary}; broken: {broken}")
    return summary, len(findings)


async def _enqueue(client: Client, picture: Picture) -> None:
    began = time.monotonic()
    await send_mail.enqueue_many([{"to": f"reader-{n}@example.com"} for n in range(MAILS)], client=client)
    await send_through_bad_line.enqueue_many([{"to": "x" * (n + 1)} for n in range(BAD_LINES)], client=client)
    await build_report.enqueue_many([{"number": number} for number in range(REPORTS)], client=client)
    await divide.enqueue(1, 0, client=client)
    await greet.options(countdown=1).enqueue("Ada", client=client)
    picture.say(f"enqueued {MAILS + BAD_LINES + REPORTS + 2:,} tasks in {span(time.monotonic() - began)}")


async def _kill_one(db: Database, client: Client, workers: Crew, picture: Picture) -> None:
    """Kill the worker that has most to lose, in the middle of it."""
    await import_file.enqueue_many([{"number": number} for number in range(IMPORTS)], client=client)
    while not (rows := await db.fetch(IMPORTERS)):
        workers.check()
        await asyncio.sleep(0.02)
    [row] = rows
    workers.kill(row["pid"])
    picture.say(f"! kill -9 {row['pid']}: that worker was in the middle of {row['runs']} imports")
    killed = time.monotonic()
    await _wait_for(db, workers, lambda state: any(status == "LOST" for _, status, _, _ in state.workers))
    seconds = time.monotonic() - killed
    picture.say(f"→ its lease ran out after {seconds:.1f} s: the other worker gets its tasks")


async def _wait_for(db: Database, workers: Crew, condition: Any) -> None:
    while not condition(await _state(db)):
        workers.check()
        await asyncio.sleep(0.05)


async def _watch(db: Database, picture: Picture) -> None:
    while True:
        picture.draw(await _state(db))
        await asyncio.sleep(0.1)


async def _state(db: Database) -> State:
    [row] = await db.fetch(STATE)
    members = tuple(tuple(member) for member in await db.fetch(CREW))
    return msgspec.convert(dict(row) | {"workers": members}, State)


class Storyteller:
    """Makes a story of the workers' log lines: the first of each kind, and all that failed."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._told: Counter[tuple[str, str]] = Counter()

    def hear(self, line: dict[str, Any]) -> None:
        """Take one log line of a worker."""
        event, name = line.get("event", ""), str(line.get("entrypoint", "")).rsplit(".", 1)[-1]
        self._told[event, name] += 1
        if event == "worker started":
            self._picture.say(f"→ worker {line['pid']} takes tasks")
        if event not in MARKS or self._told[event, name] > 1:
            return
        text = f"{MARKS[event]} {name} {short(int(line['task_id']))}  {event.split()[-1]} in attempt {line['attempt']}"
        if error := line.get("error_type"):
            text += f"  {error}: {one_line(line.get('error', ''), 100)}"
        self._picture.say(text)


MARKS = {"task succeeded": "←", "attempt retried": "↻", "task failed": "!"}
