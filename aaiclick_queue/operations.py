"""Many tasks or jobs at once, from Python: purge, move, priority, cancel, retry, by filter, in pages with progress.

Each is written down as an operation and worked to its end here; the workers' background loops work on it too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Unpack

import msgspec

from .client import Client, default_client
from .errors import BadTask, UnknownOperation
from .filters import Where, checked, checked_name, checked_priority
from .flow.job_retry import jobs_of, retry_in_job
from .flow.job_sets import ACTS, count_jobs
from .flow.kick import kick_claimers
from .flow.operate import work_once
from .flow.operation import known, make_operation
from .flow.reaper import ensure_partitions
from .flow.retry import retry_tasks
from .flow.retry import unblock as unblock_tasks
from .flow.wanted import ENDED, PLACES, Count, count_ended, count_waiting
from .limits import whoami
from .postgres import Database

log = logging.getLogger(__name__)

BATCH = 500
BUSY_SECONDS = 0.05  # somebody else works on a page of it

OPERATIONS = """
SELECT id, kind, filter, arguments, status, done, total, made_by, error, created_at,
       least(updated_at, now()) AS updated_at, finished_at
FROM aaiclick_queue.operations
WHERE id >= coalesce($1::bigint, 0) AND id <= coalesce($1::bigint, $3::bigint - 1, 9223372036854775807)
ORDER BY id DESC LIMIT $2
"""
OPEN_OPERATIONS = """
SELECT id, kind, filter, arguments, status, done, total, made_by, error, created_at,
       least(updated_at, now()) AS updated_at, finished_at
