"""The shape of the repository: its top level and its lock file."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def test_the_lock_pins_all_that_is_asked_for_and_names_no_address() -> None:
    text = (PROJECT / "requirements.lock").read_text()
    assert "://" not in text
    locked = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in (Requirement(line.rstrip(" \\")) for line in text.splitlines() if line[:1].isalnum())
    }
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    asked = [
        Requirement(text)
        for texts in (project["project"]["dependencies"], *extras, *groups)
        for text in texts
        if isinstance(text, str) and not text.startswith("aaiclick-queue")
    ]
    unmet = [str(wish) for wish in asked if not wish.specifier.contains(locked.get(canonicalize_name(wish.name), "0"))]
    assert unmet == [], "run: make lock"
