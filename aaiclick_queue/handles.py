"""Handles: what an enqueue gives back, and how to ask what became of the task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from .callers import is_sync
from .client import Client, default_blocking_client, default_client
from .codec import decode_json
from .errors import (
    BadTask,
    QueueError,
    ResultExpired,
    TaskCancelled,
    TaskFailed,
    TaskSkipped,
    UnknownTask,
    UpstreamFailed,
    WrongContext,
)
from .flow.inputs import spliced
from .outcome import Error
from .portal import portal_loop, run_blocking
from .references import references
from .status import Status
from .waiting import Gone

R = TypeVar("R")
T = TypeVar("T")

# Of those that continue a task, the ones that may say why that came to nothing.
CONTINUED_BADLY = """
SELECT t.id FROM aaiclick_queue.tasks t
WHERE (t.id = ANY($1::bigint[]) OR t.group_id = ANY($2::bigint[])) AND t.status <> 'SKIPPED'
  AND (t.status <> 'COMPLETED' OR t.after_gate IS NOT NULL)
ORDER BY t.status = 'FAILED' DESC, t.id LIMIT 10
"""
STATUS = "SELECT status FROM aaiclick_queue.task_status WHERE id = $1"


class Handle(Generic[R]):
    """One task that was enqueued. Make one from an id with `handle(id)`."""

    __slots__ = ("_client", "_decode", "_ended", "_in_callers_transaction", "id")

    def __init__(
        self,
        task_id: int,
        *,
        decode: Callable[[str | None], Any] = decode_json,
        client: Client | None = None,
        in_callers_transaction: bool = False,
    ) -> None:
        self.id = task_id
        self._decode = decode
        self._client = client
        self._in_callers_transaction = in_callers_transaction
        self._ended: Any = None

    def __repr__(self) -> str:
        return f"Handle({self.id})"

    async def status(self) -> Status:
        """Where the task is now."""
        return await self._there(self._status)

    async def result(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 - as in every queue
        """Wait for the end; gives the result, or raises what became of the task instead. With 0 it only looks.

        A task of a job that returned others has ended when they have: its result is theirs.
        """
        until = None if timeout is None else time.monotonic() + timeout
        end = await self._end(timeout)
        if end["status"] == Status.COMPLETED and end["after_gate"] is not None:
            left = None if until is None else max(0.0, until - time.monotonic())
            after = await end_of(end["after_gate"], self._client, left)
            if after is None:
                raise TimeoutError(f"what continues task {self.id} has not ended within {timeout:g} s; it goes on")
            return await self._there(lambda client: self._continued(client, end, after))
        value: R = self._value(end)
        return value

    async def wait(self, timeout: float | None = None) -> Status:  # noqa: ASYNC109
        """Wait for the end, whatever it is: COMPLETED, FAILED or CANCELLED. A `result` after it asks nobody again."""
        self._ended = await self._end(timeout)
        return Status(self._ended["status"])

    async def cancel(self) -> bool:
        """End the task as CANCELLED wherever it is; False when it had ended before."""
        return await self._there(self._cancel)

    def get(self, timeout: float | None = None) -> R:
        """As `result`, for synchronous code."""
        return run_blocking(self.result(timeout), instead="await handle.result()")

    def ready(self) -> bool:
        """Whether the task has ended, for synchronous code."""
        return run_blocking(self.status(), instead="await handle.status()").is_final

    async def _there(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return await at_home(self._client, ask)

    async def _status(self, client: Client) -> Status:
        if (known := client.known(self.id)) is not None:
            return Status(known["status"])
        found = await (await client.database()).fetchval(STATUS, self.id)
        if found is None:
            raise UnknownTask(f"no task {self.id}: its transaction is not committed, or it was pruned")
        return Status(found)

    async def _cancel(self, client: Client) -> bool:
        return self.id in await client.cancel([self.id])

    async def _end(self, timeout: float | None) -> Any:  # noqa: ASYNC109
        """The final row; raises where there is none to come, or not in time."""
        if self._ended is not None:
            end, self._ended = self._ended, None
        else:
            end = await end_of(self.id, self._client, timeout)
        if end is None:
            raise TimeoutError(f"task {self.id} has not ended within {timeout:g} s; it goes on")
        if isinstance(end, Gone):
            raise self._gone(end)
        return end

    async def _continued(self, client: Client, end: Any, after: Any) -> Any:
        db = await client.database()
        if isinstance(after, Gone) or after["status"] == "OPEN":
            return self._decode(await spliced(db, end["result"], end["job_id"]))
        if after["status"] == "SKIP":
            raise TaskSkipped(f"what continues task {self.id} was skipped", task_id=self.id)
        named = list(references(end["result"]))
        tasks = [n for one in named if one.kind != "group" for n in one.ids]
        groups = [n for one in named if one.kind == "group" for n in one.ids]
        for row in await db.fetch(CONTINUED_BADLY, tasks, groups):
            await Handle(row["id"], client=client).result(0)  # raises what became of it
        raise UpstreamFailed(f"what continues task {self.id} did not complete", task_id=self.id)

    def _gone(self, end: Gone) -> QueueError:
        if self._in_callers_transaction and not end.was_there:
            return WrongContext(
                f"task {self.id} was enqueued in your transaction, which is not committed: "
                "it starts only after the commit, so wait for its result after that"
            )
        why = (
            "was removed meanwhile"
            if end.was_there
            else "was pruned, is of the kind that keeps nothing, or was never committed"
        )
        return ResultExpired(f"no task {self.id} in the database: it {why}", task_id=self.id)

    def _value(self, row: Any) -> Any:
        if row["status"] == Status.COMPLETED:
            return self._decode(row["result"])
        error = Error.read(row["error"]) if row["error"] else Error("Unknown")
        if row["status"] == Status.UPSTREAM_FAILED:
            raise UpstreamFailed(f"task {self.id} did not start: {error.message}", task_id=self.id)
        if row["status"] == Status.SKIPPED:
            raise TaskSkipped(f"task {self.id} was skipped: {error.message}", task_id=self.id)
        if row["status"] == Status.CANCELLED:
            raise TaskCancelled(f"task {self.id} was cancelled: {error.type}: {error.message}", task_id=self.id)
        raise TaskFailed(
            f"task {self.id} failed in attempt {row['attempt']}: {error.type}: {error.message}",
            task_id=self.id,
            error_type=error.type,
            error_message=error.message,
            traceback=error.traceback,
            attempts=row["attempt"],
        )


async def at_home(client: Client | None, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Ask where the client lives: its connections belong to one loop, and a thread has another."""
    here = asyncio.get_running_loop()
    home = client.loop if client else None
    if client is None or home in (None, here):
        return await ask(client or await default_client())
    if home is not None and home.is_running():
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(client), home))
    return await ask(await default_client())


