"""Many jobs at once: those that a filter means are cancelled, retried, paused or resumed, a page a transaction.

Before: operate. Jobs are walked by id, once, and each is held without waiting: those that somebody holds are kept by id
and tried again. A job takes the act once, so that what a person does to it afterwards stays.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import QueueError
from ..schema import Transaction
from .job_control import cancel_job_in, pause_job_in, resume_job_in
from .job_retry import retry_in_job
from .wanted import COUNT_LIMIT, LOOK_LIMIT, Count

ACTS = {"cancel_jobs": "cancel", "retry_jobs": "retry", "pause_jobs": "pause", "resume_jobs": "resume"}
BEGIN = ("cancel", "pause")  # an operation for the tasks of each job
JOBS_A_PAGE = 20  # at least
JOBS_SECONDS = 0.5  # or as many as this is enough for: what is left is of the next page
LOOKED_AT = 5000  # jobs of a page, for few of them may be meant
BUSY_MOST = 1000  # jobs that somebody holds: as many come before further ones
OPEN_MOST = 200  # operations for the tasks of jobs that may be open: they come before further jobs

# $1 filter, $2 pattern of the name, $3 act. Whether the job `j` is meant, and can take the act.
_MEANT = """($1::jsonb->>'status' IS NULL OR j.status = $1::jsonb->>'status')
  AND ($1::jsonb->>'name' IS NULL OR j.name = $1::jsonb->>'name')
  AND ($1::jsonb->>'run_type' IS NULL OR j.run_type = $1::jsonb->>'run_type')
  AND ($2::text IS NULL OR j.name LIKE $2::text)
  AND CASE $3::text WHEN 'retry' THEN j.status IN ('FAILED', 'CANCELLED')
                    WHEN 'pause' THEN j.status IN ('PENDING', 'RUNNING') AND j.paused_at IS NULL
                    WHEN 'resume' THEN j.paused_at IS NOT NULL
                    ELSE j.status IN ('PENDING', 'RUNNING') END"""
_JOBS = "SELECT id, name, status, run_type, paused_at, finished_at FROM aaiclick_queue.jobs WHERE pruned_at IS NULL"
_COUNT = f"""
SELECT count(*) AS looked, count(*) FILTER (WHERE {_MEANT}) AS n
FROM ({_JOBS} {{only}} ORDER BY id DESC LIMIT $4) AS j
"""
# What ends again after the operation was made ($4) is not retried by it.
_STILL_MEANT = f"{_MEANT} AND ($3::text <> 'retry' OR j.finished_at <= $4::timestamptz)"
_PAGE = f"""
SELECT count(*) AS looked, max(j.id) AS last, array_agg(j.id ORDER BY j.id) FILTER (WHERE {_STILL_MEANT}) AS ids
FROM ({_JOBS} {{only}} AND id > $5::bigint AND id <= $6::bigint ORDER BY id LIMIT $7) AS j
"""
# By the index that leaves most of them out.
_ONLY = {
    "all": "",
    "named": "AND name = $1::jsonb->>'name'",
    "open": "AND status IN ('PENDING', 'RUNNING')",
    "given": "AND id = ANY(ARRAY(SELECT value::bigint FROM jsonb_array_elements_text($1::jsonb->'ids')))",
}
COUNT_JOBS = {which: _COUNT.format(only=only) for which, only in _ONLY.items()}
JOBS_PAGE = {which: _PAGE.format(only=only) for which, only in _ONLY.items()}
# The page is as old as its first job: one that a worker has started since is no PENDING one any more.
IS_MEANT = f"""
SELECT j.id FROM aaiclick_queue.jobs j WHERE j.id = $5::bigint AND j.pruned_at IS NULL AND {_STILL_MEANT}
"""
HOLD_MEANT = IS_MEANT.rstrip() + " FOR UPDATE SKIP LOCKED\n"
# Not the operations on jobs themselves: 200 of them would wait for each other. Nor one that has made a pass: it has
# changed what it could see, and waits for a transaction that may stay open for hours.
OPEN_OPERATIONS = """
SELECT count(*) AS n FROM (
    SELECT FROM aaiclick_queue.operations WHERE status = 'OPEN' AND kind IN ('cancel_job', 'limit')
    AND filter->'job' IS NOT NULL AND NOT (place = '' AND updated_at > created_at) LIMIT $1) AS o
