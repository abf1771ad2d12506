"""The rows of a plan: groups, gates, edges, tasks where they belong, dependencies. Part of submit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ..meters import METERS
from ..postgres import Connection
from ..schema import Transaction
from .enqueue import Told, column, told_by
from .graph import Layout, Plan, PlannedGroup, PlannedTask, Previous, without_doubles
from .plan_tasks import PAGE, Call, Placing, pages

BULK = 10_000

INSERT_GROUPS = """
INSERT INTO aaiclick_queue.groups (id, job_id, parent_group_id, spawned_by, entry_gate, max_parallel, mapped, name,
                                   rule, crowd)
SELECT id, $1::bigint, parent_group_id, $2::bigint, entry_gate, max_parallel, mapped, name, rule, crowd
FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::boolean[], $8::text[], $9::text[], $10::text[])
     AS given(id, parent_group_id, entry_gate, max_parallel, mapped, name, rule, crowd)
"""
INSERT_GATES = """
INSERT INTO aaiclick_queue.gates (id, job_id, parent_id, total, remaining, failed, skipped, kind, rule, state,
                                  decided_at)
SELECT id, $1::bigint, parent_id, total, total, 0, 0, kind, rule,
       CASE WHEN kind = 'GROUP' AND total = 0 THEN 'OPEN' ELSE 'WAITING' END,
       CASE WHEN kind = 'GROUP' AND total = 0 THEN now() END
FROM unnest($2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::text[]) AS given(id, parent_id, total, kind, rule)
"""
INSERT_EDGES = """
INSERT INTO aaiclick_queue.gate_edges (gate_id, next_gate_id, choices, known)
SELECT gate_id, next_gate_id, string_to_array(choices, chr(1)), string_to_array(known, chr(1))
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS given(gate_id, next_gate_id, choices, known)
ON CONFLICT DO NOTHING
"""
# What most arrows are, from a task to a task and needed, is not said for each: the driver looks at every value.
INSERT_DEPENDENCIES = """
INSERT INTO aaiclick_queue.dependencies (job_id, previous_id, previous_type, next_id, next_type, any_of, choices, known)
SELECT $1::bigint, previous_id, coalesce(previous_type, 'task'), next_id, coalesce(next_type, 'task'),
       coalesce(any_of, false), string_to_array(choices, chr(1)), string_to_array(known, chr(1))
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::boolean[], $7::text[], $8::text[])
     AS given(previous_id, previous_type, next_id, next_type, any_of, choices, known)
