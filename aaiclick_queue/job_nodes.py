"""Reads for people: one task as a node of its job: where it stands, what it waits for, what continued it."""

from __future__ import annotations

from typing import Any

import msgspec

from .postgres import Database

SHOWN = 20  # names of other nodes


def of_job(job_id: str) -> str:
    """Whether a task is of that job, for statements that go through its tasks by `ORDER BY job_id, id`.

    As a range and not as `=`: that makes the order one by id, and a plan walks all tasks there are to keep it.
    """
    return f"job_id >= {job_id} AND job_id <= {job_id}"


NODE = """
WITH RECURSIVE above AS (
    SELECT g.id, g.parent_group_id, g.name, 1 AS height FROM aaiclick_queue.tasks t
    JOIN aaiclick_queue.groups g ON g.id = t.group_id WHERE t.id = $1
    UNION ALL
    SELECT g.id, g.parent_group_id, g.name, above.height + 1 FROM above
    JOIN aaiclick_queue.groups g ON g.id = above.parent_group_id WHERE above.height < 1000
)
SELECT t.job_id, j.name AS job_name, j.status AS job_status, t.map_index, t.rule, t.critical, t.after_gate,
       w.task_id IS NOT NULL AS is_waiting, g.remaining, g.total, a.state AS after_state,
       ARRAY(SELECT id FROM above ORDER BY height DESC) AS group_ids,
       ARRAY(SELECT name FROM above ORDER BY height DESC) AS groups
FROM aaiclick_queue.tasks t JOIN aaiclick_queue.jobs j ON j.id = t.job_id
LEFT JOIN aaiclick_queue.gates g ON g.id = t.wait_gate
LEFT JOIN aaiclick_queue.waiting w ON w.gate_id = t.wait_gate AND w.task_id = t.id
LEFT JOIN aaiclick_queue.gates a ON a.id = t.after_gate
WHERE t.id = $1
"""
# By the key's first column: those of one job, which are read until enough are found. A task that others continue has
# not ended for those behind it.
PREVIOUS = """
SELECT n.id::text AS id, n.name, n.kind, n.status FROM (
    SELECT previous_id, previous_type FROM aaiclick_queue.dependencies
    WHERE job_id = $1 AND (next_type = 'task' AND next_id = $2 OR next_type = 'group' AND next_id = ANY($3::bigint[]))
) AS d
CROSS JOIN LATERAL (
    SELECT t.id, t.name, 'task' AS kind, CASE WHEN a.state = 'WAITING' THEN 'CONTINUED' ELSE s.status END AS status
    FROM aaiclick_queue.tasks t JOIN aaiclick_queue.task_status s ON s.id = t.id
    LEFT JOIN aaiclick_queue.gates a ON a.id = t.after_gate
    WHERE d.previous_type = 'task' AND t.id = d.previous_id
    UNION ALL
    SELECT p.id, p.name, 'group', CASE WHEN g.remaining > 0 THEN 'OPEN' WHEN g.failed > 0 THEN 'FAILED'
                                       ELSE 'COMPLETED' END
    FROM aaiclick_queue.groups p JOIN aaiclick_queue.gates g ON g.id = p.id
    WHERE d.previous_type = 'group' AND p.id = d.previous_id
) AS n
WHERE CASE WHEN $4::boolean THEN n.status IN ('FAILED', 'UPSTREAM_FAILED', 'CANCELLED')
      ELSE coalesce(n.status, '') NOT IN ('COMPLETED', 'FAILED', 'CANCELLED', 'UPSTREAM_FAILED', 'SKIPPED') END
LIMIT $5
"""
# What it returned are children of it that tell its gate.
CONTINUED_BY = """
SELECT c.id::text AS id, c.name, 'task' AS kind, s.status
FROM aaiclick_queue.tasks c JOIN aaiclick_queue.task_status s ON s.id = c.id
WHERE c.parent_id = $1 AND (c.exit_gate = $2 OR EXISTS (
    SELECT FROM aaiclick_queue.gate_edges e WHERE e.gate_id = c.id AND e.next_gate_id = $2))
UNION ALL
SELECT p.id::text, p.name, 'group', CASE WHEN g.remaining > 0 THEN 'OPEN' WHEN g.failed > 0 THEN 'FAILED'
                                         ELSE 'COMPLETED' END
FROM aaiclick_queue.groups p JOIN aaiclick_queue.gates g ON g.id = p.id
WHERE p.job_id = $3 AND p.spawned_by = $1
  AND EXISTS (SELECT FROM aaiclick_queue.gate_edges e WHERE e.gate_id = p.id AND e.next_gate_id = $2)
LIMIT $4
"""


class Neighbour(msgspec.Struct, frozen=True):
    """Another node: a task with its status, or a group, which is OPEN, COMPLETED or FAILED.

    A task that has completed and returned others is CONTINUED until those have ended.
    """

    id: str
    name: str | None
    kind: str
    status: str | None


class NodeView(msgspec.Struct, frozen=True):
    """A task as a node of its job; of its neighbours twenty at most, `unmet` is how many it waits for in all."""

    job_id: str
    job_name: str
    job_status: str
    groups: list[str]
    map_index: int | None
    rule: str
    critical: bool
    unmet: int
    waits_for: list[Neighbour]
    failed: list[Neighbour]  # those that kept it from running
    continued_by: list[Neighbour]
    is_continued: bool  # until those have ended


async def read_node(db: Database, task_id: int, *, status: str | None) -> NodeView | None:
    """What the job knows of the task; None for one without a job."""
    rows = await db.fetch(NODE, task_id)
    if not rows:
        return None
    [row] = rows
    waits_for: list[Neighbour] = []
    failed: list[Neighbour] = []
    if row["is_waiting"]:
        waits_for = await _previous(db, task_id, row, failed=False)
    if status == "UPSTREAM_FAILED":
        failed = await _previous(db, task_id, row, failed=True)
    continued_by: list[Neighbour] = []
    if row["after_gate"] is not None:
        found = await db.fetch(CONTINUED_BY, task_id, row["after_gate"], row["job_id"], SHOWN)
        continued_by = [Neighbour(**dict(one)) for one in found]
    return NodeView(
        job_id=str(row["job_id"]),
        job_name=row["job_name"],
        job_status=row["job_status"],
        groups=row["groups"],
        map_index=row["map_index"],
        rule=row["rule"] or "all_success",
        critical=row["critical"] is not False,
        unmet=row["remaining"] if row["is_waiting"] else 0,
        waits_for=waits_for,
        failed=failed,
        continued_by=continued_by,
        is_continued=row["after_state"] == "WAITING",
    )


async def _previous(db: Database, task_id: int, row: Any, *, failed: bool) -> list[Neighbour]:
    rows = await db.fetch(PREVIOUS, row["job_id"], task_id, row["group_ids"], failed, SHOWN)
    return [Neighbour(**dict(one)) for one in rows]
