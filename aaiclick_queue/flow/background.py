"""Background: the loops that keep the flow going, in every worker process unless it was told otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..errors import PostgresUnavailable
from ..postgres import SCHEMA_ERRORS, Database
from ..spans import TOLD
from ..streams import Streams
from .admit import Admission, Admitted
from .archive import Archive
from .books import Books
from .choose import Lane
from .kick import add_scheduler, kick_claimers, remove_scheduler
from .loop import Holder, Loop
from .operate import next_rest, work_once
from .prune import Pruner
from .reaper import Reaper
from .relay import BATCH, Relay
from .resolve import Resolver
from .scheduler import Scheduler
from .tally import Tally
from .watch import Examine, Watch

RELAY_BUSY = 0.02
RELAY_IDLE = 0.2
RELAY_QUIET = 0.4  # a fleet that nobody uses: at 0.2 s the empty looks were half of an idle worker's time
QUIET_SECONDS = 10.0
DROP_SECONDS = 2.5  # what is dropped is five seconds old
DUE_SECONDS = 0.5
REAP_SECONDS = 2.0
SWEEP_SECONDS = 60.0
SWEEP_REST_SECONDS = 300.0
ALERT_SECONDS = 5.0
PRUNE_SECONDS = 10.0  # from the start, and between two looks of who does not prune
HELD_SECONDS = 0.1  # the longest wait for a slot that was freed where nobody could tell us
LIMITS_SECONDS = 600.0  # how long after the last sign of limits this process keeps looking for held tasks
HELD_GATE_SECONDS = 0.005  # another resolver has the gate, and may not see what arrived here
ARRIVALS_SECONDS = 0.25  # what ended where nobody resolves, or where a process died right after
JOBS_SECONDS = 10.0  # how long after the last sign of open jobs this process looks for arrivals
SCHEDULES_SECONDS = 1.0  # how soon a schedule that another process has changed is seen
BUSY_SECONDS = 0.01  # another process is at it, and may not see what was freed here
BOOKS_SECONDS = 10.0
NEVER = 3600.0


class Background:
    """Relay, due, scheduler, reaper, sweep and prune of one process."""

    def __init__(  # noqa: PLR0913 - each of them somebody else's
        self,
        db: Database,
        streams: Streams | None,
        *,
        holder: int,
        version: str = "",
        archive: Archive | None = None,
        examine: Examine | None = None,
    ) -> None:
        """What is pruned goes into the archive first; `examine` is the doctor."""
        self._db = db
        self._relay = Relay(db, streams)
        self._figures = Tally()
        self._reaper = Reaper(db, self._figures)
        self._resolver = Resolver(db)
        self._scheduler = Scheduler(db)
        self._pruner = Pruner(db, archive=archive)
        self._prunes_at = time.monotonic() + PRUNE_SECONDS
        self._holder = Holder(holder)
        self._publishes = streams is not None
        self._own_rows = False
        self._alert_until = 0.0
        self._relayed_at = time.monotonic()
        self._limits_until = 0.0
        self._admission = Admission(db)
        self._round_count, self._round_cost = 0, 0.0
        self._held_passes = 0
        self._jobs_until = 0.0
        self._schedules = True
        self._has_fired = False
        self.opened: Callable[[], None] = lambda: None
        fast = self._reaper.looks_at_all = self._is_fast
        self.relay = Loop("relay", self._relay_pass, fast=fast)
        self.due = Loop("due", self._due_pass, fast=fast, exact=True)
        self.schedule = Loop("scheduler", self._schedule_pass, fast=fast, exact=True)
        self.operate = Loop("operations", self._operate_pass)
        self.resolve = Loop("resolver", self._resolve_pass)
        self.admit = Loop("admission", self._admit_pass, fast=fast)
        self.reap = Loop("reaper", self._reap_pass, fast=fast)
        self._loops = [
            Loop("loops", lambda: self._holder.hold_once(db)),
            self.relay,
            self.due,
            self.schedule,
            self.admit,
            self.operate,
            self.resolve,
            self.reap,
            Loop("sweep", self._sweep_pass, longest_rest=SWEEP_REST_SECONDS),
            Loop("prune", self._prune_pass),
            *Watch(db, self._holder, examine).loops,
            Loop("books", self._books_pass),
        ]
        self._books = Books(holder, self._loops, version=version)

    @property
    def holder(self) -> Holder:
        """Whether this process leads, and when Postgres last said so."""
        return self._holder

    def _is_fast(self) -> bool:
        return self._holder.holds or time.monotonic() < self._alert_until

    async def run(self) -> None:
        """Run all loops until cancelled."""
        running = asyncio.get_running_loop()

        def kick() -> None:
            running.call_soon_threadsafe(self.schedule.kick)

        add_scheduler(kick)
        try:
            async with asyncio.TaskGroup() as group:
                for loop in self._loops:
                    group.create_task(loop.run(), name=loop.name)
        finally:
            remove_scheduler(kick)
            with suppress(PostgresUnavailable, TimeoutError, *SCHEMA_ERRORS):  # the rows expire by themselves
                async with asyncio.timeout(2):
                    await self._holder.let_go(self._db)
                    await self._books.close(self._db)
                    await self._figures.flush(self._db, patience=2)

    def made_ready(self) -> None:
        """This process has put work in line: tell its own claimers, and relay the rows without their usual wait."""
        kick_claimers()
        if self._publishes:
            self._own_rows = True
            self.relay.kick()

    def freed(self, lanes: Iterable[Lane]) -> None:
        """Runs under limits have ended in this process: let the next ones in."""
        lanes = set(lanes)
        if not lanes:
            return
        self._admission.freed(lanes)
        self._limits_until = time.monotonic() + LIMITS_SECONDS
        self.admit.kick()

    def arrived(self) -> None:
        """Tasks of jobs have ended in this process: see what that opens."""
        self.resolve.kick()

    def look_for_held(self) -> None:
        """There was a wake-up and nothing to claim: what was enqueued may be held."""
        self.admit.kick()

    async def _admit_pass(self) -> float:
        began = time.monotonic()
        admitted = await self._admission.admit_once()
        now = time.monotonic()
        self._round_cost += now - began
        self._round_count += admitted.count
        self.admit.counts.did("let {} tasks in", admitted.count)
        if admitted.count:
            self.made_ready()
        if admitted.lanes:
            self._limits_until = now + LIMITS_SECONDS
        if admitted.busy:
            asyncio.get_running_loop().call_later(BUSY_SECONDS, self.admit.kick)
            return HELD_SECONDS
        if admitted.more:
            return 0.0
        # A round is over. Where many keys wait and none can get in, looking at them must not be work in itself.
        count, cost = self._round_count, self._round_cost
        self._round_count, self._round_cost = 0, 0.0
        return 0.0 if count else max(self._until_next_round(admitted, now), 5 * cost)

    def _until_next_round(self, admitted: Admitted, now: float) -> float:
        if admitted.lanes:
            return HELD_SECONDS if admitted.next_end is None else min(HELD_SECONDS, max(0.005, admitted.next_end))
        return (1.0 if self._publishes else HELD_SECONDS) if now < self._limits_until else NEVER

    async def _operate_pass(self) -> float:
        worked = await work_once(self._db, rested=True)
        if worked is None:
            rest = await next_rest(self._db)
            return NEVER if rest is None else max(rest, BUSY_SECONDS)  # the reaper's look finds the next new one
        self.operate.counts.did("did {} tasks of an operation", worked.taken)
        if worked.moved:
            self.made_ready()
            self.admit.kick()
        return 0.0

    async def _resolve_pass(self) -> float:
        resolved = await self._resolver.resolve_once()
        now = time.monotonic()
        self.resolve.counts.did("made {} tasks ready", resolved.entered, folded=resolved.folded)
        if resolved.folded:
            self._jobs_until = now + JOBS_SECONDS
        if resolved.entered:
            self.opened()  # tasks of an old job stand before what was claimed last
            self.made_ready()
            if resolved.limited:
                self.admit.kick()
        if resolved.operations:
            self.operate.kick()
        self._held_passes = self._held_passes + 1 if resolved.held and not resolved.more else 0
        if self._held_passes:
            return HELD_GATE_SECONDS * min(self._held_passes, 20)
        if resolved.more:
            return 0.0
        return ARRIVALS_SECONDS if now < self._jobs_until and self._is_fast() else NEVER

    async def _relay_pass(self) -> float:
        own, self._own_rows = self._own_rows, False
        relayed = await (self._relay.relay_once(older=0.0) if own else self._relay.relay_once())
        self.relay.counts.did("relayed {} wake-ups" if self._publishes else "dropped {} wake-ups", relayed)
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
        self.due.counts.did("made {} tasks ready whose time had come", moved)
        if moved:
            self.made_ready()
        return min(DUE_SECONDS, max(0.0, next_due if next_due is not None else DUE_SECONDS))

    async def _schedule_pass(self) -> float:
        began = time.monotonic()
        fired = await self._scheduler.fire_once()
        self.schedule.counts.did("started {} scheduled runs", fired.runs)
        if fired.ticks and TOLD.tracer is not None:
            TOLD.tracer.worked("tick", fired.ticks, began)
        self._has_fired = self._has_fired or fired.runs > 0
        if fired.is_full:
            return 0.0  # all that is due first: its runs would take the time from it
        if self._has_fired:
            self._has_fired = False
            self.made_ready()
            self.admit.kick()
        self._schedules = fired.next_due is not None or fired.is_left
        if not self._schedules:
            return NEVER  # the reaper's look finds the next one
        return min(SCHEDULES_SECONDS, SCHEDULES_SECONDS if fired.pause is None else fired.pause)

    async def _reap_pass(self) -> float:
        began = time.monotonic()
        reaped = await self._reaper.reap_once()
        taken = reaped.workers + reaped.lost + reaped.overdue + reaped.expired
        self.reap.counts.did("took {} runs, workers and tasks whose time was up", taken)
        if reaped.anything and TOLD.tracer is not None:
            TOLD.tracer.worked("reap", reaped.lost + reaped.overdue + reaped.expired, began)
        if reaped.schedules and not self._schedules:
            self.schedule.kick()
        if reaped.operations:
            self.operate.kick()
        if reaped.jobs:
            self._jobs_until = time.monotonic() + JOBS_SECONDS
            self.resolve.kick()
        if reaped.limits and time.monotonic() >= self._limits_until:
            self._limits_until = time.monotonic() + LIMITS_SECONDS
            self.admit.kick()
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
        began, before = time.monotonic(), self._pruner.pruned.tasks
        pause = await self._pruner.prune_once()
        if TOLD.tracer is not None and self._pruner.pruned.tasks > before:
            TOLD.tracer.worked("prune", self._pruner.pruned.tasks - before, began)
        return pause

    async def _books_pass(self) -> float:
        await self._books.write_once(self._db)
        await self._figures.flush(self._db, patience=BOOKS_SECONDS)
        return BOOKS_SECONDS
