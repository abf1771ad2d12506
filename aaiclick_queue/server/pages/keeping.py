"""Keeping: figures over time, which come with heartbeats every ten seconds, are read once in five, whoever looks.

Read beside the rest of a page; who was here a moment ago is shown what there is while it is read anew. What pages are
told of by the stream is never kept: a page that is drawn anew because of it would show what was before.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

import msgspec

from .visiting import Visit

KEPT_SECONDS = 5.0
SHOWN_SECONDS = 30.0  # what is older is waited for
KEPT_MOST = 100  # charts, a queue and range each

T = TypeVar("T")


class _Known(msgspec.Struct):
    """What was read last, and who reads it now."""

    read_at: float = -math.inf
    value: Any = None
    reading: asyncio.Task[None] | None = None

    def age(self) -> float:
        return time.monotonic() - self.read_at


class Kept(Generic[T]):
    """Figures that are there or on their way; `await` gives them."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._reading = known.reading

    def __await__(self) -> Generator[Any, None, T]:
        return self._shown().__await__()

    async def _shown(self) -> T:
        if self._reading is not None and self._known.age() >= SHOWN_SECONDS:
            await asyncio.shield(self._reading)  # whoever leaves, others may wait for it too
        value: T = self._known.value
        return value


def kept(at: Visit, key: tuple[Any, ...], read: Callable[[], Awaitable[T]]) -> Kept[T]:
    """What was read under that key; it is read from now on, if it is time, while the caller looks at something else."""
    state = at.request.app.state
    known: dict[tuple[Any, ...], _Known] = getattr(state, "kept_figures", {})
    state.kept_figures = known
    if key not in known and len(known) >= KEPT_MOST:
        known.clear()
    one = known.setdefault(key, _Known())
    if one.reading is None and one.age() >= KEPT_SECONDS:
        one.reading = at.desk.beside(_read(one, read))
    return Kept(one)


async def _read(one: _Known, read: Callable[[], Awaitable[Any]]) -> None:
    try:
        one.value = await read()
        one.read_at = time.monotonic()
    finally:
        one.reading = None