FROM aaiclick_queue.operations WHERE status = 'OPEN' AND filter->'job' IS NULL ORDER BY id DESC LIMIT $1
"""
# It waits for the page that is being worked; one that applies a limit would leave its queue closed.
CANCEL_OPERATION = """
UPDATE aaiclick_queue.operations SET status = 'CANCELLED', finished_at = now(), updated_at = now()
WHERE id = $1 AND status = 'OPEN' AND kind <> 'limit' RETURNING id
"""


class Operation(msgspec.Struct, frozen=True):
    """One operation; `total` is None where more than 10,000 tasks or jobs were meant."""

    id: int
    kind: str
    filter: dict[str, Any]
    arguments: dict[str, Any]
    status: str
    done: int
    total: int | None
    made_by: str | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


Progress = Callable[[Operation], None]


class Change(msgspec.Struct, frozen=True):
    """What is to be done to which tasks or jobs, checked."""

    kind: str
    where: dict[str, Any]
    arguments: dict[str, Any] = {}

    @property
    def running(self) -> bool:
        """Whether runs that have begun are meant too."""
        return bool(self.arguments.get("running"))

    async def count(self, db: Database) -> Count:
        """How many it would change."""
        if self.kind in ACTS:
            return await count_jobs(db, self.kind, self.where, self.arguments.get("pattern"))
        if self.kind == "retry":
            return await count_ended(db, self.where)
        return await count_waiting(db, self.where, running=self.running)


def purging(queue: str, where: Mapping[str, Any]) -> Change:
    """End whatever waits in a queue."""
    return Change("cancel", checked({**where, "queue": queue}))


def moving(to: str, where: Mapping[str, Any], *, everything: bool = False) -> Change:
    """Put waiting tasks into another queue."""
    wanted = checked(where, everything=everything)
    if wanted.get("queue") == checked_name("to", to):
        raise BadTask(f"to={to!r} is the queue that they are in: name another one")
    return Change("move", wanted, {"queue": to})


def prioritizing(priority: int, where: Mapping[str, Any], *, everything: bool = False) -> Change:
    """Give waiting tasks another priority."""
    return Change("move", checked(where, everything=everything), {"priority": checked_priority("priority", priority)})


def cancelling(where: Mapping[str, Any], *, running: bool = False, everything: bool = False) -> Change:
    """End waiting tasks, and running ones if asked to."""
    wanted = checked(where, everything=everything, statuses=PLACES)
    running = running or wanted.get("status") == "RUNNING"
    return Change("cancel", wanted, {"running": running, "error": "Cancelled", "message": "cancelled by hand"})


def retrying(where: Mapping[str, Any], *, everything: bool = False) -> Change:
    """Run ended tasks again."""
    return Change("retry", checked(where, everything=everything, statuses=ENDED))


def changing_jobs(act: str, where: Mapping[str, Any], *, pattern: str | None = None) -> Change:
    """Cancel, retry, pause or resume jobs: by status, name and run_type, or by `ids`; `pattern` is for their names."""
    return Change(f"{act}_jobs", dict(where), {} if pattern is None else {"pattern": pattern})


async def purge(
    queue: str, /, *, progress: Progress | None = None, client: Client | None = None, **where: Unpack[Where]
) -> int:
    """End as CANCELLED whatever waits in a queue, narrowed by filter words; returns how many."""
    return (await carry_out(await _database(client), purging(queue, where), progress=progress)).done


async def move(
    *,
    to: str,
    everything: bool = False,
    progress: Progress | None = None,
    client: Client | None = None,
    **where: Unpack[Where],
) -> int:
    """Put waiting tasks into another queue; returns how many."""
    return (await carry_out(await _database(client), moving(to, where, everything=everything), progress=progress)).done


async def set_priority(
    new: int,
    /,
    *,
    everything: bool = False,
    progress: Progress | None = None,
    client: Client | None = None,
    **where: Unpack[Where],
) -> int:
    """Give waiting tasks another priority; returns how many had a different one."""
    change = prioritizing(new, where, everything=everything)
    return (await carry_out(await _database(client), change, progress=progress)).done


async def cancel_where(
    *,
    running: bool = False,
    everything: bool = False,
    progress: Progress | None = None,
    client: Client | None = None,
    **where: Unpack[Where],
) -> int:
    """End waiting tasks as CANCELLED, and running ones if asked to; returns how many."""
    change = cancelling(where, running=running, everything=everything)
    return (await carry_out(await _database(client), change, progress=progress)).done


async def retry_where(
    *,
    everything: bool = False,
    progress: Progress | None = None,
    client: Client | None = None,
    **where: Unpack[Where],
) -> int:
    """Run tasks that FAILED before now again, or with `status="CANCELLED"` those; returns how many."""
    return (await carry_out(await _database(client), retrying(where, everything=everything), progress=progress)).done


async def retry(ids: Iterable[int], *, client: Client | None = None, by: str | None = None) -> set[int]:
    """Run ended tasks again from their first attempt; returns those that had FAILED or were CANCELLED."""
    return await retry_ids(await _database(client), ids, by=by)


async def retry_ids(db: Database, ids: Iterable[int], *, by: str | None = None) -> set[int]:
    """The same, also where the tasks are of jobs."""
    ids, by = list(ids), by or whoami()
    retried = await in_batches(db, ids, lambda tx, some: retry_tasks(tx, some, by=by))
    for job_id, some in (await jobs_of(db, ids)).items():
        async with db.transaction() as tx:
            retried |= await retry_in_job(tx, job_id, some, by=by)
    kick_claimers()
    return retried


async def unblock(ids: Iterable[int], *, client: Client | None = None, by: str | None = None) -> set[int]:
    """Let what waits behind these failed tasks in strict order go on; returns those that something waited for."""
    db = await _database(client)
    return await in_batches(db, ids, lambda tx, some: unblock_tasks(tx, some, by=by or whoami()))


async def count_tasks(*, client: Client | None = None, **where: Unpack[Where]) -> Count:
    """How many open tasks a filter means, exactly up to 10,000."""
    wanted = checked(where, everything=True, statuses=PLACES)
    return await count_waiting(await _database(client), wanted, running=True)


async def list_operations(*, limit: int = 100, client: Client | None = None) -> list[Operation]:
    """The newest operations."""
    return await read_operations(await _database(client), limit=limit)


async def carry_out(
    db: Database, change: Change, *, by: str | None = None, progress: Progress | None = None
) -> Operation:
    """Count, write the operation down and work it to its end."""
    count = await change.count(db)
    return await work_to_end(db, await begin(db, change, count, by=by), progress=progress)


async def begin(db: Database, change: Change, count: Count, *, by: str | None = None) -> int:
    """Write an operation down; from now on it happens, whoever works on it."""
    await ensure_partitions(db)
    total = None if count.more else count.n
    return await make_operation(db, change.kind, change.where, change.arguments, by=by or whoami(), total=total)


async def work_to_end(db: Database, operation_id: int, *, progress: Progress | None = None) -> Operation:
    """Work on an operation, beside workers that do, until it has ended; cancelled, it stays open for them."""
    left: dict[int, float] = {}
    try:
        while True:
            worked = await work_once(db, operation_id)
            if worked and worked.moved:
                kick_claimers()
            begun = await _work_begun(db, worked.begun if worked else ())
            operation = await read_operation(db, operation_id)
            if operation.kind != "pause_jobs":  # there workers see to what old transactions let in, as in pause_job()
                left |= begun
            if progress is not None:
                progress(operation)
            if operation.status != "OPEN" and not left:
                return operation
            pause = BUSY_SECONDS if worked is None else worked.pause
            if pause or operation.status != "OPEN":
                await asyncio.sleep(max([pause, *left.values()]))
                left = await _work_begun(db, left)
    except asyncio.CancelledError:
        log.warning("operation %d stays open, workers go on with it: aaiclick-queue operation list", operation_id)
        raise


async def _work_begun(db: Database, begun: Iterable[int]) -> dict[int, float]:
    """Work on what an operation has begun for the tasks of jobs; gives what has to wait for somebody, and how long."""
    left: dict[int, float] = {}
    for one in begun:
        worked = await work_once(db, one)
        while worked and worked.status == "OPEN" and not worked.pause:
            worked = await work_once(db, one)
        left |= {one: worked.pause} if worked and worked.status == "OPEN" else {}
    return left


async def read_operations(
    db: Database, *, limit: int = 100, operation_id: int | None = None, before: int | None = None
) -> list[Operation]:
    """Operations, newest first; older than `before`."""
    return [_read(row) for row in await db.fetch(OPERATIONS, operation_id, limit, before)]


async def read_open_operations(db: Database, *, limit: int) -> list[Operation]:
    """Open ones that do not concern one job alone, newest first."""
    return [_read(row) for row in await db.fetch(OPEN_OPERATIONS, limit)]


def _read(row: Any) -> Operation:
    return Operation(**known(row) | {"filter": _words(row["filter"]), "arguments": _words(row["arguments"])})


def _words(text: str) -> dict[str, Any]:
    """What an operation says; another client may have written something else."""
    words = json.loads(text)
    return words if isinstance(words, dict) else {"?": words}


async def read_operation(db: Database, operation_id: int) -> Operation:
    """One operation."""
    found = await read_operations(db, limit=1, operation_id=operation_id)
    if not found:
        raise UnknownOperation(f"there is no operation {operation_id}: `aaiclick-queue operation list` shows them")
    return found[0]


async def cancel_operation(db: Database, operation_id: int) -> bool:
    """Stop an operation after the page that is being worked; False when it had ended, or applies a limit."""
    return bool(await db.fetch(CANCEL_OPERATION, operation_id))


async def in_batches(db: Database, ids: Iterable[int], step: Callable[[Any, list[int]], Any]) -> set[int]:
    """Apply a step to the ids, a bounded number a transaction."""
    await ensure_partitions(db)
    wanted, done = list(dict.fromkeys(ids)), set[int]()
    for one in wanted:
        if isinstance(one, bool) or not isinstance(one, int):
            raise BadTask(f"{one!r} is no task id: give the whole numbers that enqueues gave, int(…) of their text")
    for start in range(0, len(wanted), BATCH):
        async with db.transaction() as tx:
            done |= await step(tx, wanted[start : start + BATCH])
    return done


async def _database(client: Client | None) -> Database:
    return await (client or await default_client()).database()
