"""Alembic environment: runs on the connection that `aaiclick_queue.migrate` hands over, in the queue's own schema."""

from __future__ import annotations

from alembic import context

from aaiclick_queue.tables import metadata_for

connection = context.config.attributes["connection"]
schema: str = context.config.attributes["schema"]

context.configure(
    connection=connection,
    target_metadata=metadata_for(schema),
    version_table="alembic_version",
    version_table_schema=schema,
    include_schemas=True,
    include_name=lambda name, kind, parents: name == schema if kind == "schema" else True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
