"""What is left to be run in the database of a test, and the pushes that time would give it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..flow.admit import Admission
from ..flow.reaper import Reaper
from ..postgres import Database
from ..settings import Settings
from .crew import Crew

# Runs of workers that the test has killed are not waited for until their lease has ended; from then on they are,
# over the loss and the short delay after it. `held` tells what is held and not only that: see `nothing`. What has
# arrived at a gate, or is being cancelled, may have the next tasks of a job start.
WHAT_IS_LEFT = """
SELECT EXISTS (SELECT FROM aaiclick_queue.ready r WHERE NOT EXISTS (
           SELECT FROM aaiclick_queue.queues q WHERE q.name = r.queue AND q.paused_at IS NOT NULL)) AS ready,
       EXISTS (SELECT FROM aaiclick_queue.delayed WHERE not_before <= now() OR reason = 'lost') AS due,
       EXISTS (SELECT FROM aaiclick_queue.leases WHERE worker_id <> ALL($1::bigint[])) AS running,
       (SELECT coalesce(string_agg(task_id || '/' || run_epoch, ' ' ORDER BY task_id), '')
        FROM aaiclick_queue.held) AS held,
       EXISTS (SELECT FROM aaiclick_queue.timers WHERE due_at <= now()) AS expired,
       EXISTS (SELECT FROM aaiclick_queue.registered_jobs WHERE next_run_at <= now()) AS scheduled,
       EXISTS (SELECT FROM aaiclick_queue.arrivals) AS arrived,
       EXISTS (SELECT FROM aaiclick_queue.operations WHERE status = 'OPEN' AND kind = 'cancel_job') AS ending,
       EXISTS (SELECT FROM aaiclick_queue.jobs WHERE status IN ('PENDING', 'RUNNING') AND deadline_at <= now()
               AND failing_at IS NULL) AS late,
       EXISTS (SELECT FROM aaiclick_queue.registered_jobs r WHERE r.queued_fire_at IS NOT NULL AND NOT EXISTS (
           SELECT FROM aaiclick_queue.jobs j WHERE j.registered_job_id = r.id
             AND j.status IN ('PENDING', 'RUNNING'))) AS next_tick,
       EXISTS (SELECT FROM aaiclick_queue.leases l LEFT JOIN aaiclick_queue.workers w ON w.id = l.worker_id
               WHERE coalesce(w.status IN ('LOST', 'STOPPED') OR w.lease_expires_at < now(), true)) AS lost
"""


class Remainder:
    """What the workers of one test still have to do."""

    def __init__(self, settings: Settings, db: Database, killed: Iterable[int]) -> None:
        self._settings = settings
        self._db = db
        self._killed = set(killed)

    async def nothing(self, crew: Crew) -> bool:
        """Whether nothing is ready, due, running or about to be, and nothing that is held can get in."""
        left = await self._look(crew)
        if set(left) == {"held"} and not await self._let_in():
            # The same is held as before, so nothing came, went or was freed meanwhile.
            return await self._look(crew) == left
        return not left

    async def _look(self, crew: Crew) -> dict[str, Any]:
        [row] = await self._db.fetch(WHAT_IS_LEFT, [*self._killed, *crew.killed])
        if row["lost"]:
            await self._reap()
        return {kind: there for kind, there in [*row.items(), ("busy", crew.busy)] if there}

    async def _reap(self) -> None:
        # Nobody is given up before Postgres has been up for a lease: a new server's first test would wait for 30 s.
        quick = self._settings.model_copy(update={"lease_seconds": 1.0, "heartbeat_seconds": None})
        async with Database(quick, size=1) as db:
            await Reaper(db).reap_once()

    async def _let_in(self) -> bool:
        """Let in what its limits allow now; False when that is nothing."""
        admission = Admission(self._db)
        while True:
            admitted = await admission.admit_once()
            if admitted.count or admitted.busy:
                return True
            if not admitted.more:
                return False
