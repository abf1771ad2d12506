"""The shape of the repository: its top level."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[2]
FOLDERS = {"aaiclick_queue", "docs", "examples", "migrations", "tests", "workers"}
FILES = {
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "docker-compose.yml",
    "pyproject.toml",
    "requirements.lock",
}
MADE = {"dist", "uv.lock"}  # by tools, ignored by git


def test_the_top_level_holds_what_is_agreed_and_nothing_else() -> None:
    found = {entry.name for entry in PROJECT.iterdir() if not entry.name.startswith((".", "__"))}
    assert found - (FOLDERS | FILES | MADE) == set()
