"""An explicit-state checker: every state that a model can come to, breadth first, with the shortest way to a bad one.

Two things are asked of a model. No state is broken. And none is stuck: from each one an end can be reached by steps
that the system takes by itself, without another fault and without anybody's help.
"""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Step(Generic[State]):
    """One atomic step: what it is called, what it leads to, and whether nobody may count on it."""

    name: str
    state: State
    fault: bool = False


class Model(Protocol[S]):
    """What the checker explores."""

    def initial(self) -> Iterable[S]:
        """Where it begins."""
        ...

    def steps(self, state: S) -> Iterator[Step[S]]:
        """All that can happen next."""
        ...

    def broken(self, state: S) -> str | None:
        """What is wrong with this state."""
        ...

    def is_end(self, state: S) -> bool:
        """Whether all that was asked for is done."""
        ...


@dataclass(frozen=True)
class Explored:
    """How large a model is."""

    states: int
    steps: int
    ends: int
    names: frozenset[str]


class CounterexampleError(AssertionError):
    """A way to a state that must not be."""

    def __init__(self, what: str, trace: list[str]) -> None:
        self.what = what
        self.trace = trace
        super().__init__("\n".join([what, *(f"  {at:2} {line}" for at, line in enumerate(trace, 1))]))


class _Search(Generic[S]):
    def __init__(self, model: Model[S]) -> None:
        self._model = model
        self._number: dict[S, int] = {}
        self._came: list[tuple[int, str]] = []  # from which state, by which step
        self._states: list[S] = []
        self._by_itself: list[list[int]] = []  # the states from which this one is reached without a fault
        self._queue: deque[int] = deque()
        self._ends: list[int] = []
        self._names: set[str] = set()
        self._steps = 0

    def run(self) -> Explored:
        for state in self._model.initial():
            self._meet(state, -1, "")
        while self._queue:
            at = self._queue.popleft()
            for step in self._model.steps(self._states[at]):
                self._steps += 1
                self._names.add(step.name)
                to = self._meet(step.state, at, step.name)
                if not step.fault:
                    self._by_itself[to].append(at)
        self._none_is_stuck()
        plain = frozenset(re.sub(r"\(.*\)| \d+", "", name) for name in self._names)
        return Explored(len(self._states), self._steps, len(self._ends), plain)

    def _meet(self, state: S, source: int, name: str) -> int:
        if (known := self._number.get(state)) is not None:
            return known
        number = self._number[state] = len(self._states)
        self._states.append(state)
        self._came.append((source, name))
        self._by_itself.append([])
        self._queue.append(number)
        if what := self._model.broken(state):
            raise CounterexampleError(what, self._trace(number))
        if self._model.is_end(state):
            self._ends.append(number)
        return number

    def _none_is_stuck(self) -> None:
        reached = bytearray(len(self._states))
        for end in self._ends:
            reached[end] = 1
        todo = list(self._ends)
        while todo:
            for source in self._by_itself[todo.pop()]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        stuck = reached.find(0)
        if stuck >= 0:
            raise CounterexampleError(
                f"stuck: without another fault nothing ends any more in {self._states[stuck]}", self._trace(stuck)
            )

    def _trace(self, number: int) -> list[str]:
        names = []
        while number >= 0:
            number, name = self._came[number]
            names.append(name)
        return [name for name in reversed(names) if name]


def explore(model: Model[S]) -> Explored:
    """Visit every state; CounterexampleError has the shortest way to the first that is broken or stuck."""
    gc.disable()  # a hundred thousand live tuples, looked at again and again, were half of the time
    try:
        return _Search(model).run()
    finally:
        gc.enable()
