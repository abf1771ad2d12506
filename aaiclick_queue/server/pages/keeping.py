"""Keeping: figures over time, which come with heartbeats every ten seconds, are read once in five, whoever looks.

What pages are told of by the stream is never kept: a page that is drawn anew because of it would show what was before.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from .visiting import Visit

KEPT_SECONDS = 5.0
KEPT_MOST = 100  # charts, a queue and range each

T = TypeVar("T")


async def kept(at: Visit, key: tuple[Any, ...], read: Callable[[], Awaitable[T]]) -> T:
    """What was read under that key a moment ago, or what is read now."""
    state = at.request.app.state
    known: dict[tuple[Any, ...], tuple[float, Any]] = getattr(state, "kept_figures", {})
    state.kept_figures = known
    read_at, value = known.get(key, (-KEPT_SECONDS, None))
    if time.monotonic() - read_at >= KEPT_SECONDS:
        value = await read()
        if len(known) >= KEPT_MOST:
            known.clear()
        known[key] = time.monotonic(), value
    found: T = value
    return found
