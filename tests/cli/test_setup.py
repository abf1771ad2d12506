"""`migrate`, `doctor`, `config`."""

from __future__ import annotations

import json

import psycopg
import pytest
from click.testing import CliRunner

from aaiclick_queue import migrate
from aaiclick_queue.cli import main
from aaiclick_queue.settings import PREFIX, Settings
from tests.cli.conftest import Invoke


def test_migrate_brings_an_empty_database_to_the_newest_revision_and_says_so(empty_postgres_url: str) -> None:
    def invoke(*arguments: str) -> str:
        ran = CliRunner().invoke(main, ["migrate", *arguments], env={PREFIX + "POSTGRES_URL": empty_postgres_url})
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    assert "none" in invoke("current")
    assert "would upgrade from nothing" in invoke("upgrade", "--dry-run")
    assert "none" in invoke("current")
    assert f"applied {migrate.HEAD}" in invoke()
    assert f"already at {migrate.HEAD}" in invoke("upgrade", "head")
    assert invoke("current") == f"{migrate.HEAD} (head)\n"
    assert migrate.HEAD in invoke("history")
    assert f"removed {migrate.HEAD}" in invoke("downgrade", "base", "--yes")
    assert "none" in invoke("current")


def test_a_downgrade_is_not_done_unasked(invoke: Invoke) -> None:
    refused = invoke("migrate", "downgrade", "base")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "fix: add --yes" in refused.stderr
    assert invoke("migrate", "current").stdout == f"{migrate.HEAD} (head)\n"


def test_an_unknown_revision_is_not_found(invoke: Invoke) -> None:
    assert invoke("migrate", "upgrade", "nosuch").exit_code == 4


def test_the_doctor_has_a_line_for_each_invariant_and_is_content_with_an_empty_queue(invoke: Invoke) -> None:
    ran = invoke("doctor")
    assert ran.exit_code == 0, ran.output
    findings = json.loads(invoke("doctor", "--json").stdout)
    assert ran.stdout.splitlines() == [f"✔ {finding['name']}" for finding in findings]


@pytest.mark.breaks_invariants
def test_the_doctor_finds_what_is_broken_and_ends_with_1(invoke: Invoke, settings: Settings) -> None:
    invoke("task", "enqueue", "shop.add")
    assert settings.postgres_url is not None
    with psycopg.connect(settings.postgres_url, autocommit=True) as connection:
        connection.execute("DELETE FROM aaiclick_queue.ready")
    ran = invoke("doctor")
    assert ran.exit_code == 1
    assert "✖ every open task is in exactly one place: 1, " in ran.stdout
    assert "  fix: " in ran.stdout


def test_config_shows_every_setting_and_where_it_came_from_without_passwords() -> None:
    env = {PREFIX + "POSTGRES_URL": "postgresql://ada:secret@db/shop", PREFIX + "REDIS_URL": "redis://:secret@cache"}
    text = CliRunner().invoke(main, ["config"], env=env).stdout
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(main, ["config", "--json"], env=env).stdout)}
    assert list(rows) == [PREFIX + name.upper() for name in Settings.model_fields]
    assert rows[PREFIX + "POSTGRES_URL"]["value"] == "postgresql://ada:***@db/shop"
    assert rows[PREFIX + "POSTGRES_URL"]["source"] == "environment"
    assert rows[PREFIX + "LEASE_SECONDS"] | {"value": 30, "source": "default"} == rows[PREFIX + "LEASE_SECONDS"]
    assert all(name in text for name in rows)
    assert "secret" not in text
    assert all("secret" not in str(row["value"]) for row in rows.values())
