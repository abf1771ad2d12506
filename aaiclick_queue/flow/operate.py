"""Operations: changes of many waiting tasks by filter, a bounded page a transaction, until a whole pass finds nothing.

Before: a person. After: the line. An operation is a row: whoever works on it, a crash goes on where it was, and it
applies to the tasks or jobs that were there when it was made. A page shares its rows with others by SKIP LOCKED.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import BadSchedule
from ..outcome import Error
from ..postgres import DATA_ERRORS, Database
from ..schema import Transaction
from .backfill import backfill_page
from .filter_pages import (
    CANCEL_PAGE,
    LIMIT_PAGE,
    MOVE_PAGE,
    RETRIED_OF_JOB,
    RETRY_ALIKE_PAGE,
    RETRY_FAILED_PAGE,
    RETRY_OF_JOB_PAGE,
    RETRY_PAGE,
)
from .job_pages import CANCEL_JOB_PAGE, CANCEL_OF_JOB_PAGE, LIMIT_JOB_PAGE, MOVE_OF_JOB_PAGE
from .job_retry import retry_in_job_if_free
from .job_sets import ACTS, JOBS_A_PAGE, JOBS_SECONDS, act_on_page
from .kick import tell_ended
from .operation import known
from .wanted import places_of

log = logging.getLogger(__name__)

# The one that was longest without a page: one that waits for an old transaction must not keep the others. Limits of
# one name come one by one: the last of them opens the queue that they have closed. A process that freezes inside its
# page must not stop all others: Postgres ends its transaction.
NEXT_OPERATION = """
SELECT o.id, o.kind, o.filter, o.arguments, o.up_to, o.place, o.after, o.made_by, o.created_at,
       extract(epoch FROM now() - o.created_at)::float8 AS age,
       set_config('idle_in_transaction_session_timeout', '5s', true)
FROM aaiclick_queue.operations o
WHERE o.status = 'OPEN' AND o.id = coalesce($1::bigint, o.id)
  AND (NOT $2::boolean OR o.updated_at <= clock_timestamp()) AND NOT (o.kind = 'limit' AND EXISTS (
    SELECT FROM aaiclick_queue.operations before WHERE before.status = 'OPEN' AND before.kind = 'limit'
    AND before.id < o.id AND before.filter = o.filter))
ORDER BY o.updated_at, o.id LIMIT 1 FOR UPDATE OF o SKIP LOCKED
"""
# One that can do nothing now comes behind the others, and is left out for so long: slept by whoever works, the pauses
# of 200 that wait for an old transaction kept a new one waiting for 100 s.
REST_OPERATION = """
UPDATE aaiclick_queue.operations SET updated_at = clock_timestamp() + make_interval(secs => $2::float8) WHERE id = $1
"""
NEXT_REST = """
SELECT extract(epoch FROM min(updated_at) - clock_timestamp())::float8 AS seconds FROM aaiclick_queue.operations
WHERE status = 'OPEN' AND updated_at > clock_timestamp()
"""
KEEP_OPERATION = """
UPDATE aaiclick_queue.operations SET place = $2::text, after = $3::text::jsonb, found = found OR $4::boolean,
       done = done + $5::bigint, updated_at = now() WHERE id = $1