"""


class PlanWriter:
    """Writes the rows of one plan, a few statements for any number of them."""

    def __init__(  # noqa: PLR0913 - one value a fact
        self,
        tx: Transaction,
        job_id: int,
        ids: Mapping[int, int],
        *,
        plan: Plan,
        layout: Layout,
        crowds: Mapping[int | None, str | None] | None = None,
    ) -> None:
        self._tx = tx
        self._job_id = job_id
        self._ids = ids
        self._plan = plan
        self._layout = layout
        self._crowds: dict[int | None, str | None] = dict(crowds or {})
        self.told: list[Told] = []

    def _id(self, number: int | None) -> int | None:
        return None if number is None else self._ids.get(number, number)

    async def write(self, *, crowd: str | None, spawned_by: int | None = None, opened: Collection[int] = ()) -> None:
        """All rows of the plan; what would wait at a gate that is opened already does not."""
        self._crowds[None] = crowd
        await self._groups(spawned_by)
        gates = self._layout.gates
        for some in pages(gates, BULK):
            await self._tx.fetch(
                INSERT_GATES,
                self._job_id,
                [self._id(gate.number) for gate in some],
                [(self._id(gate.parent) or self._job_id) if gate.kind == "GROUP" else None for gate in some],
                [gate.total for gate in some],
                [gate.kind for gate in some],
                [gate.rule for gate in some],
            )
        for some_edges in pages(self._layout.edges, BULK):
            await self._tx.fetch(
                INSERT_EDGES,
                [self._id(edge.gate) for edge in some_edges],
                [self._id(edge.next) for edge in some_edges],
                column([joined(edge.choices) for edge in some_edges]),
                column([joined(edge.known) for edge in some_edges]),
            )
        if METERS.on:
            for one in self._plan.tasks:
                METERS.created(one.spec.queue, one.spec.entrypoint, 1)
        layout, crowds = self._layout, self._crowds
        placing = Placing(self._job_id, spawned_by, self._ids, layout.waits, layout.exits, crowds, opened)
        told = await in_turn(self._tx, placing.calls(self._plan))
        self.told += told_by(told)
        await in_turn(self._tx, self._dependencies())

    async def _groups(self, spawned_by: int | None) -> None:
        groups = self._plan.groups
        by_number: dict[int | None, PlannedGroup] = {group.number: group for group in groups}
        for group in groups:
            self._crowd_of(group.number, by_number)
        for some in pages(groups, BULK):
            await self._tx.fetch(
                INSERT_GROUPS,
                self._job_id,
                spawned_by,
                [self._id(group.number) for group in some],
                [self._id(group.parent) for group in some],
                [self._id(self._layout.entries.get(group.number)) for group in some],
                [group.max_parallel for group in some],
                [group.mapped for group in some],
                [group.name for group in some],
                [None if group.rule == "all_success" else group.rule for group in some],
                [self._crowds[group.number] for group in some],
            )

    def _crowd_of(self, number: int | None, groups: Mapping[int | None, PlannedGroup]) -> str | None:
        """What the tasks of a group are counted in: the caps of the groups around it first, in whatever order given."""
        if number not in self._crowds:
            group = groups[number]
            own = None if group.max_parallel is None else f"{self._id(number)}={group.max_parallel}"
            above = self._crowd_of(group.parent, groups)
            self._crowds[number] = "/".join(part for part in (above, own) if part) or None
        return self._crowds[number]

    def _dependencies(self) -> Iterator[Call]:
        rows = self._arrows()
        while some := list(itertools.islice(rows, PAGE)):
            yield INSERT_DEPENDENCIES, [self._job_id, *(column(list(one)) for one in zip(*some, strict=True))]

    def _arrows(self) -> Iterator[tuple[int, str | None, int, str | None, bool | None, str | None, str | None]]:
        """Each once, and what waits is always new: none of them can be there."""
        ids = self._ids
        joints: Iterable[tuple[str | None, PlannedTask | PlannedGroup]] = (
            *((None, task) for task in self._plan.tasks),
            *(("group", group) for group in self._plan.groups),
        )
        for kind, joint in joints:
            arrows: Iterable[Previous] = joint.previous
            if len(joint.previous) > 1:
                arrows = without_doubles(frozenset(joint.previous))
            at = ids[joint.number]
            for one in arrows:
                choices, known = (joined(one.choices), joined(one.known)) if one.choices else (None, None)
                from_ = None if one.kind == "task" else one.kind
                yield ids.get(one.number, one.number), from_, at, kind, one.any_of or None, choices, known


async def in_turn(tx: Transaction, calls: Iterator[Call]) -> list[Any]:
    """Run the statements one after another; the arguments of the next are made while Postgres works on the one before.

    Not in the transaction of a caller, who may have no event loop.
    """
    rows: list[Any] = []
    if not isinstance(tx, Connection):
        for sql, given in calls:
            rows += await tx.fetch(sql, *given)
        return rows
    call = next(calls, None)
    while call is not None:
        running = asyncio.ensure_future(tx.fetch(call[0], *call[1]))
        try:
            await asyncio.sleep(0)  # its first step sends the statement
            call = next(calls, None)
        except BaseException:
            running.cancel()
            await asyncio.wait([running])
            raise
        rows += await running
    return rows


def joined(names: Iterable[str]) -> str | None:
    """Names as one parameter of a statement."""
    return "\x01".join(names) or None
