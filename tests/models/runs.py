"""The life of one task in the hands of two workers that crash, freeze and hear no answer; docs/model.md maps it.

A statement that others may meet half done is two steps, its locks are held between them. Whatever a protection guards
against is written down as it happens in `Said`, and a state where it happened is broken. A worker id that nothing
refers to any more stands for a new one: restarts need no third worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tests.models.checker import Step

Weakness = Literal[
    "fence without worker id", "fence without epoch", "look instead of lock", "lost is not for ever",
    "cancel in one statement", "strangers are kept", "reaper takes what it marked", "losses are forgotten",
    "clear starts epochs anew", "release spends an attempt", "answers are guessed", "due leaves the row behind",
]  # fmt: skip
WORKERS = (0, 1)
LOST_LIMIT = 2
MAX_ATTEMPTS = 2
PLACES = ("delayed", "ready", "leases")  # the order in which a cancel looks


class Run(NamedTuple):
    """What a worker believes it holds."""

    epoch: int
    lease: int = 0  # which of all leases that ever were; 0: it never was
    sent: str = ""  # an outcome that was sent and not answered


class Worker(NamedTuple):
    """A process and its row."""

    process: str = "up"  # frozen, dead
    status: str = "ACTIVE"  # or LOST
    expired: bool = False
    runs: tuple[Run, ...] = ()
    doing: str = ""  # a statement that has its locks and has not committed: claim, write, or an outcome
    run: Run = Run(0)  # that does it


class Task(NamedTuple):
    """The rows of the task."""

    place: str = "ready"  # delayed, leases, final
    twice: bool = False  # another row is still in `delayed`
    epoch: int = 0
    attempt: int = 0
    lost: int = 0
    owner: int = -1  # of the lease
    lease: int = 0  # how many there ever were: the truth that epochs stand for
    locked: int = -1  # by the statement of this worker
    ended: tuple[int, int] = (-1, -1)  # epoch and worker that the end names


class Said(NamedTuple):
    """What must never be."""

    stale: bool = False
    revived: bool = False
    misjudged: bool = False
    losses: int = 0
    retries: int = 0


class State(NamedTuple):
    """Everything."""

    task: Task
    workers: tuple[Worker, ...]
    said: Said
    cancel: int  # 0..2: looks there next; -1 nobody cancels, 3 has answered, 4 was undone by a clear
    cancels: int
    clears: int
    faults: int
    sees: str  # the place that a cancel in one statement has in its snapshot


class Runs:
    """The model; `weak` takes one protection away."""

    def __init__(self, weak: Weakness | None = None, *, faults: int = 2, claims: int = 2) -> None:
        self._weak = weak
        self._faults = faults
        self._claims = claims

    def initial(self) -> Iterator[State]:
        yield State(Task(), (Worker(),) * len(WORKERS), Said(), -1, 1, 1, self._faults, "")

    def is_end(self, state: State) -> bool:
        task = state.task
        is_beyond = task.place in ("ready", "delayed") and task.lease >= self._claims  # not followed any further
        return (task.place == "final" or is_beyond) and state.cancel in (-1, 3, 4)

    def broken(self, state: State) -> str | None:
        task, said = state.task, state.said
        wrong = {
            "a run wrote though its lease was another's": said.stale,
            "a worker that was given up was told that it is not": said.revived,
            "an outcome that was written was called stale": said.misjudged,
            "a task was lost as often as the limit and goes on": said.losses >= LOST_LIMIT and task.place != "final",
            "an attempt was spent by something else than a retry": task.attempt != said.retries,
            "a cancel has answered and the task goes on": state.cancel == 3 and task.place != "final",
            "the task is in two places": task.twice,
        }
        return next((what for what, is_so in wrong.items() if is_so), None)

    def steps(self, state: State) -> Iterator[Step[State]]:
        for step in self._steps(state):
            # Two states that differ in the names of the workers alone are one. Not where a trace is to be read.
            yield step if self._weak else Step(step.name, min(step.state, _swapped(step.state)), step.fault)

    def _steps(self, state: State) -> Iterator[Step[State]]:
        for at in WORKERS:
            yield from self._process(state, at)
            yield from self._claim(state, at)
            yield from self._write(state, at)
            yield from self._beat(state, at)
        yield from self._reap(state)
        yield from self._cancel(state)
        yield from self._clear(state)

    # A process and its row.

    def _process(self, state: State, at: int) -> Iterator[Step[State]]:
        one = state.workers[at]
        if one.process == "up" and state.faults:
            yield _fault(f"freeze({at})", _with(state, at, process="frozen"))
            yield _fault(f"crash({at})", _with(state, at, process="dead", runs=()))
        if one.process == "frozen":
            yield Step(f"thaw({at})", _with(state, at, process="up"))
        if one.process != "up" and not one.expired and one.status == "ACTIVE":
            yield Step(f"lease period passes({at})", _with(state, at, expired=True))
        forgotten = state.task.owner != at and state.task.ended[1] != at
        if one.process == "dead" and one.status == "LOST" and not one.doing and forgotten:
            yield Step(f"restart({at})", _with(state, at, **Worker()._asdict()))

    # Claim: CLAIM_NEXT_IN_LINE.

    def _claim(self, state: State, at: int) -> Iterator[Step[State]]:
        one, task = state.workers[at], state.task
        may = one.process == "up" and one.status == "ACTIVE" and not one.doing
        if may and task.place == "ready" and task.locked < 0 and task.lease < self._claims:
            yield Step(f"claim({at})", _with(_row(state, locked=at), at, doing="claim"))
        if one.doing != "claim":
            return
        run = Run(task.epoch + 1, task.lease + 1)
        leased = _row(state, place="leases", epoch=run.epoch, lease=run.lease, owner=at, locked=-1)
        is_dead = one.process == "dead"
        knows, imagines = ((), ()) if is_dead else ((run,), (Run(run.epoch),))
        yield Step(f"claim commits({at})", _with(leased, at, doing="", runs=knows))  # an older one is stopped
        if state.faults:
            yield _fault(f"claim commits, answer lost({at})", _with(leased, at, doing=""))
            # A crash of Postgres may lose a commit that was answered before it was on disk.
            undone = _with(_row(state, locked=-1), at, doing="")
            yield _fault(f"claim is answered, commit lost({at})", _with(undone, at, runs=imagines))
            yield _fault(f"claim rolls back({at})", undone)

    # A run's own writes: KEEP_PROGRESS and its like, COMPLETE_SUCCEEDED, SETTLE_OWN_RUNS.

    def _write(self, state: State, at: int) -> Iterator[Step[State]]:
        one = state.workers[at]
        if one.doing and one.doing != "claim":
            yield from self._commit(state, at)
        if one.doing or one.process != "up":
            return
        for run in one.runs:
            if run.sent:
                yield from self._send(state, at, run, run.sent)
                continue
            for what in ("write", "done", "retry", "released"):
                yield from self._send(state, at, run, what)
                if not self._lets_through(state.task, at, run.epoch):
                    break  # whatever it is, it finds no lease

    def _send(self, state: State, at: int, run: Run, what: str) -> Iterator[Step[State]]:
        task = state.task
        if self._lets_through(task, at, run.epoch):
            if task.locked < 0:
                locked = state if self._weak == "look instead of lock" else _row(state, locked=at)
                yield Step(f"{what}({at}, epoch {run.epoch})", _with(locked, at, doing=what, run=run))
            return
        # No lease. An outcome that had no answer is looked up in what it would have written: LANDED.
        gone = _without(state, at, run)
        if run.sent == "done" and task.ended == (run.epoch, at) and self._weak == "answers are guessed":
            gone = _say(gone, misjudged=True)
        yield Step(f"{what} finds no lease({at}, epoch {run.epoch})", gone)

    def _lets_through(self, task: Task, at: int, epoch: int) -> bool:
        of_worker = task.owner == at or self._weak == "fence without worker id"
        of_run = task.epoch == epoch or self._weak == "fence without epoch"
        return task.place == "leases" and of_worker and of_run

    def _commit(self, state: State, at: int) -> Iterator[Step[State]]:
        one, task = state.workers[at], state.task
        run, who = one.run, f"({at}, epoch {one.run.epoch})"
        written = _with(_row(state, locked=-1) if task.locked == at else state, at, doing="", run=Run(0))
        # A lease that a crash has undone and the same worker's next one have one epoch and owner: either may write.
        own = (task.place, task.owner, task.epoch) == ("leases", at, run.epoch) and run.lease in (0, task.lease)
        if not own:
            yield Step(f"{one.doing} commits{who}", _say(written, stale=True))
            return
        landed = self._landed(written, at, one.doing)
        yield Step(f"{one.doing} commits{who}", landed if one.doing == "write" else _without(landed, at, run))
        if one.doing != "write" and state.faults:
            unsure = tuple(other._replace(sent=one.doing) if other == run else other for other in one.runs)
            for name, after in (("commits, answer lost", landed), ("rolls back", written)):
                yield _fault(f"{one.doing} {name}{who}", _with(after, at, runs=unsure))

    def _landed(self, state: State, at: int, what: str) -> State:
        task, free = state.task, {"owner": -1, "locked": -1}
        match what:
            case "done":
                return _row(state, place="final", ended=(task.epoch, at), **free)
            case "retry":
                said = _say(state, retries=state.said.retries + 1)
                if task.attempt + 1 >= MAX_ATTEMPTS:
                    return _row(said, place="final", attempt=task.attempt + 1, ended=(task.epoch, at), **free)
                return _row(said, place="delayed", attempt=task.attempt + 1, **free)
            case "released":
                return self._released(state)
            case _:
                return state

    def _released(self, state: State) -> State:
        spent = state.task.attempt + (self._weak == "release spends an attempt")
        return _row(state, place="ready", attempt=spent, owner=-1, locked=-1)

    # Heartbeat: BEAT, then SETTLE_OWN_RUNS for strangers.

    def _beat(self, state: State, at: int) -> Iterator[Step[State]]:
        one, task = state.workers[at], state.task
        if one.process != "up":
            return
        if one.status == "LOST" and self._weak != "lost is not for ever":
            yield Step(f"beat says given up({at})", _with(state, at, process="dead", runs=()))
            return
        if one.status == "LOST":
            yield Step(f"beat({at})", _say(_with(state, at, status="ACTIVE", expired=False), revived=True))
            return
        mine = task.epoch if (task.place, task.owner) == ("leases", at) else -1
        kept = tuple(run for run in one.runs if run.epoch == mine or run.sent or one.doing)
        if one.expired or kept != one.runs:
            yield Step(f"beat({at})", _with(state, at, expired=False, runs=kept))
        stranger = mine >= 0 and task.locked < 0 and not one.doing and all(run.epoch != mine for run in one.runs)
        if stranger and self._weak != "strangers are kept":
            yield Step(f"stranger is released({at})", self._released(state))

    # Reaper: MARK_LOST_WORKERS, TAKE_LOST_RUNS, MOVE_DUE.

    def _reap(self, state: State) -> Iterator[Step[State]]:
        task = state.task
        for at in WORKERS:
            one = state.workers[at]
            if one.expired and one.status == "ACTIVE":
                marked = _with(state, at, status="LOST")
                took = self._weak == "reaper takes what it marked" and task.owner == at and task.locked < 0
                yield Step(f"mark({at})", self._taken(marked) if took else marked)
            is_lost = task.place == "leases" and task.owner == at and one.status == "LOST"
            if is_lost and task.locked < 0 and self._weak != "reaper takes what it marked":
                yield Step(f"take({at})", self._taken(state))
        if task.place == "delayed":
            yield Step("due", _row(state, place="ready", twice=self._weak == "due leaves the row behind"))

    def _taken(self, state: State) -> State:
        task = state.task
        said = _say(state, losses=state.said.losses + 1)
        lost = 0 if self._weak == "losses are forgotten" else task.lost + 1
        place = "final" if lost >= LOST_LIMIT else "delayed"
        return _row(said, place=place, lost=lost, owner=-1)

    # Cancel: TAKE_DELAYED, TAKE_READY, TAKE_LEASED, one statement a place, and round again.

    def _cancel(self, state: State) -> Iterator[Step[State]]:
        task = state.task
        if state.cancel < 0 and state.cancels:
            yield Step("cancel is asked for", state._replace(cancel=0, cancels=0, sees=task.place), fault=True)
        if state.cancel not in (0, 1, 2):
            return
        ended = _row(state, place="final", owner=-1, ended=(-1, -1))
        if self._weak == "cancel in one statement":
            # It waits for the lock and then finds the row gone; where it went was not in its snapshot.
            if task.locked < 0:
                yield Step("cancel", (ended if task.place == state.sees else state)._replace(cancel=3, sees=""))
            return
        place = PLACES[state.cancel]
        onward = (state.cancel + 1) % 3
        if task.place == "final":
            yield Step("cancel finds it final", state._replace(cancel=3, sees=""))
        elif task.place == place and task.locked < 0:
            yield Step(f"cancel takes it from {place}", ended._replace(cancel=3, sees=""))
        else:
            yield Step(f"cancel looks into {place}", state._replace(cancel=onward, sees=""))

    # Clear: job row and gates are held, the task is taken out of its place.

    def _clear(self, state: State) -> Iterator[Step[State]]:
        task = state.task
        if state.clears and task.locked < 0 and task.place != "delayed":
            epoch = 0 if self._weak == "clear starts epochs anew" else task.epoch + 1
            cleared = _row(state, place="ready", epoch=epoch, attempt=0, lost=0, owner=-1, ended=(-1, -1))
            cancel = 4 if state.cancel == 3 else state.cancel
            after = _say(cleared, losses=0, retries=0)._replace(clears=0, cancel=cancel)
            yield Step("clear", after, fault=True)


def _with(state: State, at: int, **given: object) -> State:
    workers = list(state.workers)
    workers[at] = workers[at]._replace(**given)  # type: ignore[arg-type]
    return state._replace(workers=tuple(workers))


def _row(state: State, **given: object) -> State:
    return state._replace(task=state.task._replace(**given))  # type: ignore[arg-type]


def _say(state: State, **given: object) -> State:
    return state._replace(said=state.said._replace(**given))  # type: ignore[arg-type]


def _without(state: State, at: int, run: Run) -> State:
    return _with(state, at, runs=tuple(one for one in state.workers[at].runs if one != run))


def _swapped(state: State) -> State:
    other = {-1: -1, 0: 1, 1: 0}
    task = state.task
    renamed = task._replace(
        owner=other[task.owner], locked=other[task.locked], ended=(task.ended[0], other[task.ended[1]])
    )
    return state._replace(task=renamed, workers=state.workers[::-1])


def _fault(name: str, state: State) -> Step[State]:
    return Step(name, state._replace(faults=state.faults - 1), fault=True)
