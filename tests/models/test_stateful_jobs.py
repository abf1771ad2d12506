"""Random sequences of the flow's steps over limits, expiries and small jobs, against a pure model.

As in test_stateful.py: the same sequences each time, MODEL_EXAMPLES plays more, MODEL_SEED others. Each one is also
played to its end: whatever happened, every task and every job then ends and nothing is left taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, seed, strategies
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aaiclick_queue.errors import JobEnded
from aaiclick_queue.flow.admit import Admission, give_back_stopped
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.enqueue import NewTask, Spec, enqueue
from aaiclick_queue.flow.graph import Plan
from aaiclick_queue.flow.job_control import cancel_job
from aaiclick_queue.flow.limits import NewLimit, set_limit
from aaiclick_queue.flow.operate import work_once
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.resolve import Resolver
from aaiclick_queue.flow.retry import retry_tasks
from aaiclick_queue.flow.submit import NewJob, submit_job
from aaiclick_queue.outcome import Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.dag.hands import assert_counted
from tests.dag.written import planned
from tests.models.test_stateful import ALL_DUE, EXAMPLES, LOST_LIMIT, NUMBERS, SEED
from tests.races.cast import BROKEN, EMPTY
from tests.races.props import Props, claim

T = TypeVar("T")
LIMIT = 2  # of the tasks named so, at once
LIMITED, FREE = "limited", "free"
ERROR = Error("ValueError", "no")
OUTCOMES: dict[str, Outcome] = {
    "succeeded": Succeeded("1"),
    "failed": Failed(ERROR),
    "retry": Later("RETRYING", ERROR, 600),
    "snooze": Later("SNOOZED", ERROR, 600),
    "release": Released(),
}
KINDS = ("succeeded", *OUTCOMES)
ACTS = (
    *["enqueue"] * 4, *["submit"] * 2, *["admit"] * 4, *["resolve"] * 4, *["claim"] * 5, *["end_run"] * 6,
    *["cancel"] * 4, *["expire"] * 2, *["time_passes"] * 2, *["give_back"] * 2, *["lose_worker"] * 2, *["retry"] * 2,
    *["cancel_job"] * 2, *["operate"] * 2, "end_stale", "sweep",
)  # fmt: skip


class Node(NamedTuple):
    """A task of a job: the numbers of those it comes after, and how."""

    after: tuple[int, ...] = ()
    limited: bool = False
    rule: Literal["all_success", "one_success"] = "all_success"


JOBS: tuple[dict[int, Node], ...] = (
    {1: Node(), 2: Node((1,), limited=True), 3: Node((2,))},
    {1: Node(), 2: Node((1,), limited=True), 3: Node((1,)), 4: Node((1,)), 5: Node((2, 3, 4))},
    # Gates behind gates, and one that is decided before all have come to it.
    {1: Node(), 2: Node((1,)), 3: Node((1,)), 4: Node((2, 3), rule="one_success"), 5: Node((1, 2)), 6: Node((4, 5))},
)
EVENTS = (
    "stale", "held back", "stopping", "given back", "given back by a death", "lost", "expired", "not expired", "opened",
    "cancelled with its job", "cancelled at its gate", "job COMPLETED", "job FAILED",
)  # fmt: skip
DONE: Counter[str] = Counter()  # what the sequences came to: none of them may come to nothing
ROWS = """
SELECT t.id, coalesce(t.status, p.place) AS place, coalesce(p.run_epoch, t.run_epoch, 0) AS epoch, p.attempt,
       p.lost_count AS lost, p.worker_id AS owner
