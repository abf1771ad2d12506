"""What the runs of a worker come to: handed to the completer, counted, reported; slots of limits given back.

Before: slots. After: complete, and admission for whoever waited behind a run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from .flags import HOOKED, IN_JOB
from .flow.admit import give_back_stopped
from .flow.background import Background
from .flow.choose import Lane, lanes_of
from .flow.claim import Claimed
from .flow.complete import Completer
from .flow.execute import RELEASED, Run
from .flow.heartbeat import Counters
from .flow.kick import tell_ended
from .flow.tally import COMPLETED, Tallied, Tally, place_of
from .outcome import Cancelled, Ended, Failed, Later, Outcome, Released, Skipped, Succeeded
from .postgres import Database
from .report import Report
from .slots import Slots

FINAL = frozenset({Succeeded, Failed, Cancelled, Skipped})  # by type: isinstance of a struct takes four times as long


class Claiming(Protocol):
    """Who claims, and has to know that a run of a queue is over."""

    def ended(self, queue: str) -> None:
        """A run of the queue has ended."""


class Ends:
    """The ends of one worker's runs."""

    slots: Slots

    def __init__(self, report: Report) -> None:
        self._report = report
        self._completed = self._failed = self._lost = 0
        self._stopped_runs: list[Run] = []
        self.tally: Counter[str] = Counter()  # runs that ended here, by what they came to
        self.figures = Tally()  # the same for everybody to see
        # Claimed and in no slot: no code here to run them, or their inputs are on their way; not settled yet.
        self.outside: set[tuple[int, int]] = set()
        self.unknown: dict[tuple[int, int], Claimed] = {}  # those of them that no code is known of

    def serve(self, db: Database, completer: Completer, background: Background, claimer: Claiming) -> None:
        """Where outcomes go from now on."""
        self._db = db
        self._completer = completer
        self._background = background
        self._claimer = claimer

    @property
    def owes_slots(self) -> bool:
        """Whether slots of runs that were told to stop wait to be given back."""
        return bool(self._stopped_runs)

    def run_ended(self, run: Run, outcome: Outcome | None) -> None:
        """A run has come to its end, or is not ours any more (None)."""
        if outcome is None:
            self.slots.let_go(run, recorded=run.committed)
            self._claimer.ended(run.claimed.queue)
            self.tally["Succeeded" if run.committed else "Gone"] += 1
            if not run.committed and run.stop is None:
                self.run_stopped(run)
            if run.committed:
                tell_ended([run.claimed.task_id])
                self._completed += 1
                self._background.freed(lanes_of(run.claimed))
                self._background.arrived()
                seconds = time.monotonic() - run.started
                self.figures.count([_tallied(run.claimed, seconds, COMPLETED)])
                self._report.ended(run, Succeeded(None), seconds)
            return
        now = time.monotonic()
        self._completer.add(
            Ended(
                run.claimed.task_id,
                run.claimed.run_epoch,
                outcome,
                run.started or now,
                now,
                run.worker_id,
                run.claimed.flags,
                self.slots.is_still_running(run),
            )
        )

    def hand_back(self, runs: Sequence[Claimed], worker_id: int) -> None:
        """Runs that were leased to this worker id and will not be started here."""
        now = time.monotonic()
        for one in runs:
            self.outside.add((one.task_id, one.run_epoch))
            self._completer.add(Ended(one.task_id, one.run_epoch, RELEASED, now, now, worker_id, one.flags))

    def run_stopped(self, run: Run) -> None:
        """The code of a run that was told to stop has ended: the slots that were kept for it are free."""
        self._stopped_runs.append(run)

    async def give_back_slots(self) -> None:
        """Free the slots of runs that were told to stop and have ended by now."""
        # Not before what it came to is written: that is what marks its slots as kept for it.
        over = [run for run in self._stopped_runs if self.slots.held.get(run.claimed.task_id) is not run]
        for worker_id in {run.worker_id for run in over}:
            ids = [(run.claimed.task_id, run.claimed.run_epoch) for run in over if run.worker_id == worker_id]
            await give_back_stopped(self._db, ids, worker_id=worker_id)
        self._stopped_runs = [run for run in self._stopped_runs if run not in over]
        for run in over:
            self._background.freed(lanes_of(run.claimed))

    def landed(self, batch: Sequence[Ended], landed: set[int]) -> None:
        """The completer has written these outcomes, as far as their runs still had their lease."""
        tell_ended([run.task_id for run in batch if run.task_id in landed and type(run.outcome) in FINAL])
        if any(run.flags & IN_JOB for run in batch):
            self._background.arrived()
        freed: set[Lane] = set()
        queues: set[str] = set()
        counted: list[Tallied] = []
        for ended in batch:
            run, claimed = self._found(ended)
            is_ours = ended.task_id in landed
            if run is not None:
                self.slots.let_go(run, recorded=is_ours)
                queues.add(run.claimed.queue)
                self.tally[type(ended.outcome).__name__ if is_ours else "Gone"] += 1
            if not is_ours:
                self._came_too_late(ended, run)
                continue
            self._count(ended)
            place = place_of(ended.outcome)
            if claimed is not None and place is not None:
                counted.append(_tallied(claimed, ended.ended - ended.started, place))
            if run is not None:
                self._report.ended(run, ended.outcome, ended.ended - ended.started)
                freed |= lanes_of(run.claimed)
        for queue in queues:
            self._claimer.ended(queue)
        self.figures.count(counted)
        if freed:
            self._background.freed(freed)

    def _found(self, ended: Ended) -> tuple[Run | None, Claimed | None]:
        """The run that has ended, unless its task was claimed again meanwhile, and what is known of its claim."""
        if self.outside:
            self.outside.discard((ended.task_id, ended.run_epoch))
        run = self.slots.held.get(ended.task_id)
        if run is not None and run.claimed.run_epoch == ended.run_epoch:
            return run, run.claimed
        return None, self.unknown.pop((ended.task_id, ended.run_epoch), None)

    def _came_too_late(self, ended: Ended, run: Run | None) -> None:
        self._lost += 1
        self._report.stale(ended)
        if run is not None and run.stop is None:
            self.run_stopped(run)  # taken from us, and over before we heard of it

    def _count(self, ended: Ended) -> None:
        kind = type(ended.outcome)
        if kind is Succeeded:
            self._completed += 1
        elif kind is Failed:
            self._failed += 1
        elif kind is Later:
            self._background.due.kick()
        if ended.flags & HOOKED or kind is Released:
            self._background.made_ready()

    def take_counters(self) -> Counters:
        """What was done since the last call."""
        taken = Counters(self._completed, self._failed, self._lost)
        self._completed -= taken.completed
        self._failed -= taken.failed
        self._lost -= taken.lost
        return taken

    def give_back_counters(self, counters: Counters) -> None:
        """A beat did not land: count them again."""
        self._completed += counters.completed
        self._failed += counters.failed
        self._lost += counters.lost


def _tallied(claimed: Claimed, seconds: float, place: int) -> Tallied:
    return Tallied(claimed.queue, claimed.entrypoint, max(0.0, claimed.waited), max(0.0, seconds), place)
