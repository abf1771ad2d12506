"""The worker: registers, claims, runs and records, until it is told to stop. One object a process."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import __version__, orders
from .caps import Lines
from .channel import Channel
from .children import Children
from .claimer import Claimer
from .client import settings_here
from .context import Services
from .declaring import declare_schedules
from .doctor import examine
from .each import definition_of
from .ends import Ends
from .errors import PostgresUnavailable, SchemaMismatch, WrongContext
from .flags import INPUTS, KNOWN
from .flow.background import Background
from .flow.claim import UNSTARTED_SECONDS, Claimed, Line
from .flow.complete import Completer
from .flow.execute import RELEASED, Run, Stop
from .flow.fenced import Fence, extend
from .flow.heartbeat import Beat, Counters, Identity, Signs, register, set_status
from .flow.inputs import filled_in
from .flow.reaper import ensure_partitions
from .flow.settle import release_all
from .flow.tally import Tally
from .flow.unknown import unknown_outcomes
from .history import history_of
from .leaving import Leaving, memory_bytes
from .lifespan import Lifespan
from .listener import Listener
from .local import database_url
from .log_capture import recording
from .meters import METERS
from .middleware import Middleware, checked_for_worker, middleware_here
from .migrate import require_head
from .nudges import Nudges
from .outcome import Ended, Later, Outcome
from .plan import EVERY_QUEUE, Plan
from .pool import Recycling
from .postgres import DATA_ERRORS, SCHEMA_ERRORS, Database
from .pulse import Pulse
from .report import Report
from .sealing import secret_words
from .settings import Settings
from .skew import Skew
from .slots import Slots
from .stacks import Shown, draw
from .status import WorkerStatus
from .streams import Streams
from .tasks import registry
from .vitals import Vitals

log = logging.getLogger("aaiclick_queue.worker")

TICK_SECONDS = 0.25
ENTRYPOINTS_LIMIT = 2000  # names of tasks that a worker's row tells
ADDING_SIZE = 4  # connections, opened when runs add to their jobs


class Worker:
    """One worker process."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan | None = None,
        *,
        report: Report | None = None,
        middleware: Sequence[Middleware] = (),
        resources: Mapping[Any, Any] | None = None,
    ) -> None:
        """`resources` are values by type for this process, instead of what is declared."""
        self.settings = settings
        self._resources = resources
        self._middleware = checked_for_worker(middleware)
        self.plan = plan or Plan()
        self.worker_id = 0
        self.started = asyncio.Event()
        self._report = report or Report()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fenced = False
        self._over = False
        self._mismatch: SchemaMismatch | None = None
        self._reincarnate = asyncio.Event()
        self._lag = 0.0
        self.skew = Skew()
        self.ends = Ends(self._report)
        self.noted: Callable[[], None] = lambda: None  # called about once a second by the heartbeat's thread
        kinds = Counter(task.kind for task in registry.values())
        recycling = Recycling(self.plan.max_tasks_per_child, self.plan.max_memory_per_child)
        self.slots = Slots(
            size=self.plan.slots,
            threads=self.plan.threads,
            children=Children(self.plan.children, recycling),
            shares={kind: count / kinds.total() for kind, count in kinds.items()} or None,
            prefetch=settings.prefetch,
            ended=self._run_ended,
            stopped=self.ends.run_stopped,
        )
        self.ends.slots = self.slots

    def stop(self, *, now: bool = False) -> None:
        """Stop taking tasks, finish what runs within the grace time, hand the rest back; `now`: hand back at once."""
        self._stop.set()
        if now:
            self._hurry.set()

    async def run(self) -> None:
        """Work until stopped."""
        if orders.is_child:
            raise WrongContext(
                "a worker was started by importing a module in a child process: put what starts it under "
                '`if __name__ == "__main__":`'
            )
        settings_here.set(self.settings)
        self._db_loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        middleware_here.set(self._middleware)
        dsn = await database_url(self.settings)
        async with (
            Database(self.settings, size=3, flow=True, dsn=dsn) as db,
            Database(self.settings, size=ADDING_SIZE, flow=True, dsn=dsn) as adding_db,
            Lifespan(self.settings, self._resources) as lifespan,
            recording(self.settings) as recorder,
        ):
            await require_head(db)
            await ensure_partitions(db)
            await declare_schedules(db, self.plan.modules)
            here = [task for task in registry.values() if task.kind != "process"]
            apart = [task for task in registry.values() if task.kind == "process"]
            if not await lifespan.start(here, elsewhere=apart, unless=self._stop):
                return  # told to stop before it began
            self._db = db
            self._completer = Completer(db, worker_id=lambda: self.worker_id, landed=self._landed)
            self._streams = (
                Streams(self.settings.redis_url, prefix=self.settings.redis_prefix) if self.settings.redis_url else None
            )
            every = EVERY_QUEUE in self.plan.queues
            queues = {} if every else self.plan.queues
            self._line = Lines(queues, self.plan.limits, self.slots.taken) if self.plan.limits else Line(queues)
            self._claimer = Claimer(self, db, self._line, self.slots, every_queue=every)
            self._claimer.may_claim = self._may_claim
            await self._register()
            archive = history_of(self.settings)
            self._background = Background(
                db, self._streams, holder=self.worker_id, version=__version__, archive=archive, examine=examine
            )
            self._background.opened = self._line.head.want
            self.ends.serve(db, self._completer, self._background, self._claimer)
            self.slots.serve(
                Services(
                    self.settings,
                    db,
                    dsn,
                    self.slots.rearm,
                    made_ready=self._made_ready,
                    arrived=self._background.arrived,
                    adding_db=adding_db,
                    modules=self.plan.modules,
                    lifespan=lifespan,
                    middleware=self._middleware,
                    recorder=recorder,
                )
            )
            self._pulse = Pulse(self.settings, dsn, self)
            self._pulse.noted = self.noted
            self._pulse.start()
            try:
                await self._work()
            finally:
                self._pulse.stop()
                await self.slots.close()
                if self._streams is not None:
                    await self._streams.close()
                await self._close_engines()
        if self._mismatch is not None:
            raise self._mismatch

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(self._completer.run()), group.create_task(self._tick())]
            background = self._background.run if self.plan.background else self._background.resolve.run
            loops.append(group.create_task(background()))  # what ends here opens gates here, whoever keeps the rest
            loops.append(group.create_task(self._come_back()))
            if self.plan.ends_by_itself:
                loops.append(group.create_task(self._leaving().run()))
            claiming = group.create_task(self._claimer.run())
            if self._streams is not None:
                self._claimer.listener = Listener(
                    self._streams,
                    self._line,
                    consumer=lambda: str(self.worker_id),
                    room=self.slots.room,
                    kick=self._claimer.look,
                    expect=self._claimer.expect,
                )
                loops.append(group.create_task(self._claimer.listener.run()))
                loops.append(group.create_task(Nudges(self._channel()).run()))
            if self.plan.modules and any(task.kind == "process" for task in registry.values()):
                self.slots.children.warm()  # without modules they would have nothing to preload
            self.started.set()
            self._report.started(self)
            await self._stop.wait()
            await self._wind_down(claiming)
            for task in loops:
                task.cancel()
        if self._claimer.listener is not None:
            await self._claimer.listener.leave()

    def _made_ready(self) -> None:
        # A run draws its ids by a clock of its own: a little behind, they lie before what was claimed last.
        self._line.head.want()
        self._background.made_ready()

    def _leaving(self) -> Leaving:
        plan = self.plan
        queues = [] if EVERY_QUEUE in plan.queues else list(plan.queues)
        leaving = Leaving(self, self._db, queues, burst=plan.burst, looks_at_due=plan.background)
        leaving.max_tasks, leaving.max_memory = plan.max_tasks, plan.max_memory
        self._claimer.budget = leaving.budget
        return leaving

    def _channel(self) -> Channel:
        assert self.settings.redis_url
        return Channel(self.settings.redis_url, prefix=self.settings.redis_prefix)

    # The claimer's side.

    async def take(self, claimed: Sequence[Claimed], worker_id: int) -> Mapping[str, Sequence[float]]:
        """Start the runs that were leased to this worker id; gives the cool-downs, by queue, of those unknown here."""
        strange = {name for name in {one.entrypoint for one in claimed} if name not in registry}
        unknown = [one for one in claimed if one.flags & ~KNOWN or one.entrypoint in strange]
        known = [one for one in claimed if one not in unknown] if unknown else claimed
        with_inputs = [one for one in known if one.flags & INPUTS]
        await self._start([one for one in known if not one.flags & INPUTS] if with_inputs else known, worker_id)
        if with_inputs:
            await self._start(await self._filled_in(with_inputs, worker_id), worker_id)
        cool_downs: dict[str, list[float]] = {}
        if unknown:
            self.ends.outside.update((one.task_id, one.run_epoch) for one in unknown)
            self.ends.unknown |= {(one.task_id, one.run_epoch): one for one in unknown}
            outcomes = await unknown_outcomes(self._db, unknown, keep_seconds=self.settings.unknown_task_seconds)
            for one, outcome in zip(unknown, outcomes, strict=True):
                self._report.unknown(one)
                now = time.monotonic()
                self._completer.add(Ended(one.task_id, one.run_epoch, outcome, now, now, worker_id))
                if isinstance(outcome, Later) and outcome.seconds:
                    cool_downs.setdefault(one.queue, []).append(outcome.seconds)
        return cool_downs

    async def _start(self, claimed: Sequence[Claimed], worker_id: int) -> None:
        runs = [
            Run(one, definition_of(registry[one.entrypoint], one.kwargs), self.settings, worker_id) for one in claimed
        ]
        if self.slots.start(runs):
            self.unanswered()  # Postgres has forgotten claims: a run that was told so may have left one of them behind
        if self.ends.outside:
            self.ends.outside.difference_update((one.task_id, one.run_epoch) for one in claimed)
        for run in runs:
            if run.claimed.timeout_seconds is None and run.timeout > self.settings.task_timeout_seconds:
                await self._stretch(run)  # enqueued by name: the claim did not know the timeout in the code

    async def _filled_in(self, claimed: Sequence[Claimed], worker_id: int) -> Sequence[Claimed]:
        """With the results that their arguments name; none, all handed back, when those cannot be read."""
        self.ends.outside.update((one.task_id, one.run_epoch) for one in claimed)
        try:
            async with self._db.connection() as connection:
                filled = await filled_in(connection, claimed)
        except Exception as error:
            expected = isinstance(error, PostgresUnavailable)
            log.warning("cannot read the inputs of %d tasks: %s", len(claimed), error, exc_info=not expected and error)
            filled = []
        if not filled or self._fenced or worker_id != self.worker_id:  # they may be somebody else's by now
            self.ends.hand_back(claimed, worker_id)
            return ()
        return filled

    async def _stretch(self, run: Run) -> None:
        fence = Fence(run.claimed.task_id, run.claimed.run_epoch, run.worker_id)
        await extend(self._db, fence, run.timeout + self.settings.grace_seconds + UNSTARTED_SECONDS)

    def found_nothing(self) -> None:
        """There was a wake-up and nothing to claim."""
        self._background.look_for_held()

    def unanswered(self) -> None:
        """A claim may have happened without our knowing."""
        self._pulse.suspect_strangers()
        self._pulse.hurry()  # after a crash of Postgres it tells which runs' claims were forgotten

    async def look_at_schema(self) -> None:
        """Stop, with the command to run, where the schema is not this version's any more."""
        try:
            await require_head(self._db)
        except SchemaMismatch as error:
            if not self._stop.is_set():
                log.critical("stopping: %s", error)
                self._mismatch = error
                self.stop(now=True)
        except Exception as error:  # in the middle of a migration: the next claim looks again
            log.debug("cannot read the revision: %s", error)

    def _may_claim(self) -> bool:
        return not self._fenced and not self._stop.is_set()

    def _run_ended(self, run: Run, outcome: Outcome | None) -> None:
        self.ends.run_ended(run, outcome)

    def _landed(self, batch: Sequence[Ended], landed: set[int]) -> None:
        self.ends.landed(batch, landed)

    @property
    def tally(self) -> Counter[str]:
        """Runs that ended here, by what they came to."""
        return self.ends.tally

    # The pulse's side: called from its thread.

    @property
    def figures(self) -> Tally:
        """What the runs of this process came to and no figure shows yet."""
        return self.ends.figures

    def signs(self) -> Signs:
        """Memory, how late the event loop was at worst since the last call, and the clock's difference."""
        stuck = time.monotonic() - self._pulse.loop_seen - TICK_SECONDS if self.started.is_set() else 0.0
        lag, self._lag = max(self._lag, stuck), 0.0
        return Signs(memory_bytes(), lag, self.skew.seconds)

    def held(self) -> list[tuple[int, int]]:
        """Task id and run_epoch of every run that is not settled yet."""
        runs = [(run.claimed.task_id, run.claimed.run_epoch) for run in list(self.slots.held.values())]
        return [*runs, *list(self.ends.outside)]

    def at_work(self) -> set[int]:
        """Task ids of every run whose code may still run here, settled or not."""
        return {run.claimed.task_id for run in [*list(self.slots.held.values()), *self.slots.in_threads()]}

    def give_up_unstarted(self) -> list[tuple[int, int]]:
        """Runs that have not started, and from now on will not."""
        return [(run.claimed.task_id, run.claimed.run_epoch) for run in self.slots.give_up_unstarted()]

    def take_counters(self) -> Counters:
        """What was done since the last call."""
        return self.ends.take_counters()

    def give_back_counters(self, counters: Counters) -> None:
        """A beat did not land: count them again."""
        self.ends.give_back_counters(counters)

    def answered(self, answer: Beat) -> None:
        """A beat landed; what follows happens on the worker's own loop."""
        self._db_loop.call_soon_threadsafe(self._act_on, answer)

    def expired(self) -> None:
        """The lease could not be renewed in time by this process's own clock."""
        self._db_loop.call_soon_threadsafe(self._fence)

    def suspect_schema(self) -> None:
        """A beat met a schema of another version."""
        asyncio.run_coroutine_threadsafe(self.look_at_schema(), self._db_loop)

    def vitals(self) -> Vitals:
        """How it is, for probes."""
        started = self.started.is_set()
        return Vitals(
            started=started and self._claimer.turned > 0,
            stopping=self._stop.is_set(),
            beat=self._pulse.renewed if started and not self._fenced else 0.0,
            beat_patience=max(2 * self.settings.heartbeat, 5.0),
            turned=self._claimer.turned if started else 0.0,
            loop_seen=self._pulse.loop_seen if started else time.monotonic(),
            turn_patience=self.settings.loop_stall_seconds + max(5.0, self.settings.lease_seconds / 2) + 5.0,
            redis=self._claimer.listener.up if started and self._claimer.listener is not None else None,
        )

    @property
    def leads(self) -> bool:
        """Whether this process polls for the background loops of all."""
        return self.started.is_set() and self._background.holder.holds

    def stacks(self) -> str:
        """Where every run, thread and asyncio task of this process is."""
        seen = self._pulse.loop_seen if self.started.is_set() else time.monotonic()
        runs = list({*self.slots.held.values(), *self.slots.in_threads()})
        for pid in {run.child_pid for run in runs} - {0}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # what it is at, only it can tell
        return draw(Shown(self.worker_id, runs, self._db_loop, self._loop_thread, seen))

    def _act_on(self, answer: Beat) -> None:
        if answer.worker_id != self.worker_id or self._over:
            return  # of an earlier incarnation, or one beat after we said STOPPED
        if answer.status is None:
            self._fence()
            self._reincarnate.set()
            return
        if answer.status == WorkerStatus.STOPPING and not self._stop.is_set():
            log.info("told to stop")
            self.stop()
        for task_id, run_epoch in answer.gone:
            run = self.slots.held.get(task_id)
            if run is not None and run.claimed.run_epoch == run_epoch and self.slots.is_running(run):
                self._report.gone(run)
                self.slots.stop(run, Stop(None))
        if self._fenced and not self._reincarnate.is_set():
            self._fenced = False
            log.info("renewed the lease: claiming again")
            self._claimer.kick()

    def _fence(self) -> None:
        """Stop every run: by our own clock they may be somebody else's by now."""
        if not self._fenced:
            self._fenced = True
            log.warning("could not renew the lease in time: stopping %d runs", len(self.slots.held))
            self.slots.stop_all(Stop(RELEASED))

    async def _come_back(self) -> None:
        """After having been given up as LOST: a new incarnation with a new id."""
        while True:
            await self._reincarnate.wait()
            for run in list(self.slots.held.values()):
                self.slots.stop(run, Stop(None))
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await self._completer.drained()
            self.ends.outside.clear()
            self.ends.unknown.clear()
            try:
                await self._register()
            except Exception as error:
                log.warning("cannot come back yet: %s", error)
                await asyncio.sleep(0.5)
                continue
            self._reincarnate.clear()
            self._pulse.new_incarnation()
            self._fenced = False
            log.info("came back as a new worker: %d", self.worker_id)
            self._claimer.kick()

    # Life.

    async def _register(self) -> None:
        worker_id = secrets.randbits(62) | 1
        identity = Identity(
            worker_id,
            os.getpid(),
            self.plan.slots,
            socket.gethostname(),
            __version__,
            tuple(self.plan.queues),
            fleet=self.plan.fleet,
            entrypoints=tuple(sorted(registry)[:ENTRYPOINTS_LIMIT]),
            secrets=tuple(secret_words(registry.values())[:ENTRYPOINTS_LIMIT]),
        )
        asked_at = self.skew.begin()
        now = await register(self._db, identity, lease_seconds=self.settings.lease_seconds)
        self.figures.set_clock(self.skew.end(asked_at, now))
        self.worker_id = worker_id

    async def _tick(self) -> None:
        due = time.monotonic()
        while True:
            self._pulse.loop_seen = now = time.monotonic()
            if METERS.on:
                METERS.observe("event_loop_lag_seconds", max(0.0, now - due))
            if not (self._pulse.alive or self._stop.is_set()):
                log.critical("the heartbeat thread is gone: stopping, so that nothing runs without a lease")
                self.stop(now=True)
            self.slots.release_unstarted()
            self.slots.arm_timers()
            if self.ends.owes_slots:
                with suppress(PostgresUnavailable):  # the next tick tries again
                    await self.ends.give_back_slots()
            self._report.tick()
            due = time.monotonic() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self._lag = max(self._lag, time.monotonic() - due)

    async def _wind_down(self, claiming: asyncio.Task[None]) -> None:
        self._report.stopping(len(self.slots.held))
        self._claimer.stop()
        await asyncio.wait([claiming], timeout=2)  # a claim on its way may bring runs that we must hand back
        claiming.cancel()
        await self._say(WorkerStatus.STOPPING)
        self.slots.release_unstarted(older_seconds=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.grace_seconds):
                await first_of(self.slots.emptied(), self._hurry.wait())
        self.slots.stop_all(Stop(RELEASED))
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self.slots.emptied()
                await self._completer.drained()
        await self._hand_back_all()
        self._over = True
        await asyncio.to_thread(self._pulse.stop)  # a beat on its way carries counters: it must land before the end
        await self._say(WorkerStatus.STOPPED)
        with suppress(PostgresUnavailable, TimeoutError, *SCHEMA_ERRORS):
            await self.figures.flush(self._db, patience=2.0)
        self._report.stopped(self)

    async def _hand_back_all(self) -> None:
        """The net behind the orderly end: leases that we do not know of, runs that could not be stopped."""
        with suppress(PostgresUnavailable, TimeoutError, *DATA_ERRORS, *SCHEMA_ERRORS):  # else the reaper takes them
            async with asyncio.timeout(5):
                await release_all(self._db, self.worker_id)

    async def _say(self, status: WorkerStatus) -> None:
        try:
            async with asyncio.timeout(2):
                await set_status(self._db, self.worker_id, status, self.take_counters())
        except (PostgresUnavailable, TimeoutError, *SCHEMA_ERRORS):
            log.warning("could not say %s: the reaper will find out", status)

    async def _close_engines(self) -> None:
        transaction = sys.modules.get("aaiclick_queue.transaction")  # imported by the first task that needs it
        if transaction is not None:
            await transaction.close_engines()


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Until one of them is over."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