FROM aaiclick_queue.tasks t LEFT JOIN (
    SELECT 'waiting' AS place, task_id, run_epoch, 0 AS attempt, 0 AS lost_count, NULL::bigint AS worker_id
    FROM aaiclick_queue.waiting
    UNION ALL SELECT 'held', task_id, run_epoch, attempt, lost_count, NULL FROM aaiclick_queue.held
    UNION ALL SELECT 'ready', task_id, run_epoch, attempt, lost_count, NULL FROM aaiclick_queue.ready
    UNION ALL SELECT 'delayed', task_id, run_epoch, attempt, lost_count, NULL FROM aaiclick_queue.delayed
    UNION ALL SELECT 'leases', task_id, run_epoch, attempt, lost_count, worker_id FROM aaiclick_queue.leases
) AS p ON p.task_id = t.id
"""
SLOTS = "SELECT task_id, stopping, CASE WHEN stopping > 0 THEN worker_id END AS worker FROM aaiclick_queue.slots"
TIMERS = "SELECT task_id FROM aaiclick_queue.timers"
JOB_STATUSES = """
SELECT id, CASE WHEN status IN ('PENDING', 'RUNNING') THEN 'open' ELSE status END AS status FROM aaiclick_queue.jobs
"""
EXPIRE = "UPDATE aaiclick_queue.timers SET due_at = now() - interval '1 ms' WHERE task_id = ANY($1::bigint[])"


@dataclass
class Row:
    """What the model knows of a task."""

    place: str
    order: int
    limited: bool = False
    job: int | None = None
    after: tuple[int, ...] = ()
    rule: str = "all_success"
    epoch: int = 0
    attempt: int = 0
    lost: int = 0
    owner: int | None = None

    @property
    def is_open(self) -> bool:
        return self.place in ("waiting", "held", "ready", "delayed", "leases")


class Work(RuleBasedStateMachine):
    """Three workers, one queue, one limit, small jobs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, props: Props) -> None:
        super().__init__()
        self._loop = loop
        self._props = props
        self._db = props.db
        self._tasks: dict[int, Row] = {}
        self._slots: dict[tuple[int, int], int | None] = {}  # task and epoch of the run that is stopping, or 0 → worker
        self._timers: set[int] = set()
        self._jobs: dict[int, str] = {}
        self._runs: list[tuple[Claimed, int]] = []  # all that ever were, and their workers
        self._is_sound = True
        self._do(self._db.fetch(EMPTY))
        self._workers = [self._do(props.worker()) for _ in range(3)]
        self._reaper = Reaper(self._db)

    def _do(self, step: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(step)

    @initialize()
    def begin(self) -> None:
        """Something of everything, else half of the sequences come to nothing."""
        for shape in range(len(JOBS)):
            self.submit(shape + len(JOBS))
        self.claim(0, 1)
        self.end_run(1, "succeeded", as_another=False)
        self.resolve(limit=2, page=1)
        self.enqueue(3, limited=True, later=False, expires=True)
        self.enqueue(2, limited=False, later=False, expires=True)
        self.admit()
        self.claim(0, 3)
        self.claim(1, 3)

    # One rule and not one for each: hypothesis leaves rules out at random.
    @rule(act=strategies.sampled_from(ACTS), at=NUMBERS, more=NUMBERS)
    def step(self, act: str, at: int, more: int) -> None:
        self._is_sound = False
        match act:
            case "enqueue":
                self.enqueue(1 + at % 3, limited=at % 2 == 0, later=more % 4 == 0, expires=more % 3 == 0)
            case "submit":
                self.submit(at)
            case "claim":
                self.claim(at % 3, 1 + more % 3)
            case "end_run" | "end_stale":
                self.end_run(at, KINDS[more % len(KINDS)], as_another=act == "end_stale")
            case "resolve":
                self.resolve(limit=1 + at % 3, page=1 + more % 2)
            case "give_back":
                self.give_back(at, as_another=more % 4 == 0)
            case "cancel" | "retry" | "expire" | "cancel_job" | "lose_worker":
                getattr(self, act)(at)
            case _:
                getattr(self, act)()

    # The model: where a task goes, and what becomes of the slot that it holds.

    def _enters(self, task_id: int) -> None:
        row = self._tasks[task_id]
        row.place, row.owner = "held" if row.limited else "ready", None

    def _leaves(self, task_id: int, place: str, *, may_run_on: bool = False) -> None:
        row = self._tasks[task_id]
        if (task_id, 0) in self._slots:
            del self._slots[task_id, 0]
            if may_run_on:
                self._slots[task_id, row.epoch] = row.owner
                DONE["stopping"] += 1
        row.place, row.owner = place, None

    def _cancelled(self, task_id: int) -> None:
        self._leaves(task_id, "CANCELLED", may_run_on=self._tasks[task_id].place == "leases")

    def _forget_stopping_of_dead(self) -> None:
        dead = [key for key, worker in self._slots.items() if worker is not None and worker not in self._workers]
        for key in dead:
            del self._slots[key]
            DONE["given back by a death"] += 1

    def _line(self, place: str) -> list[int]:
        return sorted((one for one, row in self._tasks.items() if row.place == place), key=self._in_line)

    def _in_line(self, task_id: int) -> tuple[int, int]:
        return self._tasks[task_id].order, task_id

    def _is_held(self, run: Claimed, worker: int) -> bool:
        row = self._tasks[run.task_id]
        return (row.place, row.epoch, row.owner) == ("leases", run.run_epoch, worker)

    # The steps.

    def enqueue(self, count: int, *, limited: bool, later: bool, expires: bool) -> None:
        new = NewTask("{}", countdown=600.0 if later else None, expires=3600.0 if expires else None)
        spec = Spec(LIMITED if limited else FREE, "default")
        ids = self._do(enqueue(self._db, spec, [new] * count, self._props.take)).ids
        for task_id in ids:
            self._tasks[task_id] = Row("delayed", task_id, limited)
            if not later:
                self._enters(task_id)
        self._timers |= {*ids} if expires else set()

    def submit(self, at: int) -> None:
        shape = JOBS[at % len(JOBS)]
        expires = {"expires": 3600.0} if at % 4 == 0 else {}
        plan = Plan([
            planned(number, LIMITED if node.limited else FREE, after=node.after, rule=node.rule,
                    task=expires if node.after else {})
            for number, node in shape.items()
        ])  # fmt: skip

        async def write() -> Any:
            async with self._db.transaction() as tx:
                return await submit_job(tx, NewJob(name="job"), plan, self._props.take)

        made = self._do(write())
        self._jobs[made.job_id] = "open"
        for number, node in shape.items():
            after = tuple(made.ids[one] for one in node.after)
            self._tasks[made.ids[number]] = Row("waiting", made.job_id, node.limited, made.job_id, after, node.rule)
            if not after:
                self._enters(made.ids[number])
            elif expires:
                self._timers.add(made.ids[number])

    def admit(self) -> None:
        line = self._line("held")
        if line:
            self._forget_stopping_of_dead()
        expected = line[: max(0, LIMIT - len(self._slots))]
        assert self._do(Admission(self._db).admit_once()).count == len(expected)
        for task_id in expected:
            self._tasks[task_id].place = "ready"
            self._slots[task_id, 0] = None
        DONE["held back"] += len(expected) < len(line)

    def claim(self, at: int, limit: int) -> None:
        worker = self._workers[at]
        claimed = self._do(claim(self._db, worker, limit=limit))
        assert [run.task_id for run in claimed] == self._line("ready")[:limit]
        for run in claimed:
            row = self._tasks[run.task_id]
            before = [self._tasks[one].place == "COMPLETED" for one in row.after]
            assert all(before) or (any(before) and row.rule == "one_success"), "a dependent was early"
            row.place, row.owner = "leases", worker
            row.epoch, row.attempt = row.epoch + 1, row.attempt + 1
            assert (run.run_epoch, run.attempt, run.lost_count) == (row.epoch, row.attempt, row.lost)
            self._runs.append((run, worker))

    def end_run(self, at: int, what: str, *, as_another: bool) -> None:
        """A run of any age comes to its end, mostly one that holds its lease; or somebody else says so."""
        if not self._runs:
            return
        runs = ([one for one in self._runs if self._is_held(*one)] if at % 4 else []) or self._runs
        run, worker = runs[-1 - at % len(runs)]
        ended = Ended(run.task_id, run.run_epoch, OUTCOMES[what], 0.0, 0.0, flags=run.flags)
        landed = self._do(complete(self._db, [ended], worker_id=worker + 1000 * as_another))
        lands = self._is_held(run, worker) and not as_another
        assert landed == ({run.task_id} if lands else set())
        DONE[what if lands else "stale"] += 1
        if not lands:
            return
        row = self._tasks[run.task_id]
        match what:
            case "succeeded" | "failed":
                self._leaves(run.task_id, "COMPLETED" if what == "succeeded" else "FAILED")
            case "retry" | "snooze":
                self._leaves(run.task_id, "delayed")
                row.attempt -= what == "snooze"
            case _:
                row.place, row.owner, row.attempt = "ready", None, row.attempt - 1  # and keeps its slot

    def give_back(self, at: int, *, as_another: bool) -> None:
        """The worker of a run that was cancelled says that its code has ended."""
        stopping = [(key, worker) for key, worker in self._slots.items() if worker is not None]
        if not stopping:
            return
        key, worker = stopping[at % len(stopping)]
        self._do(give_back_stopped(self._db, [key], worker_id=worker + 1000 * as_another))
        if not as_another:
            del self._slots[key]
            DONE["given back"] += 1

    def cancel(self, at: int) -> None:
        """Any of them, or one that runs under the limit."""
        running = [one for one in self._line("leases") if self._tasks[one].limited] if at % 2 else []
        pool = running or [*self._tasks]
        task_id = pool[at % len(pool)]
        was_open = self._tasks[task_id].is_open
        assert self._do(cancel(self._db, [task_id])) == ({task_id} if was_open else set())
        if was_open:
            self._cancelled(task_id)

    def retry(self, at: int) -> None:
        task_id = [*self._tasks][at % len(self._tasks)]
        row = self._tasks[task_id]
        again = row.place in ("FAILED", "CANCELLED") and row.job is None
        assert self._do(retry_tasks(self._db, [task_id], by="me")) == ({task_id} if again else set())
        if again:
            self._tasks[task_id] = Row("", row.order, row.limited, epoch=row.epoch + 1)
            self._enters(task_id)
            self._timers.discard(task_id)

    def expire(self, at: int) -> None:
        """The moment of every second task with an expiry comes."""
        due = sorted(self._timers)[at % 2 :: 2]
        self._do(self._db.fetch(EXPIRE, due))
        expected = {one for one in due if self._tasks[one].is_open and self._tasks[one].place != "leases"}
        assert self._do(self._reaper.reap_once()).expired == len(expected)
        for task_id in expected:
            self._cancelled(task_id)
        self._timers -= {*due}
        DONE["expired"] += len(expected)
        DONE["not expired"] += sum(self._tasks[one].place == "leases" for one in due)

    def time_passes(self) -> None:
        self._do(self._db.fetch(ALL_DUE))
        self._do(self._reaper.due_once())
        for task_id in self._line("delayed"):
            self._enters(task_id)

    def lose_worker(self, at: int) -> None:
        """Any of them, or one whose runs were told to stop and may not have."""
        stopping = [self._workers.index(one) for one in self._slots.values() if one in self._workers]
        number = stopping[0] if stopping and at % 2 else at % 3
        worker = self._workers[number]
        self._do(self._props.silence(worker))
        self._do(self._reaper.reap_once())
        self._workers[number] = self._do(self._props.worker())
        for task_id, row in self._tasks.items():
            if row.place == "leases" and row.owner == worker:
                row.lost += 1
                DONE["lost"] += 1
                if row.lost >= LOST_LIMIT * (2 if row.lost > 2 else 1):
                    self._leaves(task_id, "FAILED")
                else:
                    self._leaves(task_id, "delayed")
                    row.attempt -= 1

    def sweep(self) -> None:
        self._do(self._reaper.sweep_once())
        self._forget_stopping_of_dead()

    def cancel_job(self, at: int) -> None:
        """From now on nothing of it gets in line; what is open ends with its operation."""
        jobs = [one for one, status in self._jobs.items() if status == "open"] if at % 4 else []
        job_id = (jobs or [*self._jobs])[at % len(jobs or self._jobs)]
        if self._jobs[job_id] != "open":
            with pytest.raises(JobEnded):
                self._do(cancel_job(self._db, job_id, by="me"))
            return
        ends = at % 2 == 1
        if ends:  # a gate has all that it waits for, and must not open
            self._complete(one for one in self._runs if one[0].job_id == job_id)
        self._do(cancel_job(self._db, job_id, by="me"))
        self._jobs[job_id] = "CANCELLED"
        if ends:
            self.resolve(limit=1, page=1)

    def operate(self) -> None:
        while self._do(work_once(self._db)) is not None:
            pass
        for task_id, row in self._tasks.items():
            if row.is_open and row.job is not None and self._jobs[row.job] == "CANCELLED":
                self._cancelled(task_id)
                DONE["cancelled with its job"] += 1

    def resolve(self, *, limit: int, page: int) -> None:
        """All that has arrived is folded, in pages of any size."""
        resolver = Resolver(self._db)
        while (done := self._do(resolver.resolve_once(limit=limit, page=page))).folded or done.more:
            assert not done.held
        while opened := [task_id for task_id in self._line("waiting") if self._opens(task_id)]:
            DONE["opened"] += len(opened)
        for job_id, status in self._jobs.items():
            ends = {row.place for row in self._tasks.values() if row.job == job_id}
            if status == "open" and ends <= {"COMPLETED", "FAILED", "CANCELLED", "UPSTREAM_FAILED"}:
                self._jobs[job_id] = "COMPLETED" if ends == {"COMPLETED"} else "FAILED"
                DONE[f"job {self._jobs[job_id]}"] += 1

    def _opens(self, task_id: int) -> bool:
        """Whether its gate is decided; it goes where that leads."""
        row = self._tasks[task_id]
        before = {self._tasks[one].place for one in row.after}
        if row.rule == "one_success" and "COMPLETED" in before:
            before = {"COMPLETED"}
        bad = before & {"FAILED", "CANCELLED", "UPSTREAM_FAILED"}
        if bad and (row.rule == "all_success" or bad == before):
            row.place = "UPSTREAM_FAILED"
        elif before != {"COMPLETED"}:
            return False
        elif row.job is not None and self._jobs[row.job] == "CANCELLED":
            row.place = "CANCELLED"
            DONE["cancelled at its gate"] += 1
        else:
            self._enters(task_id)
        return True

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        found = {row["id"]: row for row in self._do(self._db.fetch(ROWS))}
        assert found.keys() == self._tasks.keys()
        for task_id, row in self._tasks.items():
            got = found[task_id]
            assert (got["place"], got["epoch"]) == (row.place, row.epoch), task_id
            if row.is_open:
                assert (got["attempt"], got["lost"], got["owner"]) == (row.attempt, row.lost, row.owner), task_id
        slots = {(row["task_id"], row["stopping"]): row["worker"] for row in self._do(self._db.fetch(SLOTS))}
        assert slots == self._slots
        assert len(slots) <= LIMIT
        assert {row["task_id"] for row in self._do(self._db.fetch(TIMERS))} == self._timers
        assert {row["id"]: row["status"] for row in self._do(self._db.fetch(JOB_STATUSES))} == self._jobs
        assert not self._do(self._db.fetch(BROKEN))
        self._is_sound = True

    def teardown(self) -> None:
        """Whatever happened, all of it ends when workers work, and nothing stays taken."""
        if not self._is_sound:
            return
        while any(row.is_open for row in self._tasks.values()):
            before = [(row.place, row.epoch) for row in self._tasks.values()]
            self.time_passes()
            self.operate()
            while any(worker is not None for worker in self._slots.values()):
                self.give_back(0, as_another=False)
            self.admit()
            self.claim(0, 100)
            self._complete(self._runs)
            self.resolve(limit=100, page=100)
            assert before != [(row.place, row.epoch) for row in self._tasks.values()], "stuck"
        self.rows_are_as_the_model_says()
        assert "open" not in self._jobs.values()
        for job_id in self._jobs:
            self._do(assert_counted(self._db, job_id))

    def _complete(self, runs: Iterable[tuple[Claimed, int]]) -> None:
        """Those of the runs that hold their lease succeed."""
        for run, worker in [one for one in runs if self._is_held(*one)]:
            ended = Ended(run.task_id, run.run_epoch, Succeeded("1"), 0.0, 0.0, flags=run.flags)
            assert self._do(complete(self._db, [ended], worker_id=worker)) == {run.task_id}
            self._leaves(run.task_id, "COMPLETED")


@pytest.mark.timeout(0 if EXAMPLES > 500 else 600)
def test_limits_expiries_and_jobs_do_what_the_model_says_in_any_sequence_of_steps(settings: Settings) -> None:
    loop = uvloop.new_event_loop()

    async def open_database() -> Props:
        db = Database(settings.model_copy(update={"lost_limit": LOST_LIMIT}), size=2, flow=True)
        props = Props(db)
        await props.prepare()
        await set_limit(db, NewLimit("task", LIMITED, "running", n=LIMIT), by="me")
        while await work_once(db):
            pass
        return props

    props = loop.run_until_complete(open_database())

    def machine() -> Work:
        return Work(loop, props)

    rules = hypothesis_settings(
        max_examples=max(1, EXAMPLES // 5),
        stateful_step_count=40,
        derandomize=SEED is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        factory: Any = machine if SEED is None else seed(int(SEED))(machine)
        run_state_machine_as_test(factory, settings=rules)
        assert min(DONE[what] for what in (*OUTCOMES, *EVENTS)) > 0, DONE
        loop.run_until_complete(props.db.fetch(EMPTY))
    finally:
        loop.run_until_complete(props.db.close())
        loop.close()
