"""The command line in this process, on the database of the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from aaiclick_queue.cli import main
from aaiclick_queue.settings import PREFIX, Settings

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(settings: Settings) -> Invoke:
    """Runs a command; its exit code and output are in what comes back."""
    given = {PREFIX + "POSTGRES_URL": settings.postgres_url, PREFIX + "LEASE_SECONDS": str(settings.lease_seconds)}
    given[PREFIX + "LOG_DIR"] = str(settings.log_folder)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, env=given, input=stdin)

    return run
