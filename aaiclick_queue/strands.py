"""Strand: one asyncio task that runs what waits for a slot, one after another, until one of them has to wait.

A run that never waits then costs no asyncio task of its own. One that does keeps the task to its end, and the others
go on in a new one: `current_task()`, timeouts and task groups are what they are everywhere. Before: slots.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

from .flow.execute import Run
from .kinds import Kind

T = TypeVar("T")

TURN_SECONDS = 0.01  # then whatever else the event loop has to do comes first


class Strands:
    """Runs what waits, as many at a time as there are slots."""

    def __init__(self, begin: Callable[[Run], bool], run: Callable[[Run], Coroutine[Any, Any, None]]) -> None:
        """`begin` says whether a run is to be run at all; `run` ends it, whatever happens, and gives back its slot."""
        self._begin = begin
        self._run = run
        self._coming: set[Kind] = set()
        self.start_from_here()

    def start_from_here(self) -> None:
        """Give every run a copy of the caller's context: not of that which frees a slot, another run's perhaps."""
        self._context = copy_context()

    def new_context(self) -> Context:
        """A context for one run."""
        return self._context.copy()

    def fill(self, kind: Kind) -> None:
        """Have what waits for this kind run, as far as it has slots."""
        if kind.waiting and kind.taken < kind.size and kind not in self._coming:
            self._coming.add(kind)
            asyncio.get_running_loop().create_task(self._strand(kind), context=self.new_context())

    async def _strand(self, kind: Kind) -> None:
        task = asyncio.current_task()
        assert task is not None
        turn_ends = time.monotonic() + TURN_SECONDS
        waits = None
        try:
            # Cancelled: its last run has done that to itself, and the next is not to feel it.
            while kind.waiting and kind.taken < kind.size and not task.cancelling():
                run = kind.waiting.popleft()
                if not self._begin(run):
                    continue
                kind.taken += 1
                context = self.new_context()
                run.asyncio_task = task
                run.coroutine = coroutine = self._run(run)
                try:
                    waits = context, coroutine, context.run(coroutine.send, None)
                    break
                except StopIteration:
                    if time.monotonic() > turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = time.monotonic() + TURN_SECONDS
        finally:
            self._coming.discard(kind)
            self.fill(kind)
        if waits is not None:
            await rest(*waits)
            self.fill(kind)


@types.coroutine
def rest(context: Context, coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """The steps of a coroutine after its first, which waits for this, each in its own context."""
    while True:
        step: Callable[[Any], Any]
        try:
            step, given = coroutine.send, (yield awaited)
        except BaseException as error:  # the coroutine's, as if it had awaited by itself
            step, given = coroutine.throw, error
        try:
            awaited = context.run(step, given)
        except StopIteration as stop:
            came_to: T = stop.value
            return came_to
        finally:
            given = None  # an error's traceback leads back here
