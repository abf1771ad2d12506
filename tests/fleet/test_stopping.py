"""How a fleet ends: kindly, in a hurry, by force, and with its terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import time

from aaiclick_queue.settings import Settings
from tests.cli.running import command
from tests.faults.fleet import Console
from tests.fleet import fleet_tasks
from tests.fleet.running import LONGEST, trial

SLOW = """
[groups.slow]
modules = ["MODULE"]
queues = ["slow"]
count = 2
"""


def test_the_first_signal_finishes_what_runs_and_the_second_hands_it_back(settings: Settings, look: Console) -> None:
    with trial(settings, SLOW) as fleet:
        fleet.up()
        fleet.wait_until_running(slow=2)
        fleet.enqueue_waiting(4)
        fleet.wait_for(lambda: len(fleet.runs()) == 4)
        fleet.program.press_ctrl_c()
        fleet.wait_for(lambda: len(fleet.events("worker draining")) == 2)
        assert fleet.sizes() == {"slow": ("STOPPING", 0, 0)}
        for request in (["scale", "slow=3"], ["reload"]):
            code, _, err = fleet.cli(*request)
            assert (code, "fleet 'trial' is stopping" in err) == (1, True)
        assert look.value("SELECT count(*) FROM aaiclick_queue.leases") == 4
        fleet.program.press_ctrl_c()
        assert fleet.program.ends() == 0
        assert look.value("SELECT count(*) FROM aaiclick_queue.leases") == 0
        assert (look.statuses(), look.history()) == ({None: 4}, {})


def test_down_waits_for_what_runs_and_leaves_nothing(settings: Settings, look: Console) -> None:
    with trial(settings, SLOW) as fleet:
        fleet.up()
        fleet.wait_until_running(slow=2)
        fleet.enqueue_waiting(4)
        fleet.wait_for(lambda: len(fleet.runs()) == 4)
        fleet.open_gate.touch()
        assert fleet.cli("down")[:2] == (0, "fleet trial is down\n")
        assert fleet.program.ends() == 0
        assert look.statuses() == {"COMPLETED": 4}
        assert (fleet.left_over(), fleet.address.socket.exists()) == ([], False)
        events = [json.loads(line)["event"] for line in fleet.program.stdout.splitlines()]
        assert events.count("worker started") == events.count("worker stopped") == 2
        assert (events[-1], fleet.program.stderr) == ("fleet ended", "")
        assert fleet.cli("down")[0] == 4

        fleet.open_gate.unlink()
        fleet.enqueue_waiting(4)
        fleet.up()
        fleet.wait_for(lambda: len(fleet.runs()) == 8)
        assert fleet.cli("down", "--now")[:2] == (0, "fleet trial is down\n")
        assert look.statuses() == {"COMPLETED": 4, None: 4}
        assert look.history() == {}


def test_the_third_signal_kills(settings: Settings) -> None:
    with trial(settings, SLOW) as fleet:
        fleet.write(SLOW.replace('"slow"', '"stuck"'))
        fleet.up()
        fleet.wait_until_running(slow=2)
        fleet.enqueue(fleet_tasks.hog, [{"seconds": 90}])
        fleet.wait_for(lambda: len(fleet.runs()) == 1)
        for step in (1, 2, 3):
            fleet.program.process.send_signal(signal.SIGTERM)
            fleet.wait_for(lambda step=step: len(fleet.events("fleet stopping")) == step)
        assert fleet.program.ends() == 1
        assert not fleet.left_over()


DEAF = """
import pathlib, signal, time
from aaiclick_queue import task
signal.signal(signal.SIGTERM, lambda *_: None)
folder = pathlib.Path(__file__).parent
(folder / "importing").touch()
while not (folder / "go-on").exists():
    time.sleep(0.02)
@task
def buy(): ...
"""


def test_a_process_that_missed_its_signal_while_it_started_is_told_again(settings: Settings) -> None:
    with trial(settings, SLOW) as fleet:
        (fleet.folder / "deaf.py").write_text(DEAF)
        fleet.write(SLOW + f'\n[groups.deaf]\nmodules = ["{fleet.folder / "deaf.py"}"]\n')
        fleet.up()
        fleet.wait_for((fleet.folder / "importing").exists)
        assert fleet.cli("scale", "deaf=0")[0] == 0
        assert fleet.sizes()["deaf"] == ("STOPPING", 0, 0)
        (fleet.folder / "go-on").touch()
        fleet.wait_for(lambda: fleet.running(slow=2, deaf=0))
        fleet.down()


def test_a_fleet_ends_with_its_terminal(settings: Settings) -> None:
    with trial(settings, SLOW) as fleet:
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(command()[0], command("fleet", "up", str(fleet.file)), fleet.env)
        heard = b""
        while heard.count(b"takes tasks") < 2:
            heard += os.read(terminal, 1 << 16)
        assert b"\x1b[36mslow-1 \xe2\x94\x82\x1b[0m " in heard, "a terminal shows colours"
        assert b"\x1b[36m\xe2\x86\x92\x1b[0m worker" in heard, "those of the processes too"
        os.kill(pid, signal.SIGHUP)
        while b"slow-2 is replaced" not in heard:
            heard += os.read(terminal, 1 << 16)
        os.close(terminal)
        until = time.monotonic() + LONGEST
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < until, heard[-3000:]
            time.sleep(0.02)
        fleet.wait_until_nothing_is_left()
