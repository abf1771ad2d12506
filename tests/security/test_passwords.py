"""The passwords of Postgres and Redis are in the environment of every program, and in nothing that one prints."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from aaiclick_queue.settings import Settings
from tests.cli.running import MODULE, environment, run

PASSWORD, OTHER = "hunter2-of-postgres", "hunter2-of-redis"
COMMANDS = [
    ["worker", "-A", MODULE, "--burst", "--log-format", "pretty"],
    ["worker", "-A", MODULE, "--burst", "--log-format", "json"],
    ["config"],
    ["doctor"],
    ["doctor", "--json"],
    ["workers", "list", "--json"],
    ["queue", "list"],
    ["top", "--once"],
]


def with_password(url: str, password: str) -> str:
    """The same server; where everybody is trusted any password will do."""
    parts = urlsplit(url)
    at = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or ""
    return parts._replace(netloc=f"{parts.username or 'postgres'}:{password}@{at}").geturl()


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "away"])
def test_no_command_prints_a_password(settings: Settings, is_up: bool, tmp_path: Path) -> None:
    url = with_password(settings.postgres_url or "", PASSWORD)
    if not is_up:
        url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:1/nothing"
    redis = f"redis://user:{OTHER}@127.0.0.1:1/0"  # never there: what is told of that names it too
    env = environment(settings, LOG_DIR=str(tmp_path), ENQUEUE_TIMEOUT_SECONDS="1")
    env |= {"AAICLICK_QUEUE_POSTGRES_URL": url, "AAICLICK_QUEUE_REDIS_URL": redis}
    if is_up:
        assert run("task", "enqueue", f"{MODULE}.fail", env=env).returncode == 0
    for command in COMMANDS:
        said = run(*command, env=env)
        for text in (said.stdout, said.stderr, *(path.read_text() for path in tmp_path.rglob("*") if path.is_file())):
            assert PASSWORD not in text, command
            assert OTHER not in text, command
