"""Writing: how a client's tasks and jobs get into Postgres, in the caller's transaction or in one of our own.

Before: the client. After: flow/enqueue.py, flow/submit.py. Our own transactions are tried again until they are
answered or the time is up; a commit whose answer was lost may have happened, so a repeated try has the same ids.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from .callers import caller_transaction, is_sync, on_commit
from .errors import PostgresUnavailable, QueueFull
from .flow.dedupe import Key, enqueue_keyed
from .flow.enqueue import NewTask, Spec, TakeIds, Told, Written, id_source, insert_again, insert_tasks, written_before
from .flow.graph import Plan
from .flow.limits import queue_is_full
from .flow.plain import insert_plain, is_plain
from .flow.submit import Adding, NewJob, Submitted, add_to_job, submit_job
from .gathering import Gatherer, Waiting
from .ids import IdSource
from .postgres import DATA_ERRORS, UNIQUE_ERROR, Connection, Database
from .rows import PART, Rows
from .schema import Transaction
from .settings import Settings

T = TypeVar("T")

RETRY_SECONDS = 0.1
FULL_SECONDS = 0.05
FULL_LONGEST_SECONDS = 1.0
SECONDS_A_NODE = 0.001  # more patience for many at once: a hundred thousand take their time in any case

PlanStep = Callable[[Transaction, TakeIds, Submitted | None], Awaitable[Submitted]]


class Writer:
    """The writing half of a client; `wake` is told what a commit has put in line."""

    def __init__(
        self,
        settings: Settings,
        database: Callable[[], Awaitable[Database]],
        wake: Callable[..., None],
        announce: Callable[[Spec, int], Any],
    ) -> None:
        """`announce` is told of a task that is about to be written; what it gives goes to `wake` with the commit."""
        self._settings = settings
        self._database = database
        self._wake = wake
        self._announce = announce
        self._ids: IdSource | None = None
        self._gatherer = Gatherer(self._write_gathered)

    async def finished(self) -> None:
        """Until nothing is on its way any more."""
        await self._gatherer.finished()

    async def write(
        self, spec: Spec, tasks: Sequence[NewTask], *, key: Key | None, connection: Any, wait: bool
    ) -> list[int]:
        """Write tasks of one spec and return their ids; `wait` until the queue has room."""
        if connection is not None:
            return await self._write_for_caller(spec, tasks, key, connection)
        pause = FULL_SECONDS
        while True:
            try:
                return await self._write_ours(spec, tasks, key)
            except QueueFull as full:
                await queue_is_full(await self._database(), spec.queue)
                if not wait or len(tasks) > full.max_depth:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 1.5, FULL_LONGEST_SECONDS)

    async def _write_ours(self, spec: Spec, tasks: Sequence[NewTask], key: Key | None) -> list[int]:
        if key is None and len(tasks) == 1:
            return [await self._gatherer.add(spec, tasks[0])]
        ids = await self._take_ids(1 if key else len(tasks))
        if key is not None:
            written = await self._commit(lambda tx, again: self._write_keyed(tx, spec, tasks[0], key, ids, again=again))
        else:
            written = await self._commit_many(spec, tasks, ids)
        self._wake(written.told)
        return written.ids

    async def _commit_many(self, spec: Spec, tasks: Sequence[NewTask], ids: list[int]) -> Written:
        more_seconds = len(tasks) * SECONDS_A_NODE
        try:
            # Up to a part of them is one statement, which needs no BEGIN and COMMIT around it.
            if len(tasks) <= PART and is_plain(spec, tasks):
                return await self._commit(
                    lambda tx, again: self._insert_alone(tx, spec, tasks, ids, again=again),
                    one_statement=True,
                    more_seconds=more_seconds,
                )
            return await self._commit(
                lambda tx, again: self._insert(tx, spec, tasks, ids, plain=not again, again=again),
                more_seconds=more_seconds,
            )
        except UNIQUE_ERROR:  # another process with the same node id had drawn one of them: nothing is written
            return await self._commit(
                lambda tx, again: self._insert(tx, spec, tasks, ids, again=again), more_seconds=more_seconds
            )

    async def _insert_alone(
        self, tx: Connection, spec: Spec, tasks: Sequence[NewTask], ids: list[int], *, again: bool
    ) -> Written:
        """All of them by one statement that commits by itself; where it may not be, in a transaction."""
        if not again and (written := await insert_plain(tx, spec, tasks, ids)) is not None:
            return written
        async with tx.transaction():
            return await self._insert(tx, spec, tasks, ids, again=again)

    async def _write_for_caller(
        self, spec: Spec, tasks: Sequence[NewTask], key: Key | None, connection: Any
    ) -> list[int]:
        tx = caller_transaction(connection, schema=self._settings.postgres_schema)
        written = await self._write_in(tx, spec, tasks, key)
        await self._wake_after(connection, written.told)
        return written.ids

    async def _wake_after(self, connection: Any, told: Sequence[Told]) -> None:
        if not is_sync(connection) and self._settings.redis_url:
            with suppress(PostgresUnavailable):
                await self._database()  # so that the wake-up after the commit need not open it
        on_commit(connection, lambda: self._wake(told))

    async def _write_in(self, tx: Transaction, spec: Spec, tasks: Sequence[NewTask], key: Key | None) -> Written:
        ids = (await self.id_source(tx)).take(1 if key else len(tasks))
        if key is not None:
            return await self._write_keyed(tx, spec, tasks[0], key, ids, again=False)
        return await self._insert(tx, spec, tasks, ids, again=False)

    async def _write_keyed(  # noqa: PLR0913 - one value a fact
        self, tx: Transaction, spec: Spec, task: NewTask, key: Key, ids: Sequence[int], *, again: bool
    ) -> Written:
        if again and await written_before(tx, spec, set(ids)):  # its key may be free again by now
            return Written(list(ids), [])
        source = await self.id_source(tx)
        first = iter(ids)
        return await enqueue_keyed(tx, spec, task, key, lambda n: [next(first, None) or source.take(n)[0]])

    async def submit(self, job: NewJob, plan: Plan, *, key: Key | None, connection: Any) -> Submitted:
        """Write a job and all its nodes."""

        def step(tx: Transaction, take_ids: TakeIds, before: Submitted | None) -> Awaitable[Submitted]:
            return submit_job(tx, job, plan, take_ids, key=key, before=before)

        return await self._write_plan(step, len(plan.tasks), connection)

    async def add(self, to: Adding, plan: Plan) -> Submitted:
        """Add nodes to a job that is there."""

        def step(tx: Transaction, take_ids: TakeIds, before: Submitted | None) -> Awaitable[Submitted]:
            return add_to_job(tx, to, plan, take_ids, before=before)

        return await self._write_plan(step, len(plan.tasks), None)

    async def _write_plan(self, step: PlanStep, size: int, connection: Any) -> Submitted:
        if connection is not None:
            tx = caller_transaction(connection, schema=self._settings.postgres_schema)
            submitted = await step(tx, (await self.id_source(tx)).take, None)
            await self._wake_after(connection, submitted.told)
            return submitted
        last: Submitted | None = None

        async def write(tx: Transaction, again: bool) -> Submitted:  # noqa: ARG001 - `last` says more
            nonlocal last
            before = last if last is not None and not last.is_another else None
            last = await step(tx, (await self.id_source(tx)).take, before)
            return last

        submitted = await self._commit(write, more_seconds=size * SECONDS_A_NODE)
        self._wake(submitted.told)
        return submitted

    async def _write_gathered(self, groups: dict[Spec, list[Waiting]]) -> None:
        ids = {spec: await self._take_ids(len(group)) for spec, group in groups.items()}

        async def insert(tx: Transaction, again: bool) -> dict[Spec, Written]:
            return {
                spec: await self._insert(
                    tx, spec, [waiting.task for waiting in group], ids[spec], plain=not again, again=again
                )
                for spec, group in groups.items()
            }

        [[spec, [first, *others]], *more] = groups.items()
        is_alone = not more and not others and is_plain(spec, [first.task])
        announced = self._announce(spec, ids[spec][0]) if is_alone else None
        try:
            written = await self._commit(insert, one_statement=len(groups) == 1)
        except (*DATA_ERRORS, QueueFull):
            await self._write_one_by_one(groups)
            return
        self._wake([told for one in written.values() for told in one.told], announced)
        for spec, group in groups.items():
            for waiting, task_id in zip(group, written[spec].ids, strict=True):
                if not waiting.written.done():
                    waiting.written.set_result(task_id)

    async def _commit(
        self,
        write: Callable[[Connection, bool], Awaitable[T]],
        *,
        one_statement: bool = False,
        more_seconds: float = 0.0,
    ) -> T:
        """Write in a transaction of our own, again and again until it is answered or the time is up.

        A commit whose answer was lost may have happened: `again` says so, and the same ids cannot insert twice.
        """
        again = False

        async def once() -> T:
            nonlocal again
            repeated, again = again, True
            async with (await self._database()).connection() as tx:
                if one_statement:
                    return await write(tx, repeated)
                async with tx.transaction():
                    return await write(tx, repeated)

        return await self._in_time(once, more_seconds)

    async def _in_time(self, once: Callable[[], Awaitable[T]], more_seconds: float = 0.0) -> T:
        """Try for ENQUEUE_TIMEOUT_SECONDS; an embedded server takes its own time when it starts."""
        if not self._settings.postgres_url:
            await self._database()
        longest = self._settings.enqueue_timeout_seconds + more_seconds
        until = time.monotonic() + longest
        why = f"{self._settings.postgres_shown} gave no answer"
        while True:
            try:
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    return await once()
            except (PostgresUnavailable, TimeoutError) as error:
                why = str(error) or why  # time that is up says nothing: what was said last is the reason
                if time.monotonic() + RETRY_SECONDS > until:
                    raise PostgresUnavailable(f"not enqueued within {longest:g} s: {why}") from None
                await asyncio.sleep(RETRY_SECONDS)

    async def _insert(  # noqa: PLR0913 - one value a fact
        self,
        tx: Transaction,
        spec: Spec,
        tasks: Sequence[NewTask],
        ids: Sequence[int],
        *,
        plain: bool = False,
        again: bool,
    ) -> Written:
        """`plain`: an id that is taken may be an error. `again`: a try before may have written some of them."""
        whole = Written([], [])
        for start in range(0, len(tasks), PART):
            some, mine = tasks[start : start + PART], list(ids[start : start + PART])
            # Room for all of them or for none; a repeated try may meet its own rows.
            room_for = 0 if start or again else len(tasks)
            insert = _insert_part(tx, spec, some, mine, plain=plain, room_for=room_for)
            next_end = start + 2 * PART
            written = await (tasks.made_meanwhile(next_end, insert) if isinstance(tasks, Rows) else insert)
            missing = set(mine) - set(written.ids)
            if missing and again:
                missing -= await written_before(tx, spec, missing)
            take = (await self.id_source(tx)).take
            renewed = await insert_again(tx, spec, some, ids=mine, missing=missing, take_ids=take)
            whole.ids += renewed.ids
            whole.told += [*written.told, *renewed.told]
        return whole

    async def _write_one_by_one(self, groups: dict[Spec, list[Waiting]]) -> None:
        """One of them is refused by Postgres: find out which, and let the others through."""
        db = await self._database()
        for spec, group in groups.items():
            for waiting in group:
                try:
                    async with db.connection() as tx:
                        written = await self._write_in(tx, spec, [waiting.task], None)
                except Exception as error:
                    if not waiting.written.done():  # its caller may have given up meanwhile
                        waiting.written.set_exception(error)
                else:
                    self._wake(written.told)
                    if not waiting.written.done():
                        waiting.written.set_result(written.ids[0])

    async def _take_ids(self, count: int) -> list[int]:
        if self._ids is None:
            await self._in_time(self._database)
        assert self._ids is not None
        return self._ids.take(count)

    async def id_source(self, tx: Transaction) -> IdSource:
        """Where this client's ids come from."""
        if self._ids is None:
            self._ids = await id_source(tx)
        return self._ids


async def _insert_part(  # noqa: PLR0913 - one value a fact
    tx: Transaction, spec: Spec, tasks: Sequence[NewTask], ids: list[int], *, plain: bool, room_for: int
) -> Written:
    if plain and is_plain(spec, tasks) and (written := await insert_plain(tx, spec, tasks, ids)):
        return written
    return await insert_tasks(tx, spec, tasks, ids, room_for=room_for)
