"""Kicks: a process that makes work ready tells its claimers at once, and one that ends tasks tells who waits there.

One that changes a schedule tells its scheduler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

_claimers: set[Callable[[], None]] = set()
_told_of_ends: set[Callable[[Sequence[int]], None]] = set()
_schedulers: set[Callable[[], None]] = set()
_lock = threading.Lock()
_lost: list[None] = []  # not empty: kicks are lost, as a test wants it


def kick_claimers() -> None:
    """There is work in line that this process has just written."""
    if not _lost:
        for kick in list(_claimers):
            kick()


@contextmanager
def kicks_lost() -> Iterator[None]:
    """Kicks of this block reach nobody: what they would have told is found by the next look."""
    _lost.append(None)
    try:
        yield
    finally:
        _lost.pop()


def add_claimer(kick: Callable[[], None]) -> None:
    """Have `kick` called, from any thread, whenever this process has made work ready."""
    with _lock:
        _claimers.add(kick)


def remove_claimer(kick: Callable[[], None]) -> None:
    """Stop calling it."""
    with _lock:
        _claimers.discard(kick)


def tell_ended(ids: Sequence[int]) -> None:
    """These tasks are final, committed just now by this process: whoever waits for them here need not poll."""
    if ids:
        for told in list(_told_of_ends):
            told(ids)


def on_ended(told: Callable[[Sequence[int]], None]) -> None:
    """Have `told` called, from any thread, with the tasks that this process has ended."""
    with _lock:
        _told_of_ends.add(told)


def off_ended(told: Callable[[Sequence[int]], None]) -> None:
    """Stop calling it."""
    with _lock:
        _told_of_ends.discard(told)


def kick_scheduler() -> None:
    """A schedule was changed by this process."""
    for kick in list(_schedulers):
        kick()


def add_scheduler(kick: Callable[[], None]) -> None:
    """Have `kick` called, from any thread, whenever this process has changed a schedule."""
    with _lock:
        _schedulers.add(kick)


def remove_scheduler(kick: Callable[[], None]) -> None:
    """Stop calling it."""
    with _lock:
        _schedulers.discard(kick)
