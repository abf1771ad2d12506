"""Every statement of the package is held against every role: Postgres itself says who may run it."""

from __future__ import annotations

import re

import asyncpg

from aaiclick_queue.postgres import Database
from aaiclick_queue.roles import Kind
from aaiclick_queue.schema import schema_sql
from aaiclick_queue.settings import Settings
from tests.security.guarded import Guarded
from tests.test_statements import statements

WRITES = re.compile(r"\b(INSERT INTO|UPDATE aaiclick_queue|DELETE FROM|FOR UPDATE|FOR SHARE)\b|ensure_part|drop_day")
# What putting tasks and jobs in line runs, and nothing else of the flow that writes.
ENQUEUE_WRITES = {
    "dedupe.LOCK_KEY", "dedupe.PASS_KEY_ON", "dedupe.TAKE_KEY", "enqueue.ENQUEUE", "limits.QUEUE_FULL",
    "plain.ENQUEUE_PLAIN",
    "plan_rows.INSERT_DEPENDENCIES", "plan_rows.INSERT_EDGES", "plan_rows.INSERT_GATES", "plan_rows.INSERT_GROUPS",
    "plan_tasks.INSERT_TASKS", "plan_tasks.INSERT_WAITING", "relay.FORGET_OUTBOX_ROWS", "submit.INSERT_JOB",
    "attach.LOOK_AT",
    # Others that add a key, or an event, as an enqueue does.
    "idempotency.TAKE", "limits.NOTE_LIMIT",
}  # fmt: skip


async def refused(guarded: Guarded, tables: Settings, kind: Kind) -> dict[str, str]:
    """The statements that the role may not run, and why."""
    found = {}
    async with Database(guarded.as_(tables, kind), size=1) as db, db.connection() as connection:
        for name, sql in statements().items():
            try:
                # Rights are looked at when a plan is made ready to run, so none needs parameters, or rows.
                await connection.raw.execute("EXPLAIN (GENERIC_PLAN) " + schema_sql(sql, tables.postgres_schema))
            except asyncpg.InsufficientPrivilegeError as error:
                found[name] = str(error)
    return found


async def test_a_worker_may_run_every_statement_but_those_on_tokens(guarded: Guarded, tables: Settings) -> None:
    found = await refused(guarded, tables, "worker")
    assert set(found.values()) == {"permission denied for table tokens"}
    assert {name for name, sql in statements().items() if "aaiclick_queue.tokens" in sql} == set(found)


async def test_an_operator_may_run_every_statement(guarded: Guarded, tables: Settings) -> None:
    assert await refused(guarded, tables, "operator") == {}


async def test_a_reader_may_run_every_statement_that_only_reads(guarded: Guarded, tables: Settings) -> None:
    found = await refused(guarded, tables, "read")
    closed = {name for name, sql in statements().items() if WRITES.search(sql) or "aaiclick_queue.tokens" in sql}
    assert set(found) == closed
    assert len(found) < len(statements()) / 2


async def test_whoever_enqueues_may_run_what_that_needs_and_no_other_change(guarded: Guarded, tables: Settings) -> None:
    found = await refused(guarded, tables, "enqueue")
    allowed = {name for name, sql in statements().items() if WRITES.search(sql) and name not in found}
    assert {re.sub(r".*\.(\w+\.\w+)\[\d+\]", r"\1", name) for name in allowed} - ENQUEUE_WRITES <= {
        f"{module}.{name}"
        for module in ("reset", "reenter", "resolve", "submit", "attach")
        for name in ("INSERT_EDGES", "INSERT_GATES", "LOOK_AT")
    }  # the same statements, imported there
    assert {name for name in ENQUEUE_WRITES if not any(one.endswith(f"{name}[0]") for one in allowed)} == set()
