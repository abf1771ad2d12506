"""What workers and resolvers do, by hand and one step at a time, for tests of what becomes of a job's tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from aaiclick_queue.flow.admit import Admission
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import id_source
from aaiclick_queue.flow.fenced import Fence
from aaiclick_queue.flow.graph import Plan, PlannedGroup, PlannedTask, Previous
from aaiclick_queue.flow.job_graph import load_graph, see_ends
from aaiclick_queue.flow.recount import recount
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.submit import Adding, add_to_job
from aaiclick_queue.outcome import Ended, Error, Failed, Outcome, Skipped, Succeeded
from aaiclick_queue.postgres import Connection, Database
from tests.tools import claim, register_worker

ERROR = Error("ValueError", "no")
FAILS, SKIPS = Failed(ERROR), Skipped(ERROR)
WELL = Succeeded("1")
PLACES = ("waiting", "held", "delayed", "ready", "leases")
STATUSES = """
SELECT t.id, coalesce(t.status, (SELECT s.status FROM aaiclick_queue.task_status s WHERE s.id = t.id)) AS status
FROM aaiclick_queue.tasks t WHERE t.job_id = $1
"""


async def settle(db: Database, **given: Any) -> None:
    """Fold and let in until there is nothing more to be done."""
    resolver, admission = Resolver(db), Admission(db)
    while True:
        resolved = await resolver.resolve_once(**given)
        assert not resolved.held, "somebody else holds a gate"
        admitted = await admission.admit_once()
        if not (resolved.folded or resolved.more or admitted.count or admitted.more):
            return


class Hands:
    """A worker that runs what it is told to, as it is told to."""

    def __init__(self, db: Database, worker_id: int) -> None:
        self.db = db
        self.worker_id = worker_id
        self.held: dict[int, Claimed] = {}

    @classmethod
    async def register(cls, db: Database) -> Hands:
        return cls(db, await register_worker(db))

    async def take(self, *ids: int) -> list[Claimed]:
        """Claim all that is in line; those of the ids must be there."""
        for run in await claim(self.db, self.worker_id, 1000):
            self.held[run.task_id] = run
        return [self.held[task_id] for task_id in ids]

    async def end(self, *ids: int, outcome: Outcome = WELL) -> None:
        """End these runs, which must land."""
        runs = [self.held.pop(task_id) for task_id in ids]
        assert await self.finish(runs, outcome) == {*ids}

    async def finish(self, runs: Sequence[Claimed], outcome: Outcome = WELL, tx: Connection | None = None) -> set[int]:
        now = time.monotonic()
        batch = [Ended(run.task_id, run.run_epoch, outcome, now, now, flags=run.flags) for run in runs]
        return await complete(tx or self.db, batch, worker_id=self.worker_id)

    async def run(self, outcomes: Mapping[int, Outcome] | None = None) -> list[int]:
        """Run all that can run to its end, round after round; gives the ids in the order of their starts."""
        started: list[int] = []
        while True:
            await settle(self.db)
            await self.take()
            if not self.held:
                return started
            started += sorted(self.held)
            for task_id in [*self.held]:
                await self.end(task_id, outcome=(outcomes or {}).get(task_id, WELL))

    def fence(self, task_id: int) -> Fence:
        return Fence(task_id, self.held[task_id].run_epoch, self.worker_id)

    async def continue_by(self, task_id: int, job_id: int, *tasks: PlannedTask) -> list[int]:
        """The task returns these: they are added and it ends, in one transaction."""
        ids = await id_source(self.db)
        returned = tuple(Previous(task.number) for task in tasks)
        adding = Adding(job_id, by=self.fence(task_id), returned=returned)
        async with self.db.transaction() as tx:
            made = await add_to_job(tx, adding, Plan([*tasks]), ids.take)
            run = self.held.pop(task_id)
            assert await self.finish([run], Succeeded(f'{{"$node":{made.ids[tasks[0].number]}}}'), tx)
        return [made.ids[task.number] for task in tasks]

    async def spawn(
        self, task_id: int, job_id: int, *nodes: PlannedTask | PlannedGroup, group: int | None = None
    ) -> list[int]:
        """A running task adds these to its job."""
        return await add(self.db, Adding(job_id, by=self.fence(task_id), group=group), *nodes)


async def add(db: Database, to: Adding, *nodes: PlannedTask | PlannedGroup) -> list[int]:
    """Write nodes into a job that is there; gives their ids."""
    tasks = [node for node in nodes if isinstance(node, PlannedTask)]
    groups = [node for node in nodes if isinstance(node, PlannedGroup)]
    ids = await id_source(db)
    async with db.transaction() as tx:
        made = await add_to_job(tx, to, Plan(tasks, groups), ids.take)
    return [made.ids[node.number] for node in nodes]


async def statuses(db: Database, job_id: int) -> dict[int, str]:
    """Where each task of the job is, by id."""
    return {row["id"]: row["status"] for row in await db.fetch(STATUSES, job_id)}


async def job_row(db: Database, job_id: int) -> dict[str, Any]:
    [row] = await db.fetch("SELECT * FROM aaiclick_queue.jobs WHERE id = $1", job_id)
    return dict(row)


async def gate_row(db: Database, gate_id: int) -> dict[str, Any]:
    [row] = await db.fetch("SELECT * FROM aaiclick_queue.gates WHERE id = $1", gate_id)
    return dict(row)


GATES = """
SELECT id, total, remaining, failed, skipped, vetoed, state FROM aaiclick_queue.gates WHERE job_id = $1
"""


async def assert_counted(db: Database, job_id: int) -> None:
    """Where nothing is on its way any more, every gate of the job is what a recount from its tasks says."""
    async with db.connection() as connection:
        transaction = connection.raw.transaction()
        await transaction.start()
        graph = await load_graph(connection, job_id)
        seen = await see_ends(connection, graph)
        found = {row["id"]: tuple(row)[1:] for row in await connection.fetch(GATES, job_id)}
        await transaction.rollback()
    recounted = recount(graph, seen.ends, frozenset(), seen.chosen)
    wanted = {
        gate_id: (one.total, one.total - one.came, one.failed, one.skipped, one.vetoed, one.state)
        for gate_id, one in recounted.gates.items()
    }
    assert found == wanted
    assert not recounted.lifted
    assert not await db.fetch("SELECT FROM aaiclick_queue.arrivals")
