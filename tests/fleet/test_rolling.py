"""Processes are replaced, added and taken away under load: no task is lost, no attempt spent."""

from __future__ import annotations

import signal
from pathlib import Path

from aaiclick_queue.settings import Settings
from tests.faults.fleet import Console
from tests.fleet.running import Trial, trial

FOUR = """
modules = ["MODULE"]

[groups.main]
count = 4
slots = 20
"""


def nothing_was_lost(fleet: Trial, look: Console, ids: list[int]) -> None:
    """Every task completed once, in its first attempt, in its only run."""
    fleet.wait_for(lambda: not look.open_tasks())
    assert look.statuses() == {"COMPLETED": len(ids)}
    assert look.rows("SELECT DISTINCT attempt FROM aaiclick_queue.tasks") == [{"attempt": 1}]
    assert look.value("SELECT count(*) FROM aaiclick_queue.attempts") == 0
    assert sorted(run.task_id for run in fleet.runs()) == sorted(ids)


def test_a_rolling_restart_under_load_loses_no_task_and_spends_no_attempt(settings: Settings, look: Console) -> None:
    with trial(settings, FOUR) as fleet:
        fleet.up()
        fleet.wait_until_running(main=4)
        before = set(fleet.pids("main"))
        seen = []

        def replaced() -> bool:
            view = fleet.status()
            assert view is not None
            [group] = view.groups
            seen.append(group)
            return not before & {one.pid for one in group.processes}

        with fleet.load() as ids:
            fleet.wait_for(lambda: {run.pid for run in fleet.runs()} == before)
            fleet.program.process.send_signal(signal.SIGHUP)
            fleet.wait_for(replaced)
            after = set(fleet.pids("main"))
            fleet.wait_for(lambda: {run.pid for run in fleet.runs()} >= after)
        assert {group.running for group in seen} == {4}, "as many as before, all the time"
        assert max(len(group.processes) for group in seen) == 5, "one at a time"
        assert len(after) == 4
        nothing_was_lost(fleet, look, ids)
        assert not fleet.events("process ended")
        fleet.down()


def test_a_fleet_is_scaled_under_load_and_by_its_file_again_at_the_next_reload(
    settings: Settings, look: Console
) -> None:
    with trial(settings, FOUR.replace("4", "1") + "\n[groups.other]\n") as fleet:
        fleet.up()
        fleet.wait_until_running(main=1, other=1)
        [first] = fleet.pids("main")
        with fleet.load() as ids:
            code, out, err = fleet.cli("scale", "main=3", "other=0")
            assert (code, out) == (0, "main: 1 → 3\nother: 1 → 0\n")
            assert "until the next reload or start" in err
            fleet.wait_until_running(main=3, other=0)
            assert first in fleet.pids("main")
            fleet.wait_for(lambda: {run.pid for run in fleet.runs()} >= set(fleet.pids("main")))
            assert fleet.cli("scale", "main=2")[:2] == (0, "main: 3 → 2\n")
            fleet.wait_until_running(main=2, other=0)
            assert fleet.cli("reload")[0] == 0
            fleet.wait_until_running(main=1, other=1)
        nothing_was_lost(fleet, look, ids)
        assert not fleet.events("process ended")

        for wrong, part in {
            "mian=2": "there is no group 'mian' in fleet 'trial'\nfix: did you mean 'main'?\n",
            "main": "fix: GROUP=N with N from 0 to 1,000, as mail=4\n",
            "main=-1": "'main=-1' is no size",
            "main=1001": "'main=1001' is no size",
        }.items():
            code, out, err = fleet.cli("scale", "main=2", wrong)
            assert (code > 0, out) == (True, "")
            assert part in err
        assert fleet.running(main=1, other=1), "all or nothing"
        fleet.down()


def test_a_broken_file_is_refused_and_the_fleet_goes_on_as_it_was(settings: Settings) -> None:
    with trial(settings, FOUR.replace("4", "1") + "\n[groups.other]\n") as fleet:
        fleet.up()
        fleet.wait_until_running(main=1, other=1)
        before = fleet.pids("main") + fleet.pids("other")
        fleet.write(FOUR.replace("slots", "slot"))
        code, _, err = fleet.cli("reload")
        assert code == 78
        assert f"error: {fleet.file} line 7: slot is no key in [groups.main]\nfix: did you mean slots?\n" in err
        fleet.program.process.send_signal(signal.SIGHUP)
        fleet.wait_for(lambda: fleet.events("reload refused"))
        assert fleet.pids("main") + fleet.pids("other") == before

        fleet.write('modules = ["MODULE"]\n[groups.main]\n[groups.new]\ncount = 2\nenvironment = { FLEET_WORD = "hi" }')
        code, out, err = fleet.cli("reload")
        assert (code, out) == (0, "every process is replaced\n")
        assert "main-1 is replaced" in err
        fleet.wait_until_running(main=1, new=2)
        fleet.wait_for(lambda: len(fleet.program.children()) == 3)
        assert not set(before) & set(fleet.program.children())
        fleet.down()


def test_new_processes_that_cannot_start_do_not_cost_the_old_ones(settings: Settings, tmp_path: Path) -> None:
    module = tmp_path / "shop.py"
    module.write_text("from aaiclick_queue import task\n@task\ndef buy(): ...\n")
    with trial(settings, f'[groups.main]\nmodules = ["{module}"]\ncount = 2\n') as fleet:
        fleet.up()
        fleet.wait_until_running(main=2)
        before = fleet.pids("main")
        module.write_text("raise RuntimeError('half deployed')\n")
        code, _, err = fleet.cli("reload")
        assert code == 1
        assert "RuntimeError: half deployed" in err
        assert fleet.pids("main") == before
        code, out, _ = fleet.cli("status")
        assert (code, "the former processes go on: exit code 2" in out) == (0, True)
        module.write_text("from aaiclick_queue import task\n@task\ndef buy(): ...\n")
        assert fleet.cli("reload")[0] == 0
        fleet.wait_until_running(main=2)
        assert not set(before) & set(fleet.pids("main"))
        fleet.down()
