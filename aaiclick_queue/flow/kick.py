"""Kicks: a process that makes work ready tells its claimers at once, and one that ends tasks tells who waits there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

_claimers: set[Callable[[], None]] = set()
_told_of_ends: set[Callable[[Sequence[int]], None]] = set()
_lock = threading.Lock()


def kick_claimers() -> None:
    """There is work in line that this process has just written."""
    for kick in list(_claimers):
        kick()


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
