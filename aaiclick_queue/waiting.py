"""Waiting for the ends of tasks and jobs: one place a client for all that somebody awaits, however many they are.

A nudge names tasks that have ended, from this process (flow/kick.py) or over Redis (channel.py); Postgres is then asked
for exactly those. Below is a net: one query for all, once a second, or at most four times where no nudges can come.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from .channel import Channel
from .errors import NotAllowed, PostgresUnavailable, SchemaMismatch, StreamsDown
from .flow.kick import off_ended, on_ended
from .postgres import Database

log = logging.getLogger(__name__)

# Those that have ended and those that are not there; whoever is missing from the answer still waits or runs. An id may
# also be that of a job, or of a gate: of a group, or of what continues a task. They are looked for after the tasks.
FINISHED = """
SELECT wanted.id, coalesce(t.id, j.id, g.id) IS NOT NULL AS is_there, coalesce(t.status, j.status, g.state) AS status,
       coalesce(t.result, j.returns) AS result, coalesce(t.error, j.error) AS error, t.attempt, t.job_id, t.after_gate
FROM unnest($1::bigint[]) AS wanted(id)
LEFT JOIN LATERAL (
    SELECT id, status, result, error, attempt, job_id, after_gate FROM aaiclick_queue.tasks WHERE id = wanted.id
) AS t ON true
LEFT JOIN LATERAL (
    SELECT id, nullif(nullif(status, 'PENDING'), 'RUNNING') AS status, returns, error FROM aaiclick_queue.jobs
    WHERE id = wanted.id AND t.id IS NULL
) AS j ON true
LEFT JOIN LATERAL (
    SELECT id, nullif(state, 'WAITING') AS state FROM aaiclick_queue.gates
    WHERE id = wanted.id AND t.id IS NULL AND j.id IS NULL
) AS g ON true
WHERE coalesce(t.id, j.id, g.id) IS NULL OR coalesce(t.status, j.status, g.state) IS NOT NULL
LIMIT 1000
"""
ROWS_AN_ANSWER = 1000  # a result may have a megabyte
IDS_A_QUERY = 5000
LISTENS_ON_SECONDS = 5.0
AGAIN_SECONDS = 0.5
LONGEST_AGAIN_SECONDS = 5.0


class Gone(msgspec.Struct, frozen=True):
    """A task or job that is not in the database; `was_there` if it was when the wait began."""

    was_there: bool


class Net:
    """Says when to look at everything: soon after somebody came, then ever later, never more often than 4 a second.

    The budget is what bounds it: eight quick looks, one more each 250 ms, whatever comes and goes meanwhile.
    """

    FIRST, LONGEST, NUDGED = 0.02, 0.25, 1.0
    QUICK_LOOKS = 8

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause = self.FIRST
        self._looked_at = self._counted_at = clock()
        self._budget = float(self.QUICK_LOOKS)
        self._is_hurried = False
        self.is_nudged = False

    def hurry(self) -> None:
        """Look as soon as the budget allows: something may have been missed."""
        self._is_hurried = True

    def restart(self) -> None:
        """Somebody new waits, perhaps for a short task."""
        self._pause = self.FIRST

    def seconds(self) -> float:
        """Until the next look; 0 or less: now."""
        now = self._clock()
        self._budget = min(self.QUICK_LOOKS, self._budget + (now - self._counted_at) / self.LONGEST)
        self._counted_at = now
        pause = 0.0 if self._is_hurried else self.NUDGED if self.is_nudged else self._pause
        return max(self._looked_at + pause - now, (1 - self._budget) * self.LONGEST)

    def looked(self, took: float = 0.0) -> None:
        """A look is over; where it takes long (a hundred thousand are awaited), at most a fifth of the time."""
        self._looked_at = self._clock() + 4 * took
        self._budget -= 1
        self._is_hurried = False
        self._pause = min(self._pause * 1.5, self.LONGEST)


class _Awaited(msgspec.Struct, eq=False):
    futures: list[asyncio.Future[Any]] = []
    once: list[asyncio.Future[Any]] = []
    was_there: bool = False


class Waiting:
    """Gives the final row of each task that is awaited, soon after it ended."""

    def __init__(
        self, database: Callable[[], Awaitable[Database]], channel: Callable[[], Channel | None] = lambda: None
    ) -> None:
        self._database = database
        self._channel = channel
        self._awaited: dict[int, _Awaited] = {}
        self._named: set[int] = set()
        self._net = Net()
        self._wake = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def finished(self, task_id: int, *, once: bool = False) -> Any:
        """The row of the task once it is final, or Gone; with `once` None if it is open now."""
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = self._loop.create_future()
        awaited = self._awaited.setdefault(task_id, _Awaited())
        awaited.futures.append(future)
        if once:
            awaited.once.append(future)
        self._net.restart()
        self._name([task_id])
        if self._looking is None or self._looking.done():
            self._wake = asyncio.Event()
            self._looking = asyncio.create_task(self._look_while_awaited(), name="aaiclick-queue results")
        try:
            return await future
        finally:
            awaited.futures.remove(future)
            if not awaited.futures and self._awaited.get(task_id) is awaited:
                del self._awaited[task_id]

    async def close(self) -> None:
        """Stop asking and listening; whoever still waits is cancelled."""
        tasks = [task for task in (self._looking, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        for awaited in self._awaited.values():
            for future in awaited.futures:
                future.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # What comes in.

    def _ended_here(self, ids: Sequence[int]) -> None:
        """Called from any thread of this process with what it has ended."""
        hits = [task_id for task_id in ids if task_id in self._awaited]
        if hits and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._name, hits)

    def _told(self, ids: Sequence[int] | None) -> None:
        if ids is None:
            self._net.hurry()
            self._wake.set()
        elif hits := [task_id for task_id in ids if task_id in self._awaited]:
            self._name(hits)

    def _name(self, ids: Iterable[int]) -> None:
        self._named.update(ids)
        self._wake.set()

    # The look.

    async def _look_while_awaited(self) -> None:
        on_ended(self._ended_here)
        try:
            while self._awaited:
                self._wake.clear()
                named = [task_id for task_id in self._named if task_id in self._awaited]
                self._named.clear()
                if named:
                    await self._ask(named)
                elif self._net.seconds() <= 0:
                    begun = time.monotonic()
                    await self._ask(list(self._awaited))
                    self._net.looked(time.monotonic() - begun)
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._net.seconds()):
                            await self._wake.wait()
                self._listen()
        finally:
            off_ended(self._ended_here)

    async def _ask(self, ids: Sequence[int]) -> None:
        try:
            db = await self._database()
            for start in range(0, len(ids), IDS_A_QUERY):
                await self._ask_some(db, ids[start : start + IDS_A_QUERY])
        except (NotAllowed, SchemaMismatch) as error:
            self._give_up(error, list(self._awaited))
        except PostgresUnavailable as error:
            # Who has just come is told; for the others their own timeouts decide how long to wait.
            self._give_up(error, [one for one, awaited in self._awaited.items() if not awaited.was_there])
        except Exception as error:
            log.warning("cannot look for results: %s", error)

    async def _ask_some(self, db: Database, ids: Sequence[int]) -> None:
        # Taken before the question: who comes while it is under way may know of an end that it does not see.
        once = [future for task_id in ids if task_id in self._awaited for future in self._awaited[task_id].once]
        while ids:
            rows = await db.fetch(FINISHED, ids)
            for row in rows:
                self._deliver(row)
            if len(rows) < ROWS_AN_ANSWER:
                break
            ids = [task_id for task_id in ids if task_id in self._awaited]
        for task_id in ids:
            if awaited := self._awaited.get(task_id):
                awaited.was_there = True
        _settle(once, None)

    def _deliver(self, row: Any) -> None:
        awaited = self._awaited.pop(row["id"], None)
        if awaited is None:
            return
        end = row if row["is_there"] else Gone(awaited.was_there)
        _settle(awaited.futures, end)

    def _give_up(self, error: Exception, ids: Sequence[int]) -> None:
        for task_id in ids:
            for future in self._awaited.pop(task_id).futures:
                if not future.done():
                    future.set_exception(error)

    # The subscription.

    def _listen(self) -> None:
        """Begin to listen once somebody really waits; that goes on a little after, for the next one."""
        if self._awaited and (self._listening is None or self._listening.done()):
            channel = self._channel()
            if channel is not None:
                self._listening = asyncio.create_task(self._listen_to(channel), name="aaiclick-queue nudges")

    async def _listen_to(self, channel: Channel) -> None:
        ears = asyncio.create_task(self._keep_listening(channel), name="aaiclick-queue ears")
        try:
            idle_since = None
            while idle_since is None or time.monotonic() - idle_since < LISTENS_ON_SECONDS:
                await asyncio.wait([ears], timeout=LISTENS_ON_SECONDS / 2)
                idle_since = None if self._awaited else idle_since or time.monotonic()
        finally:
            ears.cancel()
            self._net.is_nudged = False
            await asyncio.wait([ears])

    async def _keep_listening(self, channel: Channel) -> None:
        again, is_told = AGAIN_SECONDS, False

        def live() -> None:
            nonlocal again, is_told
            again, is_told = AGAIN_SECONDS, False
            self._net.is_nudged = True
            self._told(None)  # what ended between the last look and now was told to nobody

        while True:
            try:
                await channel.listen(live, self._told)
            except StreamsDown as error:
                if not is_told:
                    log.info("%s", error)
                is_told = True
            except Exception:
                log.exception("cannot listen for ended tasks")
            self._net.is_nudged = False
            self._net.restart()
            self._wake.set()
            await asyncio.sleep(again * random.uniform(0.8, 1.2))
            again = min(again * 2, LONGEST_AGAIN_SECONDS)


def _settle(futures: Iterable[asyncio.Future[Any]], end: Any) -> None:
    for future in futures:
        if not future.done():
            future.set_result(end)
