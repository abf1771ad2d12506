"""What workers/ and the compose file hold: each file has a validator, and what they say of us is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aaiclick_queue.cli.fleet_up import WIND_DOWN_SECONDS
from aaiclick_queue.fleet.file import read
from aaiclick_queue.settings import PREFIX, Settings
from tests.project.commands import PROGRAM, refusal
from tests.project.deployables import (
    COMPOSE,
    DOCKERFILE,
    FILES,
    FLEET,
    LOCKS,
    MANIFESTS,
    MONITORING,
    PROJECT,
    SETTINGS,
    UNITS,
    calls,
    compose,
    environments,
    grace_seconds,
    seconds,
    shown,
    stages,
)

# test_dockerfile.py, test_systemd.py, test_kubernetes.py, test_monitoring.py, and the rest here.
CHECKED = {DOCKERFILE, FLEET, SETTINGS, *LOCKS, *UNITS, *MANIFESTS, *MONITORING}
IMAGES = {
    "postgres": "postgres:17",
    "redis": "redis:7",
    "clickhouse": "clickhouse/clickhouse-server:25.8",
    "prometheus": "prom/prometheus:v3.5.0",
}
OURS = {"migrate", "fleet", "server"}


def test_every_file_has_a_validator() -> None:
    assert set(FILES) - CHECKED == set()
    assert set(FILES) >= CHECKED


def test_the_fleet_file_is_one_that_the_fleet_takes() -> None:
    fleet = read(FLEET, {})
    assert set(fleet.groups) == {"mail", "reports"}
    for group in fleet.groups.values():
        assert group.modules
        assert all((fleet.folder / module).is_file() for module in group.modules)


# Commands.


@pytest.mark.parametrize(("where", "call"), list(calls()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_in_a_file_is_one_that_we_take(
    where: str, call: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROJECT)
    assert refusal(call) is None, where


def test_a_command_that_we_do_not_take_is_found() -> None:
    for call in (
        ["flet", "up"],
        ["fleet", "up"],
        ["worker", "--slots", "3"],
        ["worker", "-c", "many"],
        ["migrate", "x", "y"],
    ):
        assert refusal(call), f"{PROGRAM} {call}"


def test_every_file_starts_something_of_ours() -> None:
    started = {where.split()[0] for where, _ in calls()}
    assert {shown(file) for file in (DOCKERFILE, COMPOSE, *UNITS)} <= started


# Settings.


@pytest.mark.parametrize("where", environments())
def test_the_settings_of_a_deployment_are_ones_that_we_take(where: str) -> None:
    settings = Settings.load(environments()[where])
    assert settings.postgres_url is not None
    assert settings.redis_url is not None


def test_the_example_of_settings_shows_the_defaults() -> None:
    shown_values = {name.removeprefix(PREFIX).lower(): text for name, text in environments()[shown(SETTINGS)].items()}
    for name, text in shown_values.items():
        if not name.endswith("_url"):
            assert str(Settings.model_fields[name].default) == text, name


def test_the_image_keeps_its_files_where_it_may_write() -> None:
    [made] = [step.text for step in stages()[-1] if step.name == "RUN"]
    [given] = [step.text for step in stages()[-1] if step.name == "ENV"]
    home = dict(word.split("=", 1) for word in given.split())[f"{PREFIX}HOME"]
    logs = dict(word.split("=", 1) for word in given.split())[f"{PREFIX}LOG_DIR"]
    assert made.split()[-2:] == [home, logs]
    for name in OURS:
        assert any(mount.startswith(f"{home}:uid=10001,") for mount in compose()["services"][name]["tmpfs"])


# Compose.


def test_the_compose_file_fits_its_schema() -> None:
    assert complaints(COMPOSE) == ""


def test_a_compose_file_with_a_mistake_would_not(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace_time"))
    assert "stop_grace_time" in complaints(broken)


def complaints(file: Path) -> str:
    """What the schema of the Compose Specification has against the file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


@pytest.mark.needs_tool("docker-compose")
def test_docker_compose_takes_the_compose_file() -> None:
    ran = subprocess.run(["docker-compose", "-f", COMPOSE, "config", "--quiet"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_compose_file_offers_servers_on_this_machine_alone() -> None:
    services = compose()["services"]
    assert {name: service["image"] for name, service in services.items() if name not in OURS} == IMAGES
    for name in IMAGES:
        assert services[name]["healthcheck"]["test"]
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
        kept = [volume.split(":")[0] for volume in services[name]["volumes"] if not volume.startswith("./")]
        assert all(volume in compose()["volumes"] for volume in kept)


def test_the_fleet_of_the_compose_file_is_our_image_and_starts_last() -> None:
    services = compose()["services"]
    for name in OURS:
        assert services[name]["build"] == {"context": ".", "dockerfile": shown(DOCKERFILE)}
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
    waits_for = {name: wait["condition"] for name, wait in services["fleet"]["depends_on"].items()}
    assert waits_for["migrate"] == "service_completed_successfully"
    assert waits_for["postgres"] == waits_for["redis"] == "service_healthy"


def test_the_fleet_of_the_compose_file_drains_before_it_is_killed() -> None:
    fleet = compose()["services"]["fleet"]
    assert seconds(fleet["stop_grace_period"]) >= grace_seconds("docker-compose.yml fleet") + WIND_DOWN_SECONDS


def test_urls_of_the_compose_file_lead_to_its_servers() -> None:
    services = compose()["services"]
    settings = Settings.load(environments()["docker-compose.yml fleet"])
    assert settings.postgres_url == "postgresql://queue:queue@postgres:5432/queue"
    assert settings.redis_url == "redis://redis:6379/0"
    for server, port in (("postgres", 5432), ("redis", 6379)):
        assert services[server]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert services["postgres"]["environment"]["POSTGRES_USER"] == "queue"
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "${POSTGRES_PASSWORD:-queue}"


def test_passwords_of_the_compose_file_are_kept_out_of_git_and_of_the_image() -> None:
    assert ".env" in (PROJECT / ".gitignore").read_text().splitlines()
    assert "!.env" not in (PROJECT / ".dockerignore").read_text()
