"""The migrations and the tables say the same."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from aaiclick_queue import migrate
from aaiclick_queue.schema import DEFAULT_SCHEMA
from aaiclick_queue.tables import metadata_for


def test_the_migrated_schema_is_what_the_tables_describe(postgres_url: str) -> None:
    engine = sa.create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool)
    with engine.connect() as connection:
        partitions = set(connection.scalars(sa.text("SELECT relname FROM pg_class WHERE relispartition")))
        ours = {
            "include_schemas": True,
            "include_name": lambda name, kind, _: (
                name == DEFAULT_SCHEMA if kind == "schema" else name not in partitions
            ),
            "version_table_schema": DEFAULT_SCHEMA,
            "compare_server_default": True,
        }
        context = MigrationContext.configure(connection, opts=ours)
        assert compare_metadata(context, metadata_for(DEFAULT_SCHEMA)) == []


def test_the_package_names_the_only_head_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts()))
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]
