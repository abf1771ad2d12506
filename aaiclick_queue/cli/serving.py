"""What `worker` and `background` do once their options are known."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from .. import __version__
from ..doctor import examine
from ..flow.background import Background
from ..flow.reaper import ensure_partitions
from ..history import history_of
from ..local import database_url, stop_embedded
from ..measuring import measure_background, measure_worker
from ..plan import Plan
from ..postgres import Database
from ..probes import Address
from ..report import LINES_A_SECOND, Report
from ..settings import Settings
from ..stacks import Shown, draw, stacks_on_signal
from ..streams import Streams
from ..tracing import flush_traces, trace_if_wanted
from ..vitals import Vitals
from ..worker import Worker
from .banner import background_banner, postgres_facts, worker_banner
from .observing import observed
from .program import echo
from .stopping import Supervised, told_by_signals

log = logging.getLogger("aaiclick_queue.background")

NOTE_SECONDS = 2.0


async def work(  # noqa: PLR0913 - one value an option
    settings: Settings,
    plan: Plan,
    supervised: Supervised,
    *,
    banner_processes: int,
    every_line: bool,
    probe: Address | None = None,
) -> int:
    """Be a worker until told to stop; returns how many threads still run user code then."""
    facts = await postgres_facts(settings)
    if banner_processes:
        echo(worker_banner(settings, plan, facts, processes=banner_processes), err=True)
    # Collections over what was imported would take 6 µs of the 35 µs that a no-op task costs this process.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    trace_if_wanted(settings)
    worker = Worker(settings, plan, report=Report(lines_a_second=None if every_line else LINES_A_SECOND))
    if probe is not None:
        measure_worker(worker)
    if supervised.parent is not None:
        loop = asyncio.get_running_loop()
        supervised.parent.when_gone(lambda: loop.call_soon_threadsafe(lambda: worker.stop(now=True)))
    telling = asyncio.create_task(supervised.tell(worker.started))
    with (
        observed(settings, worker.vitals, probe, waits=supervised.parent is not None) as worker.noted,
        told_by_signals(lambda now: worker.stop(now=now)),
        stacks_on_signal(worker.stacks),
    ):
        await worker.run()
    flush_traces()
    telling.cancel()
    return worker.slots.stuck_threads


async def loops(settings: Settings, *, banner: bool, probe: Address | None = None) -> int:
    """Run the background loops until told to stop; returns 0."""
    facts = await postgres_facts(settings)
    trace_if_wanted(settings)
    if banner:
        echo(background_banner(settings, facts), err=True)
    if log.isEnabledFor(logging.WARNING):
        logging.getLogger("aaiclick_queue.flow.loop").setLevel(
            logging.DEBUG
        )  # no listener here says that Redis is away
    stop = asyncio.Event()
    streams = Streams(settings.redis_url, prefix=settings.redis_prefix) if settings.redis_url else None
    async with Database(settings, size=3, flow=True, dsn=await database_url(settings)) as db:
        await ensure_partitions(db)
        archive, holder = history_of(settings), secrets.randbits(62) | 1
        background = Background(db, streams, holder=holder, version=__version__, archive=archive, examine=examine)
        if probe is not None:
            measure_background(background)
        running = asyncio.create_task(background.run())
        log.info("background loops run")
        with (
            observed(settings, lambda: _vitals(background, stop), probe) as noted,
            told_by_signals(lambda _: stop.set()),
            stacks_on_signal(_stacks_of_loops()),
        ):
            stopped, noting = asyncio.create_task(stop.wait()), asyncio.create_task(_note(noted))
            await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
            noting.cancel()
        running.cancel()
        await asyncio.wait([running])
    flush_traces()
    log.info("background loops stopped")
    if streams is not None:
        await streams.close()
    return 0


async def _note(noted: Callable[[], None]) -> None:
    while True:
        noted()
        await asyncio.sleep(NOTE_SECONDS)


def _vitals(background: Background, stop: asyncio.Event) -> Vitals:
    seen = background.holder.seen
    return Vitals(started=seen > 0, stopping=stop.is_set(), beat=seen, loop_seen=time.monotonic())


def _stacks_of_loops() -> Callable[[], str]:
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    return lambda: draw(Shown(0, [], loop, thread_id, time.monotonic()))


def stay(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end on the fastest loop there is; threads of user code that go on cannot be waited for."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        stuck = runner.run(work)
    if stuck:
        stop_embedded()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
