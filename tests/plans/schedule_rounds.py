"""The part of a round that is about schedules: due, fired, fired over a run that they replace, left to wait, pruned."""

from __future__ import annotations

from aaiclick_queue.flow.ahead import Ahead
from aaiclick_queue.flow.prune_schedules import mark_overdue, prune_ticks
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database

REGISTER = """
INSERT INTO aaiclick_queue.registered_jobs (name, entrypoint, interval_seconds, anchor_at, fire_at, next_run_at,
                                            overlap, queue)
SELECT format('%s %s', $1::text, i), 'shop.mail.send', 3600, now(), now(), now(),
       (ARRAY['allow', 'skip', 'queue', 'replace'])[1 + i % 4], $1::text
FROM generate_series(1, $2::int) AS i
"""
AN_HOUR_LATER = """
UPDATE aaiclick_queue.registered_jobs SET next_run_at = next_run_at - interval '1 hour' WHERE queue = $1
"""
OLD = """
WITH job AS (
    INSERT INTO aaiclick_queue.jobs (id, name, status, finished_at, retention_seconds)
    SELECT 4000000000000000 + i, 'kept apart', 'COMPLETED', now() - interval '9 days', 86400
    FROM generate_series(1, $2::int) AS i RETURNING id
), gate AS (
    INSERT INTO aaiclick_queue.gates (id, job_id, total, remaining, kind, rule)
    SELECT id, id, 1, 0, 'JOB', 'whole' FROM job
)
INSERT INTO aaiclick_queue.ticks (registered_job_id, fire_at, created_at, outcome)
SELECT $1::bigint, now() - make_interval(hours => i), now() - interval '9 days', 'MISSED'
FROM generate_series(1, $2::int) AS i
"""
FORGET_OLD = """
WITH gate AS (DELETE FROM aaiclick_queue.gates WHERE id BETWEEN 4000000000000000 AND 4000000000100000)
DELETE FROM aaiclick_queue.jobs WHERE id BETWEEN 4000000000000000 AND 4000000000100000
"""
FORGET = """
WITH told AS (DELETE FROM aaiclick_queue.outbox WHERE queue = $1)
DELETE FROM aaiclick_queue.registered_jobs WHERE queue = $1
"""


SOONEST = "SELECT min(next_run_at) FROM aaiclick_queue.registered_jobs WHERE next_run_at > now()"


class ScheduleRound:
    """Does with schedules of a queue of their own what a scheduler does, `batch` of them in a step."""

    def __init__(self, flow: Database, *, worker_id: int, batch: int) -> None:
        self._flow = flow
        self._worker_id = worker_id
        self._batch = batch
        self._queue = f"schedules of {worker_id}"

    async def run(self) -> None:
        """All of it once."""
        await self._flow.fetch(REGISTER, self._queue, max(4, self._batch))
        scheduler = Scheduler(self._flow)
        assert (await scheduler.fire_once(limit=max(4, self._batch))).runs
        await self._flow.fetch(AN_HOUR_LATER, self._queue)
        fired = await scheduler.fire_once(limit=max(4, self._batch))
        assert fired.runs
        assert fired.is_left
        await Ahead().look(self._flow, await self._flow.fetchval(SOONEST), seconds=0.0)
        await self._flow.fetch(FORGET, self._queue)
        await self._flow.fetch(OLD, self._worker_id, self._batch)
        assert await mark_overdue(self._flow, rows=self._batch) == self._batch
        await self._flow.fetch(FORGET_OLD)
        assert await prune_ticks(self._flow, 7 * 86400.0, rows=self._batch)
