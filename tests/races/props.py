"""What scenes are made of: workers, tasks in their places, and a look at what became of them."""

from __future__ import annotations

import itertools
import time
from typing import Any

from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.dedupe import Key, enqueue_keyed
from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue, id_source
from aaiclick_queue.flow.fenced import Fence
from aaiclick_queue.flow.heartbeat import Identity, register
from aaiclick_queue.outcome import Ended, Outcome, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.schema import Transaction

LEASE_SECONDS = 60.0
STATE = """
SELECT t.status, t.result, t.error->>'type' AS error, t.run_epoch, t.attempt, t.worker_id,
       (SELECT count(*) FROM aaiclick_queue.ready p WHERE p.task_id = t.id) AS ready,
       (SELECT count(*) FROM aaiclick_queue.delayed p WHERE p.task_id = t.id) AS delayed,
       (SELECT count(*) FROM aaiclick_queue.leases p WHERE p.task_id = t.id) AS leased,
       (SELECT count(*) FROM aaiclick_queue.attempts a WHERE a.task_id = t.id) AS attempts,
       (SELECT lost_count FROM aaiclick_queue.delayed p WHERE p.task_id = t.id) AS lost_count
FROM aaiclick_queue.tasks t WHERE t.id = $1
"""


class Props:
    """Makes tasks and workers on a connection that takes no part in the race."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._workers = itertools.count(1)

    async def prepare(self) -> None:
        self.take = (await id_source(self.db)).take
        # A reaper marks nobody before the server has been up for a lease period.
        await self.db.fetch(
            "SELECT pg_sleep($1 - extract(epoch FROM now() - pg_postmaster_start_time())::float8)",
            self.db.settings.lease_seconds + 0.1,
        )

    async def worker(self) -> int:
        """A new worker that has just registered."""
        worker_id = next(self._workers)
        await register(self.db, Identity(worker_id, 1, 10, "here", "1", ("default",)), lease_seconds=LEASE_SECONDS)
        return worker_id

    async def silence(self, worker_id: int) -> None:
        """Make the worker one that has not renewed its lease."""
        await self.db.fetch(
            "UPDATE aaiclick_queue.workers SET lease_expires_at = now() - interval '1 s' WHERE id = $1", worker_id
        )

    async def lose(self, worker_id: int) -> None:
        """Make the worker one that was marked LOST."""
        await self.db.fetch("UPDATE aaiclick_queue.workers SET status = 'LOST' WHERE id = $1", worker_id)

    async def queued(self, queue: str = "default", **options: Any) -> int:
        """A task in line."""
        [task_id] = await self.enqueue(self.db, queue=queue, **options)
        return task_id

    async def enqueue(self, tx: Transaction, queue: str = "default", *, count: int = 1, **options: Any) -> list[int]:
        written = await enqueue(tx, spec(queue), [NewTask("{}", **options) for _ in range(count)], self.take)
        return written.ids

    async def keyed(self, tx: Transaction, key: Key, **options: Any) -> int:
        """Enqueue with a dedupe key; the id of the task that has it then."""
        [task_id] = (await enqueue_keyed(tx, spec("default"), NewTask("{}", **options), key, self.take)).ids
        return task_id

    async def leased(self, worker_id: int, queue: str = "default") -> Claimed:
        """A task that this worker runs, the only one in its queue."""
        await self.queued(queue)
        [claimed] = await claim(self.db, worker_id, queue)
        return claimed

    async def state(self, task_id: int) -> Any:
        """Everything about a task."""
        [row] = await self.db.fetch(STATE, task_id)
        return row


def spec(queue: str) -> Spec:
    return Spec("shop.mail.send", queue)


async def claim(tx: Transaction, worker_id: int, queue: str = "default", *, limit: int = 10) -> list[Claimed]:
    """Claim as a worker does that comes new to the queue."""
    return await Line({queue: 1}).claim(tx, Wanted(limit, worker_id, 3600, 30))


def ended(claimed: Claimed, outcome: Outcome | None = None) -> Ended:
    """The run has come to this, by default to a success."""
    return Ended(claimed.task_id, claimed.run_epoch, outcome or Succeeded('"done"'), time.monotonic(), time.monotonic())


def fence(claimed: Claimed, worker_id: int) -> Fence:
    return Fence(claimed.task_id, claimed.run_epoch, worker_id)
