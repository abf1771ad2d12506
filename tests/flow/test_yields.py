"""A worker that bounced tasks it does not know keeps away when they come back, for a moment and not for ever."""

from __future__ import annotations

import json
from pathlib import Path

from aaiclick_queue.claimer import HEAD_START_SECONDS, Yields
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke, invoke
from tests.cli.running import environment, program
from tests.faults.fleet import wait_for

__all__ = ["invoke"]


def test_it_keeps_away_from_the_queue_when_what_it_bounced_is_due() -> None:
    yields = Yields()
    yields.add("mail", [5.0, 5.0], 1000.0)
    assert yields.now(1000.0) == frozenset()
    assert yields.now(1005.0) == {"mail"}
    assert yields.now(1005.0 + HEAD_START_SECONDS + 0.01) == frozenset()


def test_whatever_keeps_coming_it_serves_the_queue_most_of_the_time() -> None:
    yields, away = Yields(), 0
    for step in range(6000):  # ten minutes, with a new unknown task every tenth of a second
        yields.add("mail", [5.0], step / 10)
        away += bool(yields.now(step / 10))
    assert 1000 < away <= 2100


NEW = "from aaiclick_queue import task\n\n@task\nasync def fresh() -> None: ...\n"
OLD = "from aaiclick_queue import task\n\n@task\nasync def stale() -> None: ...\n"


def test_tasks_that_only_one_of_two_idle_workers_knows_are_all_run_by_it(
    settings: Settings, tmp_path: Path, invoke: Invoke
) -> None:
    (tmp_path / "new.py").write_text(NEW)
    (tmp_path / "old.py").write_text(OLD)
    env = environment(settings)
    with program("worker", "-A", str(tmp_path / "old.py"), "--log-format", "json", env=env) as old:
        old.wait_for(lambda: "worker started" in old.stdout)
        for _ in range(10):
            invoke("task", "enqueue", "new.fresh")
        wait_for(lambda: len(json.loads(invoke("task", "list", "--status", "SCHEDULED", "--json").stdout)) == 10)
        with program("worker", "-A", str(tmp_path / "new.py"), "--log-format", "json", env=env) as new:
            new.wait_for(lambda: "worker started" in new.stdout)
            # Each was bounced once by now, and comes back within five seconds: the old one lets the new one have it.
            wait_for(lambda: len(json.loads(invoke("task", "list", "--status", "COMPLETED", "--json").stdout)) == 10)
            [*rows] = json.loads(invoke("task", "list", "--status", "COMPLETED", "--json").stdout)
            assert {row["attempt"] for row in rows} == {1}
