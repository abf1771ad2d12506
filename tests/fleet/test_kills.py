"""What runs after kill -9 is exactly what should run, and what was running is not lost."""

from __future__ import annotations

import os
import signal
from collections import Counter

from aaiclick_queue.settings import Settings
from tests.faults.fleet import Console
from tests.fleet import fleet_tasks
from tests.fleet.running import trial

TWO_GROUPS = """
[groups.slow]
modules = ["MODULE"]
queues = ["slow"]
count = 2
slots = 3

[groups.quick]
modules = ["MODULE"]
count = 1
"""
STUCK = """
[groups.stuck]
modules = ["MODULE"]
queues = ["stuck"]
"""
HELD = "SELECT w.pid, l.task_id FROM aaiclick_queue.leases l JOIN aaiclick_queue.workers w ON w.id = l.worker_id"


def test_killed_workers_are_replaced_and_each_of_their_tasks_has_one_lost_attempt(
    settings: Settings, look: Console
) -> None:
    with trial(settings, TWO_GROUPS) as fleet:
        fleet.up()
        fleet.wait_until_running(slow=2, quick=1)
        before = {*fleet.pids("slow"), *fleet.pids("quick")}
        fleet.enqueue_waiting(6)
        fleet.wait_for(lambda: len(fleet.runs()) == 6)
        victim, other = fleet.pids("slow")
        mine = {row["task_id"] for row in look.rows(HELD) if row["pid"] == victim}
        assert len(mine) == 3
        os.kill(victim, signal.SIGKILL)
        os.kill(fleet.pids("quick")[0], signal.SIGKILL)
        fleet.wait_for(lambda: len({*fleet.pids("slow"), *fleet.pids("quick")} - before) == 2)
        fleet.wait_until_running(slow=2, quick=1)
        assert other in fleet.pids("slow")
        fleet.wait_for(
            lambda: {one for one, times in Counter(run.task_id for run in fleet.runs()).items() if times == 2} == mine
        )
        assert {event["exit"] for event in fleet.events("process ended")} == {"SIGKILL"}
        fleet.open_gate.touch()
        fleet.wait_for(lambda: not look.open_tasks())
        assert look.statuses() == {"COMPLETED": 6}
        lost = look.rows("SELECT task_id, outcome FROM aaiclick_queue.attempts")
        assert sorted((row["task_id"], row["outcome"]) for row in lost) == sorted((one, "LOST") for one in mine)
        fleet.down()
        assert not fleet.left_over()


def test_a_killed_supervisor_leaves_no_process_and_its_workers_hand_back_what_they_ran(
    settings: Settings, look: Console
) -> None:
    with trial(settings, TWO_GROUPS + STUCK) as fleet:
        fleet.up()
        fleet.wait_until_running(slow=2, quick=1, stuck=1)
        # No print may fail in the moment between the supervisor's death and the hand-back: it would cost the attempt.
        ids = fleet.enqueue(fleet_tasks.chatter, [{"path": str(fleet.open_gate)}] * 2) + fleet.enqueue_waiting(4)
        [stuck] = fleet.enqueue(
            fleet_tasks.hog, [{"seconds": 90}]
        )  # its worker cannot hand back, and ends all the same
        fleet.wait_for(lambda: len(fleet.runs()) == 7)
        fleet.program.process.kill()
        fleet.program.ends()
        fleet.wait_until_nothing_is_left()
        assert look.rows("SELECT task_id FROM aaiclick_queue.leases") == [{"task_id": stuck}]
        assert look.history() == {}
        assert fleet.address.socket.exists(), "nobody was left to remove it"

        assert fleet.cli("status")[0] == 4
        fleet.up()
        fleet.wait_until_running(slow=2, quick=1, stuck=1)
        fleet.open_gate.touch()
        fleet.wait_for(lambda: not look.open_tasks())
        assert look.statuses() == {"COMPLETED": 7}
        assert look.rows("SELECT DISTINCT attempt FROM aaiclick_queue.tasks") == [{"attempt": 1}]
        assert Counter(run.task_id for run in fleet.runs()) == dict.fromkeys([*ids, stuck], 2)
        assert look.rows("SELECT task_id, outcome FROM aaiclick_queue.attempts") == [
            {"task_id": stuck, "outcome": "LOST"}
        ]
        fleet.down()
