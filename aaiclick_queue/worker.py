"""The worker: registers, claims, runs and records, until it is told to stop. One object a process."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from . import __version__, orders
from .caps import Lines
from .channel import Channel
from .children import Children
from .claimer import Claimer
from .client import settings_here
from .context import Services
from .errors import PostgresUnavailable, WrongContext
from .flags import HOOKED
from .flow.admit import give_back_stopped
from .flow.background import Background
from .flow.choose import Lane, lanes_of
from .flow.claim import UNSTARTED_SECONDS, Claimed, Line
from .flow.complete import Completer
from .flow.execute import RELEASED, Run, Stop
from .flow.fenced import Fence, extend
from .flow.heartbeat import Beat, Counters, Identity, register, set_status
from .flow.kick import tell_ended
from .flow.reaper import ensure_partitions
from .flow.settle import release_all
from .flow.unknown import unknown_outcomes
from .leaving import Leaving
from .lifespan import Lifespan
from .listener import Listener
from .local import database_url
from .middleware import Middleware, checked, middleware_here
from .migrate import require_head
from .nudges import Nudges
from .outcome import Cancelled, Ended, Failed, Later, Outcome, Released, Succeeded
from .pool import Recycling
from .postgres import Database
from .pulse import Pulse
from .report import Report
from .settings import Settings
from .slots import Slots
from .stacks import Shown, draw
from .status import WorkerStatus
from .streams import Streams
from .tasks import registry

log = logging.getLogger("aaiclick_queue.worker")

DEFAULT_QUEUES: Mapping[str, int] = {"default": 1}
EVERY_QUEUE = "*"
TICK_SECONDS = 0.25
FINAL = (Succeeded, Failed, Cancelled)


class Plan(msgspec.Struct, frozen=True):
    """How a worker was asked to work: queues with weights and caps, slots of each kind, background loops, its end."""

    queues: Mapping[str, int] = msgspec.field(default_factory=lambda: dict(DEFAULT_QUEUES))
    slots: int = 100
    threads: int = msgspec.field(default_factory=lambda: 4 * (os.cpu_count() or 1))
    background: bool = True
    fleet: str | None = None  # the group of a fleet that it belongs to
    modules: tuple[str, ...] = ()  # what children import before their first task; else the task's own module
    children: int = msgspec.field(default_factory=lambda: os.cpu_count() or 1)
    max_tasks_per_child: int = 1000
    max_memory_per_child: int = 300  # megabytes
    limits: Mapping[str, int] = msgspec.field(default_factory=dict)  # runs at once, by queue, in this process
    burst: bool = False  # end when nothing is left to do
    max_tasks: int | None = None  # end after so many runs
    max_memory: int | None = None  # end when the process has grown beyond so many megabytes

    @property
    def ends_by_itself(self) -> bool:
        """Whether there is a moment at which it is to leave."""
        return self.burst or self.max_tasks is not None or self.max_memory is not None


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
        self._middleware = checked(middleware)
        self.plan = plan or Plan()
        self.worker_id = 0
        self.started = asyncio.Event()
        self._report = report or Report()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fenced = False
        self._over = False
        self._reincarnate = asyncio.Event()
        self._completed = self._failed = self._lost = 0
        self.tally: Counter[str] = Counter()  # runs that ended here, by what they came to
        self._stopped_runs: list[Run] = []
        self._unknown: set[tuple[int, int]] = set()  # claimed, with no code here to run them, not settled yet
        kinds = Counter(task.kind for task in registry.values())
        recycling = Recycling(self.plan.max_tasks_per_child, self.plan.max_memory_per_child)
        self.slots = Slots(
            size=self.plan.slots,
            threads=self.plan.threads,
            children=Children(self.plan.children, recycling),
            shares={kind: count / kinds.total() for kind, count in kinds.items()} or None,
            prefetch=settings.prefetch,
            ended=self._run_ended,
            stopped=self._run_stopped,
        )

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
            Lifespan(self.settings, self._resources) as lifespan,
        ):
            await require_head(db)
            await ensure_partitions(db)
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
            self._background = Background(db, self._streams, holder=self.worker_id)
            self.slots.serve(
                Services(
                    self.settings,
                    db,
                    dsn,
                    self.slots.rearm,
                    made_ready=self._background.made_ready,
                    modules=self.plan.modules,
                    lifespan=lifespan,
                    middleware=self._middleware,
                )
            )
            self._pulse = Pulse(self.settings, dsn, self)
            self._pulse.start()
            try:
                await self._work()
            finally:
                self._pulse.stop()
                await self.slots.close()
                if self._streams is not None:
                    await self._streams.close()
                await self._close_engines()

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(self._completer.run()), group.create_task(self._tick())]
            if self.plan.background:
                loops.append(group.create_task(self._background.run()))
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
                    kick=self._claimer.kick,
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

    async def take(self, claimed: Sequence[Claimed], worker_id: int) -> Counter[str]:
        """Start the runs that were leased to this worker id; returns the queues of those that nobody knows here."""
        known, unknown = [], []
        for one in claimed:
            definition = registry.get(one.entrypoint)
            if definition is None:
                unknown.append(one)
            else:
                known.append(Run(one, definition, self.settings, worker_id))
        self.slots.start(known)
        for run in known:
            if run.claimed.timeout_seconds is None and run.timeout > self.settings.task_timeout_seconds:
                await self._stretch(run)  # enqueued by name: the claim did not know the timeout in the code
        if unknown:
            self._unknown.update((one.task_id, one.run_epoch) for one in unknown)
            outcomes = await unknown_outcomes(self._db, unknown, keep_seconds=self.settings.unknown_task_seconds)
            for one, outcome in zip(unknown, outcomes, strict=True):
                self._report.unknown(one)
                now = time.monotonic()
                self._completer.add(Ended(one.task_id, one.run_epoch, outcome, now, now, worker_id))
        return Counter(one.queue for one in unknown)

    async def _stretch(self, run: Run) -> None:
        fence = Fence(run.claimed.task_id, run.claimed.run_epoch, run.worker_id)
        await extend(self._db, fence, run.timeout + self.settings.grace_seconds + UNSTARTED_SECONDS)

    def found_nothing(self) -> None:
        """There was a wake-up and nothing to claim."""
        self._background.look_for_held()

    def unanswered(self) -> None:
        """A claim may have happened without our knowing."""
        self._pulse.suspect_strangers()

    def _may_claim(self) -> bool:
        return not self._fenced and not self._stop.is_set()

    # What runs come to.

    def _run_ended(self, run: Run, outcome: Outcome | None) -> None:
        if outcome is None:
            self.slots.let_go(run)
            self._claimer.ended(run.claimed.queue)
            self.tally["Succeeded" if run.committed else "Gone"] += 1
            if not run.committed and run.stop is None:
                self._run_stopped(run)
            if run.committed:
                tell_ended([run.claimed.task_id])
                self._completed += 1
                self._background.freed(lanes_of(run.claimed))
                self._report.ended(run, Succeeded(None), time.monotonic() - run.started)
            return
        now = time.monotonic()
        self._completer.add(
            Ended(
                run.claimed.task_id,
                run.claimed.run_epoch,
                outcome,
                run.started or now,
                now,
                run.worker_id,
                run.claimed.flags,
                self.slots.is_still_running(run),
            )
        )

    def _run_stopped(self, run: Run) -> None:
        """The code of a run that was told to stop has ended: the slots that were kept for it are free."""
        self._stopped_runs.append(run)

    async def _give_back_slots(self) -> None:
        # Not before what it came to is written: that is what marks its slots as kept for it.
        over = [run for run in self._stopped_runs if self.slots.held.get(run.claimed.task_id) is not run]
        for worker_id in {run.worker_id for run in over}:
            ids = [(run.claimed.task_id, run.claimed.run_epoch) for run in over if run.worker_id == worker_id]
            await give_back_stopped(self._db, ids, worker_id=worker_id)
        self._stopped_runs = [run for run in self._stopped_runs if run not in over]
        for run in over:
            self._background.freed(lanes_of(run.claimed))

    def _landed(self, batch: Sequence[Ended], landed: set[int]) -> None:
        tell_ended([run.task_id for run in batch if run.task_id in landed and isinstance(run.outcome, FINAL)])
        freed: set[Lane] = set()
        for ended in batch:
            self._unknown.discard((ended.task_id, ended.run_epoch))
            run = self.slots.held.get(ended.task_id)
            if run is not None and run.claimed.run_epoch != ended.run_epoch:
                run = None  # the same task, claimed again meanwhile
            if run is not None:
                self.slots.let_go(run)
                self._claimer.ended(run.claimed.queue)
                self.tally[type(ended.outcome).__name__ if ended.task_id in landed else "Gone"] += 1
            if ended.task_id not in landed:
                self._lost += 1
                self._report.stale(ended)
                if run is not None and run.stop is None:
                    self._run_stopped(run)  # taken from us, and over before we heard of it
                continue
            self._count(ended)
            if run is not None:
                self._report.ended(run, ended.outcome, ended.ended - ended.started)
                freed |= lanes_of(run.claimed)
        if freed:
            self._background.freed(freed)

    def _count(self, ended: Ended) -> None:
        match ended.outcome:
            case Succeeded():
                self._completed += 1
            case Failed():
                self._failed += 1
            case Later():
                self._background.due.kick()
        if ended.flags & HOOKED or isinstance(ended.outcome, Released):
            self._background.made_ready()

    # The pulse's side: called from its thread.

    def held(self) -> list[tuple[int, int]]:
        """Task id and run_epoch of every run that is not settled yet."""
        runs = [(run.claimed.task_id, run.claimed.run_epoch) for run in list(self.slots.held.values())]
        return [*runs, *list(self._unknown)]

    def give_up_unstarted(self) -> list[tuple[int, int]]:
        """Runs that have not started, and from now on will not."""
        return [(run.claimed.task_id, run.claimed.run_epoch) for run in self.slots.give_up_unstarted()]

    def take_counters(self) -> Counters:
        """What was done since the last call."""
        taken = Counters(self._completed, self._failed, self._lost)
        self._completed -= taken.completed
        self._failed -= taken.failed
        self._lost -= taken.lost
        return taken

    def give_back_counters(self, counters: Counters) -> None:
        """A beat did not land: count them again."""
        self._completed += counters.completed
        self._failed += counters.failed
        self._lost += counters.lost

    def answered(self, answer: Beat) -> None:
        """A beat landed; what follows happens on the worker's own loop."""
        self._db_loop.call_soon_threadsafe(self._act_on, answer)

    def expired(self) -> None:
        """The lease could not be renewed in time by this process's own clock."""
        self._db_loop.call_soon_threadsafe(self._fence)

    def stacks(self) -> str:
        """Where every run, thread and asyncio task of this process is."""
        seen = self._pulse.loop_seen if self.started.is_set() else time.monotonic()
        runs = list({*self.slots.held.values(), *self.slots.in_threads()})
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
            self._unknown.clear()
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
        )
        await register(self._db, identity, lease_seconds=self.settings.lease_seconds)
        self.worker_id = worker_id

    async def _tick(self) -> None:
        while True:
            self._pulse.loop_seen = time.monotonic()
            if not (self._pulse.alive or self._stop.is_set()):
                log.critical("the heartbeat thread is gone: stopping, so that nothing runs without a lease")
                self.stop(now=True)
            self.slots.release_unstarted()
            self.slots.arm_timers()
            if self._stopped_runs:
                with suppress(PostgresUnavailable):  # the next tick tries again
                    await self._give_back_slots()
            self._report.tick()
            await asyncio.sleep(TICK_SECONDS)

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
        self._report.stopped(self)

    async def _hand_back_all(self) -> None:
        """The net behind the orderly end: leases that we do not know of, runs that could not be stopped."""
        with suppress(PostgresUnavailable, TimeoutError):
            async with asyncio.timeout(5):
                await release_all(self._db, self.worker_id)

    async def _say(self, status: WorkerStatus) -> None:
        try:
            async with asyncio.timeout(2):
                await set_status(self._db, self.worker_id, status, self.take_counters())
        except (PostgresUnavailable, TimeoutError):
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
