"""Attach: ties gates that are new to nodes of the job that were written before. A part of submit, under its locks.

Every tie is an edge that stays, also of a node that has ended: who clears that node later finds by it what waits for
it. A gate has told an edge if that leads no further than its cursor; all that is decided and not told is told by the
resolver, which is asked to look.

Nothing here locks a task: who adds may keep its transaction open for minutes, and a completion must not wait for it. A
task that had no gate of its own gets one, and whoever folds that for the first time makes it the exit of the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import UnknownJob
from ..schema import Transaction
from .graph import Outside, Previous
from .inputs import spliced
from .plan_rows import INSERT_EDGES, INSERT_GATES, joined

# All that this adds to or waits for, in the order of their ids: each either has ended by now or will arrive later.
LOCK_GATES = """
SELECT id, state, remaining, edge_cursor FROM aaiclick_queue.gates
WHERE id = ANY($1::bigint[]) AND job_id = $2::bigint ORDER BY id FOR UPDATE
"""
TASKS_BEFORE = """
SELECT t.id, t.status, t.after_gate FROM aaiclick_queue.tasks t
WHERE t.id = ANY($1::bigint[]) AND t.job_id = $2::bigint AND t.member_gate IS NOT NULL
"""
CONTINUE_AFTER = "UPDATE aaiclick_queue.tasks SET after_gate = $2::bigint WHERE id = $1 RETURNING exit_gate"
# Until now the task told one gate, or none: from now on its own gate tells that one and the new ones. One that has
# ended meanwhile has told the one by itself, and its gate tells the others at once.
_ADOPT = """
WITH its AS MATERIALIZED (
    SELECT t.id, t.exit_gate, t.result, CASE
            WHEN t.status = 'COMPLETED' THEN 'OPEN'
            WHEN t.status = 'SKIPPED' OR t.status = 'FAILED' AND t.critical IS FALSE THEN 'SKIP'
            WHEN t.status IS NOT NULL THEN 'FAIL' END AS state
    FROM aaiclick_queue.tasks t
    WHERE t.id = ANY($1::bigint[]) AND t.exit_gate IS DISTINCT FROM t.id AND t.after_gate IS NULL
    ORDER BY t.id FOR UPDATE{skip}
), tied AS (
    UPDATE aaiclick_queue.tasks t SET exit_gate = t.id FROM its WHERE t.id = its.id
), edges AS (
    INSERT INTO aaiclick_queue.gate_edges (gate_id, next_gate_id) SELECT id, exit_gate FROM its
    WHERE exit_gate IS NOT NULL ON CONFLICT DO NOTHING
), telling AS MATERIALIZED (
    SELECT e.gate_id, e.next_gate_id, aaiclick_queue.arrives_as(its.state, e.choices, e.known, its.result) AS verdict
    FROM its JOIN aaiclick_queue.gate_edges e ON e.gate_id = its.id WHERE its.state IS NOT NULL
), arrived AS (
    INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped, vetoed)
    SELECT next_gate_id, count(*), count(*) FILTER (WHERE verdict = 'FAIL'), count(*) FILTER (WHERE verdict = 'SKIP'),
           count(*) FILTER (WHERE verdict = 'VETO') FROM telling GROUP BY next_gate_id ORDER BY next_gate_id
), decided AS (
    UPDATE aaiclick_queue.gates g
    SET remaining = 0, failed = (its.state = 'FAIL')::int, skipped = (its.state = 'SKIP')::int, state = its.state,
        decided_at = now(), edge_cursor = greatest(its.exit_gate, (
            SELECT max(telling.next_gate_id) FROM telling WHERE telling.gate_id = its.id))
    FROM its WHERE g.id = its.id AND its.state IS NOT NULL
    RETURNING g.id
)
SELECT (SELECT count(*) FROM decided) AS decided, array(
    SELECT t.id FROM aaiclick_queue.tasks t WHERE t.id = ANY($1::bigint[]) AND t.exit_gate IS DISTINCT FROM t.id
      AND t.after_gate IS NULL AND t.id <> ALL(array(SELECT id FROM its))) AS missed
"""
ADOPT_TASKS = _ADOPT.format(skip=" SKIP LOCKED")
ADOPT_ALL = _ADOPT.format(skip="")  # under the job's row and all its gates, where whoever has a task waits for nobody
ARRIVE_NOW = """
INSERT INTO aaiclick_queue.arrivals (gate_id, n, failed, skipped, vetoed)
SELECT $1::bigint, 1, (verdict = 'FAIL')::int, (verdict = 'SKIP')::int, (verdict = 'VETO')::int
FROM (SELECT aaiclick_queue.arrives_as($2::text, string_to_array($3::text, chr(1)), string_to_array($4::text, chr(1)),
          coalesce($6::text::jsonb, (SELECT t.result FROM aaiclick_queue.tasks t WHERE t.id = $5::bigint))) AS verdict)
    AS told
