"""Waiting for results: one query a process for all tasks that somebody awaits, however many they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .errors import PostgresUnavailable, SchemaMismatch
from .postgres import Database

log = logging.getLogger(__name__)

FINISHED = """
SELECT id, status, result, error, attempt FROM aaiclick_queue.tasks WHERE id = ANY($1::bigint[]) AND status IS NOT NULL
"""
FIRST_SECONDS = 0.005
LONGEST_SECONDS = 0.25
IDS_A_QUERY = 1000


class Waiting:
    """Gives the final row of each task that is awaited, soon after it ended."""

    def __init__(self, database: Callable[[], Awaitable[Database]]) -> None:
        self._database = database
        self._awaited: dict[int, list[asyncio.Future[Any]]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._pause = FIRST_SECONDS

    async def finished(self, task_id: int) -> Any:
        """The row of the task once it is final."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(task_id, []).append(future)
        self._pause = FIRST_SECONDS
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="aaiclick-queue results")
        try:
            return await future
        finally:
            futures = self._awaited.get(task_id, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._awaited.pop(task_id, None)

    def close(self) -> None:
        """Stop asking; whoever still waits is cancelled."""
        if self._poller is not None:
            self._poller.cancel()
        for futures in self._awaited.values():
            for future in futures:
                future.cancel()

    async def _poll(self) -> None:
        while self._awaited:
            ids = list(self._awaited)
            try:
                db = await self._database()
                for start in range(0, len(ids), IDS_A_QUERY):
                    for row in await db.fetch(FINISHED, ids[start : start + IDS_A_QUERY]):
                        self._deliver(row)
            except SchemaMismatch as error:
                self._give_up(error)
            except Exception as error:
                # The waiters' own timeouts decide how long that goes on.
                if not isinstance(error, PostgresUnavailable):
                    log.warning("cannot look for results: %s", error)
                self._pause = LONGEST_SECONDS
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 1.5, LONGEST_SECONDS)

    def _give_up(self, error: Exception) -> None:
        awaited, self._awaited = self._awaited, {}
        for future in (future for futures in awaited.values() for future in futures if not future.done()):
            future.set_exception(error)

    def _deliver(self, row: Any) -> None:
        self._pause = FIRST_SECONDS
        for future in self._awaited.pop(row["id"], ()):
            if not future.done():
                future.set_result(row)
