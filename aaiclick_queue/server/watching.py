"""Watching: what changed, for pages that show it. One statement every 250 ms for all clients, none when nobody watches.

A topic's mark is a text that is another one when something of the topic has changed: row versions, newest ids, counts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from ..errors import QueueError
from ..flow.place import in_line
from .desk import Desk

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
COMMENT_SECONDS = 15.0
STREAM_SECONDS = 600.0  # then a client comes again, and has to show once more who it is
# In an application of somebody else's: its server waits for open answers before it tells us that it stops.
HOSTED_SECONDS = 20.0
RETRY_MILLISECONDS = 3000
AGAIN_MILLISECONDS = 500  # after a stream whose time was over
SLOW_SECONDS = 5.0  # a client that has not taken its news for so long is told to read everything again
KEPT_TOPICS = 10_000
EVERYTHING = "*"

# Rows of small tables by their versions: no column has to be named, and none can be forgotten.
_ROWS = "(SELECT md5(string_agg(r.ctid::text || r.xmin::text, ',')) FROM {rows} AS r)"
_NEWEST_TASK = "(SELECT max(id)::text FROM aaiclick_queue.tasks)"
_RUNNING = """(SELECT count(*)::text || max(l.claimed_at)::text
               FROM (SELECT claimed_at FROM aaiclick_queue.leases LIMIT 10000) AS l)"""
_WORKERS = """(SELECT md5(string_agg(w.id::text || w.status || w.last_heartbeat::text || w.tasks_completed::text
                                     || w.tasks_failed::text, ',' ORDER BY w.id))
               FROM (SELECT id, status, last_heartbeat, tasks_completed, tasks_failed FROM aaiclick_queue.workers
                     ORDER BY id LIMIT 1000) AS w)"""
# The head of each line moves with every claim; what comes in at its end has a new id.
_LINES = """(WITH RECURSIVE line AS (
    (SELECT queue, rank, order_key, task_id FROM aaiclick_queue.ready ORDER BY queue, rank, order_key, task_id LIMIT 1)
    UNION ALL
    SELECT n.queue, n.rank, n.order_key, n.task_id FROM line CROSS JOIN LATERAL (
        SELECT r.queue, r.rank, r.order_key, r.task_id FROM aaiclick_queue.ready r WHERE r.queue > line.queue
        ORDER BY r.queue, r.rank, r.order_key, r.task_id LIMIT 1) AS n)
    SELECT md5(string_agg(queue || task_id::text, ',')) FROM (SELECT queue, task_id FROM line LIMIT 1000) AS l)"""
_OPEN_JOBS = """(SELECT md5(string_agg(j.xmin::text || coalesce(g.xmin::text, ''), ','))
    FROM (SELECT xmin, id FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') ORDER BY id DESC LIMIT 1000)
         AS j LEFT JOIN aaiclick_queue.gates g ON g.id = j.id)"""
_NEWEST_JOBS = """(SELECT md5(string_agg(j.xmin::text, ',')) FROM (
    SELECT xmin FROM aaiclick_queue.jobs ORDER BY id DESC LIMIT 50) AS j)"""
_QUEUES = _ROWS.format(rows="(SELECT ctid, xmin FROM aaiclick_queue.queues ORDER BY name LIMIT 1000)")
_LIMITS = _ROWS.format(rows="(SELECT ctid, xmin FROM aaiclick_queue.limits ORDER BY id LIMIT 1000)")
_ALARMS = _ROWS.format(rows="(SELECT ctid, xmin FROM aaiclick_queue.alarms ORDER BY kind, what LIMIT 1000)")
_MARKS: dict[str, tuple[str, ...]] = {
    "queues": (_LINES, _NEWEST_TASK, _RUNNING, _QUEUES, _LIMITS),
    "tasks": (_NEWEST_TASK, _RUNNING, _LINES, _WORKERS),
    "jobs": (_OPEN_JOBS, _NEWEST_JOBS),
    "workers": (_WORKERS,),
    "schedules": (_ROWS.format(rows="(SELECT ctid, xmin FROM aaiclick_queue.registered_jobs ORDER BY id LIMIT 2000)"),),
    "limits": (_LIMITS,),
    "operations": (_ROWS.format(rows="(SELECT ctid, xmin FROM aaiclick_queue.operations ORDER BY id DESC LIMIT 50)"),),
    "failures": (
        "(SELECT max(failed_at)::text FROM aaiclick_queue.failures)",
        _ROWS.format(rows="(SELECT ctid, xmin FROM aaiclick_queue.failure_groups ORDER BY fingerprint LIMIT 1000)"),
    ),
    "events": ("(SELECT max(id)::text FROM aaiclick_queue.system_events)",),
    "alarms": (_ALARMS,),
    "outbox": (
        "(SELECT max(id)::text FROM aaiclick_queue.outbox)",
        "(SELECT min(id)::text FROM aaiclick_queue.outbox)",
    ),
    "overview": (_LINES, _NEWEST_TASK, _RUNNING, _QUEUES, _WORKERS, _ALARMS, _NEWEST_JOBS),
}
TOPICS = tuple(_MARKS)
_OF_JOB = """SELECT 'job:' || j.id, concat_ws('/', j.xmin, g.xmin, (
    SELECT count(*) FROM (SELECT l.task_id FROM aaiclick_queue.leases l WHERE l.flags & 128 = 128 LIMIT 1000) AS l
    CROSS JOIN LATERAL (SELECT FROM aaiclick_queue.tasks t WHERE t.id = l.task_id AND t.job_id = j.id OFFSET 0) AS its))
FROM unnest($2::bigint[]) AS wanted(id) JOIN aaiclick_queue.jobs j ON j.id = wanted.id
LEFT JOIN aaiclick_queue.gates g ON g.id = j.id"""
_OF_TASK = f"""SELECT 'task:' || t.id, concat_ws('/', t.xmin, l.xmin, d.xmin, h.xmin, r.xmin, p.xmin, c.xmin)
FROM unnest($3::bigint[]) AS wanted(id) JOIN aaiclick_queue.tasks t ON t.id = wanted.id
LEFT JOIN aaiclick_queue.leases l ON l.task_id = t.id LEFT JOIN aaiclick_queue.delayed d ON d.task_id = t.id
LEFT JOIN aaiclick_queue.held h ON h.task_id = t.id LEFT JOIN aaiclick_queue.ready r ON {in_line("r", "t")}
LEFT JOIN aaiclick_queue.progress p ON p.task_id = t.id LEFT JOIN aaiclick_queue.checkpoints c ON c.task_id = t.id"""
WHAT_CHANGED = "\nUNION ALL\n".join(
    [
        "SELECT topic, mark FROM (SELECT ''::text AS topic, ''::text AS mark) AS none WHERE false",
        *(
            f"SELECT '{topic}', concat_ws('/', {', '.join(marks)}) WHERE '{topic}' = ANY($1::text[])"
            for topic, marks in _MARKS.items()
        ),
        _OF_JOB,
        _OF_TASK,
    ]
)


class Watcher:
    """One client: what it watches, and what of that has changed since it was told last."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._changed: set[str] = set()
        self._since: float | None = None
        self._news = asyncio.Event()
        self.is_over = False

    def tell(self, topics: Iterable[str]) -> None:
        """Remember what has changed."""
        self._changed.update(topics)
        self._since = self._since or time.monotonic()
        self._news.set()

    def end(self) -> None:
        """The server stops."""
        self.is_over = True
        self._news.set()

    async def news(self, seconds: float) -> list[str]:
        """What has changed; nothing when nothing has, for so long."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return []
        is_slow = self._since is not None and time.monotonic() - self._since > SLOW_SECONDS
        changed, self._changed, self._since = sorted(self._changed), set(), None
        self._news.clear()
        return [EVERYTHING] if is_slow else changed


class Watching:
    """Looks for all watchers at once, and only while there are any."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._number = 0
        self._marks: dict[str, str] = {}
        self._changed_at: dict[str, int] = {}  # topic → the number under which it was told last
        self._watchers: set[Watcher] = set()
        self._looking: asyncio.Task[None] | None = None
        self.looks = 0
        self.is_hosted = True  # until our own server says that it is not

    async def frames(self, desk: Desk, topics: frozenset[str], last_id: str | None) -> AsyncIterator[bytes]:
        """The stream of one client, as it is sent."""
        watcher = Watcher(topics)
        self._watchers.add(watcher)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(desk))
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n: hello\n\n".encode()
            if missed := self._missed(topics, last_id):
                yield self._frame(missed)
            until = time.monotonic() + (HOSTED_SECONDS if self.is_hosted else STREAM_SECONDS)
            while not watcher.is_over and (left := until - time.monotonic()) > 0:
                changed = await watcher.news(min(left, COMMENT_SECONDS))
                if changed:
                    yield self._frame(changed)
                elif not watcher.is_over:
                    yield b": still here\n\n"
            if not watcher.is_over:
                yield f"retry: {AGAIN_MILLISECONDS}\n\n".encode()
        finally:
            self._watchers.discard(watcher)

    def end(self) -> None:
        """Let every client go."""
        for watcher in self._watchers:
            watcher.end()
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self, desk: Desk) -> None:
        while self._watchers:
            began = time.monotonic()
            try:
                await self._look_once(desk)
            except QueueError as error:
                log.debug("nothing could be watched: %s", error)
            except Exception:  # the watchers that are there must not hear nothing for ever
                log.exception("nothing could be watched")
            await asyncio.sleep(max(0.05, LOOK_SECONDS - (time.monotonic() - began)))

    async def _look_once(self, desk: Desk) -> None:
        wanted = frozenset().union(*(watcher.topics for watcher in self._watchers))
        rows = await desk.db.fetch(
            WHAT_CHANGED,
            [topic for topic in wanted if topic in _MARKS],
            _ids(wanted, "job:"),
            _ids(wanted, "task:"),
        )
        self.looks += 1
        found: dict[str, str] = {row[0]: row[1] for row in rows}
        # One that is gone, as a pruned task, changes once more.
        gone = {topic: "" for topic in wanted if topic not in found and self._marks.get(topic)}
        found |= gone
        changed = {topic for topic, mark in found.items() if topic in self._marks and self._marks[topic] != mark}
        self._marks |= found
        if not changed:
            return
        self._number += 1
        self._changed_at |= dict.fromkeys(changed, self._number)
        self._forget()
        for watcher in self._watchers:
            if mine := changed & watcher.topics:
                watcher.tell(mine)

    def _missed(self, topics: frozenset[str], last_id: str | None) -> list[str]:
        """What changed while a client was away; all of it, when we cannot know."""
        if not last_id:
            return []
        boot, _, number = last_id.partition("-")
        if boot != self._boot or not (number.isascii() and number.isdigit() and len(number) < 19):
            return [EVERYTHING]
        if any(topic not in self._marks for topic in topics):
            return [EVERYTHING]
        return sorted(topic for topic in topics if self._changed_at.get(topic, 0) > int(number))

    def _frame(self, topics: list[str]) -> bytes:
        data = msgspec.json.encode({"topics": topics}).decode()
        return f"event: changed\nid: {self._boot}-{self._number}\ndata: {data}\n\n".encode()

    def _forget(self) -> None:
        while len(self._marks) > KEPT_TOPICS:
            topic = next(iter(self._marks))
            del self._marks[topic]
            self._changed_at.pop(topic, None)


def _ids(topics: Iterable[str], kind: str) -> list[int]:
    return [int(topic.removeprefix(kind)) for topic in topics if topic.startswith(kind)]
