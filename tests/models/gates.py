"""Gates, arrivals, spawn and fold of one small job, by two resolvers that crash; docs/model.md maps it.

A resolver holds its gate from the first step of a fold to its commit, and has seen the arrivals of the first step. Who
adds holds the job's row and the gates that it raises. Each scene is a job of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.models.checker import Step

Weakness = Literal[
    "spawn is an arrival", "spawn looks and does not lock", "spawn does not look at the job", "arrival after the end",
    "gate does not know that it has told", "a page is not asked for again", "nobody looks at an empty gate",
    "who waits has no row", "a job that is held is not looked at again",
]  # fmt: skip
Rule = Literal["whole", "all_success", "one_success"]
JOB = 0  # the number of the job's gate
OPEN_STATUSES = ("waiting", "open")
RESOLVERS = (0, 1)


@dataclass(frozen=True)
class Scene:
    """What a job is made of; tasks and gates by their numbers."""

    name: str
    rules: tuple[Rule, ...]  # of each gate
    totals: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]  # the gates that the end of each task is told to
    waits: tuple[int | None, ...]  # the gate that each task waits at
    parents: tuple[int | None, ...]  # the gate that counts what a gate has counted
    edges: tuple[tuple[int, ...], ...]  # the gates that each gate tells its state
    needs: tuple[tuple[int, ...], ...]  # the tasks that have to be over before each one starts; all of them
    spawner: int | None = None  # who adds; None: somebody outside
    child: int | None = None  # what is added
    into: int = JOB
    cancelled: int | None = None  # somebody may cancel this task
    job_cancels: int = 0
    looks: tuple[int, ...] = ()  # gates that are looked at from the beginning

    def above(self, gate: int) -> tuple[int, ...]:
        parent = self.parents[gate]
        return (gate,) if parent is None else (gate, *self.above(parent))


# X adds to the group of A while that ends; C waits for the group and for X.
GROWING = Scene(
    "a task adds to another group", ("whole", "whole", "all_success"), (3, 1, 2),
    members=((JOB, 2), (1,), (1,), (JOB,)), waits=(None, None, None, 2), parents=(None, JOB, None),
    edges=((), (2,), ()), needs=((), (), (), (0, 1, 2)), spawner=0, child=2, into=1,
)  # fmt: skip
# Two ends at a gate that opens at the first, and tells another one, where a task waits for it and for X.
TELLING = Scene(
    "a gate is decided before all have come", ("whole", "one_success", "all_success"), (4, 2, 2),
    members=((JOB, 1), (JOB, 1), (JOB, 2), (JOB,)), waits=(None, None, None, 2), parents=(None, None, None),
    edges=((), (2,), ()), needs=((), (), (), (2,)),
)  # fmt: skip
# Two wait for one, page by page, and one of them is cancelled, or the whole job is.
PAGES = Scene(
    "two wait for one and are cancelled", ("whole", "all_success"), (3, 1), members=((JOB, 1), (JOB,), (JOB,)),
    waits=(None, 1, 1), parents=(None, None), edges=((), ()), needs=((), (0,), (0,)), cancelled=1, job_cancels=1,
)  # fmt: skip
# Somebody outside adds to a job, which is cancelled meanwhile.
ADDING = Scene(
    "somebody adds to a job that is cancelled", ("whole",), (2,), members=((JOB,), (JOB,), (JOB,)),
    waits=(None, None, None), parents=(None,), edges=((),), needs=((), (), ()), child=1, job_cancels=1,
)  # fmt: skip
# A group without a task, and one that waits for it.
EMPTY = Scene(
    "a group is empty", ("whole", "whole", "all_success"), (1, 0, 1), members=((JOB,),), waits=(2,),
    parents=(None, JOB, None), edges=((), (2,), ()), needs=((),), looks=(1,), cancelled=0, job_cancels=1,
)  # fmt: skip
SCENES = (EMPTY, ADDING, GROWING, PAGES, TELLING)


class Gate(NamedTuple):
    """A row of `gates`."""

    total: int
    remaining: int
    failed: int = 0
    state: str = "WAITING"  # OPEN, FAIL
    told: bool = False  # edge_cursor


class Arrival(NamedTuple):
    """A row of `arrivals`."""

    gate: int
    n: int
    failed: int


class State(NamedTuple):
    """Everything."""

    tasks: tuple[str, ...]  # waiting, open, done, failed, cancelled, upstream, or absent
    gates: tuple[Gate, ...]
    arrivals: tuple[Arrival, ...]
    folds: tuple[tuple[Arrival, ...], ...]  # what each resolver has seen at the gate that it holds
    job: str  # open, closed, cancelled, swept
    spawn: str  # may, holds, over
    late: tuple[Arrival, ...]  # ends whose arrivals are still to be written
    both: bool  # a task is in line and has ended
    closes: int
    failures: int
    cancels: int
    job_cancels: int
    row: str  # of the job: free, held by somebody for a while, or was
    faults: int


class Gates:
    """The model of one scene; `weak` takes one protection away."""

    def __init__(self, scene: Scene, weak: Weakness | None = None, *, faults: int = 1) -> None:
        self._scene = scene
        self._weak = weak
        self._faults = faults

    def initial(self) -> Iterator[State]:
        scene = self._scene
        tasks = tuple(
            "absent" if at == scene.child else "open" if gate is None else "waiting"
            for at, gate in enumerate(scene.waits)
        )
        looks = (
            () if self._weak == "nobody looks at an empty gate" else tuple(Arrival(gate, 0, 0) for gate in scene.looks)
        )
        gates = tuple(Gate(total, total) for total in scene.totals)
        spawn = "may" if scene.child is not None else "over"
        cancels = int(scene.cancelled is not None)
        yield State(
            tasks,
            gates,
            looks,
            ((),) * 2,
            "open",
            spawn,
            (),
            False,
            0,
            1,
            cancels,
            scene.job_cancels,
            "free",
            self._faults,
        )

    def is_end(self, state: State) -> bool:
        return state.job in ("closed", "swept") and not any(one in OPEN_STATUSES for one in state.tasks)

    def broken(self, state: State) -> str | None:
        over = {at for at, one in enumerate(state.tasks) if one not in OPEN_STATUSES}
        early = any(
            one in ("open", "done", "failed") and not {*self._scene.needs[at]} <= over
            for at, one in enumerate(state.tasks)
        )
        wrong = {
            "a task started before what it waits for was over": early,
            "a gate counted more ends than there are": any(gate.remaining < 0 for gate in state.gates),
            "a task has ended and is in line": state.both,
            "a job ended while a task of it was open": state.job in ("closed", "swept")
            and len(over) < len(state.tasks),
            "a job ended twice": state.closes > 1,
        }
        return next((what for what, is_so in wrong.items() if is_so), None)

    def steps(self, state: State) -> Iterator[Step[State]]:
        for step in self._steps(state):
            # Resolvers are alike.
            yield step if self._weak else Step(step.name, _sorted(step.state), step.fault)

    def _steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._ends(state)
        for at in RESOLVERS:
            yield from self._fold(state, at)
        yield from self._spawn(state)
        yield from self._cancel(state)
        yield from self._cancel_job(state)

    # An end and its arrivals: COMPLETE_IN_JOB, SETTLE.

    def _ends(self, state: State) -> Iterator[Step[State]]:
        for at, status in enumerate(state.tasks):
            holds = at == self._scene.spawner and state.spawn == "holds"
            if status == "open" and not holds:
                yield Step(f"task {at} completes", self._ended(state, at, "done"))
                if state.failures:
                    yield Step(f"task {at} fails", self._ended(state, at, "failed")._replace(failures=0), fault=True)
        if state.late:
            yield Step("arrivals are written", _arrive(state._replace(late=()), *state.late))
            if state.faults:
                yield Step("process dies", state._replace(late=(), faults=state.faults - 1), fault=True)

    def _ended(self, state: State, at: int, status: str) -> State:
        arrivals = [Arrival(gate, 1, int(status != "done")) for gate in self._scene.members[at]]
        after = _task(state, at, status)
        if self._weak == "arrival after the end":
            return after._replace(late=tuple(sorted((*after.late, *arrivals))))
        return _arrive(after, *arrivals)

    # Fold: FOLD_ARRIVALS, OPEN_GATES, TELL_EDGES, CLOSE_JOBS, LOOK_AGAIN in one transaction.

    def _fold(self, state: State, at: int) -> Iterator[Step[State]]:
        if seen := state.folds[at]:
            yield Step(f"fold commits({at}, gate {seen[0].gate})", self._folded(_folds(state, at, ()), seen))
            if state.faults:
                crashed = _folds(state, at, ())._replace(faults=state.faults - 1)
                yield Step(f"fold rolls back({at}, gate {seen[0].gate})", crashed, fault=True)
            return
        for gate in {one.gate for one in state.arrivals}:
            if self._is_held(state, gate):
                continue
            there = tuple(one for one in state.arrivals if one.gate == gate)
            yield Step(f"fold({at}, gate {gate}, {len(there)})", _folds(state, at, there))
            if len(there) > 1:  # a page that ends between them
                yield Step(f"fold({at}, gate {gate}, 1)", _folds(state, at, there[:1]))

    def _is_held(self, state: State, gate: int) -> bool:
        by_adder = state.spawn == "holds" and gate in self._scene.above(self._scene.into)
        if by_adder and self._weak != "spawn looks and does not lock":
            return True
        return any(seen and seen[0].gate == gate for seen in state.folds)

    def _folded(self, state: State, seen: tuple[Arrival, ...]) -> State:
        number = seen[0].gate
        left = list(state.arrivals)
        for one in seen:
            left.remove(one)
        n, failed = sum(one.n for one in seen), sum(one.failed for one in seen)
        was = state.gates[number]
        gate = was._replace(remaining=was.remaining - n, failed=was.failed + failed)
        if gate.state == "WAITING":
            gate = gate._replace(state=self._state_of(number, gate))
        after = _gate(state._replace(arrivals=tuple(left)), number, gate)
        parent = self._scene.parents[number]
        if parent is not None and n:
            after = _arrive(after, Arrival(parent, n, failed))
        changed = (n != 0 or was.total == 0) and self._weak == "gate does not know that it has told"
        if gate.state != "WAITING" and (not gate.told or changed):
            arrivals = [Arrival(to, 1, int(gate.state == "FAIL")) for to in self._scene.edges[number]]
            after = _gate(_arrive(after, *arrivals), number, gate._replace(told=True))
        return self._close(self._page(after, number), number)

    def _state_of(self, number: int, gate: Gate) -> str:
        rule, came = self._scene.rules[number], gate.total - gate.remaining
        if rule == "all_success" and gate.failed:
            return "FAIL"
        if rule == "one_success" and came > gate.failed:
            return "OPEN"
        if gate.remaining:
            return "WAITING"
        return "FAIL" if gate.failed else "OPEN"

    def _page(self, state: State, number: int) -> State:
        """One of those that wait at the gate, and a word to come again for the others."""
        gate = state.gates[number]
        if gate.state == "WAITING":
            return state
        waiting = [at for at, to in enumerate(self._scene.waits) if to == number and state.tasks[at] == "waiting"]
        if self._weak == "who waits has no row" and not waiting:
            # It looks at the status in its snapshot, and puts in line what was cancelled since.
            gone = [at for at, to in enumerate(self._scene.waits) if to == number and state.tasks[at] == "cancelled"]
            return state._replace(both=bool(gone) and gate.state == "OPEN")
        if not waiting:
            return state
        if gate.state == "OPEN" and state.job == "open":
            after = _task(state, waiting[0], "open")
        else:
            after = self._ended(state, waiting[0], "upstream" if gate.state == "FAIL" else "cancelled")
        again = len(waiting) > 1 and self._weak != "a page is not asked for again"
        return _arrive(after, Arrival(number, 0, 0)) if again else after

    def _close(self, state: State, number: int) -> State:
        if number != JOB or state.gates[JOB].remaining or state.job != "open":
            return state
        if state.spawn == "holds" or state.row == "held":
            again = self._weak != "a job that is held is not looked at again"
            return _arrive(state, Arrival(JOB, 0, 0)) if again else state
        return state._replace(job="closed", closes=state.closes + 1)

    # Spawn: HOLD_LEASE, HOLD_JOB, LOCK_GATES, RAISE_GATES.

    def _spawn(self, state: State) -> Iterator[Step[State]]:
        scene = self._scene
        if state.spawn == "over" or scene.child is None:
            return
        if state.spawn == "may" and (scene.spawner is None or state.tasks[scene.spawner] == "open"):
            into = scene.above(scene.into)
            refused = state.job != "open" and self._weak != "spawn does not look at the job"
            if self._weak == "spawn is an arrival":
                child = _task(state, scene.child, "open")._replace(spawn="over")
                yield Step("spawn", _arrive(child, Arrival(scene.into, -1, 0)))
            elif refused or any(state.gates[gate].remaining == 0 for gate in into):
                yield Step("spawn is refused", state._replace(spawn="over"))
            elif not any(self._is_held(state, gate) for gate in into) and state.row != "held":
                yield Step("spawn", state._replace(spawn="holds"))
        if state.spawn == "holds":
            after = _task(state, scene.child, "open")._replace(spawn="over")
            for gate in scene.above(scene.into):
                was = after.gates[gate]
                after = _gate(after, gate, was._replace(total=was.total + 1, remaining=was.remaining + 1))
            yield Step("spawn commits", after)
            if state.faults:
                undone = state._replace(spawn="over", faults=state.faults - 1)
                yield Step("spawn rolls back", undone, fault=True)

    # Cancel of one task: TAKE_AT_GATE, TAKE_READY, TAKE_LEASED.

    def _cancel(self, state: State) -> Iterator[Step[State]]:
        at = self._scene.cancelled
        if at is not None and state.cancels and state.tasks[at] in OPEN_STATUSES:
            yield Step(f"task {at} is cancelled", self._ended(state, at, "cancelled")._replace(cancels=0), fault=True)

    # Cancel of the job: CANCEL_JOB, then CANCEL_JOB_PAGE in passes until one meets nothing.

    def _cancel_job(self, state: State) -> Iterator[Step[State]]:
        if state.row == "free" and self._scene.job_cancels and state.job == "open" and state.spawn != "holds":
            yield Step("somebody holds the job", state._replace(row="held"), fault=True)
        if state.row == "held":
            yield Step("somebody lets go of the job", state._replace(row="was"))
        if state.job == "open" and state.job_cancels and state.spawn != "holds" and state.row != "held":
            yield Step("job is cancelled", state._replace(job="cancelled", job_cancels=0), fault=True)
        if state.job != "cancelled":
            return
        met = [at for at, one in enumerate(state.tasks) if one in OPEN_STATUSES]
        for at in met:
            if at != self._scene.spawner or state.spawn != "holds":
                yield Step(f"operation takes task {at}", self._ended(state, at, "cancelled"))
        if not met:
            yield Step("operation ends", state._replace(job="swept"))


def _task(state: State, at: int, status: str) -> State:
    return state._replace(tasks=(*state.tasks[:at], status, *state.tasks[at + 1 :]))


def _gate(state: State, at: int, gate: Gate) -> State:
    return state._replace(gates=(*state.gates[:at], gate, *state.gates[at + 1 :]))


def _folds(state: State, at: int, seen: tuple[Arrival, ...]) -> State:
    return state._replace(folds=(*state.folds[:at], seen, *state.folds[at + 1 :]))


def _arrive(state: State, *arrivals: Arrival) -> State:
    return state._replace(arrivals=tuple(sorted((*state.arrivals, *arrivals))))


def _sorted(state: State) -> State:
    return state if state.folds[0] <= state.folds[1] else state._replace(folds=state.folds[::-1])
