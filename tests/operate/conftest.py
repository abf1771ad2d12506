"""Clients and settings of the tests of what operators see; a ClickHouse: the embedded engine behind HTTP."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import invoke
from tests.cli.running import PROJECT, environment
from tests.conftest import NEEDS
from tests.flow.conftest import as_default, client, quick

__all__ = ["as_default", "client", "invoke", "quick"]


class ClickHouse:
    """It can go away and come back, with what it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.come()

    @property
    def url(self) -> str:
        return f"clickhouse://default:secret@127.0.0.1:{self.port}/default"

    def come(self) -> None:
        # Not forked: the engine does not live through that.
        given = [sys.executable, "-m", "tests.operate.clickhouse_shim", str(self._folder), str(self.port)]
        self._process = subprocess.Popen(given, cwd=PROJECT, env=environment(), stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def go(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="session")
def engine() -> None:
    """The embedded engine, where there is a wheel of it."""
    if importlib.util.find_spec("chdb") is None:
        pytest.skip(f"{NEEDS}chdb, of which there is a wheel for Linux")


@pytest.fixture(scope="module")
def clickhouse_of_module(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    clickhouse = ClickHouse(tmp_path_factory.mktemp("clickhouse") / "db")
    yield clickhouse
    clickhouse.go()


@pytest.fixture
def clickhouse(clickhouse_of_module: ClickHouse) -> Iterator[ClickHouse]:
    """One that is there when the test begins."""
    yield clickhouse_of_module
    clickhouse_of_module.go()
    clickhouse_of_module.come()
