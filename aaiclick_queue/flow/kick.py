"""Kicks: a process that makes work ready tells the claimers in the same process at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

_claimers: set[Callable[[], None]] = set()
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
