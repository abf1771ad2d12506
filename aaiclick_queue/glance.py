"""Glance: what `top` shows at one moment, by a handful of bounded statements, and the rates between two moments."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

import msgspec

from .postgres import Database
from .queue_views import QueueView, WorkerView, list_queues, list_workers

NEW_LIMIT = 20_000  # rows of one look: 10 ms; who enqueues faster is told by `new_is_more`
SAMPLES = 240
QUEUE_RATE_SECONDS = 5.0
WORKER_RATE_SECONDS = 30.0  # counters come with heartbeats

# Ids grow with time, so what is new is the end of the primary key.
NEWEST_ID = "SELECT coalesce(max(id), 0) AS id FROM aaiclick_queue.tasks"
NEW_TASKS = """
SELECT queue, count(*) AS n, max(id) AS newest
FROM (SELECT id, queue FROM aaiclick_queue.tasks WHERE id > $1 ORDER BY id LIMIT $2) AS t GROUP BY queue
"""


class Glance(msgspec.Struct, frozen=True):
    """One moment."""

    at: float  # monotonic
    queues: list[QueueView]
    workers: list[WorkerView]
    new: dict[str, int]  # tasks enqueued since the glance before
    new_is_more: bool
    newest_id: int


class Rates(msgspec.Struct, frozen=True):
    """Tasks a second; None where it is not known yet, or the line is too long to be counted."""

    enqueued: float | None = None
    done: float | None = None


async def take_glance(db: Database, before: Glance | None) -> Glance:
    """Look at everything once; `before` is the glance that new tasks are counted from."""
    newest = before.newest_id if before else (await db.fetch(NEWEST_ID))[0]["id"]
    rows = await db.fetch(NEW_TASKS, newest, NEW_LIMIT)
    new = {row["queue"]: row["n"] for row in rows}
    more = sum(new.values()) >= NEW_LIMIT
    newest = max([newest, *(row["newest"] for row in rows)])
    if more:
        newest = (await db.fetch(NEWEST_ID))[0]["id"]
    queues, workers = await list_queues(db), await list_workers(db)
    return Glance(time.monotonic(), queues, workers, new, more, newest)


class Sample(msgspec.Struct, frozen=True):
    """What the history keeps of a glance."""

    at: float
    enqueued: dict[str, int]  # since the first glance
    waiting: dict[str, int | None]
    done: dict[str, int]  # by worker, since it started
    ready: dict[str, int]
    running: int


class History:
    """The last samples, and what follows from them."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._rates: deque[Rates] = deque(maxlen=SAMPLES)  # between each two samples
        self._enqueued: dict[str, int] = {}

    def add(self, glance: Glance) -> None:
        """Remember a glance."""
        for queue, n in glance.new.items():
            self._enqueued[queue] = self._enqueued.get(queue, 0) + n
        self._samples.append(
            Sample(
                at=glance.at,
                enqueued=dict(self._enqueued),
                waiting={queue.name: _open(queue) for queue in glance.queues},
                done={worker.id: worker.completed + worker.failed for worker in glance.workers},
                ready={queue.name: queue.ready for queue in glance.queues},
                running=sum(queue.running for queue in glance.queues),
            )
        )
        if len(self._samples) > 1:
            old, new = self._samples[-2], self._samples[-1]
            self._rates.append(self._between(old, new, new.at - old.at))

    def of_queue(self, name: str) -> Rates:
        """Enqueued, and done: what came less what stayed."""
        old, new, seconds = self._over(QUEUE_RATE_SECONDS)
        if old is None or new is None:
            return Rates()
        came = new.enqueued.get(name, 0) - old.enqueued.get(name, 0)
        waited, waits = old.waiting.get(name, 0), new.waiting.get(name, 0)
        done = None if waited is None or waits is None else max(0.0, (came - waits + waited) / seconds)
        return Rates(came / seconds, done)

    def of_worker(self, worker_id: str) -> float | None:
        """Runs that ended, a second."""
        old, new, seconds = self._over(WORKER_RATE_SECONDS)
        if old is None or new is None or worker_id not in old.done or worker_id not in new.done:
            return None
        return (new.done[worker_id] - old.done[worker_id]) / seconds

    def total(self) -> Rates:
        """Of all queues; where one is too long to be counted, done is what the workers say."""
        if len(self._samples) < 2:
            return Rates()
        return self._between(*self._over(QUEUE_RATE_SECONDS))

    def series(self, what: str, name: str = "") -> list[float]:
        """One value a sample, oldest first: `ready` (of a queue, or of all), `enqueued`, `done`."""
        if what == "ready":
            return [float(one.ready.get(name, 0) if name else sum(one.ready.values())) for one in self._samples]
        return [(rate.enqueued if what == "enqueued" else rate.done) or 0.0 for rate in self._rates]

    def _between(self, old: Sample | None, new: Sample | None, seconds: float) -> Rates:
        if old is None or new is None or seconds <= 0:
            return Rates()
        came = sum(new.enqueued.values()) - sum(old.enqueued.values())
        waited, waits = _sum(old.waiting.values()), _sum(new.waiting.values())
        if waited is None or waits is None:
            known = old.done.keys() & new.done.keys()
            return Rates(came / seconds, sum(new.done[one] - old.done[one] for one in known) / seconds)
        return Rates(came / seconds, max(0.0, (came - waits + waited) / seconds))

    def _over(self, seconds: float) -> tuple[Sample | None, Sample | None, float]:
        """The last sample, and the newest that is at least so old; the time between them."""
        if len(self._samples) < 2:
            return None, None, 0.0
        new = self._samples[-1]
        old = next((one for one in reversed(self._samples) if new.at - one.at >= seconds), self._samples[0])
        return old, new, max(new.at - old.at, 0.001)


def _open(queue: QueueView) -> int | None:
    """Tasks of the queue that have not ended; None where they are too many to be counted."""
    if queue.ready_is_more or queue.held_is_more or queue.delayed_is_more or queue.waiting_is_more:
        return None
    return queue.ready + queue.held + queue.waiting + queue.delayed + queue.running


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
