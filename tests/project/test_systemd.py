"""The systemd units, by systemd's own verifier."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from aaiclick_queue.cli.fleet_up import WIND_DOWN_SECONDS
from aaiclick_queue.settings import Settings
from tests.project.deployables import SETTINGS, UNITS, seconds, shown, unit
from tests.servers import find_tool

EXPOSURE = 20  # of 100, in systemd's own marks: 14 to 15 is what it is
SYSTEM_UNITS = Path("/usr/lib/systemd/system")
MIGRATE = "aaiclick-queue-migrate.service"
STAYING = [file for file in UNITS if file.name != MIGRATE]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a machine that our units are installed on, with everything they start."""
    root = tmp_path_factory.mktemp("machine")
    installed = root / "etc/systemd/system"
    installed.mkdir(parents=True)
    shutil.copytree(SYSTEM_UNITS, root / "usr/lib/systemd/system", symlinks=True)
    (root / "lib").symlink_to("usr/lib")
    for file in UNITS:
        shutil.copy(file, installed)
    for program in ("opt/aaiclick-queue/bin/aaiclick-queue", "bin/kill"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).touch(mode=0o755)
    return root


def verified(machine: Path, *units: str) -> str:
    """What systemd says about the units; nothing is what it says of good ones."""
    command = [str(find_tool("systemd-analyze")), "verify", "--man=no", f"--root={machine}", *units]
    ran = subprocess.run(command, capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    assert said or ran.returncode == 0
    return said


@pytest.mark.needs_tool("systemd-analyze")
@pytest.mark.parametrize("file", UNITS, ids=shown)
def test_systemd_takes_the_unit(machine: Path, file: Path) -> None:
    assert verified(machine, file.name.replace("@.", "@mail.")) == ""


@pytest.mark.needs_tool("systemd-analyze")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ProtectSystem=strict", "ProtectSystm=strict", "Unknown key"),
        ("KillMode=mixed", "KillMode=gently", "gently"),
        ("bin/aaiclick-queue fleet", "bin/aaiclick fleet", "not executable"),
        ("TimeoutStopSec=75s", "TimeoutStopSec=75 apples", "apples"),
    ],
)
def test_systemd_would_tell_of_a_mistake(machine: Path, old: str, new: str, said: str) -> None:
    text = next(file for file in UNITS if "fleet" in file.name).read_text()
    assert old in text
    (machine / "etc/systemd/system/broken.service").write_text(text.replace(old, new))
    assert said in verified(machine, "broken.service")


@pytest.mark.needs_tool("systemd-analyze")
@pytest.mark.parametrize("file", UNITS, ids=shown)
def test_a_unit_may_do_little_more_than_it_needs(file: Path) -> None:
    command = [str(find_tool("systemd-analyze")), "security", "--offline=true", f"--threshold={EXPOSURE}", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("file", STAYING, ids=shown)
def test_a_unit_drains_before_it_is_killed(file: Path) -> None:
    service = unit(file)["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert seconds(service["TimeoutStopSec"]) >= Settings.load({}).grace_seconds + WIND_DOWN_SECONDS
    assert service["OOMPolicy"] == "continue"


@pytest.mark.parametrize("file", STAYING, ids=shown)
def test_the_schema_is_migrated_before_a_unit_starts(file: Path) -> None:
    wanted = unit(file)["Unit"]
    assert MIGRATE in wanted["Wants"].split()
    assert MIGRATE in wanted["After"].split()


def test_what_all_units_share_is_the_same_in_all() -> None:
    fleet, migrate, server, worker = (unit(file)["Service"] for file in UNITS)
    hardening = {key for key in fleet if re.match(r"(Protect|Private|Restrict[A-Z]|NoNew|SystemCall|Lock|Cap)", key)}
    assert len(hardening) > 15
    for key in hardening - {"RestartPreventExitStatus"}:
        assert fleet[key] == worker[key] == server[key], key
    for service in (fleet, migrate, server, worker):
        assert service["User"] == "aaiclick-queue"
        assert service["NoNewPrivileges"] == "yes"
        assert service["ProtectSystem"] == "strict"


def test_the_fleet_is_reloaded_by_the_signal_that_it_knows() -> None:
    [fleet] = [file for file in UNITS if "fleet" in file.name]
    assert shlex.split(unit(fleet)["Service"]["ExecReload"]) == ["/bin/kill", "-HUP", "$MAINPID"]


def test_every_unit_reads_the_settings_from_one_file() -> None:
    for file in UNITS:
        assert "/etc/aaiclick-queue/tasks.env" in unit(file)["Service"]["EnvironmentFile"].splitlines()
    assert "EnvironmentFile= in systemd" in SETTINGS.read_text()
