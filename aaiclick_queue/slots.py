"""Slots: where claimed runs are executed: on the loop, in threads, in child processes, each kind in its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from .around import Call, execute_through
from .children import ALONE_FROM, Children
from .context import Services, enter, running
from .fences import Fences, is_same
from .flags import LIMITED
from .flow.execute import RELEASED, Run, Stop, as_exception, call_plainly, decide, execute, timed_out
from .growing import growing
from .kinds import Kind, KindName, Mix, room_of
from .middleware import around_execute, installed
from .outcome import Outcome
from .strands import Strands, rest
from .threads import Threads, Unfinished, begin, has_loop

T = TypeVar("T")

CLAIM_LIMIT = 500
UNSTARTED_SECONDS = 1.0
TIMERS_SECONDS = 1.0
LEFT_SECONDS = 1.5


class Slots:
    """The runs of one worker process, from the claim until their outcome is written."""

    def __init__(  # noqa: PLR0913 - one value a fact
        self,
        *,
        size: int,
        threads: int,
        ended: Callable[[Run, Outcome | None], None],
        children: Children | None = None,
        stopped: Callable[[Run], None] = lambda _: None,
        shares: Mapping[KindName, float] | None = None,
        prefetch: bool = True,
    ) -> None:
        """`stopped` is called once when the code of a run that was told to stop has ended, however long that takes."""
        self.children = children or Children(1)
        self.held: dict[int, Run] = {}
        self.fences = Fences()
        share = shares or {}
        self._async = Kind("async", size, share=share.get("async", 1.0 if shares is None else 0.0))
        self._thread = Kind("thread", threads, share=share.get("thread", 0.0))
        self._process = Kind("process", self.children.size, share=share.get("process", 0.0))
        self._kinds = (self._async, self._thread, self._process)
        self._mix = Mix(self._kinds)
        self._ended = ended
        self._stopped = stopped
        self._services: Services | None = None
        self._in_threads: set[Run] = set()  # also those whose lease is gone: a thread cannot be stopped
        self._threads = Threads(threads, self._threads_freed)
        self._prefetch = prefetch
        self.keeps_apart = True  # whether runs have child processes at all
        self._left: dict[str, tuple[Kind, float]] = {}  # queues whose runs were handed back, until when
        self._strands = Strands(self._may_begin, self._run)
        self.freed = asyncio.Event()
        self._empty = asyncio.Event()

    def serve(self, services: Services) -> None:
        """Start to run things, with what they share."""
        self._services = services
        self._strands.start_from_here()
        self.children.serve(services)

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits to run here."""
        return any(kind.taken or kind.waiting for kind in self._kinds)

    @property
    def stuck_threads(self) -> int:
        """Threads that still run user code."""
        return self._thread.taken

    def room(self) -> int:
        """How many more runs may be claimed, when the crowded queues are left alone."""
        return room_of(self._kinds, self._mix, most=CLAIM_LIMIT, prefetch=self._prefetch)

    def crowded(self) -> frozenset[str]:
        """Queues of the runs that wait for a kind which is full: more of them would find no room either."""
        full = (kind for kind in self._kinds if kind.is_crowded(prefetch=self._prefetch))
        crowded = frozenset(queue for kind in full for queue in kind.waiting.queues)
        return crowded | self._left_to_others() if self._left else crowded

    def has_room_for_others(self) -> bool:
        """Whether some kind is not full, rare as it may be."""
        return any(kind.open(prefetch=self._prefetch) for kind in self._kinds)

    def taken(self, queue: str) -> int:
        """Runs of this queue that are here, also those that were given up while their thread goes on."""
        return sum(run.claimed.queue == queue for run in {*self.held.values(), *self._in_threads})

    def in_threads(self) -> list[Run]:
        """Runs whose thread is in user code."""
        return list(self._in_threads)

    def start(self, runs: Iterable[Run]) -> int:
        """Run these now, or as soon as a slot of their kind is free; gives how many are or were runs of before."""
        met: dict[tuple[str, Kind], int] = {}
        again = 0
        for run in runs:
            older = self.held.get(run.claimed.task_id)
            if self._is_run_of_before(run, older):
                again += 1
                continue
            if older is not None:  # claimed again, so it had lost its lease; no heartbeat will ask for it any more
                self.stop(older, Stop(None))
            self.held[run.claimed.task_id] = run
            run.kind = kind = self._kind_of(run)
            kind.waiting.append(run)
            key = run.claimed.queue, kind
            met[key] = met.get(key, 0) + 1
        if met:
            self._mix.met(met)
        self._start_threads()
        for kind in self._kinds:
            self._strands.fill(kind)
        return again

    def _is_run_of_before(self, run: Run, older: Run | None) -> bool:
        """Whether its fence was given out before, by a claim that Postgres has forgotten: one fence is one run."""
        if older is not None and is_same(older, run):
            if older.stop is not None and older.stop.outcome is None:
                self._ended(run, RELEASED)  # the older one will not record anything
            return True
        if self.fences.was_unrecorded(run):
            self._ended(run, RELEASED)  # it comes back under a fence of its own
            return True
        return self.fences.was_recorded(run)

    def release_unstarted(self, *, older_seconds: float = UNSTARTED_SECONDS) -> None:
        """Hand back runs that have waited here too long: somebody else may have a free slot."""
        limit = time.monotonic() - older_seconds
        for kind in self._kinds:
            while kind.waiting and kind.waiting[0].taken <= limit:
                run = kind.waiting.popleft()
                if self._mix.brings_only(run.claimed.queue, kind):
                    self._left[run.claimed.queue] = (kind, time.monotonic() + LEFT_SECONDS)
                self._ended(run, RELEASED)

    def let_go(self, run: Run, *, recorded: bool) -> None:
        """The run's outcome is written, or it was not ours any more."""
        self.fences.over(run, recorded=recorded)
        if self.held.get(run.claimed.task_id) is run:  # else the task was claimed again while this run came to its end
            del self.held[run.claimed.task_id]
        if not self.held:
            self._empty.set()

    async def emptied(self) -> None:
        """Until no run is held."""
        while self.held:
            self._empty.clear()
            await self._empty.wait()

    def give_up_unstarted(self) -> list[Run]:
        """Runs that wait here for a slot: they are not started any more. Called from another thread."""
        runs = [run for kind in self._kinds for run in list(kind.waiting)]
        for run in runs:
            run.stop = Stop(None)
        return runs

    def is_running(self, run: Run) -> bool:
        """Whether it runs or waits to run, and has not been told to stop."""
        return not (run.is_over or run.committing or run.committed or run.stop)

    @staticmethod
    def is_still_running(run: Run) -> bool:
        """Whether its code goes on after it was given up: asked when its outcome is known, True for threads only."""
        return run.in_thread is True

    def stop(self, run: Run, reason: Stop) -> None:
        """Tell a run to stop; a thread goes on, but nothing that it still does is recorded."""
        if run in run.kind.waiting:
            run.kind.waiting.remove(run)
            self._ended(run, reason.outcome)
            self._tell_stopped(run)
        elif (run.asyncio_task or run.in_thread) and not run.committing and not run.committed:
            told, run.stop = run.stop, reason
            # Once, so that its clean-up is left in peace; and not before its first step, which gives back the slot.
            if run.started and told is None:
                if run.asyncio_task is not None:
                    run.asyncio_task.cancel()
                elif not run.is_over:
                    self._over(run, reason.outcome)

    def stop_all(self, reason: Stop) -> None:
        """Tell every run to stop."""
        for run in list(self.held.values()):
            self.stop(run, reason)

    async def close(self) -> None:
        """Take no more thread work, and end the child processes."""
        self._threads.close()
        await self.children.close()

    def arm_timers(self) -> None:
        """Give a timer to runs that have become long enough to need one: most are over before that."""
        now = time.monotonic()
        for run in self.held.values():
            is_long = run.started and now - run.started > TIMERS_SECONDS / 4
            if is_long and run.timer is None and run.kind is not self._process and self.is_running(run):
                self.rearm(run)

    def rearm(self, run: Run) -> None:
        """The run has shown a sign of life, or has been given more time."""
        run.sign_of_life = time.monotonic()
        if run.timer is not None:
            run.timer.cancel()
        silence = run.definition.heartbeat_timeout
        until = run.started + run.timeout
        if silence is not None:
            until = min(until, run.sign_of_life + silence)
        loop = asyncio.get_running_loop()
        run.timer = loop.call_later(max(0.0, until - run.sign_of_life), self._time_out, run)

    def _left_to_others(self) -> frozenset[str]:
        # Else it would take them again at once: eight runs took 5 s to reach four workers with two children each.
        now = time.monotonic()
        self._left = {queue: (kind, until) for queue, (kind, until) in self._left.items() if until > now}
        return frozenset(queue for queue, (kind, _) in self._left.items() if not kind.open(prefetch=self._prefetch))

    def _kind_of(self, run: Run) -> Kind:
        is_apart = run.definition.isolation is not None or run.claimed.lost_count >= ALONE_FROM
        if is_apart and self.keeps_apart:
            return self._process  # from the second loss on whatever it is: the next takes nobody along
        return self._async if run.definition.is_async else self._thread

    def _may_begin(self, run: Run) -> bool:
        if run.stop is None:
            return True
        self._ended(run, run.stop.outcome)
        self._tell_stopped(run)
        return False

    async def _run(self, run: Run) -> None:
        assert self._services is not None
        enter(run, self._services)
        run.started = time.monotonic()
        through = installed or self._services.middleware
        await self._to_its_end(run, self._outcome_through if through else self._outcome_of)

    async def _to_its_end(self, run: Run, outcome_of: Callable[[Run, Services], Awaitable[Outcome | None]]) -> None:
        assert self._services is not None
        outcome: Outcome | None = None
        try:
            outcome = await outcome_of(run, self._services)
        except BaseException as error:  # ours, or one that no task should raise: a slot and a lease hang on it
            outcome = run.stop.outcome if run.stop else decide(as_exception(error), run)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            self._over(run, outcome)

    def _over(self, run: Run, outcome: Outcome | None) -> None:
        assert self._services is not None
        run.is_over = True
        run.asyncio_task = run.coroutine = None  # others may be next in it; and both lead back to the run
        if run.timer is not None:
            run.timer.cancel()
        if run.in_thread is None:  # else its slot is free when the thread is
            run.kind.taken -= 1
        self._ended(run, outcome)
        if run.log is not None:
            run.log.end()
        if run.kind is self._process and self._services.recorder is not None:
            self._services.recorder.adopt(run)
        if run.stop is not None:
            self._tell_stopped(run)
        if not run.claimed.flags & LIMITED:  # what is claimed ahead has had its turn before whoever comes now
            run.kind.finished()
        self.freed.set()

    async def _outcome_through(self, run: Run, services: Services) -> Outcome | None:
        chain = around_execute(services.middleware, "worker" if run.kind is self._process else "whole")
        return await execute_through(chain, run, lambda watched: self._outcome_of(run, services, watched))

    def _outcome_of(
        self, run: Run, services: Services, watched: Callable[[Call], Call] | None = None
    ) -> Awaitable[Outcome | None]:
        if run.stop is not None:
            return _given(run.stop.outcome)
        if run.kind is self._process:
            return self.children.run(run)
        self._arm_early(run)
        return self._execution(run, services, watched)

    def _arm_early(self, run: Run) -> None:
        if run.timeout < TIMERS_SECONDS or run.definition.heartbeat_timeout is not None:
            self.rearm(run)

    def _execution(
        self, run: Run, services: Services, watched: Callable[[Call], Call] | None = None
    ) -> Coroutine[Any, Any, Outcome | None]:
        call: Call = _call if run.definition.is_async else self._call_in_thread
        if services.lifespan is not None and run.definition.signature.injects:
            call = services.lifespan.injecting(run.definition, call)
        call = growing(run, services, call)
        return execute(run, watched(call) if watched else call)

    # Threads: without middleware a run begins in one, and needs the event loop only where its end adds tasks.

    def _start_threads(self) -> None:
        kind, services = self._thread, self._services
        if not kind.waiting or services is None or installed or services.middleware:
            return
        while kind.waiting and kind.taken < kind.size:
            run = kind.waiting.popleft()
            if self._may_begin(run):
                kind.taken += 1
                run.started = time.monotonic()
                self._arm_early(run)
                self._call_for(run, partial(self._begin, run, services), partial(self._came_out, run))

    def _call_for(self, run: Run, function: Callable[[], T], ended: Callable[[T], None]) -> None:
        run.in_thread = True
        self._in_threads.add(run)
        self._threads.call(function, ended)

    def _begin(self, run: Run, services: Services) -> Outcome | Unfinished | None:
        """In the thread: what the run came to, or what of it is left to do."""
        if run.stop is not None:
            return run.stop.outcome
        context = self._strands.new_context()
        context.run(enter, run, services)
        run.thread_id, run.started = threading.get_ident(), time.monotonic()
        try:
            return begin(context, self._execution(run, services))
        except BaseException as error:  # one that no task should raise
            return decide(as_exception(error), run)

    def _came_out(self, run: Run, came_to: Outcome | Unfinished | None) -> None:
        self._thread_over(run)
        if not isinstance(came_to, Unfinished):
            if not run.is_over:  # else it was told to stop meanwhile
                self._over(run, came_to)
        elif run.is_over:
            came_to.coroutine.close()
        else:
            run.coroutine = came_to.coroutine
            ending = self._to_its_end(run, lambda *_: rest(came_to.context, came_to.coroutine, None))
            run.asyncio_task = asyncio.get_running_loop().create_task(ending)

    async def _call_in_thread(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        if not has_loop():
            return call_plainly(function, kwargs)
        run, _ = running()
        if run.in_thread is not None:  # its thread has needed the loop before the call: its slot is free
            self._thread.taken += 1
        future = asyncio.get_running_loop().create_future()
        call = partial(copy_context().run, _caught, run, function, kwargs)
        self._call_for(run, call, partial(self._answer, run, future))
        return await future  # cancelled: the thread goes on, and its slot stays taken until it ends

    def _answer(self, run: Run, future: asyncio.Future[Any], came_to: tuple[Any, BaseException | None]) -> None:
        self._thread_over(run)
        value, error = came_to
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def _thread_over(self, run: Run) -> None:
        self._thread.taken -= 1
        self._in_threads.discard(run)
        run.in_thread, run.thread_id = False, 0
        if run.log is not None:
            run.log.end()
        if run.stop is not None and run.is_over:
            self._tell_stopped(run)

    def _threads_freed(self) -> None:
        self._start_threads()
        self._strands.fill(self._thread)
        self.freed.set()

    def _tell_stopped(self, run: Run) -> None:
        if not run.stop_told and not self.is_still_running(run):
            run.stop_told = True
            self._stopped(run)

    def _time_out(self, run: Run) -> None:
        if run.committing:
            run.timer = asyncio.get_running_loop().call_later(0.1, self._time_out, run)
            return
        silence = run.definition.heartbeat_timeout
        overall = silence is None or time.monotonic() >= run.started + run.timeout
        outcome = timed_out(run) if overall else timed_out(run, "heartbeat_timeout", silence)
        self.stop(run, Stop(outcome, at_once=True))


def _caught(run: Run, function: Callable[..., Any], kwargs: dict[str, Any]) -> tuple[Any, BaseException | None]:
    run.thread_id = threading.get_ident()
    try:
        return call_plainly(function, kwargs), None
    except BaseException as error:
        return None, error


async def _given(outcome: Outcome | None) -> Outcome | None:
    return outcome


def _call(function: Callable[..., Any], kwargs: dict[str, Any]) -> Awaitable[Any]:
    awaitable: Awaitable[Any] = function(**kwargs)
    return awaitable
