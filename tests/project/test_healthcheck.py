"""The command that the image and the probes ask by: what it tells, and what it does without."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

from aaiclick_queue.settings import PREFIX, Settings
from tests.fleet.running import MODULE, Trial, trial
from tests.project.deployables import healthcheck

NOWHERE = {PREFIX + "POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
GOOD = '[groups.good]\nmodules = ["MODULE"]\n'
BAD = '[groups.bad]\nmodules = ["tests.fleet.nowhere"]\n'


def checked(fleet: Trial) -> tuple[int, set[str]]:
    """Its exit code while Postgres is away, and the modules that it imported."""
    command = [sys.executable, "-X", "importtime", "-m", "aaiclick_queue", *healthcheck()[1:]]
    ran = subprocess.run(command, env=fleet.env | NOWHERE, capture_output=True, text=True, timeout=30)
    return ran.returncode, set(re.findall(r"\|\s+(\S+)$", ran.stderr, re.MULTILINE))


def test_a_fleet_is_healthy_also_while_postgres_is_away(settings: Settings) -> None:
    with trial(settings, GOOD) as fleet:
        fleet.up()
        fleet.wait_until_running(good=1)
        code, imported = checked(fleet)
        assert code == 0
        assert "aaiclick_queue.fleet.control" in imported
        assert imported & {MODULE, "asyncpg", "redis", "sqlalchemy"} == set()
        fleet.down()


def test_a_fleet_with_a_failed_group_is_not_healthy(settings: Settings) -> None:
    with trial(settings, GOOD + BAD) as fleet:
        fleet.up()
        fleet.wait_for(lambda: fleet.sizes().get("bad", ("",))[0] == "FAILED")
        assert checked(fleet)[0] == 1
        fleet.down(code=1)


def test_where_no_supervisor_is_left_nothing_is_healthy(settings: Settings) -> None:
    with trial(settings, GOOD) as fleet:
        fleet.up()
        fleet.wait_until_running(good=1)
        fleet.program.process.send_signal(signal.SIGKILL)
        fleet.program.process.wait()
        assert checked(fleet)[0] == 4
