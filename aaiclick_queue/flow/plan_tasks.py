"""The tasks of a plan: those of one kind that wait at gates by the page, all others where each belongs. Part of submit.

Before: plan_rows.py, which writes groups, gates and edges. After: the line, or the resolver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..flags import FORGET, IN_JOB, INPUTS, ORDERED
from ..references import renumbered_inputs
from .enqueue import Spec, column
from .graph import Plan, PlannedTask
from .outbox import append_from
from .place import enter_line

PAGE = 1_000  # rows of a statement: it fits into the buffers of a socket, so Postgres has it while the next is made
LEAST_ALIKE = 50  # tasks of one kind that are worth a statement of their own

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
# Those that wait at a gate which is not opened yet, and never expire: nothing has to be read back to find their place.
# With what a kind has in common said once, 100,000 of them took 2.7 s of Postgres' CPU instead of 3.5.
INSERT_WAITING = """
WITH new AS (
    INSERT INTO aaiclick_queue.tasks (id, job_id, parent_id, kwargs, countdown, eta, correlation_id, metadata,
                                      entrypoint, name, queue, priority, max_attempts, retry, timeout_seconds,
                                      concurrency_key, order_by, order_stops, hooks, group_id, member_gate, wait_gate,
                                      exit_gate, map_index, rule, critical, crowd, spawn_key)
    SELECT id, $1::bigint, $2::bigint, kwargs::jsonb, countdown, eta, correlation_id, metadata::jsonb, $3::text, name,
           $4::text, $5::int, $6::int, $7::text::jsonb, $8::float8, concurrency_key, order_by,
           nullif($9::boolean, false), $10::text::jsonb, group_id, coalesce(group_id, $1::bigint), wait_gate, exit_gate,
           map_index, rule, critical, crowd, spawn_key
    FROM unnest($11::bigint[], $12::text[], $13::float8[], $14::timestamptz[], $15::text[], $16::text[], $17::text[],
                $18::text[], $19::text[], $20::bigint[], $21::bigint[], $22::bigint[], $23::int[], $24::text[],
                $25::boolean[], $26::text[], $27::text[])
         AS given(id, kwargs, countdown, eta, correlation_id, metadata, name, concurrency_key, order_by, group_id,
                  wait_gate, exit_gate, map_index, rule, critical, crowd, spawn_key)
)
INSERT INTO aaiclick_queue.waiting (gate_id, task_id, flags)
SELECT wait_gate, id, flags FROM unnest($11::bigint[], $21::bigint[], $28::int[]) AS given(id, wait_gate, flags)
"""

Call = tuple[str, list[Any]]


class Placing(msgspec.Struct):
    """What every task of the plan is written with."""

    job_id: int
    spawned_by: int | None
    ids: Mapping[int, int]
    waits: Mapping[int, int]  # task → gate
    exits: Mapping[int, int]
    crowds: Mapping[int | None, str | None]
    opened: Collection[int]

    def calls(self, plan: Plan) -> Iterator[Call]:
        """The statements that write the tasks, with their arguments."""
        alike: dict[Spec, list[PlannedTask]] = {}
        of_spec: dict[int, list[PlannedTask]] = {}  # most have the same one, and to compare it takes a while
        others: list[PlannedTask] = []
        for one in plan.tasks:
            gate = self.waits.get(one.number)
            if gate is None or gate in self.opened or one.task.expires is not None:
                others.append(one)
                continue
            if id(one.spec) not in of_spec:
                of_spec[id(one.spec)] = alike.setdefault(one.spec, [])
            of_spec[id(one.spec)].append(one)
        for some in alike.values():
            if len(some) < LEAST_ALIKE:
                others += some
                continue
            for page in pages(some, PAGE):
                yield INSERT_WAITING, self._waiting(some[0].spec, page)
        for page in pages(others, PAGE):
            yield INSERT_TASKS, self._any(page)

    def _waiting(self, spec: Spec, some: Sequence[PlannedTask]) -> list[Any]:
        kwargs, flags = self._arguments(some)
        common = (spec.entrypoint, spec.queue, spec.priority, spec.max_attempts, spec.retry, spec.timeout)
        return [
            self.job_id,
            self.spawned_by,
            *common,
            spec.flags & 8 == 8,
            spec.hooks,
            [self.ids[one.number] for one in some],
            kwargs,
            column([one.task.countdown for one in some]),
            column([one.task.eta for one in some]),
            column([one.task.correlation_id for one in some]),
            column([one.task.metadata for one in some]),
            [one.name for one in some],
            *self._keys_and_gates(some),
            flags,
        ]

    def _any(self, some: Sequence[PlannedTask]) -> list[Any]:
        kwargs, flags = self._arguments(some)
        expires = [one.task.expires for one in some]
        keys, orders, *rest = self._keys_and_gates(some)
        return [
            self.job_id,
            self.spawned_by,
            [self.ids[one.number] for one in some],
            kwargs,
            column([one.task.countdown for one in some]),
            column([one.task.eta for one in some]),
            column([value if isinstance(value, float | int) else None for value in expires]),
            column([value if isinstance(value, datetime) else None for value in expires]),
            column([one.task.correlation_id for one in some]),
            column([one.task.metadata for one in some]),
            [one.spec.entrypoint for one in some],
            [one.name for one in some],
            [one.spec.queue for one in some],
            [one.spec.priority for one in some],
            column([one.spec.max_attempts for one in some]),
            column([one.spec.retry for one in some]),
            column([one.spec.timeout for one in some]),
            keys,
            orders,
            flags,
            column([one.spec.hooks for one in some]),
            *rest,
            list(self.opened),
        ]

    def _keys_and_gates(self, some: Sequence[PlannedTask]) -> list[list[Any] | None]:
        ids, waits, exits, whole = self.ids, self.waits, self.exits, self.crowds[None]
        groups = column([one.group for one in some])
        return [
            column([one.task.concurrency_key for one in some]),
            column([one.task.order_by for one in some]),
            groups and [None if number is None else ids.get(number, number) for number in groups],
            column([None if (gate := waits.get(one.number)) is None else ids.get(gate, gate) for one in some]),
            column([None if (gate := exits.get(one.number)) is None else ids.get(gate, gate) for one in some]),
            column([one.map_index for one in some]),
            column([None if one.rule == "all_success" else one.rule for one in some]),
            column([None if one.critical else False for one in some]),
            column([self.crowds.get(one.group) or whole for one in some]),
            column([one.task.spawn_key for one in some]),
        ]

    def _arguments(self, some: Sequence[PlannedTask]) -> tuple[list[str], list[int]]:
        """Arguments that name nodes by their ids, and the flags, which tell of them."""
        texts, flags = [], []
        for one in some:
            text, has_inputs = one.task.kwargs, False
            if '{"$' in text:
                text, has_inputs = renumbered_inputs(text, self.ids)
            texts.append(text)
            # The rows of a job go together, when the job is pruned: those behind a task need its result.
            flag = (one.spec.flags & ~FORGET) | IN_JOB
            flag |= ORDERED if one.task.order_by is not None else 0
            flags.append(flag | INPUTS if has_inputs else flag)
        return texts, flags


def pages(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """The rows, as many at a time as one statement takes."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
