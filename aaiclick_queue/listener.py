"""The listener of a worker: waits for wake-ups while the worker is idle, and says once when Redis is away."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
from collections.abc import Callable, Iterable
from contextlib import suppress

from .caps import Lines
from .errors import StreamsDown
from .flow.claim import Line
from .meters import METERS
from .streams import Hint, Streams

log = logging.getLogger("aaiclick_queue.worker")

LISTEN_SECONDS = 2.0
AGAIN_SECONDS = 0.5
SWEEP_SECONDS = 60.0
IDLE_CONSUMER_SECONDS = 60.0


class Listener:
    """Turns hints into kicks of the claimer."""

    def __init__(  # noqa: PLR0913 - one value a fact
        self,
        streams: Streams,
        line: Line | Lines,
        *,
        consumer: Callable[[], str],
        room: Callable[[], int],
        kick: Callable[[], None],
        expect: Callable[[str, Iterable[int]], None],
    ) -> None:
        """`expect` is told of tasks that are being committed, by queue: one look may come too soon for them."""
        self._streams = streams
        self._line = line
        self._consumer = consumer
        self._room = room
        self._kick = kick
        self._expect = expect
        self._listening = asyncio.Event()
        self.up = True

    def listen(self, wanted: bool) -> None:
        """Whether hints are wanted now: with free slots and a short last claim they are."""
        if wanted:
            self._listening.set()
        else:
            self._listening.clear()

    async def run(self) -> None:
        """Listen for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            while True:
                await self._listening.wait()
                try:
                    heard = await self._streams.listen(
                        self._line.queues, consumer=self._consumer(), seconds=LISTEN_SECONDS
                    )
                except StreamsDown as error:
                    await self._away(error)
                    continue
                if not self.up:
                    self.up = True
                    log.info("Redis is back: waiting for wake-ups again")
                for hint in heard.hints:
                    self._learn(hint)
                if heard.hints and METERS.on:
                    METERS.noticed(self._streams.sent)
                if heard.hints and self._room() <= 0:
                    if METERS.on:
                        METERS.passed_on()
                    await self._pass_on(heard.hints[0])
                if heard.hints or heard.rescan:
                    # The claimer goes first: asking Redis again before it took 0.3 ms of each wake-up.
                    self._listening.clear()
                    self._kick()

    def _learn(self, hint: Hint) -> None:
        if self._line.passed(hint.queue, hint.rank, hint.order_key):
            self._line.head.want()
        if hint.early:
            self._expect(hint.queue, hint.task_ids)

    async def leave(self) -> None:
        """Take this worker's consumer out of the groups."""
        await self._streams.leave(self._line.queues, self._consumer())

    async def _away(self, error: StreamsDown) -> None:
        if self.up:
            self.up = False
            log.warning("%s", _told(error))
            self._kick()
        await asyncio.sleep(AGAIN_SECONDS * random.uniform(0.8, 1.2))

    async def _pass_on(self, hint: Hint) -> None:
        """Slots filled up while we listened: somebody else may be idle."""
        with suppress(StreamsDown):
            await self._streams.publish([hint])

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS * random.uniform(0.5, 1.5))
            await self._streams.sweep(self._line.queues, idle_seconds=IDLE_CONSUMER_SECONDS)


def _told(error: StreamsDown) -> str:
    """The one line of a process that Redis is away; what is not about the way to it is told whole."""
    found = re.match(r"Redis at (\S+) did not [^:]*: (.*)\. No work is lost", str(error), re.DOTALL)
    if found is None:
        return f"Redis is away, so workers poll Postgres until it is back: {error}"
    why, seen = found[2], error.__cause__
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno:
            why = os.strerror(seen.errno).lower()
        seen = seen.__cause__ or seen.__context__
    return f"Redis at {found[1]} is away ({why}): nothing is lost, Postgres is polled until it is back"
