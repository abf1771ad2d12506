"""Kicks: a process that makes work ready tells the claimers in the same process at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_claimers: set[Callable[[], None]] = set()
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
