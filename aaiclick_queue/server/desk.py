"""The desk: what every route works with. One an application, opened by the first request that needs it.

A mounted application is never told that its server has started, so nothing may wait for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Annotated, Any, cast

from fastapi import Depends, Request

from ..client import Client
from ..errors import QueueError
from ..local import database_url
from ..migrate import require_head
from ..operations import work_to_end
from ..postgres import Database
from ..settings import Settings
from ..tracing import trace_if_wanted

log = logging.getLogger(__name__)

READERS = 8  # statements at once; acts go through the client's own connections
STATEMENT_SECONDS = 15.0  # of one statement: whoever looks at much must not hold all of them for minutes


class Desk:
    """The client and the connections that routes share."""

    def __init__(self, client: Client, db: Database) -> None:
        self.client = client
        self.db = db
        self._working: set[asyncio.Task[None]] = set()

    def carry_on(self, *operations: int) -> list[str]:
        """Work on operations beside the workers, while the server runs; gives their ids."""
        for one in operations:
            self.beside(self._work(one))
        return [str(one) for one in operations]

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have it done while the server runs, whether or not somebody waits for it."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("something that was done beside requests failed", exc_info=error)

    async def close(self) -> None:
        """Leave what is being worked on to the workers, and close the connections."""
        working = list(self._working)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self.db.close()

    async def _work(self, operation_id: int) -> None:
        try:
            await work_to_end(self.db, operation_id)
        except QueueError:
            log.warning("operation %d is left to the workers", operation_id, exc_info=True)

    @property
    def settings(self) -> Settings:
        """The settings the server was started with."""
        return self.client.settings


class Opening:
    """Opens the desk once, however many ask for it at the same time."""

    def __init__(self, settings: Settings | None, client: Client | None) -> None:
        self._given = client
        self._settings = settings
        self._lock: asyncio.Lock | None = None
        self._desk: Desk | None = None

    @property
    def shown(self) -> str:
        """The store that is tried, without its password."""
        settings = self._given.settings if self._given else self._settings or Settings.load()
        return settings.postgres_shown

    async def desk(self) -> Desk:
        """The desk; PostgresUnavailable while it cannot be opened, and the next one who asks tries again."""
        if self._desk is not None:
            return self._desk
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._desk is None:
                self._desk = await self._open()
        return self._desk

    async def close(self) -> None:
        """Close what was opened here."""
        desk, self._desk = self._desk, None
        if desk is not None:
            await desk.close()
            if self._given is None:
                await desk.client.close()

    async def _open(self) -> Desk:
        client = self._given or Client(self._settings or Settings.load())
        trace_if_wanted(client.settings)  # before the first request enqueues something
        dsn = await database_url(client.settings)
        db = Database(client.settings, size=READERS, flow=True, dsn=dsn, longest=STATEMENT_SECONDS)
        try:
            await require_head(db)
        except BaseException:
            await db.close()
            raise
        return Desk(client, db)


async def desk_of(request: Request) -> Desk:
    """The desk of the application that serves this request."""
    return await cast("Opening", request.app.state.opening).desk()


AtDesk = Annotated[Desk, Depends(desk_of)]
