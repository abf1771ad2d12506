"""Database roles that may do only what they are for; made by `migrate roles`, kept up by every migration.

Each is a group without a login, named after the schema: give a login its rights with GRANT aaiclick_queue_worker TO it.
Their rights are stated anew after each migration, for whichever of them may use the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from .errors import BadTask
from .schema import quoted

if TYPE_CHECKING:
    from sqlalchemy import Connection

Kind = Literal["enqueue", "results", "worker", "read", "operator"]
KINDS: Mapping[Kind, str] = {
    "enqueue": "puts tasks and jobs in line, and reads none of them",
    "results": "waits for results: status, result and error of every task and job, no arguments",
    "worker": "all that the flow does, and no change of any table's shape, no tokens of the HTTP API",
    "read": "reads everything but the tokens of the HTTP API",
    "operator": "what workers may, and the tokens: for the HTTP server and the command line",
}
assert tuple(KINDS) == get_args(Kind)
LONGEST_NAME = 63  # bytes; Postgres would cut the rest off, and two roles would be one

# Columns of a new task: without those that say how it ended, so that nobody enqueues an outcome.
_NEW_TASK = (
    "id, queue, entrypoint, name, kwargs, priority, max_attempts, retry, timeout_seconds, correlation_id, metadata,"
    " parent_id, spawn_key, eta, expires_at, countdown, concurrency_key, order_by, order_stops, keep, hooks, job_id,"
    " group_id, member_gate, wait_gate, exit_gate, map_index, rule, critical, crowd"
)
# What the statements that write a task give back, or look at: never its arguments.
_SEEN_OF_TASK = (
    "id, queue, priority, entrypoint, eta, countdown, expires_at, concurrency_key, order_by, job_id, crowd, wait_gate,"
    " status, spawn_key, parent_id, group_id"
)
_NEW_JOB = (
    "id, name, run_type, entrypoint, kwargs, returns, priority, max_parallel, fail_fast, hooks, metadata,"
    " correlation_id, submitted_by, deadline_at, registered_job_id, retention_seconds"
)
_ENQUEUE: Mapping[str, str] = {
    "alembic_version": "SELECT",
    "tasks": f"INSERT ({_NEW_TASK}), SELECT ({_SEEN_OF_TASK})",
    "jobs": f"INSERT ({_NEW_JOB}), SELECT (id, name, status)",
    "ready": "INSERT, SELECT",
    "held": "INSERT, SELECT",
    "delayed": "INSERT",
    "timers": "INSERT",
    "waiting": "INSERT",
    "groups": "INSERT, SELECT (id)",
    "gates": "INSERT, SELECT (id)",
    "gate_edges": "INSERT",
    "dependencies": "INSERT",
    "arrivals": "INSERT",
    "events": "INSERT",
    # Hints, of which none is needed: the process that wrote one publishes and forgets it.
    "outbox": "INSERT, SELECT, DELETE",
    "dedupe": "INSERT, SELECT, UPDATE",
    "queues": "SELECT, UPDATE (full_at)",
    "limits": "SELECT",
    "workers": "SELECT (secrets)",
}
_RESULTS: Mapping[str, str] = {
    "alembic_version": "SELECT",
    "tasks": "SELECT (id, status, result, error, attempt, job_id, after_gate, finished_at)",
    "jobs": "SELECT (id, status, returns, error, finished_at)",
    "gates": "SELECT (id, state)",
}
TOKENS = "tokens"
VERSION = "alembic_version"

ROLES_OF_SCHEMA = """
SELECT DISTINCT r.rolname::text AS name
FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) AS a JOIN pg_roles r ON r.oid = a.grantee
WHERE n.nspname = $1::text AND r.rolname = ANY($2::text[])
"""
# Not the days of history: who goes through their table needs no right on them.
RELATIONS = """
SELECT c.relname::text AS name, c.relkind::text AS kind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relkind IN ('r', 'p', 'v', 'S') AND NOT c.relispartition ORDER BY c.relname
"""


def role_name(schema: str, kind: Kind) -> str:
    """The role of a kind for the tables of a schema."""
    name = f"{schema}_{kind}"
    if len(name.encode()) > LONGEST_NAME:
        raise BadTask(
            f"the name of the role {name} is longer than {LONGEST_NAME} bytes: choose a shorter POSTGRES_SCHEMA"
        )
    return name


def create_statements(schema: str) -> Iterator[str]:
    """Makes the roles that are not there; needs CREATEROLE."""
    home = quoted(schema)
    yield f"CREATE SCHEMA IF NOT EXISTS {home}"
    for kind in KINDS:
        name = quoted(role_name(schema, kind))
        yield (
            f"DO $do$ BEGIN CREATE ROLE {name} NOLOGIN; "
            "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $do$"
        )
        yield f"GRANT USAGE ON SCHEMA {home} TO {name}"


def grant_statements(schema: str, kinds: Sequence[Kind], there: Sequence[tuple[str, str]]) -> Iterator[str]:
    """States the rights of these roles on the tables, views and sequences that are there, and takes all others away."""
    home = quoted(schema)
    for kind in kinds:
        role = quoted(role_name(schema, kind))
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {home} FROM {role}"
        yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {home} FROM {role}"
        for name, what in there:
            if rights := _rights(kind, name, what):
                yield f"GRANT {rights} ON {'SEQUENCE' if what == 'S' else 'TABLE'} {home}.{quoted(name)} TO {role}"
        if kind in ("worker", "operator"):
            for function in ("ensure_partitions(integer)", "drop_day(text)"):
                yield f"GRANT EXECUTE ON FUNCTION {home}.{function} TO {role}"


def keep_up(connection: Connection, schema: str) -> None:
    """State the rights anew of those roles that may use the schema."""
    names = {f"{schema}_{kind}": kind for kind in KINDS}
    found = connection.exec_driver_sql(ROLES_OF_SCHEMA, (schema, list(names))).scalars().all()
    for statement in grant_statements(schema, [names[name] for name in found], relations(connection, schema)):
        connection.exec_driver_sql(statement)


def relations(connection: Connection, schema: str) -> list[tuple[str, str]]:
    """The name and kind of each table, view and sequence."""
    return [(row.name, row.kind) for row in connection.exec_driver_sql(RELATIONS, (schema,))]


def _rights(kind: Kind, name: str, what: str) -> str | None:
    if what == "S":
        # Every client draws a number for the ids it may make, also one that makes none.
        return "USAGE" if name == "node_ids" or kind in ("worker", "operator", "enqueue") else None
    if kind in ("enqueue", "results"):
        return (_ENQUEUE if kind == "enqueue" else _RESULTS).get(name)
    if name == TOKENS:
        return "SELECT, INSERT, UPDATE" if kind == "operator" else None
    if name == VERSION or what == "v" or kind == "read":
        return "SELECT"
    return "SELECT, INSERT, UPDATE, DELETE"
