"""Move: puts waiting tasks into another queue, or gives them another priority. Before: a person. After: the line.

Out of its place and in again, in one statement a place: under the limits of where it goes, in the order of its enqueue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from ..postgres import Database
from .outbox import append_from
from .place import enter_line, in_line

MOVED = "task_id, run_epoch, attempt, lost_count, snoozes, flags"
MOVED_LATER = MOVED + ", not_before, reason"
AT_GATE = "gate_id, task_id, run_epoch, flags"
# `taken` are the rows that were deleted from their place, `{change}` what is new: queue, priority, or nothing.
_CHANGED = """changed AS (
    UPDATE aaiclick_queue.tasks t SET queue = coalesce({change}->>'queue', t.queue),
        priority = coalesce(({change}->>'priority')::int, t.priority)
    FROM taken WHERE t.id = taken.task_id AND {change} <> '{{}}'::jsonb
), noted AS (
    INSERT INTO aaiclick_queue.events (task_id, job_id, run_epoch, type, data)
    SELECT taken.task_id, CASE WHEN taken.flags & 128 = 128 THEN (SELECT t.job_id FROM aaiclick_queue.tasks t
                                                                  WHERE t.id = taken.task_id) END,
           taken.run_epoch, 'TASK_MOVED', {change} FROM taken WHERE {change} <> '{{}}'::jsonb
)"""
_AGAIN = (
    _CHANGED
    + """, given_back AS (
    DELETE FROM aaiclick_queue.slots s USING taken
    WHERE taken.flags & 2 = 2 AND s.task_id = taken.task_id AND s.stopping = 0 AND s.limit_id <> 0
      AND s.ends_at IS NULL
), again AS (
    SELECT taken.task_id, coalesce(t.job_id, t.id) AS order_key, taken.run_epoch, taken.attempt, taken.lost_count,
           taken.snoozes, taken.flags, coalesce({change}->>'queue', t.queue) AS queue,
           -coalesce(({change}->>'priority')::int, t.priority) AS rank, t.entrypoint, t.concurrency_key,
           t.order_by, t.job_id, t.crowd {more}
    FROM taken JOIN aaiclick_queue.tasks t ON t.id = taken.task_id
), {enter}"""
)
# Out and in again, so that whoever opens the gate meets the row either as it was or as it is.
_AT_GATE = (
    _CHANGED
    + """, entered AS (
    INSERT INTO aaiclick_queue.waiting (gate_id, task_id, run_epoch, flags)
    SELECT gate_id, task_id, run_epoch, flags FROM taken
)"""
)
_LATER = """entered AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, run_epoch, attempt, lost_count, snoozes,
                                        flags, queue, reason)
    SELECT task_id, not_before, order_key, rank, run_epoch, attempt, lost_count, snoozes, flags, queue, reason
    FROM again ON CONFLICT DO NOTHING
)"""


def in_line_again(change: str) -> str:
    """CTEs that put the rows of `taken` back in line, changed."""
    return _AGAIN.format(change=change, more="", enter=f"{enter_line('again')}, told AS ({append_from('entered')})")


def delayed_again(change: str) -> str:
    """CTEs that put the rows of `taken` back among those that wait for their time, changed."""
    return _AGAIN.format(change=change, more=", taken.not_before, taken.reason", enter=_LATER)


def at_gate_again(change: str) -> str:
    """CTEs that put the rows of `taken` back at their gates, changed."""
    return _AT_GATE.format(change=change)


def not_yet(change: str) -> str:
    """Whether the task `t` is not yet as it is to be."""
    return f"(t.queue <> {change}->>'queue' OR t.priority <> ({change}->>'priority')::int)"


_MOVE = """
WITH taken AS (
    DELETE FROM aaiclick_queue.{place} WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM unnest($1::bigint[]) AS wanted(id) JOIN aaiclick_queue.tasks t ON t.id = wanted.id
        JOIN aaiclick_queue.{place} p ON p.task_id = t.id {by_key} WHERE {not_yet} FOR UPDATE OF p SKIP LOCKED))
    RETURNING {moved}
), {again}
SELECT task_id FROM taken
"""
_CHANGE = "$2::jsonb"
_IN_LINE = {"not_yet": not_yet(_CHANGE), "moved": MOVED, "again": in_line_again(_CHANGE)}
MOVE_TASKS = (
    _MOVE.format(
        place="waiting",
        by_key="AND p.gate_id = t.wait_gate",
        not_yet=not_yet(_CHANGE),
        moved=AT_GATE,
        again=at_gate_again(_CHANGE),
    ),
    _MOVE.format(place="held", by_key="", **_IN_LINE),
    _MOVE.format(place="delayed", by_key="", not_yet=not_yet(_CHANGE), moved=MOVED_LATER, again=delayed_again(_CHANGE)),
    _MOVE.format(place="ready", by_key=f"AND {in_line('p', 't')}", **_IN_LINE),
)
PASSES = 5


async def move_tasks(db: Database, ids: Sequence[int], change: dict[str, Any]) -> set[int]:
    """Change those of the tasks that wait; returns them. Running ones, and those that are so already, are left."""
    moved: set[int] = set()
    for attempt in range(PASSES):  # one that is on its way between two places is met in the next pass
        left = sorted(set(ids) - moved)
        for statement in MOVE_TASKS:
            if left:
                moved.update(row["task_id"] for row in await db.fetch(statement, left, json.dumps(change)))
        if len(moved) == len(set(ids)):
            break
        await asyncio.sleep(0.002 * (attempt + 1))
    return moved
