"""The image: what its file says; building it takes a registry, which the tests do without."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.deployables import DOCKERFILE, LOCKS, PROJECT, healthcheck, shown, stages, the_last

Pins = dict[str, frozenset[str]]


def test_the_linter_has_nothing_against_it() -> None:
    ran = subprocess.run([Path(sys.executable).with_name("hadolint"), DOCKERFILE], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_it_is_built_from_one_slim_image_with_a_version() -> None:
    [before, *built] = stages()
    [argument] = before
    assert argument.name == "ARG"
    assert re.fullmatch(r"PYTHON=3\.\d+-slim-[a-z]+", argument.text)
    assert [stage[0].text.split()[0] for stage in built] == ["python:${PYTHON}"] * 2


def test_it_does_not_run_as_root() -> None:
    user, group = the_last("USER").text.split(":")
    assert int(user) == int(group) >= 1000
    [made] = [step.text for step in stages()[-1] if step.name == "RUN"]
    assert f"--uid {user} " in made


def test_it_is_told_to_stop_as_workers_are_and_runs_without_a_shell() -> None:
    assert the_last("STOPSIGNAL").text == "SIGTERM"
    assert the_last("ENTRYPOINT").words == ["aaiclick-queue"]
    assert the_last("CMD").words == ["fleet", "up", "workers/fleet.toml"]
    assert healthcheck() == ["aaiclick-queue", "fleet", "status", "--json"]


def test_the_last_stage_installs_nothing() -> None:
    assert not re.search(r"\b(pip|apt-get|apk|curl|wget)\b", " ".join(step.text for step in stages()[-1]))


def test_whatever_is_installed_from_afar_is_checked_by_its_hash() -> None:
    installs = re.findall(r"pip[^&]* install [^&]*", " ".join(step.text for stage in stages() for step in stage))
    assert len(installs) == 3
    for install in installs:
        assert "--require-hashes -r " in install or "--no-deps --no-index dist/*.whl" in install


def copied() -> list[str]:
    """What is copied from the repository."""
    steps = [step.text for stage in stages() for step in stage if step.name == "COPY" and "--from=" not in step.text]
    return [source for step in steps for source in step.split()[:-1]]


def test_what_is_copied_exists_and_nothing_else_is_sent_to_the_builder() -> None:
    assert [source for source in copied() if not (PROJECT / source).exists()] == []
    lines = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())


def test_the_fleet_finds_its_modules_where_they_are_copied_to() -> None:
    fleet = tomllib.loads((PROJECT / "workers/fleet.toml").read_text())
    assert fleet["folder"] == ".."
    groups = [fleet, *fleet["groups"].values()]
    modules = [module for group in groups for module in group.get("modules", [])]
    assert modules
    assert set(modules) <= set(copied())


def pins(file: Path) -> Pins:
    """Requirement line → hashes."""
    found: Pins = {}
    for block in re.split(r"\n(?=[a-z])", file.read_text()):
        [line, *hashes] = re.split(r"\s*\\\n\s*", block.strip())
        if not line.startswith("#"):
            found[line] = frozenset(hashes)
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=shown)
def test_the_image_has_the_versions_that_are_tested(lock: Path) -> None:
    tested = pins(PROJECT / "requirements.lock")
    assert pins(lock)
    for line, hashes in pins(lock).items():
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes)
        assert hashes, line
        assert tested.get(line) == hashes, f"{line} is not in requirements.lock: run make lock"


def test_the_image_has_all_that_the_package_needs() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    locked = {canonicalize_name(Requirement(line).name) for line in pins(PROJECT / "workers/run.lock")}
    open_ = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["psycopg"])]
    seen = set()
    while open_:
        wish = open_.pop()
        key = (canonicalize_name(wish.name), *sorted(wish.extras))
        if key in seen:
            continue
        seen.add(key)
        for text in metadata.requires(wish.name) or []:
            below = Requirement(text)
            if below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in ("", *wish.extras)):
                open_.append(below)
    assert len(seen) > 15
    assert {name for name, *_ in seen} - locked == set(), "run: make lock"
