"""Faults that a test orders: a worker that is killed at a point of a run, a run that is given out twice."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol
from unittest import mock

import msgspec

from ..context import running
from ..errors import WrongContext
from ..flow.kick import kicks_lost
from ..streams import Hint, Streams

When = Literal["before", "after"]
Point = Literal["before", "after", "recorded", "twice"]


class Killed(BaseException):
    """The worker of this run is dead. `except Exception` does not see it; `finally` does, other than with kill -9."""


class Mortal(Protocol):
    """A worker that can be killed."""

    def kill(self) -> None:
        """Die as by kill -9, from the loop's thread or from a task's."""


# Worker id → worker of the kit in this process.
mortals: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class Fault(msgspec.Struct):
    """One ordered fault: where it strikes, and how often it still will."""

    point: Point
    entrypoint: str
    left: int = 1
    struck: int = 0

    def strike(self) -> bool:
        """Whether it strikes now."""
        if self.left <= 0:
            return False
        self.left -= 1
        self.struck += 1
        return True


class Faults:
    """What was ordered for the runs of one test."""

    def __init__(self) -> None:
        self._ordered: list[Fault] = []

    def strikes(self, point: Point, entrypoint: str) -> bool:
        """Whether a fault was ordered for this point of a run."""
        fits = (fault for fault in self._ordered if fault.point == point and fault.entrypoint == entrypoint)
        return any(fault.strike() for fault in fits)

    @contextmanager
    def ordered(self, point: Point, entrypoint: str, times: int) -> Iterator[Fault]:
        """Strike runs of this block; one that nothing was struck in has tested nothing, and says so."""
        fault = Fault(point, entrypoint, times)
        self._ordered.append(fault)
        try:
            yield fault
        finally:
            self._ordered.remove(fault)
        if not fault.struck:
            raise AssertionError(f"no run of {entrypoint} came to the point {point!r} inside the block")


def kill_here() -> None:
    """Kill the worker that runs this task, at this statement: nothing more of the run is recorded."""
    worker = _worker_here()
    if worker is None:
        raise WrongContext("kill_here() is for a task that a worker of the testing kit runs: use queue.drain()")
    worker.kill()
    raise Killed


@contextmanager
def kill_at(target: str, when: When, times: int) -> Iterator[Fault]:
    """Kill the worker of a run that calls `target`, a dotted name, before or after the call."""
    owner, name, original = _found(target)
    fault = Fault(when, target, times)
    with mock.patch.object(owner, name, _deadly(original, fault)):
        yield fault
    if not fault.struck:
        raise AssertionError(f"no run called {target} inside the block")


@contextmanager
def wakeups_lost() -> Iterator[None]:
    """Hints reach nobody, within the process and over Redis; the outbox rows go as if they had been delivered."""

    async def lost(_: Streams, __: list[Hint]) -> None:
        return None

    with kicks_lost(), mock.patch.object(Streams, "publish", lost):
        yield


def _worker_here() -> Mortal | None:
    try:
        run, _ = running()
    except LookupError:
        return None
    worker: Mortal | None = mortals.get(run.worker_id)
    return worker


def _found(target: str) -> tuple[Any, str, Any]:
    path, _, name = target.rpartition(".")
    if not path:
        raise ValueError(f"{target!r}: name what is called as module.function")
    try:
        owner = pkgutil.resolve_name(path)
        return owner, name, inspect.getattr_static(owner, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"there is no {target} ({error}): name what is called as module.function") from None


def _deadly(original: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            _strike(fault, "before")
            value = await original(*args, **kwargs)
            _strike(fault, "after")
            return value

        return call_async

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        _strike(fault, "before")
        value = original(*args, **kwargs)
        _strike(fault, "after")
        return value

    return call


def _strike(fault: Fault, point: When) -> None:
    if fault.point == point and _worker_here() is not None and fault.strike():
        kill_here()