"""


class Acted(msgspec.Struct, frozen=True):
    """What was done to a page: the jobs that took the act, the operations that see to their tasks, where to go on.

    `after` is the last job of the walk and those to try again, None at the end; `waits`: others must be done before.
    """

    ids: Sequence[int] = ()
    begun: Sequence[int] = ()
    after: list[int] | None = None
    waits: bool = False


async def count_jobs(tx: Transaction, kind: str, where: dict[str, Any], pattern: str | None) -> Count:
    """How many jobs would take the act, exactly up to 10,000; of the newest 100,000 that may be meant."""
    act = ACTS[kind]
    [row] = await tx.fetch(COUNT_JOBS[_which(act, where)], json.dumps(where), pattern, act, LOOK_LIMIT + 1)
    is_cut = row["looked"] > LOOK_LIMIT
    return Count(min(row["n"], COUNT_LIMIT), is_cut or row["n"] > COUNT_LIMIT, {}, LOOK_LIMIT if is_cut else None)


async def act_on_page(tx: Transaction, operation: Any) -> Acted:
    """Act on the jobs of the operation's next page, as far as time allows."""
    act, up_to = ACTS[operation["kind"]], operation["up_to"]
    after, *busy = json.loads(operation["after"] or "[0]")
    if act in BEGIN and await _is_full(tx):
        return Acted(after=[after, *busy], waits=True)
    pattern = json.loads(operation["arguments"]).get("pattern")
    acting = _Acting(tx, act, operation["made_by"], (operation["filter"], pattern, act, operation["created_at"]))
    if after < up_to and len(busy) < BUSY_MOST:
        after = await acting.on_next(_which(act, json.loads(operation["filter"])), after, up_to)
    else:
        met = await acting.on_each(busy)
        busy = busy[met:]
    busy += acting.busy
    if after >= up_to and not busy:
        return Acted(acting.ids, acting.begun)
    waits = not acting.ids and (after >= up_to or len(busy) >= BUSY_MOST)
    return Acted(acting.ids, acting.begun, [after, *busy], waits)


async def _is_full(tx: Transaction) -> bool:
    [begun] = await tx.fetch(OPEN_OPERATIONS, OPEN_MOST)
    return bool(begun["n"] >= OPEN_MOST)


def _which(act: str, where: dict[str, Any]) -> str:
    if "ids" in where:
        return "given"
    if "name" in where:
        return "named"
    return "open" if act in ("cancel", "pause") or where.get("status") in ("PENDING", "RUNNING") else "all"


class _Acting:
    """The acts of one page; `meant` are the parameters that say which jobs."""

    def __init__(self, tx: Transaction, act: str, by: str, meant: Sequence[Any]) -> None:
        self._tx = tx
        self._act = act
        self._by = by
        self._meant = meant
        self.ids: list[int] = []
        self.begun: list[int] = []
        self.busy: list[int] = []

    async def on_next(self, which: str, after: int, up_to: int) -> int:
        """Act on the next jobs of the walk; gives the last one that was met."""
        [page] = await self._tx.fetch(JOBS_PAGE[which], *self._meant, after, up_to, LOOKED_AT)
        ids = page["ids"] or []
        met = await self.on_each(ids)
        if met < len(ids):
            return int(ids[met - 1])
        return int(page["last"]) if page["looked"] >= LOOKED_AT else up_to

    async def on_each(self, ids: Sequence[int]) -> int:
        """Act on one after the other, as far as time allows; gives how many were met."""
        began = time.monotonic()
        for met, job_id in enumerate(ids):
            if met >= JOBS_A_PAGE and time.monotonic() - began > JOBS_SECONDS:
                return met
            await self._on(job_id)
        return len(ids)

    async def _on(self, job_id: int) -> None:
        """Act on one job; one that has ended, or otherwise cannot take it any more, is left."""
        if not await self._tx.fetch(HOLD_MEANT, *self._meant, job_id):
            self.busy += [job_id] if await self._tx.fetch(IS_MEANT, *self._meant, job_id) else []
            return
        try:
            if await self._changed(self._tx, job_id):
                self.ids.append(job_id)
        except QueueError:
            return

    async def _changed(self, tx: Transaction, job_id: int) -> bool:
        begun: int | None
        match self._act:
            case "retry":
                return bool(await retry_in_job(tx, job_id, by=self._by))
            case "resume":
                return await resume_job_in(tx, job_id, by=self._by)
            case "pause":
                begun = await pause_job_in(tx, job_id, by=self._by)
            case _:
                begun = await cancel_job_in(tx, job_id, by=self._by)
        self.begun += [] if begun is None else [begun]
        return begun is not None