async def end_of(ended_id: int, client: Client | None, timeout: float | None) -> Any:  # noqa: ASYNC109
    """The final row of a task, a job or a gate, Gone where there is none to come, None when it is not there in time."""
    if timeout is not None and timeout <= 0:
        return await at_home(client, lambda client: client.waiting.finished(ended_id, once=True))
    try:
        async with asyncio.timeout(timeout) as limit:
            return await at_home(client, lambda client: client.waiting.finished(ended_id))
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def handle(task_id: int, *, client: Client | None = None) -> Handle[Any]:
    """The handle of a task whose id is known."""
    if isinstance(task_id, bool) or not isinstance(task_id, int) or not 0 < task_id < 2**63:
        raise BadTask(f"{task_id!r} is no task id: give the whole number that an enqueue gave, int(…) of its text")
    return Handle(task_id, client=client)


def blocking_client(client: Client | None) -> Client:
    """The client that synchronous code uses."""
    return client or default_blocking_client()


def check_blocking(client: Client, connection: Any, name: str) -> None:
    """Raise where synchronous code cannot write with these."""
    if connection is not None and not is_sync(connection):
        raise WrongContext(f"{type(connection).__name__} is an async connection: await {name}.enqueue(…) instead")
    if connection is None and not client.lives_on(portal_loop()):
        raise WrongContext(
            f"this client belongs to an event loop: await {name}.enqueue(…, client=…) there, "
            "or leave client= away to use the default one"
        )
