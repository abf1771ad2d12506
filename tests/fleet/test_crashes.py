"""Processes that end when nobody asked them to: started again, with more and more patience, or given up loudly."""

from __future__ import annotations

import json

import pytest

from aaiclick_queue.fleet.patience import BAD_SETTINGS, UNREACHABLE, USAGE, Exit, Patience
from aaiclick_queue.settings import Settings
from tests.cli.running import run
from tests.faults.fleet import Console
from tests.fleet import fleet_tasks
from tests.fleet.running import trial

CRASHING = """
[groups.good]
modules = ["MODULE"]

[groups.looping]
modules = ["FOLDER/looping.py"]

[groups.missing]
modules = ["nosuch"]
count = 3
"""


def crash(*, lived: float = 1.0, code: int = 1, was_ready: bool = True) -> Exit:
    return Exit(code, lived, was_ready)


def test_patience_doubles_and_ends_with_the_fifth_early_exit() -> None:
    patience = Patience()
    assert [patience.after(crash(was_ready=False)) for _ in range(5)] == [1, 2, 4, 8, None]


def test_a_process_that_lived_for_five_minutes_begins_the_count_anew() -> None:
    patience = Patience()
    assert [patience.after(crash(lived=299)) for _ in range(4)] == [1, 1, 1, 1]
    assert patience.after(crash(lived=300)) == 1
    assert [patience.after(crash()) for _ in range(5)] == [2, 4, 8, 16, None]


def test_one_that_ends_well_is_followed_at_once_however_often_and_is_no_crash() -> None:
    patience = Patience()
    assert [patience.after(crash()) for _ in range(4)] == [1, 2, 4, 8]
    assert [patience.after(crash(code=0)) for _ in range(10)] == [0] * 10
    assert patience.after(crash()) == 1
    assert patience.after(crash(code=0, was_ready=False)) == 2, "it never took a task"


@pytest.mark.parametrize("code", [USAGE, BAD_SETTINGS])
def test_what_would_say_the_same_again_is_given_up_at_once(code: int) -> None:
    assert Patience().after(crash(code=code)) is None


def test_postgres_that_is_away_is_waited_for_without_end() -> None:
    patience = Patience()
    waits = [patience.after(crash(code=UNREACHABLE, was_ready=False)) for _ in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_groups_that_cannot_be_kept_are_failed_and_the_others_run_on(settings: Settings, look: Console) -> None:
    with trial(settings, "") as fleet:
        (fleet.folder / "looping.py").write_text("import os\nos._exit(3)\n")
        fleet.write(CRASHING.replace("FOLDER", str(fleet.folder)))
        fleet.up()
        fleet.wait_for(lambda: fleet.sizes().get("missing") == ("FAILED", 0, 3))
        fleet.wait_for(lambda: fleet.sizes()["looping"] == ("STARTING", 0, 1) and fleet.events("process ended"))
        code, out, _ = fleet.cli("status")
        assert code == 1
        assert "! missing: exit code 2 (there is no module 'nosuch'" in out

        fleet.wait_for(lambda: (fleet.group("looping").next_start_s or 0) > 1)
        # Stopped from afar, it has done its part and is followed by another, whatever becomes of the other groups.
        before = fleet.pids("good")
        [listed] = json.loads(run("workers", "list", "--json", env=fleet.env).stdout)
        assert listed["fleet"] == "good"
        assert run("workers", "stop", listed["id"], env=fleet.env).returncode == 0
        fleet.wait_for(lambda: fleet.sizes()["good"] == ("RUNNING", 1, 1) and fleet.pids("good") != before)

        fleet.wait_for(lambda: fleet.sizes()["looping"] == ("FAILED", 0, 1))
        ended = [(event["process_name"], event["again_in_s"]) for event in fleet.events("process ended")]
        assert [again for name, again in ended if name == "looping-1"] == [1, 2, 4, 8]
        assert [again for name, again in ended if name == "good-1"] == [0]
        assert {event["group"] for event in fleet.events("group failed")} == {"looping", "missing"}
        fleet.enqueue(fleet_tasks.tick, [{}])
        fleet.wait_for(lambda: look.statuses() == {"COMPLETED": 1})
        shown = json.loads(fleet.cli("status", "--json")[1])
        looping = shown["groups"][1]
        assert (shown["state"], shown["name"], shown["file"]) == ("FAILED", "trial", str(fleet.file))
        assert (looping["restarts"], looping["last_exit"], looping["next_start_s"]) == (4, "exit code 3", None)
        assert "5 early exits" in looping["note"]

        (fleet.folder / "looping.py").write_text("from aaiclick_queue import task\n@task\ndef buy(): ...\n")
        code, _, err = fleet.cli("reload")
        assert (code, "not every process came up" in err) == (1, True)
        fleet.wait_for(lambda: fleet.sizes()["looping"] == ("RUNNING", 1, 1))
        assert fleet.sizes()["missing"] == ("FAILED", 0, 3)
        fleet.down(code=1)


def test_a_fleet_of_which_nothing_can_be_kept_ends_by_itself(settings: Settings) -> None:
    with trial(settings, '[groups.missing]\nmodules = ["nosuch"]\n') as fleet:
        fleet.up()
        assert fleet.program.ends() == 1
