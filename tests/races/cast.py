"""One of everything in one small scene, every step of the flow that can meet another there, and what must hold after.

The scene: a job of three tasks, one of which runs, one waits for it and one is in line; a task with a key in line, one
that is due, one that has expired, and two under a limit of one, one of which runs. One worker is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from aaiclick_queue import doctor
from aaiclick_queue.errors import DuplicateTask, GroupClosed, JobEnded, LeaseLost, TasksBusy
from aaiclick_queue.flow.admit import Admission, give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.clear import clear_task
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.dedupe import Key, enqueue_keyed
from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue
from aaiclick_queue.flow.fenced import extend, keep_checkpoint, keep_progress
from aaiclick_queue.flow.graph import Plan, Previous
from aaiclick_queue.flow.heartbeat import Counters, beat
from aaiclick_queue.flow.job_control import cancel_job, pause_job
from aaiclick_queue.flow.job_retry import retry_in_job
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.move import move_tasks
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.operation import make_operation
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.settle import release_all
from aaiclick_queue.flow.submit import Adding, NewJob, add_to_job, submit_job
from aaiclick_queue.outcome import Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from tests.dag.hands import assert_counted
from tests.dag.written import planned
from tests.races.props import LEASE_SECONDS, Props, claim, fence, spec

ERROR = Error("ValueError", "no")
TABLES = [
    "tasks",
    "ready",
    "waiting",
    "gates",
    "gate_edges",
    "arrivals",
    "jobs",
    "groups",
    "dependencies",
    "leases",
    "delayed",
    "outbox",
    "events",
    "attempts",
    "workers",
    "held",
    "slots",
    "operations",
    "failures",
    "dedupe",
    "timers",
    "queues",
    "progress",
    "checkpoints",
]
EMPTY = f"""
WITH {", ".join(f"of_{name} AS (DELETE FROM aaiclick_queue.{name})" for name in TABLES)}
DELETE FROM aaiclick_queue.limits WHERE scope = 'job'
"""
# Whatever got in line said so in the same commit; nobody relays here.
UNTOLD = """
SELECT r.task_id FROM aaiclick_queue.ready r WHERE NOT EXISTS (
    SELECT FROM aaiclick_queue.outbox o WHERE r.task_id = ANY(o.task_ids) AND o.created_at >= r.ready_at)
"""
EPOCHS = """
SELECT task_id, run_epoch FROM aaiclick_queue.attempts WHERE worker_id IS NOT NULL
UNION ALL SELECT id, run_epoch FROM aaiclick_queue.tasks WHERE worker_id IS NOT NULL AND status IS NOT NULL
"""
HELD_KEYS = """
SELECT d.task_id FROM aaiclick_queue.dedupe d JOIN aaiclick_queue.tasks t ON t.id = d.task_id
WHERE t.status IS NOT NULL AND d.until IS NULL
"""
LEFT_SLOTS = """
SELECT s.task_id FROM aaiclick_queue.slots s WHERE s.stopping = 0
  AND NOT EXISTS (SELECT FROM aaiclick_queue.leases l WHERE l.task_id = s.task_id)
  AND NOT EXISTS (SELECT FROM aaiclick_queue.ready r WHERE r.task_id = s.task_id)
"""
AT_ONCE = (  # what the doctor says may never be, not even for a moment
    "every open task is in exactly one place",
    "a final task is in no place",
    "whatever waits or runs is a task",
    "no limit is exceeded",
    "the gates of jobs and groups count their tasks",
    "gates count what leads to them",
    "nothing starts before its dependencies allow it",
)
FINDS = {
    "what gets in line says so": UNTOLD,
    "an ended task has no key": HELD_KEYS,
    "a slot is somebody's": LEFT_SLOTS,
    **{one.name: one.sql for one in doctor.CHECKS if one.name in AT_ONCE},
}
# One statement: they are asked after every order.
BROKEN = " UNION ALL ".join(
    f"SELECT $${name}$$ AS what, found::text FROM ({sql}) AS found" for name, sql in FINDS.items()
)
REFUSALS = (TasksBusy, JobEnded, LeaseLost, GroupClosed, DuplicateTask)


class Cast:
    """The scene, set up anew for each order."""

    def __init__(self, props: Props) -> None:
        self.props = props
        self.db = props.db
        self.landed: list[set[int]] = []

    async def prepare(self) -> None:
        await set_limit(self.db, NewLimit("task", "limited", "running", n=1), by="me")
        while await work_once(self.db):
            pass

    async def enter(self) -> None:
        """Everything in its place."""
        self.landed = []
        await self.db.fetch(EMPTY)
        self.silent, self.alive = await self.props.worker(), await self.props.worker()
        async with self.db.transaction() as tx:
            plan = Plan([planned(1), planned(2, after=[1]), planned(3)])
            job = await submit_job(tx, NewJob(name="a job"), plan, self.props.take)
            self.job, self.first, self.second, self.third = job.job_id, job.ids[1], job.ids[2], job.ids[3]
            self.keyed = await self.props.keyed(tx, Key("k"))
            await self.props.enqueue(tx, countdown=0.0001)
            await self.props.enqueue(tx, queue="nowhere", expires=0.0001)
            limited = [NewTask("{}"), NewTask("{}")]
            self.limited = (await enqueue(tx, Spec("limited", "limits"), limited, self.props.take)).ids
        await Admission(self.db).admit_once()
        [self.run] = await claim(self.db, self.silent, limit=1)
        [self.counted] = await claim(self.db, self.silent, "limits")
        await self.props.silence(self.silent)

    async def end(self, db: Any, outcome: Outcome) -> None:
        """What the silent worker has come to after all."""
        batch = [Ended(run.task_id, run.run_epoch, outcome, 0.0, 0.0, flags=run.flags) for run in self.runs]
        self.landed.append(await complete(db, batch, worker_id=self.silent))
        missing = [(run.task_id, run.run_epoch) for run in self.runs if run.task_id not in self.landed[-1]]
        await give_back_stopped(db, missing, worker_id=self.silent)

    @property
    def runs(self) -> list[Claimed]:
        return [self.run, self.counted]

    async def leave(self) -> None:
        """Nothing is left for the doctor."""
        await self.db.fetch(EMPTY)

    async def settle(self) -> None:
        """What is left to the background."""
        while await work_once(self.db):
            pass
        resolver = Resolver(self.db)
        while (done := await resolver.resolve_once()).folded or done.more:
            pass

    async def holds(self) -> None:
        """Nothing is lost, doubled or miscounted, now and when everything that was begun is done."""
        await self._at_once()
        await self.settle()
        await self._at_once()
        await assert_counted(self.db, self.job)

    async def _at_once(self) -> None:
        found = [tuple(row) for row in await self.db.fetch(BROKEN)]
        assert not found, f"it is not so that {found}"
        epochs = Counter(tuple(row) for row in await self.db.fetch(EPOCHS))
        assert max(epochs.values(), default=1) == 1, f"a run is recorded twice: {epochs}"
        ended = Counter(task_id for some in self.landed for task_id in some)
        assert max(ended.values(), default=1) == 1, f"a run ended twice: {ended}"


Step = Callable[[Cast, Database], Awaitable[Any]]


async def _in_block(cast: Cast, db: Database) -> None:
    """`current().transaction()`: the application's own write, then the end as the last statement."""
    async with db.transaction() as tx:
        await tx.fetch("SELECT set_config('application.effect', '1', true)")
        await cast.end(tx, Succeeded("1"))


