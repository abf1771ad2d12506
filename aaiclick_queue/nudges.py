"""Nudges: a worker tells over Redis which tasks have ended, beside the hot path, and at most 20 times a second where
nobody listens.

Before: complete and the reaper, through flow/kick.py. After: channel.py; waiting.py in the process that waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from .channel import Channel
from .errors import StreamsDown
from .flow.kick import off_ended, on_ended

log = logging.getLogger(__name__)

UNHEARD_SECONDS = 0.05  # so long a first listener may have to wait for its first nudge
AGAIN_SECONDS = 0.5
LONGEST_AGAIN_SECONDS = 5.0
IDS_KEPT = 20_000  # beyond that it is cheaper to have listeners look at all they wait for


class Nudges:
    """Publishes what this process ends: at once while somebody listens, else gathered."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending: list[int] = []
        self._missed = False  # something was ended that no message named
        self._is_heard = False
        self._next_at = 0.0
        self._again = AGAIN_SECONDS
        self._wake = asyncio.Event()
        self._is_woken = False
        self._loop = asyncio.get_running_loop()

    def ended(self, ids: Sequence[int]) -> None:
        """Tell of these tasks soon; from any thread, and without waiting for anything."""
        if len(self._pending) + len(ids) > IDS_KEPT:
            self._missed = True
        else:
            self._pending.extend(ids)
        if not self._is_woken and not self._loop.is_closed():
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Publish for ever."""
        on_ended(self.ended)
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(self._next_at - time.monotonic())
                self._wake.clear()
                self._is_woken = False
                await self._publish()
        finally:
            off_ended(self.ended)
            if self._pending and self._is_heard:
                await self._publish()  # what ended last, before this worker ends
            await self._channel.close()

    async def _publish(self) -> None:
        ids, self._pending = self._pending, []
        missed, self._missed = self._missed, False
        try:
            self._is_heard = await self._channel.publish(ids, look_at_all=missed) > 0
        except StreamsDown as error:
            # The ids are not kept: whoever waits polls by now, or looks at all when we are back.
            self._missed, self._is_heard = True, False
            self._next_at = time.monotonic() + self._again * random.uniform(0.8, 1.2)
            self._again = min(self._again * 2, LONGEST_AGAIN_SECONDS)
            log.debug("%s", error)
        else:
            self._again = AGAIN_SECONDS
            self._next_at = 0.0 if self._is_heard else time.monotonic() + UNHEARD_SECONDS
