"""Cycles: refuses what would wait for itself, named in order. Part of submit; what is written is looked at too.

Before: graph. A group begins and ends: its tasks come in between, what waits for it comes after its end. A task that
others continue has an exit of its own: those behind it wait for that, its group does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ..errors import BadJob
from ..schema import Transaction
from .graph import Plan, Previous

Vertex = tuple[Literal["task", "start", "end", "exit"], int]
Line = tuple[Vertex, Vertex]

WRITTEN_LINES = """
SELECT previous_id, previous_type, next_id, next_type FROM aaiclick_queue.dependencies WHERE job_id = $1
"""
WRITTEN_MEMBERS = """
SELECT 'task' AS kind, t.id, t.group_id AS parent FROM aaiclick_queue.tasks t
WHERE t.job_id = $1 AND t.group_id IS NOT NULL
UNION ALL SELECT 'group', id, parent_group_id FROM aaiclick_queue.groups WHERE job_id = $1
"""
# What tasks have returned: it tells the gate of their continuation. Two looks at the job and no join of it with itself,
# which a plan made on an empty table does row by row.
WRITTEN_AFTERS = "SELECT id, after_gate FROM aaiclick_queue.tasks WHERE job_id = $1 AND after_gate IS NOT NULL"
WRITTEN_RETURNS = """
SELECT t.exit_gate AS after_gate, 'task' AS kind, t.id FROM aaiclick_queue.tasks t
WHERE t.job_id = $1 AND t.exit_gate = ANY($2::bigint[])
UNION ALL
SELECT e.next_gate_id, CASE g.kind WHEN 'GROUP' THEN 'group' ELSE 'task' END, g.id
FROM aaiclick_queue.gates g CROSS JOIN LATERAL (
    SELECT e.next_gate_id FROM aaiclick_queue.gate_edges e WHERE e.gate_id = g.id AND e.next_gate_id = ANY($2::bigint[])
    OFFSET 0) AS e
WHERE g.job_id = $1
"""


def refuse_cycles(
    plan: Plan, written: Iterable[Line] = (), continued: Mapping[int, Sequence[Previous]] | None = None
) -> None:
    """Raise BadJob, naming the nodes in order, if something would wait for itself; groups count with their subtree.

    `written` are lines of the job that are there, `continued` its tasks that have returned others, and these.
    """
    continued = continued or {}
    is_alone = not plan.groups and not written and not continued
    if is_alone and all(one.number < t.number for t in plan.tasks for one in t.previous):
        return  # each waits only for what was planned before it
    after: dict[Vertex, list[Vertex]] = defaultdict(list)
    for start, end in (*_lines(plan), *written):
        is_behind = start[0] == "task" and end[0] != "end" and start[1] in continued
        after[("exit", start[1]) if is_behind else start].append(end)
    for number, returned in continued.items():
        after["task", number].append(("exit", number))
        for one in returned:
            after[("exit", one.number) if one.number in continued else _line_from(one)].append(("exit", number))
    names = {task.number: task.name for task in plan.tasks} | {group.number: group.name for group in plan.groups}
    if cycle := _find_cycle(after):
        shown: list[str] = []
        for kind, number in cycle:
            name = names.get(number, str(number)) + (" (group)" if kind in ("start", "end") else "")
            if not shown or shown[-1] != name:
                shown.append(name)
        if len(shown) == 1 or shown[0] != shown[-1]:
            shown.append(shown[0])
        what = "a cycle, so that none of them could ever start"
        raise BadJob(f"{what}: {' → '.join(shown)}; take one of these arrows out")


async def refuse_cycles_in(
    tx: Transaction, job_id: int, plan: Plan, returned: Mapping[int, Sequence[Previous]]
) -> None:
    """The same with all that the job has; `returned` is what the task that adds the plan goes on with.

    Under the job's gate: what another one adds at the same time may be the other half of a circle.
    """
    continued: dict[int, list[Previous]] = {}
    afters = {row["after_gate"]: row["id"] for row in await tx.fetch(WRITTEN_AFTERS, job_id)}
    for row in await tx.fetch(WRITTEN_RETURNS, job_id, list(afters)) if afters else ():
        continued.setdefault(afters[row["after_gate"]], []).append(Previous(row["id"], row["kind"]))
    refuse_cycles(plan, await _written_lines(tx, job_id), {**continued, **returned})


async def _written_lines(tx: Transaction, job_id: int) -> list[Line]:
    lines: list[Line] = []
    for row in await tx.fetch(WRITTEN_LINES, job_id):
        before: Vertex = ("end" if row["previous_type"] == "group" else "task", row["previous_id"])
        lines.append((before, ("start" if row["next_type"] == "group" else "task", row["next_id"])))
    for row in await tx.fetch(WRITTEN_MEMBERS, job_id):
        number, parent = row["id"], row["parent"]
        if row["kind"] == "task":
            lines += [(("start", parent), ("task", number)), (("task", number), ("end", parent))]
        elif parent is not None:
            lines += [(("start", parent), ("start", number)), (("end", number), ("end", parent))]
    return lines


def _line_from(one: Previous) -> Vertex:
    return ("end", one.number) if one.kind == "group" else ("task", one.number)


def _lines(plan: Plan) -> Iterable[Line]:
    for group in plan.groups:
        yield ("start", group.number), ("end", group.number)
        if group.parent is not None:
            yield ("start", group.parent), ("start", group.number)
            yield ("end", group.number), ("end", group.parent)
        for one in group.previous:
            yield _line_from(one), ("start", group.number)
    for task in plan.tasks:
        if task.group is not None:
            yield ("start", task.group), ("task", task.number)
            yield ("task", task.number), ("end", task.group)
        for one in task.previous:
            yield _line_from(one), ("task", task.number)


def _find_cycle(after: Mapping[Vertex, Sequence[Vertex]]) -> list[Vertex]:
    """A walk that ends where it began, or nothing. Not recursive: a chain may be a hundred thousand long."""
    done: set[Vertex] = set()
    for root in after:
        if root in done:
            continue
        path: list[Vertex] = [root]
        on_path = {root}
        steps = [iter(after.get(root, ()))]
        while steps:
            step = next(steps[-1], None)
            if step is None:
                steps.pop()
                last = path.pop()
                on_path.discard(last)
                done.add(last)
            elif step in on_path:
                return [*path[path.index(step) :], step]
            elif step not in done:
                path.append(step)
                on_path.add(step)
                steps.append(iter(after.get(step, ())))
    return []