"""
# One for a new limit goes on until a whole pass was made after every transaction that could not see the limit was
# over: asked at the end of the pass instead, a row that was committed behind its last page would stay in line.
SEEN_BY_ALL = """
SELECT coalesce((SELECT (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint > m.made_xid
                 FROM aaiclick_queue.limits m WHERE m.id = $1::bigint), true) AS seen
"""
# At the end of a pass: again if it has found anything; else the queue that it had closed is opened.
END_PASS = """
WITH ended AS (
    UPDATE aaiclick_queue.operations o SET place = '', after = NULL, found = false, updated_at = now(),
           status = CASE WHEN o.found THEN 'OPEN' ELSE 'DONE' END,
           finished_at = CASE WHEN o.found THEN NULL ELSE now() END
    WHERE o.id = $1 RETURNING o.status, o.id
), opened AS (
    UPDATE aaiclick_queue.queues q SET paused_at = NULL, paused_by = NULL, reason = NULL FROM ended
    WHERE ended.status = 'DONE' AND q.paused_by = format('operation %s', ended.id) RETURNING q.name
)
SELECT status, (SELECT count(*) FROM opened) AS opened FROM ended
"""
# The resolver, which waits for nobody, has left this to us. Nor do we wait: a clear that holds the job waits for this
# operation.
STOP_JOB = """
WITH failing AS (
    UPDATE aaiclick_queue.jobs SET failing_at = now() WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM aaiclick_queue.jobs WHERE id = $1::bigint AND status IN ('PENDING', 'RUNNING')
        AND failing_at IS NULL FOR UPDATE SKIP LOCKED))
    RETURNING id
)
SELECT EXISTS (SELECT FROM failing) OR failing_at IS NOT NULL OR status NOT IN ('PENDING', 'RUNNING') AS is_stopped
FROM aaiclick_queue.jobs WHERE id = $1::bigint
"""
# The queue that it had closed is opened, as at its end.
FAIL_OPERATION = """
WITH failed AS (
    UPDATE aaiclick_queue.operations SET status = 'FAILED', error = $2::text, finished_at = now() WHERE id = $1
    RETURNING id
)
UPDATE aaiclick_queue.queues q SET paused_at = NULL, paused_by = NULL, reason = NULL FROM failed
WHERE q.paused_by = format('operation %s', failed.id)
"""
# What runs already when a limit is made counts against it.
ADOPT_RUNS = """
INSERT INTO aaiclick_queue.slots (task_id, limit_id, key, seconds, ends_at, adopted)
SELECT l.task_id, m.id, CASE WHEN m.per_key THEN t.concurrency_key ELSE '' END, m.seconds,
       l.claimed_at + make_interval(secs => m.seconds), true
FROM aaiclick_queue.limits m
JOIN aaiclick_queue.leases l ON true JOIN aaiclick_queue.tasks t ON t.id = l.task_id
WHERE m.id = $1 AND m.kind IN ('running', 'rate') AND (NOT m.per_key OR t.concurrency_key IS NOT NULL)
  AND m.name = CASE m.scope WHEN 'queue' THEN t.queue WHEN 'task' THEN t.entrypoint ELSE t.concurrency_key END
  AND NOT EXISTS (SELECT FROM aaiclick_queue.slots s WHERE s.task_id = l.task_id AND s.limit_id = m.id)
ON CONFLICT DO NOTHING
"""
PURGED = Error("Purged", "purged from its queue by hand")
JOB_CANCELLED = {"type": "Cancelled", "message": "its job was cancelled"}
AT_A_TIME = 1000
# What the words of an operation come to where a hostile or a newer client wrote them.
UNREADABLE = (*DATA_ERRORS, LookupError, TypeError, ValueError, AttributeError, BadSchedule)
LOOKED_AT = {"retry": 5}  # times as many, for few of those that are looked at may be meant
AGAIN_SECONDS = 0.5
LONGEST_AGAIN_SECONDS = 5.0  # that a limit rests which has waited for an old transaction ten times as long
BUSY_SECONDS = 0.01  # somebody holds the job


class Worked(msgspec.Struct, frozen=True):
    """What one page came to; `status` is the operation's."""

    operation_id: int
    status: str
    taken: int = 0
    moved: bool = False
    pause: float = 0.0
    begun: Sequence[int] = ()  # operations of their own, for the tasks of jobs that were changed


async def work_once(
    db: Database, operation_id: int | None = None, *, limit: int = AT_A_TIME, rested: bool = False
) -> Worked | None:
    """Work a page of the open operation that waits longest, or of the one given; None when there is none to be had.

    With `rested`, one that could do nothing is left for its pause.
    """
    rows: Sequence[Any] = ()
    try:
        async with db.transaction() as tx:
            rows = [known(row) for row in await tx.fetch(NEXT_OPERATION, operation_id, rested)]
            if not rows:
                return None
            worked, ended = await _work_any(tx, rows[0], limit, seconds=db.settings.job_timeout_seconds)
            if worked.pause:
                await tx.fetch(REST_OPERATION, worked.operation_id, worked.pause)
    except UNREADABLE as error:
        if not rows:
            raise
        return await _give_up(db, rows[0]["id"], error)
    tell_ended(ended)
    return worked