async def _writes(cast: Cast, db: Database) -> None:
    one = fence(cast.run, cast.silent)
    await keep_progress(db, one, "1")
    await keep_checkpoint(db, one, "1")
    await extend(db, one, 60)


async def _spawns(cast: Cast, db: Database) -> None:
    async with db.transaction() as tx:
        adding = Adding(cast.job, by=fence(cast.run, cast.silent))
        await add_to_job(tx, adding, Plan([planned(11), planned(12, after=[11])]), cast.props.take)


async def _adds(cast: Cast, db: Database) -> None:
    async with db.transaction() as tx:
        plan = Plan([planned(21, after=[Previous(cast.first)])])
        await add_to_job(tx, Adding(cast.job), plan, cast.props.take)


async def _beats(cast: Cast, db: Database) -> None:
    held = [(run.task_id, run.run_epoch) for run in cast.runs]
    await beat(db, cast.silent, held, lease_seconds=LEASE_SECONDS, look_for_strangers=True, counters=Counters())


async def _enqueues(cast: Cast, db: Database, mode: Any) -> None:
    async with db.transaction() as tx:
        task = NewTask("{}", countdown=60.0 if mode == "debounce" else None)
        await enqueue_keyed(tx, spec("default"), task, Key("k", mode, debounce_max=600), cast.props.take)


async def _cancels_job(cast: Cast, db: Database) -> None:
    await cancel_job(db, cast.job, by="me")
    await work_once(db)


async def _pauses(cast: Cast, db: Database) -> None:
    await pause_job(db, cast.job, by="me")
    await work_once(db)


async def _purges(cast: Cast, db: Database) -> None:
    async with db.transaction() as tx:
        operation = await make_operation(tx, "cancel", {"queue": "default"}, {}, by="me")
    await work_once(db, operation)


async def _retries(cast: Cast, db: Database) -> None:
    async with db.transaction() as tx:
        await retry_in_job(tx, cast.job, by="me")


STEPS: dict[str, Step] = {
    "claim": lambda cast, db: claim(db, cast.alive),
    "complete": lambda cast, db: cast.end(db, Succeeded("1")),
    "fail": lambda cast, db: cast.end(db, Failed(ERROR)),
    "retry": lambda cast, db: cast.end(db, Later("RETRYING", ERROR, 0.0)),
    "release": lambda cast, db: cast.end(db, Released()),
    "release all": lambda cast, db: release_all(db, cast.silent),
    "block": _in_block,
    "fenced write": _writes,
    "spawn": _spawns,
    "add": _adds,
    "beat": _beats,
    "reap": lambda cast, db: Reaper(db).reap_once(),
    "due": lambda cast, db: Reaper(db).due_once(),
    "resolve": lambda cast, db: Resolver(db).resolve_once(),
    "admit": lambda cast, db: Admission(db).admit_once(),
    "cancel": lambda cast, db: cancel(db, [cast.first, cast.second, cast.keyed, *cast.limited]),
    "cancel job": _cancels_job,
    "pause job": _pauses,
    "purge": _purges,
    "move": lambda cast, db: move_tasks(db, [cast.second, cast.third, cast.keyed], {"queue": "other"}),
    "clear": lambda cast, db: clear_task(db, cast.first, by="me"),
    "retry job": _retries,
    "replace": lambda cast, db: _enqueues(cast, db, "replace"),
    "debounce": lambda cast, db: _enqueues(cast, db, "debounce"),
    "skip": lambda cast, db: _enqueues(cast, db, "skip"),
}
