"""Waking: whether Redis answers and what its streams hold, asked at most every few seconds however many look."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from ...errors import QueueError
from ...streams import Streams
from .visiting import Visit

KEPT_SECONDS = 3.0
QUEUES = 200


class Redis(msgspec.Struct, frozen=True):
    """What Redis said last; without a URL it is not used, and that is well."""

    is_well: bool
    word: str
    entries: int | None = None
    seen_at: float = 0.0


async def look_at_redis(at: Visit, queues: Sequence[str]) -> Redis:
    """What Redis says, or said a moment ago; it has 250 ms to answer."""
    settings, state = at.desk.settings, at.request.app.state
    if not settings.redis_url:
        return Redis(True, "not used: workers poll")
    known: Redis | None = getattr(state, "redis_seen", None)
    if known is None or time.monotonic() - known.seen_at > KEPT_SECONDS:
        known = state.redis_seen = await _asked(settings.redis_url, settings.redis_prefix, queues[:QUEUES])
    return known


async def _asked(url: str, prefix: str, queues: Sequence[str]) -> Redis:
    streams = Streams(url, prefix=prefix)
    began = time.monotonic()
    try:
        await streams.ping()
        took = (time.monotonic() - began) * 1000
        entries = sum((await streams.lengths(queues)).values()) if queues else 0
    except (QueueError, OSError, TimeoutError):
        return Redis(False, "does not answer: workers poll, tasks start later", seen_at=time.monotonic())
    finally:
        await streams.close()
    return Redis(True, f"{took:.1f} ms", entries, time.monotonic())
