"""Random sequences of the flow's steps against a pure model, shrunk by hypothesis to the shortest that differs.

The same sequences each time, so that it cannot flake. MODEL_EXAMPLES plays more, MODEL_SEED others.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, seed, strategies
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aaiclick_queue.errors import DuplicateTask
from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.dedupe import Key
from aaiclick_queue.flow.fenced import Fence, keep_checkpoint, keep_progress
from aaiclick_queue.flow.heartbeat import Counters, beat
from aaiclick_queue.flow.pause import pause_queue, resume_queue
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.flow.retry import retry_tasks
from aaiclick_queue.outcome import Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from aaiclick_queue.spec import DedupeMode
from tests.races.cast import BROKEN, EMPTY
from tests.races.props import LEASE_SECONDS, Props, claim

T = TypeVar("T")
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES") or 150)
SEED = os.environ.get("MODEL_SEED")
LOST_LIMIT = 3
ERROR = Error("ValueError", "no")
NUMBERS = strategies.integers(0, 99)
MODES: tuple[DedupeMode, ...] = ("raise", "skip", "replace", "debounce")
BREACHES = ("another", "older")
KINDS = ("succeeded", "failed", "retry", "snooze", "release")
ACTS = (
    *["claim"] * 4, *["end_run"] * 5, *["end_stale"] * 2, *["write"] * 3, *["enqueue"] * 2, *["enqueue_keyed"] * 3,
    *["time_passes"] * 2, "cancel", "retry", "lose_worker", "beat", "pause_or_resume",
)  # fmt: skip
DONE: Counter[str] = Counter()  # what the sequences came to: none of them may come to nothing
ROWS = """
SELECT t.id, coalesce(t.status, p.place) AS place, coalesce(p.run_epoch, t.run_epoch) AS epoch,
       coalesce(p.attempt, t.attempt) AS attempt, p.lost_count AS lost, p.snoozes, p.worker_id AS owner