async def next_rest(tx: Transaction) -> float | None:
    """How long it is until an operation that could do nothing is to be looked at again; None when there is none."""
    [row] = await tx.fetch(NEXT_REST)
    seconds: float | None = row["seconds"]
    return seconds


async def _work_any(tx: Transaction, operation: Any, limit: int, *, seconds: float) -> tuple[Worked, Sequence[int]]:
    if operation["kind"] == "backfill":
        return await _backfill(tx, operation, seconds=seconds), ()
    work = _work_jobs if operation["kind"] in ACTS else _work
    return await work(tx, operation, limit)


async def _give_up(db: Database, operation_id: int, error: Exception) -> Worked:
    """One that says what nobody can do must not keep the others waiting."""
    cause = f"{type(error).__name__}: {error}"[:500]
    log.error("operation %d cannot be done: %s", operation_id, cause)
    await db.fetch(FAIL_OPERATION, operation_id, f"it cannot be done as it was written ({cause}): make it anew")
    return Worked(operation_id, "FAILED")


async def _work(tx: Transaction, operation: Any, limit: int) -> tuple[Worked, Sequence[int]]:
    """A page of the operation, and the tasks that it ended."""
    arguments = json.loads(operation["arguments"])
    pages = _pages(operation["kind"], json.loads(operation["filter"]), arguments)
    if pages is None:
        await tx.fetch(FAIL_OPERATION, operation["id"], f"this version knows no operation {operation['kind']!r}")
        return Worked(operation["id"], "FAILED"), ()
    place = operation["place"] or next(iter(pages))
    if operation["kind"] == "cancel_job" and not await _job_is_stopped(tx, operation):
        await tx.fetch(KEEP_OPERATION, operation["id"], place, operation["after"], False, 0)
        return Worked(operation["id"], "OPEN", pause=BUSY_SECONDS), ()
    begun = await _begin_pass(tx, operation, arguments)
    limit *= LOOKED_AT.get(operation["kind"], 1)
    page = await _work_page(tx, operation, pages[place], limit)
    taken, is_more = page["taken"], False
    if operation["kind"] == "retry" and page["jobs"]:
        retried, is_more = await _retry_jobs(tx, operation, page["jobs"])
        taken += retried
    after = operation["after"]
    if not is_more:
        after = page["after"]
        if page["seen"] < limit:
            places = [*pages, ""]
            place, after = places[places.index(place) + 1], None
    again = page["wanted"] > 0 or not begun
    await tx.fetch(KEEP_OPERATION, operation["id"], place, after, again, taken)
    status, opened = "OPEN", 0
    if not place:
        if operation["kind"] == "limit":  # what was claimed between the pass's beginning and its page of the line
            await tx.fetch(ADOPT_RUNS, arguments["limit_id"])
        [end] = await tx.fetch(END_PASS, operation["id"])
        status, opened = end["status"], end["opened"]
    pause = _rest(operation) if not place and status == "OPEN" and not taken else 0.0
    ended = (page["ids"] or ()) if operation["kind"] == "cancel_job" else ()
    return Worked(operation["id"], status, taken, bool(taken or opened), pause), ended


def _rest(operation: Any) -> float:
    """The pause after a pass that could do nothing; hundreds of limits may wait for the same transaction, for hours."""
    if operation["kind"] != "limit":
        return AGAIN_SECONDS
    age: float = operation["age"]
    return min(max(AGAIN_SECONDS, age / 10), LONGEST_AGAIN_SECONDS)


async def _work_jobs(tx: Transaction, operation: Any, _: int) -> tuple[Worked, Sequence[int]]:
    """A page of jobs, and those of them that it ended."""
    acted = await act_on_page(tx, operation)
    place = "" if acted.after is None else "jobs"
    await tx.fetch(KEEP_OPERATION, operation["id"], place, json.dumps(acted.after), False, len(acted.ids))
    status = "OPEN"
    if not place:
        [end] = await tx.fetch(END_PASS, operation["id"])
        status = end["status"]
    pause = AGAIN_SECONDS if acted.waits else 0.0
    ended = acted.ids if operation["kind"] == "cancel_jobs" else ()
    return Worked(operation["id"], status, len(acted.ids), bool(acted.ids), pause, acted.begun), ended


