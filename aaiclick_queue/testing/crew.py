"""Workers of a test: real ones in this process, one at a time unless a fault wants two, that can be killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ..flow.claim import Claimed
from ..flow.execute import Run, Stop
from ..flow.settle import settle_runs
from ..outcome import Ended, Outcome, Released
from ..plan import EVERY_QUEUE, Plan
from ..settings import Settings
from ..worker import Worker
from .faults import Faults, mortals

END_SECONDS = 10.0


class MortalWorker(Worker):
    """A worker that dies when a fault strikes: it writes nothing more and leaves its leases behind."""

    def __init__(
        self, settings: Settings, plan: Plan, faults: Faults, resources: Mapping[Any, Any] | None = None
    ) -> None:
        super().__init__(settings, plan, resources=resources)
        # A child would use the real resources instead of the test's, and see neither its patches nor its memory.
        self.slots.keeps_apart = False
        self.dead = False
        self.passive = False  # a second worker was given its run: this one claims no more
        self._faults = faults
        self._main: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Begin to work."""
        self._main = asyncio.create_task(self.run(), name="aaiclick-queue testing worker")
        return self._main

    @property
    def has_ended(self) -> bool:
        """Whether it works no more, for whatever reason."""
        return self._main is not None and self._main.done()

    def kill(self) -> None:
        """Die as by kill -9, from the loop's thread or from a task's."""
        if self.dead:
            return
        if threading.current_thread() is self._thread:
            self._die()
        else:
            died = threading.Event()
            self._db_loop.call_soon_threadsafe(self._die)
            self._db_loop.call_soon_threadsafe(died.set)
            died.wait(END_SECONDS)

    async def ended(self) -> None:
        """Until it and all that it ran on the loop are over."""
        assert self._main is not None
        runs = [run.asyncio_task for run in self.slots.held.values() if run.asyncio_task is not None]
        await asyncio.wait([self._main, *runs], timeout=END_SECONDS)
        if not self._main.cancelled() and (error := self._main.exception()) is not None:
            raise error

    async def take(self, claimed: Sequence[Claimed], worker_id: int) -> Mapping[str, Sequence[float]]:
        """Start runs, unless this is where the worker dies."""
        if any(self._faults.strikes("before", one.entrypoint) for one in claimed):
            self._die()
            return {}
        for one in claimed:
            if self._faults.strikes("twice", one.entrypoint):
                self.passive = True
                now = time.monotonic()
                await settle_runs(
                    self._db, [Ended(one.task_id, one.run_epoch, Released(), now, now)], worker_id=worker_id, now=now
                )
        return await super().take(claimed, worker_id)

    def _may_claim(self) -> bool:
        return not self.passive and not self.dead and super()._may_claim()

    def _run_ended(self, run: Run, outcome: Outcome | None) -> None:
        name = run.claimed.entrypoint
        if not self.dead and (
            self._faults.strikes("after", name) or (run.committed and self._faults.strikes("recorded", name))
        ):
            self._die()
        if not self.dead:
            super()._run_ended(run, outcome)

    def _landed(self, batch: Sequence[Ended], landed: set[int]) -> None:
        known = [self.slots.held.get(ended.task_id) for ended in batch]
        if any(run is not None and self._faults.strikes("recorded", run.claimed.entrypoint) for run in known):
            self._die()
        if not self.dead:
            super()._landed(batch, landed)

    async def _register(self) -> None:
        await super()._register()
        self._thread = threading.current_thread()
        mortals[self.worker_id] = self

    def _die(self) -> None:
        self.dead = True
        self._db.cut()
        self.slots.stop_all(Stop(None))
        assert self._main is not None
        self._main.cancel()


class OneRunWorker(MortalWorker):
    """A worker that takes the first task in line and no other."""

    def __init__(
        self, settings: Settings, plan: Plan, faults: Faults, resources: Mapping[Any, Any] | None = None
    ) -> None:
        super().__init__(settings, plan, faults, resources)
        self.taken = 0
        self.slots.room = lambda: 1  # type: ignore[method-assign]

    async def take(self, claimed: Sequence[Claimed], worker_id: int) -> Mapping[str, Sequence[float]]:
        """Start the run."""
        self.taken += len(claimed)
        return await super().take(claimed, worker_id)

    def _may_claim(self) -> bool:
        return not self.taken and super()._may_claim()


class Crew:
    """The workers of one block; a killed one is replaced, as a fleet does."""

    def __init__(
        self,
        settings: Settings,
        faults: Faults,
        resources: Mapping[Any, Any],
        kind: type[MortalWorker] = MortalWorker,
    ) -> None:
        self._settings = settings
        self._resources = resources
        self._faults = faults
        self._kind = kind
        self._workers: list[MortalWorker] = []
        self.killed: set[int] = set()

    @property
    def worker(self) -> MortalWorker:
        """The one that claims."""
        return self._workers[-1]

    @property
    def busy(self) -> bool:
        """Whether a living worker still runs something, be it a run that is not its own any more."""
        return any(worker.slots.busy for worker in self._workers if not worker.dead)

    async def __aenter__(self) -> Self:
        await self._hire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop(now=error is not None)
        for worker in self._workers:
            self._count(worker)
            await worker.ended()

    async def look_after(self) -> None:
        """Replace a worker that died or has handed on its run; one that ended by itself has failed."""
        worker = self.worker
        if worker.dead:
            self._count(worker)
            await worker.ended()
        elif worker.has_ended:
            await worker.ended()
        elif not worker.passive:
            return
        await self._hire()

    def _count(self, worker: MortalWorker) -> None:
        if worker.dead:
            self.killed.add(worker.worker_id)

    async def _hire(self) -> None:
        worker = self._kind(self._settings, Plan(queues={EVERY_QUEUE: 1}), self._faults, self._resources)
        main = worker.start()
        started = asyncio.create_task(worker.started.wait())
        await asyncio.wait([main, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        self._workers.append(worker)
        if main.done():
            await worker.ended()