FROM aaiclick_queue.tasks t LEFT JOIN (
    SELECT 'ready' AS place, task_id, run_epoch, attempt, lost_count, snoozes, NULL::bigint AS worker_id
    FROM aaiclick_queue.ready
    UNION ALL SELECT 'delayed', task_id, run_epoch, attempt, lost_count, snoozes, NULL FROM aaiclick_queue.delayed
    UNION ALL SELECT 'leases', task_id, run_epoch, attempt, lost_count, snoozes, worker_id FROM aaiclick_queue.leases
) AS p ON p.task_id = t.id
"""
ALL_DUE = "UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 ms'"
KEYS = "SELECT key, task_id FROM aaiclick_queue.dedupe"


@dataclass
class Row:
    """What the model knows of a task."""

    place: str
    epoch: int = 0
    attempt: int = 0
    lost: int = 0
    snoozes: int = 0
    owner: int | None = None

    @property
    def is_open(self) -> bool:
        return self.place in ("ready", "delayed", "leases")


class Flow(RuleBasedStateMachine):
    """Three workers, two keys, one queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, props: Props) -> None:
        super().__init__()
        self._loop = loop
        self._props = props
        self._db = props.db
        self._tasks: dict[int, Row] = {}
        self._keys: dict[str, int] = {}
        self._runs: list[Fence] = []  # all that ever were
        self._paused = False
        self._do(self._db.fetch(EMPTY))
        self._workers = [self._do(props.worker()) for _ in range(3)]
        self._reaper = Reaper(self._db)

    def _do(self, step: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(step)

    def _chosen(self, at: int) -> int:
        return [*self._tasks][at % len(self._tasks)]

    def _end(self, task_id: int, place: str) -> None:
        row = self._tasks[task_id]
        row.place, row.owner = place, None
        if place not in ("ready", "delayed"):
            self._keys = {key: holder for key, holder in self._keys.items() if holder != task_id}

    @initialize()
    def begin(self) -> None:
        """Something runs and something waits, else half of the sequences come to nothing."""
        self.enqueue(3, later=False)
        self.claim(0, 2)

    # One rule and not one for each: hypothesis leaves rules out at random, and many sequences then end no run at all.
    @rule(act=strategies.sampled_from(ACTS), at=NUMBERS, more=NUMBERS)
    def step(self, act: str, at: int, more: int) -> None:  # noqa: C901 - one case an act
        if act in ("end_run", "end_stale", "write") and not self._runs:
            return
        match act:
            case "enqueue":
                self.enqueue(1 + at % 3, later=more % 3 == 0)
            case "enqueue_keyed":
                self.enqueue_keyed("kl"[at % 2], MODES[more % 4])
            case "claim":
                self.claim(at % 3, 1 + more % 3)
            case "end_run":
                self.end_run(at, KINDS[more % 5], "itself")
            case "end_stale":
                self.end_run(at, KINDS[more % 5], BREACHES[at % 2])
            case "write":
                self.write(at, ("itself", *BREACHES)[more % 3], checkpoint=more % 2 == 0)
            case "cancel" | "retry" if self._tasks:
                getattr(self, act)(at)
            case "lose_worker":
                self.lose_worker(at % 3, twice=more % 2 == 0)
            case "beat":
                self.beat(at % 3)
            case "time_passes" | "pause_or_resume":
                getattr(self, act)()
            case _:
                pass

    def enqueue(self, count: int, *, later: bool) -> None:
        ids = self._do(self._props.enqueue(self._db, count=count, countdown=600.0 if later else None))
        self._tasks |= {task_id: Row("delayed" if later else "ready") for task_id in ids}

    def enqueue_keyed(self, key: str, mode: DedupeMode) -> None:
        holder = self._keys.get(key)
        waits = holder is not None and self._tasks[holder].place != "leases"
        later = 600.0 if mode == "debounce" else None
        DONE["keyed twice"] += holder is not None

        async def write() -> int:
            async with self._db.transaction() as tx:
                return await self._props.keyed(tx, Key(key, mode), countdown=later)

        if holder is not None and mode == "raise":
            with pytest.raises(DuplicateTask):
                self._do(write())
            return
        task_id = self._do(write())
        if holder is not None and (mode == "skip" or (mode == "debounce" and waits)):
            assert task_id == holder
            if mode == "debounce":
                self._tasks[holder].place = "delayed"
            return
        assert task_id not in self._tasks
        if waits and holder is not None:
            self._end(holder, "CANCELLED")
        self._tasks[task_id] = Row("delayed" if later else "ready")
        self._keys[key] = task_id

    def claim(self, at: int, limit: int) -> None:
        claimed = self._do(claim(self._db, self._workers[at], limit=limit))
        line = sorted(task_id for task_id, row in self._tasks.items() if row.place == "ready")
        expected = [] if self._paused else line[:limit]
        assert [run.task_id for run in claimed] == expected
        for run in claimed:
            row = self._tasks[run.task_id]
            row.place, row.owner = "leases", self._workers[at]
            row.epoch, row.attempt = row.epoch + 1, row.attempt + 1
            assert (run.run_epoch, run.attempt, run.lost_count) == (row.epoch, row.attempt, row.lost)
            self._runs.append(Fence(run.task_id, run.run_epoch, self._workers[at]))

    def _is_held(self, run: Fence) -> bool:
        row = self._tasks[run.task_id]
        return (row.place, row.epoch, row.owner) == ("leases", run.run_epoch, run.worker_id)

    def _run(self, at: int) -> Fence:
        """Mostly one that holds its lease, else one of any age."""
        held = [run for run in self._runs if self._is_held(run)] if at % 4 else []
        runs = held or self._runs
        return runs[-1 - at % len(runs)]

    def _said_by(self, run: Fence, by: str) -> tuple[int, int]:
        return run.worker_id + (1000 if by == "another" else 0), run.run_epoch - (by == "older")

    def end_run(self, at: int, what: str, by: str) -> None:
        """A run of any age comes to its end, or somebody else says so."""
        run = self._run(at)
        worker, epoch = self._said_by(run, by)
        outcomes: dict[str, Outcome] = {
            "succeeded": Succeeded("1"),
            "failed": Failed(ERROR),
            "retry": Later("RETRYING", ERROR, 600),
            "snooze": Later("SNOOZED", ERROR, 600),
            "release": Released(),
        }
        ended = Ended(run.task_id, epoch, outcomes[what], 0.0, 0.0)
        landed = self._do(complete(self._db, [ended], worker_id=worker))
        assert landed == ({run.task_id} if by == "itself" and self._is_held(run) else set())
        if not landed:
            DONE[f"end by {by}"] += by == "itself" or self._is_held(run)
            return
        DONE[what] += 1
        row = self._tasks[run.task_id]
        match what:
            case "succeeded" | "failed":
                self._end(run.task_id, "COMPLETED" if what == "succeeded" else "FAILED")
            case "retry":
                self._end(run.task_id, "delayed")
            case "snooze":
                self._end(run.task_id, "delayed")
                row.attempt, row.snoozes = row.attempt - 1, row.snoozes + 1
            case _:
                self._end(run.task_id, "ready")
                row.attempt -= 1

    def write(self, at: int, by: str, *, checkpoint: bool) -> None:
        run = self._run(at)
        worker, epoch = self._said_by(run, by)
        keep = keep_checkpoint if checkpoint else keep_progress
        landed = self._do(keep(self._db, Fence(run.task_id, epoch, worker), "1"))
        assert landed == (by == "itself" and self._is_held(run))
        DONE[f"write by {by}"] += self._is_held(run)

    def cancel(self, at: int) -> None:
        task_id = self._chosen(at)
        was_open = self._tasks[task_id].is_open
        assert self._do(cancel(self._db, [task_id])) == ({task_id} if was_open else set())
        if was_open:
            self._end(task_id, "CANCELLED")

    def retry(self, at: int) -> None:
        task_id = self._chosen(at)
        row = self._tasks[task_id]
        again = row.place in ("FAILED", "CANCELLED")
        assert self._do(retry_tasks(self._db, [task_id], by="me")) == ({task_id} if again else set())
        if again:
            self._tasks[task_id] = Row("ready", row.epoch + 1)

    def time_passes(self) -> None:
        self._do(self._db.fetch(ALL_DUE))
        self._do(self._reaper.due_once())
        for row in self._tasks.values():
            row.place = "ready" if row.place == "delayed" else row.place

    def lose_worker(self, at: int, *, twice: bool) -> None:
        worker = self._workers[at]
        self._do(self._props.silence(worker))
        for _ in range(1 + twice):
            self._do(self._reaper.reap_once())
        answer = self._do(
            beat(self._db, worker, [], lease_seconds=LEASE_SECONDS, look_for_strangers=True, counters=Counters())
        )
        assert answer.status is None, "one that was given up is told so"
        self._workers[at] = self._do(self._props.worker())
        for task_id, row in self._tasks.items():
            if row.place == "leases" and row.owner == worker:
                row.lost += 1
                DONE["lost"] += 1
                if row.lost >= LOST_LIMIT * (2 if row.lost > 2 else 1):
                    self._end(task_id, "FAILED")
                else:
                    self._end(task_id, "delayed")
                    row.attempt -= 1

    def beat(self, at: int) -> None:
        worker = self._workers[at]
        runs = [(run.task_id, run.run_epoch) for run in self._runs if run.worker_id == worker]
        held = {(run.task_id, run.run_epoch) for run in self._runs if run.worker_id == worker and self._is_held(run)}
        answer = self._do(
            beat(self._db, worker, runs, lease_seconds=LEASE_SECONDS, look_for_strangers=True, counters=Counters())
        )
        assert (answer.status, {*answer.gone}, answer.strangers) == ("ACTIVE", {*runs} - held, ())

    def pause_or_resume(self) -> None:
        if self._paused:
            assert self._do(resume_queue(self._db, "default", by="me"))
        else:
            assert self._do(pause_queue(self._db, "default", by="me", reason=None))
        self._paused = not self._paused

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        found = {row["id"]: row for row in self._do(self._db.fetch(ROWS))}
        assert found.keys() == self._tasks.keys()
        for task_id, row in self._tasks.items():
            got = found[task_id]
            assert (got["place"], got["epoch"] or 0) == (row.place, row.epoch), task_id
            if row.is_open:
                counts = (got["attempt"], got["lost"], got["snoozes"], got["owner"])
                assert counts == (row.attempt, row.lost, row.snoozes, row.owner), task_id
        assert {row["key"]: row["task_id"] for row in self._do(self._db.fetch(KEYS))} == self._keys
        assert not self._do(self._db.fetch(BROKEN))


@pytest.mark.timeout(0 if EXAMPLES > 500 else 600)
def test_the_flow_does_what_the_model_says_in_any_sequence_of_steps(settings: Settings) -> None:
    loop = uvloop.new_event_loop()

    async def open_database() -> Props:
        db = Database(settings.model_copy(update={"lost_limit": LOST_LIMIT}), size=2, flow=True)
        props = Props(db)
        await props.prepare()
        return props

    props = loop.run_until_complete(open_database())

    def machine() -> Flow:
        return Flow(loop, props)

    rules = hypothesis_settings(
        max_examples=EXAMPLES,
        stateful_step_count=40,
        derandomize=SEED is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    try:
        factory: Any = machine if SEED is None else seed(int(SEED))(machine)
        run_state_machine_as_test(factory, settings=rules)
        ways = [f"{what} by {who}" for what in ("end", "write") for who in ("itself", *BREACHES)]
        assert min(DONE[what] for what in (*KINDS, *ways, "lost", "keyed twice")) > 3, DONE
        loop.run_until_complete(props.db.fetch(EMPTY))
    finally:
        loop.run_until_complete(props.db.close())
        loop.close()
