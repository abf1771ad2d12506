"""A small fleet that does everything at once and goes wrong all the time, and a model that checks what came of it.

The seed decides what each worker does; it is shown when the test fails and can be given as RACES_SEED.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter, defaultdict

import msgspec

from aaiclick_queue.flow.cancel import cancel
from aaiclick_queue.flow.claim import Claimed, Line, Wanted
from aaiclick_queue.flow.complete import complete
from aaiclick_queue.flow.reaper import Reaper
from aaiclick_queue.outcome import Cancelled, Ended, Error, Failed, Later, Outcome, Released, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.races.props import Props

TASKS = 3_000
WORKERS = 4
ERRATIC_SECONDS = 6.0  # then everybody behaves, so that it comes to an end
LOST_LIMIT = 3
MAX_ATTEMPTS = 3
ERROR = Error("ValueError", "no")
LATER = "UPDATE aaiclick_queue.delayed SET not_before = now() - interval '1 ms' WHERE not_before > now()"
FINAL = """
SELECT id, status, run_epoch, attempt, worker_id, result, error->>'type' AS error FROM aaiclick_queue.tasks
"""
HISTORY = "SELECT task_id, run_epoch, worker_id, attempt, outcome FROM aaiclick_queue.attempts"


class Journal(msgspec.Struct):
    """What the fleet has seen and done, as the fleet knows it."""

    claims: dict[tuple[int, int], tuple[int, Claimed]] = {}
    landed: dict[tuple[int, int], Outcome] = {}
    cancelled: Counter[int] = msgspec.field(default_factory=Counter)
    late: int = 0


class Fleet:
    """Workers, reapers and a canceller, each with its own connection."""

    def __init__(self, settings: Settings, props: Props, seed: int) -> None:
        self._settings = settings
        self._props = props
        self._seed = seed
        self.journal = Journal()
        self._until = time.monotonic() + ERRATIC_SECONDS
        self._ids: list[int] = []

    async def run(self) -> None:
        others = [self._reap, self._reap, self._cancel, self._pass_time]
        background = [asyncio.create_task(one(random.Random(f"{self._seed}{at}"))) for at, one in enumerate(others)]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._enqueue(random.Random(f"{self._seed} enqueue")))
            for at in range(WORKERS):
                group.create_task(self._work(random.Random(f"{self._seed} worker {at}")))
        for one in background:
            one.cancel()
        ends = await asyncio.gather(*background, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    @property
    def _erratic(self) -> bool:
        return time.monotonic() < self._until

    async def _enqueue(self, rng: random.Random) -> None:
        while len(self._ids) < TASKS:
            count = min(rng.randrange(1, 200), TASKS - len(self._ids))
            countdown = rng.choice([None, None, 0.001, 30.0])
            self._ids += await self._props.enqueue(self._props.db, count=count, countdown=countdown)
            await asyncio.sleep(rng.random() * 0.1)

    async def _over(self) -> bool:
        if len(self._ids) < TASKS:
            return False
        return not await self._props.db.fetch("SELECT FROM aaiclick_queue.tasks WHERE status IS NULL LIMIT 1")

    async def _work(self, rng: random.Random) -> None:
        """Incarnation after incarnation, until all tasks have ended."""
        zombies: list[tuple[int, list[Claimed]]] = []
        async with Database(self._settings, size=1, flow=True) as db:
            while not await self._over():
                worker = await self._props.worker()
                held = await self._live(db, worker, rng)
                await self._props.silence(worker)
                zombies.append((worker, held))
                if len(zombies) > rng.randrange(3):
                    await self._come_late(db, *zombies.pop(0), rng)
            for worker, held in zombies:
                await self._come_late(db, worker, held, rng)

    async def _live(self, db: Database, worker: int, rng: random.Random) -> list[Claimed]:
        """One incarnation; what it still held when it died."""
        line = Line({"default": 1})
        held: list[Claimed] = []
        for _ in range(rng.randrange(1, 30) if self._erratic else 1000):
            limit = rng.randrange(1, 40)
            claimed = await line.claim(db, Wanted(limit, worker, 3600, 30))
            for one in claimed:
                assert (one.task_id, one.run_epoch) not in self.journal.claims, "an epoch was given out twice"
                self.journal.claims[one.task_id, one.run_epoch] = worker, one
            held += claimed
            rng.shuffle(held)
            keep = rng.randrange(len(held) + 1) if self._erratic else 0
            await self._complete(db, worker, held[keep:], rng)
            held = held[:keep]
            if not claimed:
                if not held and await self._over():
                    break
                await asyncio.sleep(0.01)
        return held

    async def _complete(self, db: Database, worker: int, runs: list[Claimed], rng: random.Random) -> set[int]:
        now = time.monotonic()
        batch = [Ended(one.task_id, one.run_epoch, self._outcome(one, rng), now, now) for one in runs]
        landed = await complete(db, batch, worker_id=worker) if batch else set()
        for ended in batch:
            if ended.task_id in landed:
                key = ended.task_id, ended.run_epoch
                assert key not in self.journal.landed, "a run ended twice"
                self.journal.landed[key] = ended.outcome
        return landed

    def _outcome(self, one: Claimed, rng: random.Random) -> Outcome:
        again = one.attempt < MAX_ATTEMPTS
        choices: list[Outcome] = [
            Succeeded(str(one.run_epoch)),
            Later("RETRYING", ERROR, rng.choice([0.0, 0.05, None])) if again else Failed(ERROR),
            Later("SNOOZED", ERROR, rng.choice([0.0, 0.05])),
            Released(),
            Failed(ERROR),
            Cancelled(ERROR),
        ]
        [chosen] = rng.choices(choices, [12, 4, 3, 2, 1, 1] if self._erratic else [1, 0, 0, 0, 0, 0])
        return chosen

    async def _come_late(self, db: Database, worker: int, held: list[Claimed], rng: random.Random) -> None:
        """A worker that everybody has given up, or is about to, completes what it had."""
        landed = await self._complete(db, worker, held, rng)
        self.journal.late += len(held) - len(landed)

    async def _reap(self, rng: random.Random) -> None:
        async with Database(self._settings, size=1, flow=True) as db:
            reaper = Reaper(db)
            while True:
                await reaper.reap_once(rng.choice([1, 7, 500]))
                await reaper.due_once(rng.choice([1, 30, 1000]))
                if rng.random() < 0.05:
                    await reaper.sweep_once()
                await asyncio.sleep(rng.random() * 0.02)

    async def _cancel(self, rng: random.Random) -> None:
        async with Database(self._settings, size=1, flow=True) as db:
            while True:
                if self._ids and self._erratic:
                    self.journal.cancelled.update(await cancel(db, rng.sample(self._ids, min(len(self._ids), 3))))
                await asyncio.sleep(rng.random() * 0.05)

    async def _pass_time(self, rng: random.Random) -> None:
        async with Database(self._settings, size=1, flow=True) as db:
            while True:
                await db.fetch(LATER)
                await asyncio.sleep(0.1 + rng.random() * 0.2)


class Model:
    """What must be true of a task, told from the journal and from the history that the flow has kept."""

    def __init__(self, journal: Journal, history: list[tuple[int, int, int, int, str]]) -> None:
        self._journal = journal
        self._epochs: defaultdict[int, list[int]] = defaultdict(list)
        for task_id, run_epoch in sorted(journal.claims):
            self._epochs[task_id].append(run_epoch)
        self._history = {(task_id, epoch): (worker, spent, kind) for task_id, epoch, worker, spent, kind in history}
        assert len(self._history) == len(history), "two attempts are recorded for one run"

    def check(  # noqa: C901 - one case a way to end a run
        self, task_id: int, status: str, run_epoch: int, result: str | None, error: str | None
    ) -> None:
        epochs = self._epochs[task_id]
        assert epochs == list(range(1, len(epochs) + 1)), "epochs grow by one with each claim"
        spent = lost = snoozed = 0
        end: str | None = None
        for epoch in epochs:
            worker, claimed = self._journal.claims[task_id, epoch]
            assert (claimed.attempt, claimed.lost_count, claimed.snoozes) == (spent + 1, lost, snoozed)
            assert end is None, "a task that had ended was claimed"
            outcome = self._journal.landed.get((task_id, epoch))
            recorded = self._history.get((task_id, epoch))
            match outcome:
                case Succeeded():
                    end = "COMPLETED"
                    assert result == str(epoch)
                case Failed():
                    end = "FAILED"
                case Cancelled():
                    end = "CANCELLED"
                case Later(kind="RETRYING"):
                    spent += 1
                    assert recorded == (worker, spent, "RETRYING")
                case Later(kind="SNOOZED"):
                    snoozed += 1
                    assert recorded == (worker, spent + 1, "SNOOZED")
                case Released():
                    assert recorded is None
                case None if recorded:
                    lost += 1
                    assert recorded == (worker, spent + 1, "LOST")
                case None if error == "WorkerLost":
                    end = "FAILED"
                    assert lost + 1 == LOST_LIMIT
                case None:
                    assert self._journal.cancelled[task_id], "a run ended by nobody"
        by_hand = self._journal.cancelled[task_id]
        assert (end is not None) + by_hand == 1, f"ended {end}, and {by_hand} times by hand"
        assert status == (end or "CANCELLED")
        assert run_epoch == len(epochs)
        assert (result is not None) == (status == "COMPLETED")


async def test_whatever_goes_wrong_each_task_ends_once_and_its_counts_are_right(
    settings: Settings, props: Props
) -> None:
    seed = int(os.environ.get("RACES_SEED") or random.randrange(10**6))
    settings = settings.model_copy(update={"lost_limit": LOST_LIMIT})
    fleet = Fleet(settings, props, seed)
    try:
        async with asyncio.timeout(90):
            await fleet.run()
        history = [tuple(row) for row in await props.db.fetch(HISTORY)]
        model = Model(fleet.journal, history)
        finals = await props.db.fetch(FINAL)
        assert len(finals) == TASKS
        for row in finals:
            try:
                model.check(row["id"], row["status"], row["run_epoch"], row["result"], row["error"])
            except AssertionError as error:
                error.add_note(f"task {row['id']}: {dict(row)}")
                raise
        kinds = Counter(kind for *_, kind in history) + Counter(row["status"] for row in finals)
        assert min(kinds[kind] for kind in ("LOST", "RETRYING", "SNOOZED", "FAILED", "CANCELLED", "COMPLETED")) > 10
        assert fleet.journal.late > 10, "no zombie came late"
    except BaseException as error:
        error.add_note(f"RACES_SEED={seed}")
        raise
