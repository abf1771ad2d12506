"""A worker in a process of its own beside the server in this one: whichever ends, the other does."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec

from .. import __version__
from ..doctor import examine
from ..flow.background import Background
from ..flow.reaper import ensure_partitions
from ..history import history_of
from ..local import database_url
from ..migrate import HEAD, current, upgrade
from ..postgres import Database
from ..settings import Settings
from ..streams import Streams
from .stopping import told_by_signals
from .web import Web, serve

log = logging.getLogger("aaiclick_queue.local")

GRACE_SECONDS = 20.0
LOOK_SECONDS = 0.2


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """The worker beside the server."""

    modules: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    reload: bool = False
    log_format: str = "pretty"
    log_level: str | None = None

    def command(self, parent: int) -> list[str]:
        """The worker's command line."""
        logs = ["--log-format", self.log_format, *(["--log-level", self.log_level] if self.log_level else [])]
        start = [sys.executable, "-m", "aaiclick_queue"]
        queues = ",".join(self.queues) or "*"
        more = ["--parent-fd", str(parent), *(["--reload"] if self.reload else [])]
        return [*start, "worker", "-A", ",".join(self.modules), "-Q", queues, *more, *logs]


async def start_all(settings: Settings, web: Web, crew: Crew) -> int:
    """Migrate, start the worker, or its loops alone, and serve until told to stop; returns the exit code."""
    await _migrate(settings)
    if crew.modules:
        return await _beside_worker(settings, web, crew)
    streams = Streams(settings.redis_url, prefix=settings.redis_prefix) if settings.redis_url else None
    async with Database(settings, size=3, flow=True, dsn=await database_url(settings)) as db:
        await ensure_partitions(db)
        loops = asyncio.create_task(_background(settings, db, streams).run())
        try:
            return await serve(settings, web, banner=True)
        finally:
            loops.cancel()
            await asyncio.wait([loops])
            if streams is not None:
                await streams.close()


def _background(settings: Settings, db: Database, streams: Streams | None) -> Background:
    """The loops as `background` runs them: what they prune is kept as history, and the doctor looks."""
    holder, archive = secrets.randbits(62) | 1, history_of(settings)
    return Background(db, streams, holder=holder, version=__version__, archive=archive, examine=examine)


async def _beside_worker(settings: Settings, web: Web, crew: Crew) -> int:
    reads, writes = os.pipe()  # the worker ends with us, however we do
    # In a group of its own: Ctrl-C is ours to pass on, else it would count twice.
    child = subprocess.Popen(crew.command(reads), pass_fds=[reads], process_group=0)  # noqa: ASYNC220 - it stays
    os.close(reads)
    watching = asyncio.create_task(_end_with(child))
    try:
        code = await serve(settings, web, banner=True)
        ended = child.poll()
        return code if ended is None else ended
    finally:
        watching.cancel()
        with told_by_signals(lambda _: child.send_signal(signal.SIGTERM)):
            await asyncio.to_thread(_end, child)
        os.close(writes)


async def _end_with(child: subprocess.Popen[bytes]) -> None:
    """Stop the server when the worker has ended by itself."""
    while (code := child.poll()) is None:  # noqa: ASYNC110 - a process that another thread waits for too
        await asyncio.sleep(LOOK_SECONDS)
    log.error("the worker ended with exit code %d, so everything does", code)
    os.kill(os.getpid(), signal.SIGTERM)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the worker as gently as it lets us."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)


async def _migrate(settings: Settings) -> None:
    dsn = await database_url(settings)
    async with Database(settings, size=1, dsn=dsn) as db:
        revision = await current(db)
    if revision is None or revision < HEAD:
        await upgrade(settings, dsn=dsn)
        log.info("schema %s is at %s", settings.postgres_schema, HEAD)
