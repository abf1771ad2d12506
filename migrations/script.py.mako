"""${message}"""

from __future__ import annotations

from alembic import context, op

from aaiclick_queue.schema import schema_sql

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(schema_sql(UP, context.config.attributes["schema"]))


def downgrade() -> None:
    op.execute(schema_sql(DOWN, context.config.attributes["schema"]))


UP = ""
DOWN = ""
