"""Gathers concurrent enqueues of one process into one statement and one commit.

Self-clocking: the first one goes at once, all that come while it is on its way go together after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from .flow.enqueue import NewTask, Spec

FLUSH_LIMIT = 1000


class Waiting(msgspec.Struct, eq=False):
    """One enqueue that waits for its id."""

    spec: Spec
    task: NewTask
    written: asyncio.Future[int]


class Gatherer:
    """Collects enqueues and hands them to `write`, many at a time."""

    def __init__(self, write: Callable[[dict[Spec, list[Waiting]]], Awaitable[None]]) -> None:
        self._write = write
        self._pending: list[Waiting] = []
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, spec: Spec, task: NewTask) -> int:
        """Write one task and return its id, together with whatever else is being written."""
        waiting = Waiting(spec, task, asyncio.get_running_loop().create_future())
        self._pending.append(waiting)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(), name="aaiclick-queue enqueue")
        return await waiting.written

    async def finished(self) -> None:
        """Until nothing is on its way any more."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _flush(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending[:FLUSH_LIMIT], self._pending[FLUSH_LIMIT:]
                # A caller that gave up before we began gets nothing written.
                await self._write_all([waiting for waiting in batch if not waiting.written.done()])
        finally:
            self._flushing = None

    async def _write_all(self, batch: Sequence[Waiting]) -> None:
        groups: dict[Spec, list[Waiting]] = {}
        for waiting in batch:
            groups.setdefault(waiting.spec, []).append(waiting)
        try:
            await self._write(groups)
        except Exception as error:
            for waiting in batch:
                if not waiting.written.done():
                    waiting.written.set_exception(error)
