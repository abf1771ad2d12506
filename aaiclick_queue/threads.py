"""Threads: where `def` tasks run. Each takes the next call by itself, and all that ended is told to the loop in one go.

A future, a wake-up and a turn of the event loop for each call took two thirds of the time of a task that does nothing:
whoever lets the interpreter go gets it back after the others. Before: slots, that start what waits. After: slots.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_HOP = object()


class Unfinished(NamedTuple):
    """A coroutine that was begun in a thread and goes on on the event loop."""

    context: Context
    coroutine: Coroutine[Any, Any, Any]


class Threads:
    """Calls in threads, from one event loop."""

    def __init__(self, size: int, collected: Callable[[], None]) -> None:
        """`collected` is called on the loop after calls have ended, once for all of them."""
        self.executor = ThreadPoolExecutor(size, thread_name_prefix="aaiclick-queue task")
        self._collected = collected
        self._calls: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._ended: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._coming = False  # a thread that will look for calls, and has not looked yet
        self._told = False  # the loop will look for what has ended, and has not looked yet

    def call(self, function: Callable[[], T], ended: Callable[[T], None]) -> None:
        """Call it in a thread; what it gives is told on this loop. It raises nothing."""
        self._loop = asyncio.get_running_loop()
        self._calls.append((function, ended))
        self._have_one_come()

    def close(self) -> None:
        """Begin no more calls."""
        self._calls.clear()
        self.executor.shutdown(wait=False, cancel_futures=True)

    def _have_one_come(self) -> None:
        if not self._coming:
            self._coming = True
            self.executor.submit(self._work)

    def _work(self) -> None:
        self._coming = False  # before the look: what is appended after it has another come
        while True:
            try:
                function, ended = self._calls.popleft()
            except IndexError:
                return
            if self._calls:
                with suppress(RuntimeError):  # closed meanwhile
                    self._have_one_come()  # this call may take long
            self._ended.append((ended, function()))
            del function, ended
            if not self._told:
                self._told = True
                with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
                    self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._told = False
        try:
            while self._ended:
                ended, came_to = self._ended.popleft()
                ended(came_to)
        finally:  # an error of one is not the others'
            if self._ended:
                self._loop.call_soon(self._collect)
            self._collected()


def begin(context: Context, coroutine: Coroutine[Any, Any, T]) -> T | Unfinished:
    """Run a coroutine in this thread, which has no event loop, up to where it needs one."""
    try:
        context.run(coroutine.send, None)
    except StopIteration as stop:
        came_to: T = stop.value
        return came_to
    return Unfinished(context, coroutine)


@types.coroutine
def on_the_loop() -> Generator[Any, None, None]:
    """Go on on the event loop, where this is a thread of `def` tasks."""
    if not has_loop():
        yield _HOP


def has_loop() -> bool:
    """Whether this thread is that of an event loop."""
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - the other one raises, which takes 1 µs a task
