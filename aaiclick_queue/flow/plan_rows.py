"""The rows of a plan: groups, gates, edges, tasks where they belong, dependencies. Part of submit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ..flags import FORGET, IN_JOB, INPUTS, ORDERED
from ..meters import METERS
from ..references import references, renumbered
from ..schema import Transaction
from .enqueue import Told
from .graph import Layout, Plan, PlannedGroup, PlannedTask, without_doubles
from .outbox import append_from
from .place import enter_line

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
INSERT_DEPENDENCIES = """
INSERT INTO aaiclick_queue.dependencies (job_id, previous_id, previous_type, next_id, next_type, any_of, choices, known)
SELECT $1::bigint, previous_id, previous_type, next_id, next_type, any_of, string_to_array(choices, chr(1)),
       string_to_array(known, chr(1))
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::boolean[], $7::text[], $8::text[])
     AS given(previous_id, previous_type, next_id, next_type, any_of, choices, known)
ON CONFLICT DO NOTHING
"""
# Tasks of many kinds in one statement, each put where it belongs: at its gate, among the delayed, or in line.
INSERT_TASKS = f"""
WITH new AS (
    INSERT INTO aaiclick_queue.tasks (id, job_id, parent_id, kwargs, countdown, eta, expires_at, correlation_id,
                                      metadata, entrypoint, name, queue, priority, max_attempts, retry,
                                      timeout_seconds, concurrency_key, order_by, order_stops, hooks, group_id,
                                      member_gate, wait_gate, exit_gate, map_index, rule, critical, crowd, spawn_key)
    SELECT id, $1::bigint, $2::bigint, kwargs::jsonb, countdown, eta,
           coalesce(expires_at, now() + make_interval(secs => expires_in)), correlation_id, metadata::jsonb, entrypoint,
           name, queue, priority, max_attempts, retry::jsonb, timeout_seconds, concurrency_key, order_by,
           nullif(flags & 8 = 8, false), hooks::jsonb, group_id, coalesce(group_id, $1::bigint), wait_gate, exit_gate,
           map_index, rule, critical, crowd, spawn_key
    FROM unnest($3::bigint[], $4::text[], $5::float8[], $6::timestamptz[], $7::float8[], $8::timestamptz[], $9::text[],
                $10::text[], $11::text[], $12::text[], $13::text[], $14::int[], $15::int[], $16::text[], $17::float8[],
                $18::text[], $19::text[], $20::int[], $21::text[], $22::bigint[], $23::bigint[], $24::bigint[],
                $25::int[], $26::text[], $27::boolean[], $28::text[], $29::text[])
         AS given(id, kwargs, countdown, eta, expires_in, expires_at, correlation_id, metadata, entrypoint, name, queue,
                  priority, max_attempts, retry, timeout_seconds, concurrency_key, order_by, flags, hooks, group_id,
                  wait_gate, exit_gate, map_index, rule, critical, crowd, spawn_key)
    RETURNING id, queue, priority, entrypoint, eta, countdown, expires_at, concurrency_key, order_by, job_id, crowd,
              wait_gate
), placed AS MATERIALIZED (
    SELECT new.id AS task_id, coalesce(new.job_id, new.id) AS order_key, 0 AS run_epoch, 0 AS attempt, 0 AS lost_count,
           0 AS snoozes, given.flags, new.queue, -new.priority::int AS rank, new.entrypoint, new.concurrency_key,
           new.order_by, new.job_id, new.crowd, new.wait_gate, new.expires_at,
           new.wait_gate IS NOT NULL AND NOT coalesce(new.wait_gate = ANY($30::bigint[]), false) AS waits,
           coalesce(now() + make_interval(secs => new.countdown), new.eta) AS due
    FROM new JOIN unnest($3::bigint[], $20::int[]) AS given(id, flags) ON given.id = new.id
), at_gates AS (
    INSERT INTO aaiclick_queue.waiting (gate_id, task_id, flags)
    SELECT wait_gate, task_id, flags FROM placed WHERE waits
), later AS (
    INSERT INTO aaiclick_queue.delayed (task_id, not_before, order_key, rank, flags, queue, reason)
    SELECT task_id, due, order_key, rank, flags, queue, 'eta' FROM placed WHERE NOT waits AND due > now()
), timers AS (
    INSERT INTO aaiclick_queue.timers (task_id, due_at) SELECT task_id, expires_at FROM placed
    WHERE expires_at IS NOT NULL
), at_once AS (
    SELECT task_id, order_key, run_epoch, attempt, lost_count, snoozes, flags, queue, rank, entrypoint, concurrency_key,
           order_by, job_id, crowd FROM placed WHERE NOT waits AND (due IS NULL OR due <= now())
), {enter_line("at_once").replace("placed", "entering")}, told AS (
    {append_from("entered")}
)
SELECT told.id AS outbox_id, told.queue, told.rank, told.order_key, told.n, told.task_ids FROM told
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
        self._opened: list[int] = []
        self.told: list[Told] = []

    def _id(self, number: int | None) -> int | None:
        return None if number is None else self._ids.get(number, number)

    async def _insert(self, statement: str, *columns: Any) -> Sequence[Any]:
        # A column that nobody set goes as NULL, and unnest pads it: the driver looks at every value of an array.
        given = (None if isinstance(one, list) and one.count(None) == len(one) else one for one in columns)
        return await self._tx.fetch(statement, *given)

    async def write(self, *, crowd: str | None, spawned_by: int | None = None, opened: Collection[int] = ()) -> None:
        """All rows of the plan; what would wait at a gate that is opened already does not."""
        self._crowds[None] = crowd
        self._opened = list(opened)
        await self._groups(spawned_by)
        gates = self._layout.gates
        for some in _pages(gates):
            await self._tx.fetch(
                INSERT_GATES,
                self._job_id,
                [self._id(gate.number) for gate in some],
                [(self._id(gate.parent) or self._job_id) if gate.kind == "GROUP" else None for gate in some],
                [gate.total for gate in some],
                [gate.kind for gate in some],
                [gate.rule for gate in some],
            )
        for some_edges in _pages(self._layout.edges):
            await self._insert(
                INSERT_EDGES,
                [self._id(edge.gate) for edge in some_edges],
                [self._id(edge.next) for edge in some_edges],
                [joined(edge.choices) for edge in some_edges],
                [joined(edge.known) for edge in some_edges],
            )
        if METERS.on:
            for one in self._plan.tasks:
                METERS.created(one.spec.queue, one.spec.entrypoint, 1)
        for some_tasks in _pages(self._plan.tasks):
            await self._tasks(some_tasks, spawned_by)
        await self._dependencies()

    async def _groups(self, spawned_by: int | None) -> None:
        groups = self._plan.groups
        by_number: dict[int | None, PlannedGroup] = {group.number: group for group in groups}
        for group in groups:
            self._crowd_of(group.number, by_number)
        for some in _pages(groups):
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

    async def _tasks(self, some: Sequence[PlannedTask], spawned_by: int | None) -> None:
        layout, texts = self._layout, [one.task.kwargs for one in some]
        kwargs = [renumbered(text, self._ids) if '{"$' in text else text for text in texts]
        expires = [one.task.expires for one in some]
        rows = await self._insert(
            INSERT_TASKS,
            self._job_id,
            spawned_by,
            [self._id(one.number) for one in some],
            kwargs,
            [one.task.countdown for one in some],
            [one.task.eta for one in some],
            [value if isinstance(value, float | int) else None for value in expires],
            [value if isinstance(value, datetime) else None for value in expires],
            [one.task.correlation_id for one in some],
            [one.task.metadata for one in some],
            [one.spec.entrypoint for one in some],
            [one.name for one in some],
            [one.spec.queue for one in some],
            [one.spec.priority for one in some],
            [one.spec.max_attempts for one in some],
            [one.spec.retry for one in some],
            [one.spec.timeout for one in some],
            [one.task.concurrency_key for one in some],
            [one.task.order_by for one in some],
            [_flags(one) for one in some],
            [one.spec.hooks for one in some],
            [self._id(one.group) for one in some],
            [self._id(layout.waits.get(one.number)) for one in some],
            [self._id(layout.exits.get(one.number)) for one in some],
            [one.map_index for one in some],
            [None if one.rule == "all_success" else one.rule for one in some],
            [None if one.critical else False for one in some],
            [self._crowds.get(one.group) or self._crowds[None] for one in some],
            [one.task.spawn_key for one in some],
            self._opened,
        )
        self.told += [
            Told(row["outbox_id"], row["queue"], row["rank"], row["order_key"], row["n"], tuple(row["task_ids"]))
            for row in rows
        ]

    async def _dependencies(self) -> None:
        rows = [
            (
                self._id(one.number),
                one.kind,
                self._id(number),
                kind,
                one.any_of,
                *map(joined, (one.choices, one.known)),
            )
            for kind, number, previous in (
                *(("task", task.number, task.previous) for task in self._plan.tasks),
                *(("group", group.number, group.previous) for group in self._plan.groups),
            )
            for one in without_doubles(frozenset(previous))
        ]
        for some in _pages(rows):
            columns = [list(column) for column in zip(*some, strict=True)]
            await self._insert(INSERT_DEPENDENCIES, self._job_id, *columns)


def _flags(one: PlannedTask) -> int:
    # The rows of a job go together, when the job is pruned: those behind a task need its result.
    flags = (one.spec.flags & ~FORGET) | IN_JOB
    if one.task.order_by is not None:
        flags |= ORDERED
    if '{"$' in one.task.kwargs and next(references(one.task.kwargs), None):
        flags |= INPUTS
    return flags


def joined(names: Iterable[str]) -> str | None:
    """Names as one parameter of a statement."""
    return "\x01".join(names) or None


def _pages(rows: Sequence[Any]) -> Iterable[Sequence[Any]]:
    for start in range(0, len(rows), BULK):
        yield rows[start : start + BULK]
