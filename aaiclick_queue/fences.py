"""Fences: a process runs each fence once, though a crash of Postgres may give it the same one again. After: slots.

A claim does not wait for the disk. One that a crash forgot puts its task back in line with the epoch of before, and
when the same worker takes it again, that is the fence of a run which it has, or has had.
"""

from __future__ import annotations

from .flow.execute import Run

KEPT = 10_000  # of runs that were not recorded: few, as a crash forgets the claims of half a second

_Fence = tuple[int, int, int]


class Fences:
    """The fences of runs that are over here."""

    def __init__(self) -> None:
        self._unrecorded: dict[_Fence, None] = {}
        self._recorded: dict[int, Run] = {}

    def asks(self) -> None:
        """A claim begins: what was recorded before has made its own claim durable."""
        self._recorded = {}

    def over(self, run: Run, *, recorded: bool) -> None:
        """The run is over for this process; its thread may go on."""
        if recorded:
            self._recorded[run.claimed.task_id] = run
            return
        if len(self._unrecorded) >= KEPT:
            del self._unrecorded[next(iter(self._unrecorded))]
        self._unrecorded[_fence(run)] = None

    def was_recorded(self, run: Run) -> bool:
        """Whether this claim was used up by the run that had its fence before, while the answer was on its way."""
        older = self._recorded.get(run.claimed.task_id)
        return older is not None and is_same(older, run)

    def was_unrecorded(self, run: Run) -> bool:
        """Whether a run had this fence of which nothing was recorded: its thread may still write under it."""
        return bool(self._unrecorded) and _fence(run) in self._unrecorded


def is_same(one: Run, other: Run) -> bool:
    """Whether both have one fence."""
    return _fence(one) == _fence(other)


def _fence(run: Run) -> _Fence:
    return run.claimed.task_id, run.claimed.run_epoch, run.worker_id
