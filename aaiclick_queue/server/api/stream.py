"""The stream of changes, for pages that show what goes on."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from ..answers import Api
from ..desk import AtDesk
from ..problems import Problem, nearest
from ..watching import TOPICS, Watching

api = Api("stream")
TOPICS_LIMIT = 50
_ONE = re.compile(r"(job|task):([1-9][0-9]{0,18})")


@api.get("/stream")
async def stream(
    request: Request,
    desk: AtDesk,
    topics: Annotated[str, Query(max_length=2000, examples=["queues,jobs"], description="Some, parted by commas.")],
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
) -> StreamingResponse:
    """Server-sent events: `changed`, with the topics of which something is another now; `*` for all of them."""
    wanted = frozenset(one.strip() for one in topics.split(",") if one.strip())
    for one in wanted:
        found = _ONE.fullmatch(one)
        if one not in TOPICS and not (found and int(found[2]) < 2**63):
            raise Problem(422, f"unknown topic {one[:40]!r}: {nearest(one, [*TOPICS, 'job:ID', 'task:ID'])}")
    if not 1 <= len(wanted) <= TOPICS_LIMIT:
        raise Problem(422, f"{len(wanted)} topics: give 1 to {TOPICS_LIMIT} of them, as topics=queues,jobs")
    watching: Watching = request.app.state.watching
    return StreamingResponse(
        watching.frames(desk, wanted, last_event_id),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )
