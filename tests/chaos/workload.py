"""Producers: they enqueue, cancel and schedule while everything breaks, and keep what was answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from aaiclick_queue import Client, Handle, Job, JobHandle, cancel_job, limit_queue, register_job
from aaiclick_queue.errors import JobEnded, QueueError
from aaiclick_queue.postgres import plain_dsn
from tests.chaos import tasks
from tests.chaos.calls import KINDS, Call, Kind, size_of

MOST_OPEN = 2000  # tasks: beyond it producers wait, so that the end of a round comes soon
PAUSE = (0.05, 0.35)  # seconds between two calls of a producer
PRODUCERS = 6
BEAT = "beat"
# What a producer may be told while things break; on a connection of its own also what asyncpg says of itself.
BROKEN = (QueueError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
OPEN = "SELECT count(*) FROM aaiclick_queue.tasks WHERE status IS NULL"


class Probe(msgspec.Struct):
    """A task whose start shows that work flows."""

    task_id: int
    sent: float


class Workload:
    """All calls of a round."""

    def __init__(self, client: Client, steady: Client, seed: int, *, load: int = 1) -> None:
        """`client` goes through the producers' wire, `steady` straight to Postgres; `load` times as many producers."""
        self._client = client
        self._steady = steady
        self._seed = seed
        self._load = load
        self._numbers = iter(range(1, 10**9))
        self._handles: list[tuple[Call, Handle[Any] | JobHandle[Any]]] = []
        self.calls: list[Call] = []
        self.probes: list[Probe] = []
        self.errors: Counter[str] = Counter()
        self.open = 0
        self.stopped = False

    async def prepare(self) -> None:
        """Limits and the schedule."""
        await limit_queue(tasks.NARROW, max_running=tasks.SEATS, client=self._steady)
        await limit_queue(tasks.KEYED, per_key=tasks.PER_KEY, client=self._steady)
        await register_job(
            BEAT, tasks.beat, interval="1s", default_kwargs={"seconds": 0.02}, misfire="catch_up", client=self._steady
        )

    async def run(self, seconds: float) -> None:
        """Produce for so long."""
        until = time.monotonic() + seconds
        producers = [self._produce(random.Random(f"{self._seed}-{n}"), until) for n in range(PRODUCERS * self._load)]
        await asyncio.gather(*producers, self._cancel(random.Random(f"{self._seed}-c"), until), self._watch(until))

    async def probe(self) -> None:
        """Send probes for ever."""
        while True:
            sent = time.time()
            try:
                handle = await tasks.probe.enqueue(client=self._steady)
                self.probes.append(Probe(handle.id, sent))
            except BROKEN:
                pass  # Postgres is away: nothing to measure
            await asyncio.sleep(0.15)

    async def _produce(self, chance: random.Random, until: float) -> None:
        weights = [kind.weight for kind in KINDS]
        while time.monotonic() < until and not self.stopped:
            [kind] = chance.choices(KINDS, weights)
            arguments, draw = kind.call_with(chance), chance.random()
            options: dict[str, Any] = {
                name: chance.uniform(*value) if isinstance(value, tuple) else value
                for name, value in kind.options.items()
            }
            rows = chance.randint(*kind.many) if kind.many else 1
            call = Call(next(self._numbers), kind.name, rows, frozenset(kind.ends), result=arguments)
            self.calls.append(call)
            options["metadata"] = {"call": call.number}
            if kind.name == "keyed":
                call.key = options["dedupe_key"] = f"key-{chance.randint(1, 5)}"
                options["metadata"]["key"] = call.key
            try:
                if draw < 0.1 and kind.name in {"tick", "pays"}:
                    await self._in_transaction(call, kind, arguments, options, commits=draw < 0.07)
                else:
                    await self._send(call, kind, arguments, options)
            except BROKEN as error:
                self.errors[type(error).__name__] += 1
            await asyncio.sleep(chance.uniform(*PAUSE))
            while self.open > MOST_OPEN * self._load and time.monotonic() < until:  # noqa: ASYNC110 - as long as it takes
                await asyncio.sleep(0.2)

    async def _send(self, call: Call, kind: Kind, arguments: dict[str, Any], options: dict[str, Any]) -> None:
        what = kind.what.options(**options)
        if isinstance(what, Job):
            run = await what.enqueue(**arguments, client=self._client)
            call.job_id, call.tasks = run.id, size_of(kind, arguments)
            self._handles.append((call, run))
        elif kind.many:
            call.ids = await what.enqueue_many([arguments] * call.tasks, client=self._client)
        else:
            handle = await what.enqueue(**arguments, client=self._client)
            call.ids = [handle.id]
            self._handles.append((call, handle))
        call.answer = "accepted"

    async def _in_transaction(
        self, call: Call, kind: Kind, arguments: dict[str, Any], options: dict[str, Any], *, commits: bool
    ) -> None:
        """In a transaction of the application's own, which it may roll back."""
        assert not isinstance(kind.what, Job)
        connection = await asyncpg.connect(plain_dsn(self._client.settings.postgres_url or ""), timeout=4)
        try:
            transaction = connection.transaction()
            await transaction.start()
            handle = await kind.what.options(**options).enqueue(**arguments, connection=connection, client=self._client)
            if not commits:
                call.answer = "rolled back"
                await transaction.rollback()
                return
            await asyncio.wait_for(transaction.commit(), 4)
            call.ids, call.answer = [handle.id], "accepted"
        finally:
            connection.terminate()

    async def _cancel(self, chance: random.Random, until: float) -> None:
        while time.monotonic() < until and not self.stopped:
            await asyncio.sleep(chance.uniform(0.1, 0.6))
            if not self._handles:
                continue
            call, handle = self._handles.pop(chance.randrange(max(0, len(self._handles) - 60), len(self._handles)))
            if isinstance(handle, JobHandle) and chance.random() < 0.7:
                continue
            call.cancelled = "asked"
            try:
                if isinstance(handle, JobHandle):
                    await cancel_job(handle, client=self._client)
                    call.cancelled = "yes"
                else:
                    call.cancelled = "yes" if await handle.cancel() else "no"
            except JobEnded:
                call.cancelled = "no"
            except BROKEN as error:
                self.errors[f"cancel: {type(error).__name__}"] += 1

    async def _watch(self, until: float) -> None:
        """How many are open, for those who would send more."""
        while time.monotonic() < until:
            with suppress(*BROKEN):
                self.open = int(await (await self._steady.database()).fetchval(OPEN))
            await asyncio.sleep(1)
