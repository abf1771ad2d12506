"""A Postgres that asks for passwords, with databases of whoever asks and a login in each role."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import psycopg

from aaiclick_queue.roles import KINDS, Kind, role_name
from aaiclick_queue.settings import Settings
from tests.servers import OwnPostgres

PASSWORD = "p@ss/w:rd"
QUOTED = "p%40ss%2Fw%3Ard"
HBA = """
host all postgres 127.0.0.1/32 trust
host all all      127.0.0.1/32 scram-sha-256
"""
OWNER = "queue_owner"


class Guarded:
    """The server; databases belong to `queue_owner`, who is no superuser and may create roles."""

    def __init__(self) -> None:
        self._server = OwnPostgres(hba=HBA, password_encryption="scram-sha-256")

    def __enter__(self) -> Self:
        self._server.start()
        self.run(f"CREATE ROLE {OWNER} LOGIN CREATEROLE PASSWORD '{PASSWORD}'")
        self.run(f"CREATE ROLE nobody LOGIN PASSWORD '{PASSWORD}'")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def run(self, script: str, database: str = "postgres") -> None:
        """Run something as superuser."""
        with psycopg.connect(self._server.url.removesuffix("postgres") + database, autocommit=True) as connection:
            connection.execute(script.encode())

    @contextmanager
    def new_database(self, schema: str, template: str = "template1") -> Iterator[Settings]:
        """A database of its own, as its owner sees it; gone at the end."""
        name = f"db_{uuid.uuid4().hex[:8]}"
        self.run(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE {template}")
        try:
            yield Settings.load({}, postgres_url=self.url(OWNER, name), postgres_schema=schema, lease_seconds=2)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def make_logins(self, schema: str) -> None:
        """A login in each role of the schema."""
        for kind in KINDS:
            self.run(f"CREATE ROLE {schema}_{kind}_login LOGIN PASSWORD '{PASSWORD}' IN ROLE {role_name(schema, kind)}")

    def url(self, login: str, database: str) -> str:
        return f"postgresql://{login}:{QUOTED}@127.0.0.1:{self._server.port}/{database}"

    def as_(self, settings: Settings, kind: Kind) -> Settings:
        """The same settings with the login of a role."""
        assert settings.postgres_url
        database = settings.postgres_url.rpartition("/")[2]
        return settings.model_copy(
            update={"postgres_url": self.url(f"{settings.postgres_schema}_{kind}_login", database)}
        )
