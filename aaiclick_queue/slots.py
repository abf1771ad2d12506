"""Slots: where claimed runs are executed, async ones on the loop and `def` ones in threads, each kind in its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from .alone import ALONE_FROM, run_alone
from .around import Call, execute_through
from .context import Services, enter, running
from .flow.execute import RELEASED, Run, Stop, call_plainly, decide, execute, timed_out
from .middleware import Part, around_execute, installed
from .outcome import Outcome

CLAIM_LIMIT = 500
UNSTARTED_SECONDS = 1.0
RECENT_SECONDS = 0.1
TIMERS_SECONDS = 1.0
WAIT_FOR_THREAD = 8  # runs that may wait for a thread before this worker claims no more


class Slots:
    """The runs of one worker process, from the claim until their outcome is written."""

    def __init__(
        self,
        *,
        size: int,
        threads: int,
        ended: Callable[[Run, Outcome | None], None],
        thread_share: float = 0.0,
        prefetch: bool = True,
    ) -> None:
        self.size = size
        self.threads = threads
        self.held: dict[int, Run] = {}
        self._ended = ended
        self._services: Services | None = None
        self._running = 0
        self._in_threads = 0
        self._waiting: deque[Run] = deque()
        self._waiting_for_thread: deque[Run] = deque()
        self._threads: set[Run] = set()  # also those whose lease is gone: a thread cannot be stopped
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="aaiclick-queue task")
        self._thread_share = thread_share
        self._prefetch = prefetch
        self._recent: deque[tuple[float, int]] = deque()
        self._recently = 0
        self._alone = asyncio.Semaphore(os.cpu_count() or 2)  # each is an interpreter of its own
        self.freed = asyncio.Event()
        self._empty = asyncio.Event()

    def serve(self, services: Services) -> None:
        """Start to run things, with what they share."""
        self._services = services

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits to run here."""
        return bool(self._running or self._in_threads or self._waiting or self._waiting_for_thread)

    @property
    def stuck_threads(self) -> int:
        """Threads that still run user code."""
        return self._in_threads

    def room(self) -> int:
        """How many more runs may be claimed: free slots, plus what was finished in the last 100 ms."""
        share = self._thread_share
        free, free_threads = self.size - self._running, self.threads - self._in_threads
        of_async = free / (1 - share) if share < 1 else CLAIM_LIMIT
        of_threads = free_threads / share if share > 0 else CLAIM_LIMIT
        base = int(min(of_async, of_threads))
        if base == 0 and free and len(self._waiting_for_thread) < WAIT_FOR_THREAD:
            base = 1  # threads are all taken, and the next in line may be async
        waiting = len(self._waiting) + len(self._waiting_for_thread)
        ahead = self._finished_recently() if self._prefetch else 0
        return max(0, min(base + ahead - waiting, CLAIM_LIMIT))

    def taken(self, queue: str) -> int:
        """Runs of this queue that are here, also those that were given up while their thread goes on."""
        return sum(run.claimed.queue == queue for run in {*self.held.values(), *self._threads})

    def in_threads(self) -> list[Run]:
        """Runs whose thread is in user code."""
        return list(self._threads)

    def start(self, runs: Iterable[Run]) -> None:
        """Run these now, or as soon as a slot of their kind is free."""
        sync = total = 0
        for run in runs:
            total += 1
            older = self.held.get(run.claimed.task_id)
            if older is not None:  # claimed again, so it had lost its lease; no heartbeat will ask for it any more
                self.stop(older, Stop(None))
            self.held[run.claimed.task_id] = run
            if run.definition.is_async:
                self._waiting.append(run)
            else:
                sync += 1
                self._waiting_for_thread.append(run)
        if total:
            self._thread_share += 0.3 * (sync / total - self._thread_share)
        self._fill()

    def release_unstarted(self, *, older_seconds: float = UNSTARTED_SECONDS) -> None:
        """Hand back runs that have waited here too long: somebody else may have a free slot."""
        limit = time.monotonic() - older_seconds
        for waiting in (self._waiting, self._waiting_for_thread):
            while waiting and waiting[0].taken <= limit:
                self._ended(waiting.popleft(), RELEASED)

    def let_go(self, run: Run) -> None:
        """The run's outcome is written, or it was not ours any more."""
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
        runs = [*self._waiting, *self._waiting_for_thread]
        for run in runs:
            run.stop = Stop(None)
        return runs

    def is_running(self, run: Run) -> bool:
        """Whether it runs or waits to run, and has not been told to stop."""
        ended = run.asyncio_task is not None and run.asyncio_task.done()
        return not (ended or run.committing or run.committed or run.stop)

    def stop(self, run: Run, reason: Stop) -> None:
        """Tell a run to stop; a thread goes on, but nothing that it still does is recorded."""
        if run in self._waiting:
            self._waiting.remove(run)
            self._ended(run, reason.outcome)
        elif run in self._waiting_for_thread:
            self._waiting_for_thread.remove(run)
            self._ended(run, reason.outcome)
        elif run.asyncio_task is not None and not run.committing and not run.committed:
            told, run.stop = run.stop, reason
            # Once, so that its clean-up is left in peace; and not before its first step, which gives back the slot.
            if run.started and told is None:
                run.asyncio_task.cancel()

    def stop_all(self, reason: Stop) -> None:
        """Tell every run to stop."""
        for run in list(self.held.values()):
            self.stop(run, reason)

    def close(self) -> None:
        """Take no more thread work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def arm_timers(self) -> None:
        """Give a timer to runs that have become long enough to need one: most are over before that."""
        now = time.monotonic()
        for run in self.held.values():
            is_long = run.started and now - run.started > TIMERS_SECONDS / 4
            if is_long and run.timer is None and run.claimed.lost_count < ALONE_FROM and self.is_running(run):
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

    def _fill(self) -> None:
        while self._waiting and self._running < self.size:
            self._running += self._launch(self._waiting.popleft())
        while self._waiting_for_thread and self._in_threads < self.threads:
            self._in_threads += self._launch(self._waiting_for_thread.popleft())

    def _launch(self, run: Run) -> bool:
        if run.stop is not None:
            self._ended(run, run.stop.outcome)
            return False
        run.asyncio_task = asyncio.create_task(self._run(run))
        return True

    async def _run(self, run: Run) -> None:
        assert self._services is not None
        enter(run, self._services)
        run.started = time.monotonic()
        outcome: Outcome | None = None
        try:
            if installed or self._services.middleware:
                outcome = await self._outcome_through(run, self._services)
            else:
                outcome = await self._outcome_of(run, self._services)
        except BaseException as error:  # ours, or one that no task should raise: a slot and a lease hang on it
            outcome = run.stop.outcome if run.stop else decide(_as_exception(error), run)
            if isinstance(error, KeyboardInterrupt):
                raise
        finally:
            if run.timer is not None:
                run.timer.cancel()
            if run.definition.is_async:
                self._running -= 1
            elif not run.in_thread:
                self._in_threads -= 1  # it never came to use the thread that was kept for it
            self._ended(run, outcome)
            self._count_finished()
            self._fill()
            self.freed.set()

    async def _outcome_through(self, run: Run, services: Services) -> Outcome | None:
        part: Part = "child" if services.is_child else "worker" if run.claimed.lost_count >= ALONE_FROM else "whole"
        chain = around_execute(services.middleware, part)
        return await execute_through(chain, run, lambda watched: self._outcome_of(run, services, watched))

    async def _outcome_of(
        self, run: Run, services: Services, watched: Callable[[Call], Call] | None = None
    ) -> Outcome | None:
        if run.stop is not None:
            return run.stop.outcome
        if run.claimed.lost_count >= ALONE_FROM:
            async with self._alone:
                return await run_alone(run, services)  # its process keeps the time
        if run.timeout < TIMERS_SECONDS or run.definition.heartbeat_timeout is not None:
            self.rearm(run)
        call: Call = _call if run.definition.is_async else self._call_in_thread
        if services.lifespan is not None and run.definition.signature.injects:
            call = services.lifespan.injecting(run.definition, call)
        return await execute(run, watched(call) if watched else call)

    async def _call_in_thread(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        run, _ = running()
        call = partial(copy_context().run, _in_thread, run, function, kwargs)
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        run.in_thread = True
        self._threads.add(run)
        future.add_done_callback(partial(self._thread_done, run))
        # Shielded: a thread cannot be stopped, and its slot stays taken until it ends.
        return await asyncio.shield(future)

    def _thread_done(self, run: Run, future: asyncio.Future[Any]) -> None:
        self._in_threads -= 1
        self._threads.discard(run)
        if not future.cancelled():
            future.exception()  # seen, so that a run that was given up is not reported as "never retrieved"
        self._fill()
        self.freed.set()

    def _time_out(self, run: Run) -> None:
        if run.committing:
            run.timer = asyncio.get_running_loop().call_later(0.1, self._time_out, run)
            return
        silence = run.definition.heartbeat_timeout
        overall = silence is None or time.monotonic() >= run.started + run.timeout
        self.stop(run, Stop(timed_out(run) if overall else timed_out(run, "heartbeat_timeout", silence)))

    def _count_finished(self) -> None:
        self._recently += 1
        now = time.monotonic()
        if self._recent and now - self._recent[-1][0] < RECENT_SECONDS / 10:
            self._recent[-1] = (self._recent[-1][0], self._recent[-1][1] + 1)
        else:
            self._recent.append((now, 1))

    def _finished_recently(self) -> int:
        limit = time.monotonic() - RECENT_SECONDS
        while self._recent and self._recent[0][0] < limit:
            self._recently -= self._recent.popleft()[1]
        return self._recently


def _in_thread(run: Run, function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    run.thread_id = threading.get_ident()
    return call_plainly(function, kwargs)


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    raised = RuntimeError(f"the task raised {error!r}")
    raised.__cause__ = error
    return raised


async def _call(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return await function(**kwargs)
