"""Quarantine: a row that stops the statement which works on it is set aside as FAILED, with the cause; others go on.

Before: a step over many rows that Postgres refused for what one of them holds: a hostile or a newer client wrote it, or
somebody by hand. After: the same step, row by row. Nothing here reads more of such a row than its key.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ..outcome import Error, cut
from ..postgres import DATA_ERRORS, Connection, Database
from ..schema import Transaction
from .arrive import ARRIVED_BADLY
from .claim import CLAIM_NEXT_IN_LINE, FIELDS, UNSTARTED_SECONDS, Claimed, Wanted

log = logging.getLogger(__name__)

# Neither hooks nor slots: they may be what cannot be read. A sweep gives the slots back.
_SET_ASIDE = f"""
WITH taken AS (
    DELETE FROM aaiclick_queue.{{place}} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM aaiclick_queue.{{place}} p WHERE {{which}} FOR UPDATE SKIP LOCKED))
    RETURNING task_id, run_epoch
), final AS (
    UPDATE aaiclick_queue.tasks t
    SET status = 'FAILED', error = $2::text::jsonb, run_epoch = taken.run_epoch, finished_at = now()
    FROM taken WHERE t.id = taken.task_id AND t.status IS NULL
    RETURNING t.id, t.job_id, t.run_epoch, t.status, t.critical, t.member_gate, t.exit_gate
), {ARRIVED_BADLY}, freed AS (
    DELETE FROM aaiclick_queue.dedupe WHERE ctid = ANY(ARRAY(
        SELECT d.ctid FROM aaiclick_queue.dedupe d
        WHERE d.task_id = ANY(ARRAY(SELECT id FROM final)) AND d.until IS NULL FOR UPDATE SKIP LOCKED))
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, job_id, run_epoch, type, data)
    SELECT id, job_id, run_epoch, 'TASK_QUARANTINED', jsonb_build_object('reason', $2::text::jsonb->>'message')
    FROM final
)
SELECT task_id FROM taken
"""
SET_ASIDE_IN_LINE = _SET_ASIDE.format(
    place="ready",
    which="p.queue = $3::text AND p.rank = $4::int AND p.order_key = $5::bigint AND p.task_id = $1::bigint",
)
SET_ASIDE_DELAYED = _SET_ASIDE.format(place="delayed", which="p.task_id = $1::bigint")
SET_ASIDE_LEASED = _SET_ASIDE.format(
    place="leases", which="p.task_id = $1::bigint AND p.worker_id + 0 = coalesce($3::bigint, p.worker_id)"
)
# As the claim looks at them, from the head.
NEXT_IN_LINE = """
SELECT line.queue, line.rank, line.order_key, line.task_id FROM unnest($1::text[]) AS served(queue)
CROSS JOIN LATERAL (
    SELECT r.queue, r.rank, r.order_key, r.task_id FROM aaiclick_queue.ready r WHERE r.queue = served.queue
    ORDER BY r.queue, r.rank, r.order_key, r.task_id LIMIT $2) AS line
"""
# Held while it is claimed: SKIP LOCKED does not skip what is one's own, so the claim from this place takes no other.
HOLD_IN_LINE = """
SELECT task_id FROM aaiclick_queue.ready
WHERE queue = $1 AND rank = $2 AND order_key = $3 AND task_id = $4 FOR UPDATE SKIP LOCKED
"""


AT_A_TIME = 50  # a statement each: together far from the age at which a claim comes too late


class Claims(Protocol):
    """A line, or several as one."""

    @property
    def queues(self) -> list[str]:
        """Names of the queues that are served."""

    async def claim(self, tx: Transaction, want: Wanted) -> list[Claimed]:
        """Lease at most `want.limit` tasks to the worker."""


async def set_aside(tx: Transaction, statement: str, task_id: int, cause: Exception, *key: Any) -> bool:
    """End the task as FAILED with the cause; False when somebody else has it by now."""
    error = Error(
        "Quarantined",
        f"Postgres refused to work on its row ({cut(str(cause), 300)}): correct it in the table `tasks`, then "
        f"`aaiclick-queue task retry {task_id}`",
    )
    got = bool(await tx.fetch(statement, task_id, error.text(), *key))
    if got:
        log.error("task %d is set aside as FAILED: %s", task_id, error.message)
    return got


async def singly(db: Database, statement: str, ids: Sequence[int], *args: Any, aside: tuple[Any, ...]) -> list[Any]:
    """Run a statement over these tasks one by one, setting aside what it fails for; the rows that it gave.

    `aside` is the statement that does so, and what it is given beside the task.
    """
    rows: list[Any] = []
    for task_id in ids:
        try:
            rows += await db.fetch(statement, task_id, *args)
        except DATA_ERRORS as error:
            await set_aside(db, aside[0], task_id, error, *aside[1:])
    return rows


async def claim_surely(line: Claims, tx: Transaction, want: Wanted) -> list[Claimed]:
    """Lease what is next in line; where a row there stops that, one by one."""
    try:
        return await line.claim(tx, want)
    except DATA_ERRORS:
        if not isinstance(tx, Connection):
            raise
        served = [queue for queue in line.queues if queue not in want.resting]
        return await claim_singly(tx, served, msgspec.structs.replace(want, limit=min(want.limit, AT_A_TIME)))


async def claim_singly(connection: Connection, queues: Sequence[str], want: Wanted) -> list[Claimed]:
    """Lease what is first in these lines, one by one; what cannot be leased is set aside."""
    claimed: list[Claimed] = []
    for place in await connection.fetch(NEXT_IN_LINE, list(queues), want.limit):
        if len(claimed) >= want.limit:
            break
        async with connection.transaction():
            if await connection.fetch(HOLD_IN_LINE, *place):
                claimed += await _claim_held(connection, tuple(place), want)
    return claimed


async def _claim_held(connection: Connection, place: tuple[str, int, int, int], want: Wanted) -> list[Claimed]:
    queue, rank, order_key, task_id = place
    try:
        async with connection.transaction():
            rows = await connection.fetch(
                CLAIM_NEXT_IN_LINE,
                [queue],
                [rank],
                [order_key],
                [task_id],
                1,
                want.worker_id,
                want.timeout_seconds,
                want.grace_seconds + UNSTARTED_SECONDS,
            )
    except DATA_ERRORS as error:
        await set_aside(connection, SET_ASIDE_IN_LINE, task_id, error, queue, rank, order_key)
        return []
    return [Claimed(*tuple(row)[:FIELDS]) for row in rows]