"""
# Those that returned others: what these came to decides at a branch.
CONTINUED = """
SELECT id, job_id, result FROM aaiclick_queue.tasks
WHERE id = ANY($1::bigint[]) AND status = 'COMPLETED' AND after_gate IS NOT NULL AND result IS NOT NULL
"""
LOOK_AT = "INSERT INTO aaiclick_queue.arrivals (gate_id, n) SELECT unnest($1::bigint[]), 0"


async def lock_gates(tx: Transaction, job_id: int, ids: Iterable[int]) -> dict[int, Any]:
    """The rows of those of the ids that are gates of the job, held until the transaction ends."""
    return {row["id"]: dict(row) for row in await tx.fetch(LOCK_GATES, sorted({*ids}), job_id)}


async def continue_after(tx: Transaction, job_id: int, task_id: int, after: int) -> None:
    """Those behind the running task wait for this gate from now on; under its lease and the gate of its job."""
    gates = await lock_gates(tx, job_id, [task_id])
    [row] = await tx.fetch(CONTINUE_AFTER, task_id, after)
    behind = [gate for gate in {row["exit_gate"], *gates} if gate is not None]  # its own too, where not adopted yet
    if behind:
        await tx.fetch(INSERT_EDGES, [after] * len(behind), behind, [None] * len(behind), [None] * len(behind))


class Attacher:
    """Ties of one plan to what there is; `gates` are locked: its job's, and those of groups that it waits for."""

    def __init__(self, tx: Transaction, job_id: int, gates: Mapping[int, Any]) -> None:
        self._tx = tx
        self._job_id = job_id
        self._gates = dict(gates)
        self._tasks: dict[int, Any] = {}
        self._edges: list[tuple[int, int, str | None, str | None]] = []
        self._asked: set[int] = set()

    async def attach(self, outside: Sequence[Outside], ids: Mapping[int, int]) -> None:
        """Draw an edge from each of those nodes to the new gate that waits for it."""
        numbers = sorted({one.previous.number for one in outside if one.previous.kind == "task"})
        if numbers:
            self._tasks = {row["id"]: row for row in await self._tx.fetch(TASKS_BEFORE, numbers, self._job_id)}
            await self._make_gates_of_tasks()
        for one in outside:
            kind, number = one.previous.kind, one.previous.number
            if number not in (self._tasks if kind == "task" else self._gates):
                raise UnknownJob(f"no {kind} {number} in job {self._job_id}: give one of this job's nodes")
            await self._tie(number, ids.get(one.gate, one.gate), one.previous)
        if self._edges:
            await self._tx.fetch(INSERT_EDGES, *map(list, zip(*self._edges, strict=True)))
        if self._asked:
            await self._tx.fetch(LOOK_AT, sorted(self._asked))

    async def _make_gates_of_tasks(self) -> None:
        """Each task has a gate of its own, whose decision is its end; under the job's gate nobody else makes one."""
        # Its end is that of the tasks that continue it.
        continued = {row["id"]: row["after_gate"] for row in self._tasks.values() if row["status"] == "COMPLETED"}
        after = {task_id: gate for task_id, gate in continued.items() if gate is not None}
        self._gates |= await lock_gates(self._tx, self._job_id, [*self._tasks, *after.values()])
        new = [task_id for task_id in self._tasks if task_id not in self._gates]
        if not new:
            return
        count = len(new)
        nothing, kinds, rules = [None] * count, ["TASK"] * count, ["whole"] * count
        await self._tx.fetch(INSERT_GATES, self._job_id, new, nothing, [1] * count, kinds, rules)
        for task_id in new:
            self._gates[task_id] = {"state": "WAITING", "edge_cursor": 0}
            if task_id in after:
                await self._tie(after[task_id], task_id, Previous(task_id))
            else:
                self._asked.add(task_id)

    async def _tie(self, source: int, to: int, by: Previous) -> None:
        choices, known = joined(by.choices), joined(by.known)
        self._edges.append((source, to, choices, known))
        gate = self._gates[source]
        if gate["state"] == "WAITING":
            return
        if to > gate["edge_cursor"]:
            self._asked.add(source)
        else:  # an id that was drawn by a clock behind: the cursor says that it was told
            results = await results_of_continued(self._tx, [source]) if choices else {}
            await self._tx.fetch(ARRIVE_NOW, to, gate["state"], choices, known, source, results.get(source))


async def results_of_continued(tx: Transaction, ids: Sequence[int]) -> dict[int, str]:
    """What those of the tasks that returned others have come to, by their ids."""
    rows = await tx.fetch(CONTINUED, ids)
    return {row["id"]: await spliced(tx, row["result"], row["job_id"]) for row in rows}
