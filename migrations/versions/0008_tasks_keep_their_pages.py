"""Tasks keep their pages: vacuum no longer cuts the end off the table, to have it grow again a moment later."""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


# To cut, vacuum locks the table against everybody, and on a standby it ends the queries that read it; under a constant
# load the size went up and down by a third. Changing the option sends no statement of the fleet away.
def upgrade() -> None:
    _execute("ALTER TABLE aaiclick_queue.tasks SET (vacuum_truncate = off, toast.vacuum_truncate = off)")


def downgrade() -> None:
    _execute("ALTER TABLE aaiclick_queue.tasks RESET (vacuum_truncate, toast.vacuum_truncate)")


def _execute(statement: str) -> None:
    op.execute(schema_sql(statement, context.config.attributes["schema"]))
