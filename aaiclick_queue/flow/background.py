"""Background: the loops that keep the flow going, in every worker process unless it was told otherwise."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from ..errors import PostgresUnavailable
from ..postgres import Database
from ..streams import Streams
from .kick import kick_claimers
from .loop import Holder, Loop
from .prune import Pruner
from .reaper import Reaper
from .relay import BATCH, Relay

RELAY_BUSY = 0.02
RELAY_IDLE = 0.2
RELAY_QUIET = 0.4  # a fleet that nobody uses: at 0.2 s the empty looks were half of an idle worker's time
QUIET_SECONDS = 10.0
DROP_SECONDS = 1.0
DUE_SECONDS = 0.5
REAP_SECONDS = 2.0
SWEEP_SECONDS = 60.0
ALERT_SECONDS = 5.0
PRUNE_SECONDS = 10.0  # from the start, and between two looks of who does not prune


class Background:
    """Relay, due, reaper, sweep and prune of one process."""

    def __init__(self, db: Database, streams: Streams | None, *, holder: int) -> None:
        self._db = db
        self._relay = Relay(db, streams)
        self._reaper = Reaper(db)
        self._pruner = Pruner(db)
        self._prunes_at = time.monotonic() + PRUNE_SECONDS
        self._holder = Holder(holder)
        self._publishes = streams is not None
        self._own_rows = False
        self._alert_until = 0.0
        self._relayed_at = time.monotonic()
        fast = self._reaper.looks_at_all = self._is_fast
        self.relay = Loop("relay", self._relay_pass, fast=fast)
        self.due = Loop("due", self._due_pass, fast=fast)
        self._loops = [
            Loop("loops", lambda: self._holder.hold_once(db)),
            self.relay,
            self.due,
            Loop("reaper", self._reap_pass, fast=fast),
            Loop("sweep", self._sweep_pass),
            Loop("prune", self._prune_pass),
        ]

    def _is_fast(self) -> bool:
        return self._holder.holds or time.monotonic() < self._alert_until

    async def run(self) -> None:
        """Run all loops until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self._loops:
                    group.create_task(loop.run(), name=loop.name)
        finally:
            with suppress(PostgresUnavailable, TimeoutError):  # the row expires by itself
                async with asyncio.timeout(2):
                    await self._holder.let_go(self._db)

    def made_ready(self) -> None:
        """This process has put work in line: tell its own claimers, and relay the rows without their usual wait."""
        kick_claimers()
        if self._publishes:
            self._own_rows = True
            self.relay.kick()

    async def _relay_pass(self) -> float:
        own, self._own_rows = self._own_rows, False
        relayed = await (self._relay.relay_once(older=0.0) if own else self._relay.relay_once())
        if relayed >= BATCH:
            return 0.0
        if not self._publishes:
            return DROP_SECONDS  # each pass reads over all rows that are not stale yet
        if relayed:
            self._relayed_at = time.monotonic()
            return RELAY_BUSY
        return RELAY_IDLE if time.monotonic() - self._relayed_at < QUIET_SECONDS else RELAY_QUIET

    async def _due_pass(self) -> float:
        moved, next_due = await self._reaper.due_once()
        if moved:
            self.made_ready()
        return min(DUE_SECONDS, max(0.0, next_due if next_due is not None else DUE_SECONDS))

    async def _reap_pass(self) -> float:
        reaped = await self._reaper.reap_once()
        if reaped.anything:
            # The holder may be the one that died: what it had is due soon, its role is free only when it expires.
            self._alert_until = time.monotonic() + ALERT_SECONDS
            self.due.kick()
            return 0.0
        # Until the next lease ends, if nobody renews it: a dead worker is noticed then and not a poll later.
        longest = min(REAP_SECONDS, self._db.settings.lease_seconds / 6)
        if reaped.next_end is None:
            return longest
        if reaped.next_end <= 0:  # over, and not to be taken yet: after an outage
            return min(0.5, longest)
        return min(longest, reaped.next_end + 0.01)

    async def _sweep_pass(self) -> float:
        await self._reaper.sweep_once()
        return SWEEP_SECONDS

    async def _prune_pass(self) -> float:
        # By one process alone, for its cursors' sake: the rows could be shared. A short life prunes nothing.
        if not self._holder.holds or time.monotonic() < self._prunes_at:
            return PRUNE_SECONDS
        return await self._pruner.prune_once()
