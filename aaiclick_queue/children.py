"""Children: a run in a child process, apart from the worker. Before: slots. After: complete.

The child's death costs its run and nothing else. From the second loss on every run is here, in a child that nobody
else has used: apart from each other the innocent ones complete, and the one that kills its process is convicted.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from .child_process import STOP_SECONDS, ChildProcess
from .context import Services
from .errors import PostgresUnavailable
from .flow.claim import UNSTARTED_SECONDS
from .flow.execute import EXPIRED, Run
from .flow.fenced import Fence, extend
from .flow.unknown import FIRST_SECONDS, unknown_outcomes
from .orders import Began, Committing, Done, Halt, MadeReady, Opening, Order, Refused, SignOfLife
from .outcome import Error, Failed, Later, Lost, Outcome
from .pool import START_SECONDS, Broken, Pool, Recycling
from .tasks import entrypoint_of

ALONE_FROM = 2  # lost runs
HOLD_SECONDS = 1.0
TRIES = 3
NEVER_BEGUN = Error("ChildLost", f"{TRIES} child processes ended before they began with the run")


class Children:
    """Where the runs of one worker are executed that are not executed in its own process."""

    def __init__(self, size: int, recycling: Recycling | None = None) -> None:
        self.size = size
        self._recycling = recycling or Recycling()
        self._services: Services | None = None
        self._pool: Pool | None = None

    def serve(self, services: Services) -> None:
        """Start to run things, with what they share."""
        self._services = services

    def warm(self) -> None:
        """Have children before there are runs for them."""
        self._here()[1].warm()

    async def close(self) -> None:
        """End all of them."""
        if self._pool is not None:
            await self._pool.close()

    async def run(self, run: Run) -> Outcome | None:
        """What the run came to in a child; None when there is nothing to record."""
        if run.claimed.expired:
            return EXPIRED
        services, pool = self._here()
        try:
            try:
                for _ in range(TRIES):
                    if (ended := await self._in_a_child(run, services, pool)) is not _NOT_BEGUN:
                        return ended
                return await _not_here(run, services, NEVER_BEGUN)
            except Broken as broken:
                return await _not_here(run, services, broken.error)
        except asyncio.CancelledError:
            return run.stop.outcome if run.stop else None

    def _here(self) -> tuple[Services, Pool]:
        assert self._services is not None
        if self._pool is None:
            self._pool = Pool(self.size, self._recycling, self._services)
        return self._services, self._pool

    async def _in_a_child(self, run: Run, services: Services, pool: Pool) -> Outcome | None:
        is_suspect = run.claimed.lost_count >= ALONE_FROM
        child = await pool.take(module_of(run), fresh=is_suspect)
        conversation = Conversation(child, run, services)
        megabytes = 0.0
        try:
            if not await _still_ours(run, services):
                return None
            done = await conversation.until_done()
            if isinstance(done, Done):
                megabytes = done.megabytes
            return conversation.outcome_of(done)
        finally:
            pool.give_back(child, megabytes=megabytes, reusable=conversation.is_over and not is_suspect)


_NOT_BEGUN = Lost(Error("NotBegun"))


class Conversation:
    """One run in one child, from the order to its end."""

    def __init__(self, child: ChildProcess, run: Run, services: Services) -> None:
        self._child = child
        self._run = run
        self._services = services
        self._began = False
        self.is_over = True  # whether the child is free for another run

    async def until_done(self) -> Done | Refused | None:
        """Have it run; None: the child is gone. A run that is told to stop has its child killed unless it ends soon."""
        run, child = self._run, self._child
        self.is_over = False
        run.child_pid = child.pid
        child.say(Order(run.claimed, run.worker_id))
        self._start_clock()
        reading = asyncio.ensure_future(self._read())
        try:
            try:
                done = await asyncio.shield(reading)
            except asyncio.CancelledError:
                done = await self._halt(reading)
            if done is None:
                await child.ended()
        except BaseException:
            child.kill()
            reading.cancel()
            raise
        finally:
            run.committing = False
            run.child_pid = 0
        self.is_over = done is not None
        return done

    def outcome_of(self, done: Done | Refused | None) -> Outcome | None:
        """What the run has come to."""
        run = self._run
        if isinstance(done, Done):
            self._child.served += 1
            run.committed = done.committed
        if run.committed:
            return None
        if run.stop is not None:
            return run.stop.outcome
        match done:
            case Done(outcome):
                return outcome
            case Refused(error):
                raise Broken(error)
        if not self._began:
            return _NOT_BEGUN
        error = Error("WorkerLost", f"its own process {self._child.how_it_ended()}")
        is_last = run.claimed.lost_count + 1 >= self._services.settings.lost_limit
        return Failed(error) if is_last else Lost(error)

    async def _halt(self, reading: asyncio.Future[Done | Refused | None]) -> Done | Refused | None:
        stop = self._run.stop
        if stop is None or not stop.at_once:
            self._child.say(Halt())
            await asyncio.wait([reading], timeout=STOP_SECONDS)
        if not reading.done():
            self._child.kill()
        return await reading

    def _start_clock(self) -> None:
        self._run.started = time.monotonic()
        self._services.rearm(self._run)

    async def _stop_clock(self) -> None:
        """Until it begins anew, in bounded time."""
        run, services = self._run, self._services
        if run.timer is not None:
            run.timer.cancel()
        cause = f"took longer than {START_SECONDS:g} s to open its resources"
        run.timer = asyncio.get_running_loop().call_later(START_SECONDS, self._child.kill, cause)
        with suppress(PostgresUnavailable):  # what it writes is fenced
            await _extend(run, services, START_SECONDS)

    async def _read(self) -> Done | Refused | None:
        run, services = self._run, self._services
        while True:
            match await self._child.said():
                case Began():
                    self._began = True
                    self._start_clock()
                case Opening():
                    await self._stop_clock()
                case SignOfLife(left):
                    run.timeout = time.monotonic() - run.started + left
                    services.rearm(run)
                case Committing(now, committed):
                    run.committing, run.committed = now, committed
                case MadeReady():
                    services.made_ready()
                    if run.claimed.job_id is not None:
                        services.arrived()
                case Done() | Refused() | None as last:
                    return last


def module_of(run: Run) -> str:
    """The module that a child imports to know the task."""
    module = run.definition.function.__module__
    if module != "__main__":
        return module
    return entrypoint_of(run.definition.function).removesuffix(f".{run.definition.function.__qualname__}")


async def _still_ours(run: Run, services: Services) -> bool:
    """A child that was long in coming has used up the time that the reaper gives until the start: ask for it anew."""
    if time.monotonic() - run.taken < UNSTARTED_SECONDS / 2:
        return True
    try:
        return await _extend(run, services)
    except PostgresUnavailable:
        return True  # what it writes is fenced


async def _extend(run: Run, services: Services, more: float = 0.0) -> bool:
    fence = Fence(run.claimed.task_id, run.claimed.run_epoch, run.worker_id)
    return await extend(services.db, fence, run.timeout + services.settings.grace_seconds + UNSTARTED_SECONDS + more)


async def _not_here(run: Run, services: Services, error: Error) -> Outcome:
    """This worker cannot run it, which says nothing of the task: left to others, with a cool-down and the reason."""
    await asyncio.sleep(HOLD_SECONDS)  # else all that waits in line would go through this worker, to no end
    keep_seconds = services.settings.unknown_task_seconds
    try:
        [outcome] = await unknown_outcomes(services.db, [run.claimed], keep_seconds=keep_seconds)
    except PostgresUnavailable:
        return Later("UNKNOWN", error, FIRST_SECONDS)
    return Failed(error) if isinstance(outcome, Failed) else Later("UNKNOWN", error, getattr(outcome, "seconds", None))
