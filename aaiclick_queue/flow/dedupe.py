"""Dedupe keys: one task at a time for a key. A part of enqueue; the key is freed by whoever ends the task.

A key whose task is final counts as free, so a free that was skipped because of a lock is harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import DedupeKeyBusy, DuplicateTask, WrongContext
from ..flags import KEYED
from ..outcome import Error
from ..schema import Transaction
from ..spec import DedupeMode
from .cancel import take_waiting
from .ending import has_ended
from .enqueue import NewTask, Spec, Written, insert_tasks
from .place import in_line

LOCK_TIMEOUT = """
SELECT current_setting('lock_timeout') AS before, current_setting('transaction_isolation') AS isolation,
       set_config('lock_timeout', $1::text, true)
"""
TAKE_KEY = """
INSERT INTO aaiclick_queue.dedupe (scope, key, task_id, until)
VALUES ($1::text, $2::text, $3::bigint, now() + make_interval(secs => $4::float8))
ON CONFLICT (scope, key) DO NOTHING RETURNING task_id
"""
# A statement of its own, after the insert: the row that was in the way is not in the insert's snapshot.
LOCK_KEY = "SELECT task_id FROM aaiclick_queue.dedupe WHERE scope = $1::text AND key = $2::text FOR UPDATE"
# And another one for its task: whoever waited for the lock finds the new holder in the row, but not in `tasks`.
KEY_HOLDER = f"""
SELECT d.task_id, (d.until IS NOT NULL AND d.until <= now()) OR (d.until IS NULL AND {has_ended("d.task_id")}) AS free
FROM aaiclick_queue.dedupe d WHERE d.scope = $1::text AND d.key = $2::text
"""
# An insert as well: ending the old holder, as `replace` does, has freed the key in this very transaction.
PASS_KEY_ON = """
INSERT INTO aaiclick_queue.dedupe (scope, key, task_id, until)
VALUES ($1::text, $2::text, $3::bigint, now() + make_interval(secs => $4::float8))
ON CONFLICT (scope, key) DO UPDATE SET task_id = excluded.task_id, until = excluded.until, first_at = now()
RETURNING task_id
"""
# Taken out of its place and put into `delayed` in one statement; a claim that is faster leaves nothing to take.
DEBOUNCE = """
WITH taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM aaiclick_queue.{place} p JOIN aaiclick_queue.tasks t ON t.id = $1::bigint
        WHERE p.task_id = $1::bigint {by_key} FOR UPDATE OF p SKIP LOCKED))
    RETURNING task_id, order_key, rank, run_epoch, attempt, lost_count, snoozes, flags, queue
), moved AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, run_epoch, attempt, lost_count, snoozes,
                                        flags, queue, reason)
    SELECT taken.task_id,
           least(now() + make_interval(secs => $3::float8), d.first_at + make_interval(secs => $4::float8)),
           CASE WHEN taken.flags & 2 = 2 THEN taken.task_id ELSE taken.order_key END, taken.rank, taken.run_epoch,
           taken.attempt, taken.lost_count, taken.snoozes, taken.flags & ~2, taken.queue, 'debounce'
    FROM taken JOIN aaiclick_queue.dedupe d ON d.task_id = taken.task_id
    RETURNING task_id, not_before
), given_back AS (
    DELETE FROM aaiclick_queue.slots s USING taken
    WHERE taken.flags & 2 = 2 AND s.task_id = taken.task_id AND s.stopping = 0
)
UPDATE aaiclick_queue.tasks t SET kwargs = $2::text::jsonb, eta = moved.not_before
FROM moved WHERE t.id = $1::bigint RETURNING t.id
"""
DEBOUNCE_PLACES = (
    DEBOUNCE.format(place="delayed", by_key=""),
    DEBOUNCE.format(place="held", by_key=""),
    DEBOUNCE.format(place="ready", by_key=f"AND {in_line('p', 't')}"),
)
REPLACED = Error("Replaced", "a newer task took its dedupe key")
LOCK_NOT_AVAILABLE = "55P03"


class Key(msgspec.Struct, frozen=True):
    """A dedupe key and what to do when it is taken."""

    key: str
    mode: DedupeMode = "raise"
    for_seconds: float | None = None
    debounce_max: float | None = None


async def enqueue_keyed(
    tx: Transaction, spec: Spec, task: NewTask, key: Key, take_ids: Callable[[int], list[int]]
) -> Written:
    """Insert the task unless its key is held; then do what the key's mode says."""
    [before] = await tx.fetch(LOCK_TIMEOUT, "2s")
    if before["isolation"] != "read committed" and key.mode in ("replace", "debounce"):
        raise WrongContext(
            f"dedupe={key.mode!r} needs a READ COMMITTED transaction, this one is {before['isolation'].upper()}: "
            "use dedupe='raise' or 'skip', or enqueue in a transaction of its own"
        )
    try:
        return await _enqueue_keyed(tx, spec, task, key, take_ids)
    except Exception as error:
        if sqlstate(error) == LOCK_NOT_AVAILABLE:
            raise DedupeKeyBusy(key.key) from error
        raise
    finally:
        await _restore(tx, before["before"])


