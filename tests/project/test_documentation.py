"""What the documents say is so: settings, public names, links, examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aaiclick_queue
from aaiclick_queue.settings import PREFIX, Settings
from tests.project.settings_table import README, parts, settings_table

PROJECT = README.parent
PAGES = [README, PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]
EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))


def test_the_readme_shows_every_setting_as_the_code_has_it() -> None:
    assert parts(README.read_text())[1] == settings_table(), "run: .venv/bin/python -m tests.project.settings_table"


def test_every_setting_says_what_it_does() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_every_public_name_is_documented() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in aaiclick_queue.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_public_name_is_there_and_they_are_sorted() -> None:
    assert [name for name in aaiclick_queue.__all__ if not hasattr(aaiclick_queue, name)] == []
    assert sorted(aaiclick_queue.__all__) == list(aaiclick_queue.__all__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!\w+:)([^)#\s]+)", prose)
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_runs(example: Path, postgres_url: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, example],
        cwd=example.parent,
        env=os.environ | {PREFIX + "POSTGRES_URL": postgres_url, PREFIX + "LOG_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
