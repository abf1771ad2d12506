"""Queues: what waits, what runs, who serves them; and how many workers they want."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from ...flow.lines import COUNTED
from ...queue_views import QueueView, list_queues
from ..answers import Api, Limit, Name, Page
from ..desk import AtDesk, Desk
from ..problems import Problem

api = Api("queues")
Queue = Annotated[Name, Path(description="Its name.", examples=["default"])]


@api.get("/queues", operation_id="list_queues")
async def list_all_queues(desk: AtDesk, limit: Limit = 100, after: Name | None = None) -> Page[QueueView]:
    """Every queue that has work, a pause, a limit or a worker, by name; counts are exact up to 10,000.

    Of many queues up to 60,000 together: of a longer line it is told what the last minute had.
    """
    found = await list_queues(desk.db, limit=limit, after=after, counted=COUNTED)
    return Page(found, after=found[-1].name if len(found) >= limit else None)


@api.get("/queues/{name}")
async def get_queue(name: Queue, desk: AtDesk) -> QueueView:
    """One queue."""
    return await found_queue(desk, name)


async def found_queue(desk: Desk, name: str) -> QueueView:
    """The queue; a problem when nothing has named it."""
    found = await list_queues(desk.db, limit=1, name=name)
    if not found:
        raise Problem(404, f"no queue {name!r}: none of that name has work, a pause, a limit or a worker")
    return found[0]