async def take_key_of_job(tx: Transaction, name: str, key: Key, job_id: int) -> int | None:
    """Take the key for a job, unique among those of one name; gives the job that keeps it where it is to be skipped."""
    [before] = await tx.fetch(LOCK_TIMEOUT, "2s")
    try:
        return await _take_key_of_job(tx, (f"job:{name}", key.key), key, job_id)
    except Exception as error:
        if sqlstate(error) == LOCK_NOT_AVAILABLE:
            raise DedupeKeyBusy(key.key) from error
        raise
    finally:
        await _restore(tx, before["before"])


async def _take_key_of_job(tx: Transaction, where: tuple[str, str], key: Key, job_id: int) -> int | None:
    while not await tx.fetch(TAKE_KEY, *where, job_id, key.for_seconds):
        if not await tx.fetch(LOCK_KEY, *where):
            continue  # freed between the two statements
        [row] = await tx.fetch(KEY_HOLDER, *where)
        holder: int = row["task_id"]
        if holder == job_id:
            break  # this very submit, whose answer was lost
        if not row["free"]:
            if key.mode == "skip":
                return holder
            raise DuplicateTask(key.key, holder, what="job")
        await tx.fetch(PASS_KEY_ON, *where, job_id, key.for_seconds)
        break
    return None


async def _enqueue_keyed(
    tx: Transaction, spec: Spec, task: NewTask, key: Key, take_ids: Callable[[int], list[int]]
) -> Written:
    keyed = msgspec.structs.replace(spec, flags=spec.flags | KEYED)
    where = (spec.entrypoint, key.key)
    while True:
        [new_id] = take_ids(1)
        if await tx.fetch(TAKE_KEY, *where, new_id, key.for_seconds):
            break
        if not await tx.fetch(LOCK_KEY, *where):
            continue  # freed between the two statements
        [holder] = await tx.fetch(KEY_HOLDER, *where)
        if holder["task_id"] == new_id:
            return Written([new_id], [])  # this very enqueue, whose answer was lost
        if not holder["free"]:
            kept = await _meet_holder(tx, holder["task_id"], task, key)
            if kept is not None:
                return Written([kept], [])
        await tx.fetch(PASS_KEY_ON, *where, new_id, key.for_seconds)
        break
    while not (written := await insert_tasks(tx, keyed, [task], [new_id])).ids:
        [new_id] = take_ids(1)  # another process drew the same number
        await tx.fetch(PASS_KEY_ON, *where, new_id, key.for_seconds)
    return written


async def _meet_holder(tx: Transaction, holder: int, task: NewTask, key: Key) -> int | None:
    """The id that stays when the holder does; None when the new task takes the key."""
    match key.mode:
        case "raise":
            raise DuplicateTask(key.key, holder)
        case "skip":
            return holder
        case "replace":
            await take_waiting(tx, [holder], error=REPLACED)
            return None  # one that runs goes on without the key
        case "debounce":
            for statement in DEBOUNCE_PLACES:
                if await tx.fetch(statement, holder, task.kwargs, task.countdown or 0.0, key.debounce_max):
                    return holder
            return None


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error, whichever driver raised it."""
    origin: Any = getattr(error, "orig", None) or error
    for candidate in (origin, origin.__cause__):
        code = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
        if code:
            return str(code)
    return None


async def _restore(tx: Transaction, before: str) -> None:
    try:
        await tx.fetch(LOCK_TIMEOUT, before)
    except Exception as error:
        if sqlstate(error) != "25P02":  # in a failed transaction there is nothing to restore
            raise