async def _backfill(tx: Transaction, operation: Any, *, seconds: float) -> Worked:
    status, made, pause = await backfill_page(tx, operation, seconds=seconds)
    if status == "FAILED":
        await tx.fetch(FAIL_OPERATION, operation["id"], "its registered job was deleted")
    return Worked(operation["id"], status, made, made > 0, pause)


async def _job_is_stopped(tx: Transaction, operation: Any) -> bool:
    """Whether nothing is added to the job or let in any more; else whoever cancelled its tasks would never be done."""
    rows = await tx.fetch(STOP_JOB, int(json.loads(operation["filter"])["job"]))
    return all(row["is_stopped"] for row in rows)


async def _retry_jobs(tx: Transaction, operation: Any, jobs: Sequence[int]) -> tuple[int, bool]:
    """Retry what is meant in these jobs, as far as time allows; how many tasks that was, and whether jobs are left."""
    retried, began = 0, time.monotonic()
    for done, job_id in enumerate(sorted(jobs)):
        if done >= JOBS_A_PAGE and time.monotonic() - began > JOBS_SECONDS:
            return retried, True
        rows = await tx.fetch(RETRIED_OF_JOB, job_id, operation["created_at"], operation["filter"], operation["up_to"])
        got = await retry_in_job_if_free(tx, job_id, {row["id"] for row in rows}, by=operation["made_by"])
        retried += len(got or ())
    return retried, False


async def _begin_pass(tx: Transaction, operation: Any, arguments: dict[str, Any]) -> bool:
    """Whether this pass may be the last one, as far as its beginning goes."""
    if operation["kind"] != "limit" or operation["place"]:
        return True
    [row] = await tx.fetch(SEEN_BY_ALL, arguments["limit_id"])
    await tx.fetch(ADOPT_RUNS, arguments["limit_id"])
    return bool(row["seen"])


def _pages(kind: str, where: dict[str, Any], arguments: dict[str, Any]) -> dict[str, str] | None:
    match kind:
        case "move":
            moves = MOVE_OF_JOB_PAGE if "job_id" in where else MOVE_PAGE
            return {place: moves[place] for place in places_of(where, running=False)}
        case "limit":
            return LIMIT_JOB_PAGE if "job" in where else LIMIT_PAGE
        case "cancel":
            running = arguments.get("running", False)
            cancels = CANCEL_OF_JOB_PAGE if "job_id" in where else CANCEL_PAGE
            return {place: cancels[place] for place in places_of(where, running=running)}
        case "cancel_job":
            return CANCEL_JOB_PAGE
        case "retry":
            return _retry_pages(where)
        case _:
            return None


def _retry_pages(where: dict[str, Any]) -> dict[str, str]:
    """Both ways through what failed go by task and are called `tasks`: another release may go on with one of them."""
    if "job_id" in where:
        return {"tasks": RETRY_OF_JOB_PAGE}
    if "fingerprint" in where:
        return {"failures": RETRY_ALIKE_PAGE}
    return {"tasks": RETRY_FAILED_PAGE if where.get("status", "FAILED") == "FAILED" else RETRY_PAGE}


async def _work_page(tx: Transaction, operation: Any, sql: str, limit: int) -> Any:
    arguments = json.loads(operation["arguments"])
    more: list[Any]
    match operation["kind"]:
        case "cancel":
            more = [Error(arguments.get("error", PURGED.type), arguments.get("message", PURGED.message)).text()]
        case "cancel_job":
            more = [json.dumps(arguments.get("error", JOB_CANCELLED))]
        case "limit":
            more = ["{}", arguments["limit_id"]]
        case "retry":
            more = [operation["made_by"], operation["created_at"]]
        case _:
            more = [json.dumps(arguments)]
    [row] = await tx.fetch(sql, operation["after"], limit, operation["filter"], operation["up_to"], *more)
    return row
