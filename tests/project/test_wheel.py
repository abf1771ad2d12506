"""The wheel works where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import aaiclick_queue
from aaiclick_queue import migrate
from aaiclick_queue.settings import PREFIX
from tests.servers import Databases

PROJECT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", PREFIX))}
    ran = subprocess.run(command, cwd=cwd, env=inherited | environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=PROJECT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new virtual environment that has the wheel, and our packages to depend on."""
    venv = tmp_path_factory.mktemp("elsewhere") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(venv), "platbase": str(venv)}))
    # A .pth inside a folder that another .pth names is not read, so the repository itself stays out of sight.
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(
        *(sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install"),
        *("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel),
        cwd=venv.parent,
    )
    return venv / "bin"


def test_the_wheel_carries_the_package_its_types_and_its_migrations_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"aaiclick_queue"}
    assert {"aaiclick_queue/py.typed", "aaiclick_queue/migrations/env.py"} <= set(names)
    assert any(name.startswith("aaiclick_queue/migrations/versions/0001") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_plugin_is_found_by_pytest_and_tests_the_example(
    installed: Path, tmp_path: Path, databases: Databases
) -> None:
    shop = tmp_path / "shop"
    shutil.copytree(PROJECT / "examples" / "shop", shop, ignore=shutil.ignore_patterns("__pycache__"))
    told = run(
        *(installed / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:anyio"),
        cwd=shop,
        **{PREFIX + "POSTGRES_URL": databases.url("postgres")},
    )
    assert "10 passed" in told


def test_the_installed_program_tells_its_version(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import aaiclick_queue; print(aaiclick_queue.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert aaiclick_queue.__version__ in run(installed / "aaiclick-queue", "--version", cwd=tmp_path)


def test_the_installed_program_migrates_an_empty_database(
    installed: Path, tmp_path: Path, empty_postgres_url: str
) -> None:
    given = {PREFIX + "POSTGRES_URL": empty_postgres_url}
    run(installed / "aaiclick-queue", "migrate", cwd=tmp_path, **given)
    assert migrate.HEAD in run(installed / "aaiclick-queue", "migrate", "current", cwd=tmp_path, **given)
