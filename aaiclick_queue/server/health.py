"""Health of the server itself: alive, ready, and the components with reasons; for probes, so nobody has to sign in."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import QueueError
from ..migrate import HEAD, current
from ..streams import Streams
from .answers import encoded

COMPONENTS = """
SELECT EXISTS (SELECT FROM aaiclick_queue.loops WHERE name = 'background' AND expires_at > now()) AS led,
       (SELECT extract(epoch FROM now() - min(created_at))::float8
        FROM (SELECT created_at FROM aaiclick_queue.outbox ORDER BY id LIMIT 1) AS o) AS outbox_age,
       (SELECT count(*) FROM aaiclick_queue.workers WHERE status = 'ACTIVE' AND lease_expires_at > now()) AS workers,
       (SELECT extract(epoch FROM now() - min(next_run_at))::float8
        FROM (SELECT next_run_at FROM aaiclick_queue.registered_jobs WHERE next_run_at < now()
              ORDER BY next_run_at LIMIT 1) AS s) AS schedule_lag
"""
PATIENCE_SECONDS = 3.0
KEPT_SECONDS = 1.0
OUTBOX_SECONDS = 30.0
SCHEDULE_SECONDS = 120.0


class Component(msgspec.Struct, frozen=True):
    """One part and whether it is well."""

    name: str
    ok: bool
    detail: str


class Health(msgspec.Struct, frozen=True):
    """The server's health; `degraded` names parts that are missed but not needed."""

    status: str
    components: list[Component]
    degraded: list[str]


async def live(_: Request) -> Response:
    """The server answers; Postgres is not asked, for a restart of ours would not mend it."""
    return encoded({"status": "ok"})


async def ready(request: Request) -> Response:
    """Postgres answers and its schema is ours; without Redis we are slower, and still ready."""
    parts = [await _postgres(request), *await _redis(request)]
    is_ready = all(part.ok for part in parts if part.name == "postgres")
    degraded = [part.name for part in parts if not part.ok and part.name != "postgres"]
    health = Health("ok" if is_ready else "unavailable", parts, degraded)
    return encoded(health, 200 if is_ready else 503, None if is_ready else {"Retry-After": "5"})


async def told(request: Request) -> Response:
    """Every component with its age; 200 as long as this process answers."""
    parts = [await _postgres(request), *await _redis(request)]
    if parts[0].ok:
        desk = await request.app.state.opening.desk()
        with suppress(QueueError, TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                parts += _components(*await desk.db.fetch(COMPONENTS))
    wrong = [part.name for part in parts if not part.ok]
    return encoded(Health("degraded" if wrong else "ok", parts, wrong))


def _components(row: Any) -> list[Component]:
    led, outbox, lag = row["led"], row["outbox_age"] or 0.0, row["schedule_lag"] or 0.0
    return [
        Component("relay", led and outbox < OUTBOX_SECONDS, f"the oldest wake-up waits for {outbox:.1f} s"),
        Component("scheduler", led and lag < SCHEDULE_SECONDS, f"the next tick is late by {lag:.1f} s"),
        Component("reaper", led, "somebody looks" if led else "nobody looks: start a worker"),
        Component("workers", row["workers"] > 0, f"{row['workers']:,} alive"),
    ]


async def _postgres(request: Request) -> Component:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            desk = await request.app.state.opening.desk()
            revision = await current(desk.db)
    except (QueueError, TimeoutError) as error:
        # No address and no user name: whoever probes may be anybody.
        return Component("postgres", False, type(error).__name__)
    return Component("postgres", revision == HEAD, f"schema {revision}")


async def _redis(request: Request) -> list[Component]:
    try:
        desk = await request.app.state.opening.desk()
    except QueueError:
        return []
    if not desk.settings.redis_url:
        return []
    answer: Component = await request.app.state.pinged.ask(desk.settings.redis_url, desk.settings.redis_prefix)
    return [answer]


class Pinged:
    """What Redis last said; whoever asks need not sign in, so many who ask at once cost one connection."""

    def __init__(self) -> None:
        self._answer: Component | None = None
        self._at = 0.0
        self._lock = asyncio.Lock()

    async def ask(self, url: str, prefix: str) -> Component:
        """Whether Redis answers, or did a second ago."""
        async with self._lock:
            if self._answer is None or time.monotonic() - self._at >= KEPT_SECONDS:
                self._answer = await _ping(Streams(url, prefix=prefix))
                self._at = time.monotonic()
            return self._answer


async def _ping(streams: Streams) -> Component:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await streams.ping()
    except (QueueError, TimeoutError, OSError) as error:
        return Component("redis", False, type(error).__name__)
    finally:
        await streams.close()
    return Component("redis", True, "answers")


ROUTES = [
    Route("/livez", live, name="livez"),
    Route("/readyz", ready, name="readyz"),
    Route("/startupz", ready, name="startupz"),
    Route("/healthz", told, name="healthz"),
    Route("/api/v1/health", told, name="health"),
]
