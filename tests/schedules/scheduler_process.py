"""One scheduler as a process of its own: it steps until somebody ends it."""

from __future__ import annotations

import asyncio

from aaiclick_queue import Settings
from aaiclick_queue.errors import PostgresUnavailable
from aaiclick_queue.flow.scheduler import Scheduler
from aaiclick_queue.postgres import Database


def run(url: str) -> None:
    """For ever."""
    asyncio.run(_run(url))


async def _run(url: str) -> None:
    async with Database(Settings.load({}, postgres_url=url), size=2, flow=True) as db:
        scheduler = Scheduler(db)
        while True:
            try:
                fired = await scheduler.fire_once(limit=50)
            except PostgresUnavailable:
                continue
            if not fired.is_full:
                await asyncio.sleep(min(0.05, 0.05 if fired.next_due is None else fired.next_due))
