"""`prune`: asks before it deletes, tells what it did, and takes another policy than that of the settings."""

from __future__ import annotations

import asyncio
import json

import pytest

from aaiclick_queue.outcome import Error, Failed, Succeeded
from aaiclick_queue.postgres import Database
from aaiclick_queue.settings import Settings
from tests.cli.conftest import Invoke
from tests.dag.test_prune_jobs import finished as finished_job
from tests.flow.test_prune import add_day, ended


@pytest.fixture
def finished(settings: Settings) -> None:
    """Two tasks completed a week ago, one that failed then, one completed now; one old day of history."""

    async def fill() -> None:
        async with Database(settings, size=1) as db:
            await ended(db, [Succeeded("1"), Succeeded("2"), Failed(Error("ValueError", "no"))], days=7.5)
            await ended(db, [Succeeded("3")], days=0)

    asyncio.run(fill())
    add_day(settings, "events", "2020-01-01")


@pytest.mark.usefixtures("finished")
def test_a_dry_run_says_what_would_go_and_takes_nothing(invoke: Invoke) -> None:
    said = "would prune 2 finished tasks (2 completed) and 1 day partition of history\n"
    for _ in range(2):
        ran = invoke("prune", "--dry-run")
        assert (ran.exit_code, ran.stdout) == (0, said)
    assert invoke("prune", "--yes").stdout == said.replace("would prune", "pruned")
    assert invoke("prune", "--yes").stdout == "pruned 0 finished tasks\n"


@pytest.mark.usefixtures("finished")
def test_nothing_is_deleted_without_a_yes(invoke: Invoke) -> None:
    ran = invoke("prune")
    assert ran.exit_code == 2
    assert "Prune 2 finished tasks (2 completed) and 1 day partition of history?" in ran.stderr
    assert "--yes" in ran.stderr
    assert json.loads(invoke("prune", "--dry-run", "--json").stdout)["tasks"] == 2
    invoke("prune", "--yes")
    assert invoke("prune").exit_code == 0  # nothing to ask for


@pytest.mark.usefixtures("finished")
def test_another_policy_can_be_given(invoke: Invoke) -> None:
    def would(*options: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(invoke("prune", "--dry-run", "--json", *options).stdout)
        return found

    assert would("--completed-days", "forever")["tasks"] == 0
    assert would("--completed-days", "forever")["days"] == []
    failed = would("--completed-days", "8", "--failed-days", "0.5")
    assert (failed["completed"], failed["failed"], failed["days"]) == (0, 1, ["events_20200101"])
    assert would("--max-tasks", "1")["tasks"] == 3
    done = json.loads(invoke("prune", "--max-tasks", "1", "--yes", "--json").stdout)
    assert done == {
        "dry_run": False,
        "tasks": 3,
        "completed": 2,
        "failed": 1,
        "cancelled": 0,
        "jobs": 0,
        "tasks_of_jobs": 0,
        "days": ["events_20200101"],
        "days_left": [],
    }


@pytest.mark.parametrize("given", [("--completed-days", "0"), ("--failed-days", "soon"), ("--max-tasks", "0")])
def test_a_policy_that_says_nothing_clear_is_refused(invoke: Invoke, given: tuple[str, str]) -> None:
    ran = invoke("prune", "--yes", *given)
    assert ran.exit_code == 2
    assert given[0] in ran.stderr


def test_jobs_are_counted_with_their_tasks(invoke: Invoke, settings: Settings) -> None:
    async def fill() -> None:
        async with Database(settings, size=1) as db:
            for _ in range(2):
                await finished_job(db, days=7.5)

    asyncio.run(fill())
    said = "would prune 0 finished tasks and 2 finished jobs with 12 tasks\n"
    assert invoke("prune", "--dry-run").stdout == said
    assert "Prune 0 finished tasks and 2 finished jobs with 12 tasks?" in invoke("prune").stderr
    assert invoke("prune", "--yes").stdout == said.replace("would prune", "pruned")
    assert invoke("prune", "--yes").stdout == "pruned 0 finished tasks\n"
